"""Checkpoints that a run may not or cannot use: said at once, and nothing is written."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    MillraceError,
    PipelineError,
)


class Echo(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"echoes": str}

    def process_record(self, record: mr.Record) -> None:
        self.produce("echoes", record.value["word"])


class Changed(Echo):
    inputs = {"words": mr.by(len)}


def _pipeline(
    tools: Any, *, name: str = "echo", computation: Any = Echo, sink: Any = None
) -> mr.Pipeline:
    p = mr.Pipeline(name)
    p.inject(
        "words",
        tools.feed("word string, at long").stream,
        timestamp="at",
        low_watermark=mr.BoundedDelay("1 s"),
    )
    p.add(computation, name="Echo")
    if sink is not None:
        p.sink("echoes", sink)
    return p


def _files(folder: str | Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_checkpoint_that_is_not_this_pipelines(tools: Any) -> None:
    tools.run(_pipeline(tools))
    before = _files(tools.checkpoint)

    with pytest.raises(CheckpointMismatch, match=r"was drained: its input ended"):
        tools.start(_pipeline(tools))
    with pytest.raises(CheckpointMismatch, match=r"belongs to pipeline 'echo'.*is 'other'"):
        tools.start(_pipeline(tools, name="other"))
    with pytest.raises(CheckpointMismatch, match=r"'Echo', input 'words', key: was by\('word'\)"):
        tools.start(_pipeline(tools, computation=Changed))

    after = _files(tools.checkpoint)
    # A start that finds the checkpoint drained may have claimed it; nothing else is written.
    assert {path for path in after if path not in before} <= {
        path for path in after if "/epochs/" in path
    }
    assert all(after[path] == data for path, data in before.items())


class Total(msgspec.Struct):
    words: int = 0


class Amount(msgspec.Struct):
    amount: int = 0


class TotalMore(msgspec.Struct):
    words: int = 0
    letters: int = 0


class Totals(Echo):
    total = mr.ValueState(Total)

    def process_record(self, record: mr.Record) -> None:
        kind = type(self).kind
        total = self.total.get() or kind()
        total.words += 1
        self.total.set(total)
        self.produce("echoes", f"{total.words}")

    kind: Any = Total


class Renamed(Totals):
    total = mr.ValueState(Amount)


class MoreTotals(Totals):
    total = mr.ValueState(TotalMore)
    kind = TotalMore


class Doubled(Echo):
    words = mr.ValueState(int, was="total")
    seen = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.words.set(self.words.get() + 2)
        self.produce("echoes", f"{self.words.get()}")


def doubled(total: dict[str, int]) -> int:
    return 2 * total["words"]


def test_a_changed_pipeline_goes_on_if_nothing_is_lost_and_is_refused_if_something_is(
    tools: Any, sunk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    feed, echoes, texts = tools.feed("word string, at long"), sunk(), sunk()

    def pipeline(
        computation: Any, *, name: str = "echo", more: bool = False, **how: Any
    ) -> mr.Pipeline:
        p = mr.Pipeline(name)
        words = p.inject("words", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
        if more:
            p.sink(words.map(lambda value: value["word"].upper()).name, texts)
        p.add(computation, name="Echo", **how)
        if how:
            p.add(Echo, name="Again")
        p.sink("echoes", echoes)
        return p

    run = tools.start(pipeline(Totals))
    feed.add(("tea", tools.T0))
    tools.step(run)
    run.stop()
    before = _files(tools.checkpoint)

    for refused, words in (
        (pipeline(Totals, name="other"), "belongs to pipeline 'echo'"),
        (pipeline(Echo), "state 'total': in the checkpoint, gone"),
        (pipeline(Renamed), "state 'total': field 'words' is gone"),
    ):
        with pytest.raises(CheckpointMismatch, match=words):
            tools.start(refused)
    assert _files(tools.checkpoint) == before

    caplog.set_level(logging.INFO, "millrace")
    run = tools.start(pipeline(MoreTotals, more=True))
    feed.add(("tea", tools.T0))
    tools.step(run)
    run.stop()
    assert echoes.values == ["1", "2"]
    assert texts.values == ['"TEA"']  # of a stream without a format: JSON
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "state 'total': field 'letters' is new, with default 0" in said
    assert "sink of stream 'words.map-1': new in the pipeline" in said

    run = tools.start(pipeline(Doubled, migrate={"words": doubled}))
    feed.add(("tea", tools.T0))
    tools.step(run)
    run.stop()
    assert sorted(echoes.values[2:]) == ["6", "tea"]


def test_a_path_under_a_file(tools: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for path, words in (
        ("file/checkpoint", "it is a file, expected"),
        ("file", "it is a file, expected"),
    ):
        with pytest.raises(CheckpointUnwritable, match=words):
            tools.start(_pipeline(tools), checkpoint=str(tmp_path / path))
    assert (tmp_path / "file").read_text() == "not a directory"


@contextmanager
def full_disk(under: Path, after: int) -> Iterator[None]:
    """Let writes under a directory fail for want of room, after some that still succeed."""
    real, left = os.open, [after]

    def opening(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(under)):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, flags, *arguments, **options)

    os.open = opening  # type: ignore[assignment]
    try:
        yield
    finally:
        os.open = real


def test_a_full_disk_at_the_start(tools: Any) -> None:
    with (
        full_disk(Path(tools.checkpoint), after=0),
        pytest.raises(CheckpointUnwritable, match=r"The disk is full: free room"),
    ):
        tools.start(_pipeline(tools))

    tools.run(_pipeline(tools))  # with room again, the same path will do


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    if os.getuid() != 0:
        pytest.skip("mounting needs root; tests/faults/test_store_errors.py injects the same")
    at = tmp_path / "disk"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def _fill(ballast: Path) -> None:
    for block in (1 << 20, 64):
        with suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(block))


def _remount(disk: Path, how: str) -> None:
    """Remount a disk; with a file open for writing at the moment, it cannot become read-only."""
    for _ in range(2000):
        done = subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], capture_output=True)
        if done.returncode == 0:
            return
        time.sleep(0.005)
    raise AssertionError(done.stderr)


def test_a_run_goes_on_once_the_disk_has_room_and_may_be_written(
    tools: Any, disk: Path, tmp_path: Path
) -> None:
    sink, feed = tools.Kept(), tools.feed("word string, at long")
    p = _pipeline(tools, sink=sink)
    p.injections.clear()
    p.inject("words", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    # Spark's own files lie elsewhere, or it might be they that find no room.
    options = {
        "checkpoint": str(disk / "checkpoint"),
        "spark_checkpoint": str(tmp_path / "offsets"),
        "cache": str(tmp_path / "cache"),
    }
    run = tools.start(p, **options)
    feed.add(("a", 1))
    tools.step(run)

    _fill(disk / "ballast")
    feed.add(("b", 2))
    with pytest.raises(MillraceError, match=r"(?s)No space left on device.*free room") as full:
        tools.step(run)
    assert "start again with the same checkpoint" in str(full.value)
    (disk / "ballast").unlink()
    run = tools.start(p, **options)
    tools.step(run)
    assert sorted(sink.values) == ["a", "b"]

    _remount(disk, "ro")
    feed.add(("c", 3))
    with pytest.raises(MillraceError, match="Read-only file system") as locked:
        tools.step(run)
    assert "start again with the same checkpoint" in str(locked.value)
    _remount(disk, "rw")
    tools.run(p, **options)
    assert sorted(sink.values) == ["a", "b", "c"]


class Reserved(msgspec.Struct):
    _key: str


class Unpicklable(Echo):
    def __init__(self) -> None:
        import threading

        self.lock = threading.Lock()


class ReservedOut(Echo):
    outputs = {"echoes": Reserved}


class Missile(msgspec.Struct):
    epoch: int


class MissileOut(ReservedOut):
    outputs = {"echoes": Missile}


CONFIGURATION = {
    "a reserved column": (ReservedOut, {}, "has a field '_key'"),
    "a column that Parquet adds": (
        MissileOut,
        {"sink": mr.sinks.Parquet("out")},
        "has a field 'epoch'",
    ),
    "an unpicklable computation": (Unpicklable, {}, "Echo.*pickle"),
    "intervals not a power of two": (Echo, {"intervals": 3}, "power of two"),
    "no tasks": (Echo, {"tasks": 0}, "tasks"),
    "an object store that Spark cannot reach": (
        Echo,
        {"checkpoint": "s3://bucket/x"},
        "cannot reach .*spark_checkpoint",
    ),
}


@pytest.mark.parametrize("case", CONFIGURATION)
def test_configuration_errors_come_before_the_checkpoint_is_touched(tools: Any, case: str) -> None:
    computation, options, words = CONFIGURATION[case]
    options = {"sink": tools.Kept(), **options}
    p = _pipeline(tools, computation=computation, sink=options.pop("sink"))

    with pytest.raises(PipelineError, match=words):
        tools.start(p, **options)

    assert not Path(tools.checkpoint).exists()


def test_a_sink_of_another_checkpoint(tools: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = tools.start(_pipeline(tools, sink=mr.sinks.Parquet(out)))
    tools.step(run)
    run.stop()
    before = _files(out)

    tools.checkpoint += "-2"
    with pytest.raises(CheckpointMismatch, match=r"holds the output of another checkpoint"):
        tools.start(_pipeline(tools, sink=mr.sinks.Parquet(out)))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointUnwritable, match=r"sink Parquet.*cannot be written"):
        tools.start(_pipeline(tools, sink=mr.sinks.Parquet(tmp_path / "file" / "out")))

    assert _files(out) == before
