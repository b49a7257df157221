"""A copy that is killed at any moment is no checkpoint, or a whole one; the original is as it was.

A savepoint is listed if it is whole, and otherwise it is not; its name can be had again.

Real processes are killed by SIGKILL: before each change that a copy makes to files, and at random.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import millrace as mr
from millrace.cli.main import main
from millrace.model.errors import CheckpointMismatch
from millrace.store import open_location
from tests.live import Feeds, InEpochs, Kept, Live

PROGRAM = Path(__file__).with_name("copying.py")
ROWS = 24


class Event(msgspec.Struct):
    key: int
    at: int


class Counted(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("counts", self.count.get())


def epochs(path: Path, *limits: int) -> Counter[int]:
    """Run some epochs over a checkpoint, and return what they sent."""
    kept, p = Kept(), mr.Pipeline("shop")
    source = Feeds("key long, at long", {"p0": [(n % 5, 1_000_000 * n) for n in range(ROWS)]})
    p.inject("events", source, timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(Counted)
    p.sink("counts", kept)
    live = Live(p, tasks=1, state=open_location(path, pipeline="shop"))  # type: ignore[arg-type]
    run = InEpochs(live)
    for limit in limits:
        live.feed(limit)
        run.run(live.clock_us)
    return Counter(row["value"] for row in kept.rows)


def files(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def copied(source: Path, target: Path, *options: str) -> Any:
    return CliRunner().invoke(main, ["checkpoint", "copy", str(source), str(target), *options])


def state_of(checkpoint: Path) -> dict[Any, Any]:
    found = mr.ops.open_checkpoint(checkpoint)["Counted"].scan()
    return {one.key: one.cells for one in found}


@pytest.mark.parametrize("options", [[], ["--intervals", "8"]])
def test_a_copy_that_is_killed_is_no_checkpoint_or_a_whole_one(
    options: list[str], tmp_path: Path
) -> None:
    source, folder = tmp_path / "source", tmp_path / "copies"
    epochs(source, 6, 12, 18)
    folder.mkdir()
    before = files(source)
    last = killed("checkpoint", "copy", str(source), str(folder / "%"), *options)
    assert files(source) == before
    kinds = Counter[str]()
    shutil.copytree(source, tmp_path / "original")
    rest = epochs(tmp_path / "original", ROWS)
    for n in range(last + 9):
        target = folder / str(n)
        kind = kind_of(target)
        kinds[kind] += 1
        assert kind == "whole" or n != last
        again = copied(source, target, *options)
        if kind == "whole":
            assert "there is a checkpoint" in again.output
        elif again.exit_code:
            assert "there is a copy that was cut off" in again.output
            shutil.rmtree(target)
            assert copied(source, target, *options).exit_code == 0
        assert state_of(target) == state_of(source)
    assert kind_of(folder / "0") == "whole"
    for n in (0, last // 2, last):
        assert epochs(folder / str(n), ROWS) == rest
    assert files(source) == before
    assert kinds["none"] >= 2
    assert kinds["cut off"] >= 5


def test_a_savepoint_that_is_killed_is_not_listed_or_is_whole(tmp_path: Path) -> None:
    source = tmp_path / "source"
    epochs(source, 6, 12)
    before, state = files(source), state_of(source)
    last = killed("checkpoint", "savepoint", "add", str(source), "cut-%")
    names = [f"cut-{n}" for n in range(last + 9)]
    listed, kinds, refused = mr.ops.savepoints(source), Counter[str](), 0
    assert f"cut-{last}" in listed
    assert set(listed.values()) == {1}
    for name in names:
        place = source / "savepoints" / name
        kind = kind_of(place)
        kinds[kind] += 1
        assert (name in listed) == (kind == "whole")
        again = CliRunner().invoke(main, ["checkpoint", "savepoint", "add", str(source), name])
        if kind == "whole":
            assert "there is a checkpoint" in again.output
        elif again.exit_code:
            assert "there is a copy that was cut off" in again.output
            refused += 1
            mr.ops.remove_savepoint(source, name)
            mr.ops.add_savepoint(source, name)
        assert state_of(place) == state
    assert mr.ops.savepoints(source) == dict.fromkeys(names, 1)
    for name in names:
        mr.ops.remove_savepoint(source, name)
    assert files(source) == before
    assert kinds["none"] >= 2
    assert kinds["cut off"] >= refused >= 5


def killed(*command: str) -> int:
    """Kill a command of ``millrace`` before each of its changes; return which was whole."""
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), "1", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return int(ran.stdout)


def kind_of(target: Path) -> str:
    """Return what is there: nothing that starts, by what it says, or a whole checkpoint."""
    if not (target / "FORMAT").exists():
        with pytest.raises(CheckpointMismatch, match="no checkpoint"):
            mr.ops.open_checkpoint(target)
        return "none"
    p = mr.Pipeline("shop")
    p.inject("events", format=Event)
    p.add(Counted)
    try:
        p.plan(target)
    except CheckpointMismatch:
        with pytest.raises(CheckpointMismatch, match="cut off before it was whole"):
            p.plan(target)
        with pytest.raises(CheckpointMismatch, match="cut off before it was whole"):
            epochs(target, ROWS)
        with pytest.raises(CheckpointMismatch, match="cut off before it was whole"):
            mr.ops.copy_checkpoint(target, target.with_name("of one that was cut off"))
        return "cut off"
    return "whole"
