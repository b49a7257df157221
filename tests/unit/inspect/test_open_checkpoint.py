"""``open_checkpoint``: a directory that a run left, in a program that knows nothing of it."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import CheckpointMismatch

#: Written by a pipeline that is nowhere in this process.
SHOP = Path(__file__).parents[1] / "kernel" / "data" / "checkpoint.json"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path / "ckpt"
    for name, content in json.loads(SHOP.read_text())["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = isinstance(content, str)
        path.write_bytes(content.encode() if whole else base64.b64decode(content["base64"]))
    return folder


def files(folder: Path) -> dict[str, Any]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_state_is_read_without_the_code_that_wrote_it(shop: Path) -> None:
    before = files(shop)
    checkpoint = mr.ops.open_checkpoint(shop)

    assert (checkpoint.epoch, checkpoint.overview.unfinished) == (1, 2)
    assert checkpoint.computations == ["Ranks", "Totals"]
    assert checkpoint["Totals"].get("tea") == {
        "bids": [3, 4], "high": 4, "kept": 7, "prices": {3: 1, 4: 1},
    }  # fmt: skip
    assert {one.key for one in checkpoint["Totals"].scan()} == {"tea", "milk", "rum"}
    assert [ids.count for ids in checkpoint["Totals"].delivered_ids()]
    assert files(shop) == before


def test_an_earlier_epoch_of_it_is_read_by_its_number(shop: Path) -> None:
    found = mr.ops.open_checkpoint(str(shop), epoch=0)

    assert {one.key for one in found["Totals"].scan()} == {"tea", "milk"}


def test_neither_pyspark_nor_a_jvm_is_needed(shop: Path) -> None:
    program = (
        "import sys, millrace as mr\n"
        f"print(mr.ops.open_checkpoint({str(shop)!r})['Totals'].get('rum')['kept'])\n"
        "assert not any(name.split('.')[0] in ('pyspark', 'py4j') for name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("90\n", "")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="it has no FORMAT file"):
        mr.ops.open_checkpoint(tmp_path)
