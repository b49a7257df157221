"""docs/checkpoint-format.md: what it says how to read is read so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.store import (
    Commit,
    LocalHardState,
    MemoryCache,
    SegmentName,
    SnapshotPolicy,
    write_if_due,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "checkpoint-format.md"
Make = Callable[..., Commit]


@pytest.fixture
def checkpoint(tmp_path: Path, commit: Make) -> Path:
    state = LocalHardState.create_or_open(tmp_path / "checkpoint", pipeline="p")
    state.epochs.append(1, b'{"type":"claim","generation":1}')
    state.epochs.append(2, b'{"type":"completion","epoch":0,"numbers":{"count":{"0":1}}}')
    commits = [commit(1, (b"Va", b"1"), (b"Vb", None)), commit(7, interval=42)]
    state.commits.of_task("count", 41, 3).put(commits)
    state.commits.of_grown("count", SegmentName(7, 2, 3, 12)).put([commit(1, interval=9)])
    state.incarnations.seal(1)
    for part in (1, 2):
        segment = state.incarnations.grow(1, 2, 3, part)
        for number in (8, 9):
            group = [commit(number, interval=41 + part), commit(number, interval=part)]
            segment.append(group, b"note")
    state.incarnations.seal(2)
    cache = MemoryCache("count", 0)
    cache.apply(commits[0])
    write_if_due(cache, state.snapshots, "count", 0, SnapshotPolicy(fixed_bytes=0))
    return tmp_path / "checkpoint"


def test_the_examples_read_a_checkpoint_without_us(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    for block in blocks:
        assert "millrace" not in block
        exec(block.replace('"ckpt"', repr(str(checkpoint))), {})
    assert capsys.readouterr().out.splitlines() == [
        "{('count', '0'): 1}",
        "0000000001 claim  ",
        "0000000002 completion 0 {'count': {'0': 1}}",
        "count 9 1 epoch 11 0 mutations",
        "count 0 1 epoch 11 2 mutations",
        "count 42 7 epoch 17 0 mutations",
        *(
            f"grown 00000001-02-0003-0000000{part} count {interval} {number}"
            for part in (1, 2)
            for number in (8, 9)
            for interval in (41 + part, part)
        ),
        "count 0 after commit 1 1 rows",
    ]


def test_the_directory_is_as_it_says(checkpoint: Path) -> None:
    text = DOCUMENT.read_text()
    tree = text[text.index("## The directory") : text.index("## FORMAT")]
    for path in checkpoint.iterdir():
        assert re.search(rf"^{path.name}\b", tree, re.MULTILINE), path.name
