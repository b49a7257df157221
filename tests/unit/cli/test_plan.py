"""``millrace plan APP CHECKPOINT``, and ``p.plan(checkpoint)``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch
from millrace.store import open_location

from .conftest import Checkpoint, Counter

APP = """
import millrace as mr
from tests.unit.cli.conftest import Counter

class Seen(Counter):
    pass

def pages(*computations):
    p = mr.Pipeline("pages")
    p.inject("clicks")
    for computation, name in computations:
        p.add(computation, name=name)
    return p

same = pages((Counter, "Counter[bold]"))
more = pages((Counter, "Counter[bold]"), (Seen, "Seen"))
renamed = pages((Counter, "Counts"))
instead = pages((Counter, "Counts"))
instead.remove("Counter[bold]")
other = mr.Pipeline("others")
other.inject("clicks")
other.add(Counter, name="Counter[bold]")
"""


@pytest.fixture
def app(tmp_path: Path, checkpoint: Checkpoint) -> str:
    checkpoint.epoch("index", "about", low_watermark=10)
    (tmp_path / "shop.py").write_text(APP)
    return str(tmp_path / "shop.py")


def files(path: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in path.rglob("*") if one.is_file()}


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("same", 0, ["kept      computation 'Counter[bold]': 1 state cell", "\n1 kept. Nothing"]),
        ("more", 0, ["added     computation 'Seen': new in the pipeline", "1 added, 1 kept."]),
        ("instead", 0, ["dropped   computation 'Counter[bold]': its state", "1 dropped, 1 added."]),
        (
            "renamed",
            3,
            [
                "refused   computation 'Counter[bold]': in the checkpoint, gone from the pipeline",
                "-> to drop what it keeps, say so: p.remove('Counter[bold]')",
                "1 refused, 1 added.",
            ],
        ),
        ("other", 3, ["refused   pipeline 'others': this checkpoint belongs to pipeline 'pages'"]),
    ],
)
def test_a_plan_says_what_a_start_would_do_and_writes_nothing(
    millrace: Any, app: str, checkpoint: Checkpoint, name: str, code: int, lines: list[str]
) -> None:
    before = files(checkpoint.path)

    shown = millrace("plan", f"{app}:{name}", str(checkpoint.path))

    assert shown.exit_code == code, shown.output
    assert all(line in shown.output for line in lines), shown.output
    plain = json.loads(millrace("plan", f"{app}:{name}", str(checkpoint.path), "--json").output)
    assert (plain["refused"] > 0) == (code == 3)
    assert {one["kind"] for one in plain["changes"]} == {line.split()[0] for line in _rows(shown)}
    assert files(checkpoint.path) == before


def _rows(shown: Any) -> list[str]:
    return [line for line in shown.output.splitlines()[1:-1] if not line.lstrip().startswith("->")]


def test_a_start_that_is_refused_says_the_plan(app: str, checkpoint: Checkpoint) -> None:
    p = mr.Pipeline("pages")
    p.inject("clicks")
    p.add(Counter, name="Counts")
    plan = p.plan(checkpoint.path)
    assert len(plan.refused) == 1

    with pytest.raises(CheckpointMismatch) as refused:
        RunLog(p.build(), open_location(checkpoint.path, pipeline="pages"), intervals=1)

    assert str(refused.value).startswith(str(plan))


def test_what_is_no_checkpoint_is_an_error(millrace: Any, app: str, tmp_path: Path) -> None:
    shown = millrace("plan", f"{app}:same", str(tmp_path / "nothing"))
    assert shown.exit_code == 1
    assert "no checkpoint, there is nothing at that path" in shown.output


def test_of_a_checkpoint_that_was_only_claimed_everything_is_told(
    millrace: Any, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    shown = millrace("plan", f"{tmp_path / 'shop.py'}:same", str(checkpoint.path))
    assert (shown.exit_code, "before its first epoch" in shown.output) == (0, True)


@pytest.mark.parametrize("complete", [True, False], ids=["completed", "under way"])
def test_a_plan_does_not_depend_on_whether_an_epoch_is_under_way(
    millrace: Any, app: str, checkpoint: Checkpoint, complete: bool
) -> None:
    """A computation may be dropped only between two epochs: a start waits, a plan does not."""
    checkpoint.epoch("index", low_watermark=20, complete=complete)

    arguments = ("plan", f"{app}:instead", str(checkpoint.path))
    plain = json.loads(millrace(*arguments, "--json").output)
    shown = millrace(*arguments)

    assert (shown.exit_code, plain["refused"]) == (0, 0), shown.output
    assert [one["kind"] for one in plain["changes"]] == ["dropped", "added"]
    assert plain["epoch"] == (1 if complete else 0)
    assert plain["under_way"] == (None if complete else 1)
    assert plain["waiting"] == (
        [] if complete else ["computation 'Counter[bold]'", "computation 'Counts'"]
    )
    assert ("Epoch 1 is under way" in shown.output) == (not complete)
