"""A program whose workers hang: stopped, in native code, by one record, at a disk and a sink."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

import millrace as mr
from millrace.store import local_blobs
from tests.spark.processes.live_pipeline import Counting, Numbers, Passing, numbers, passed, wanted

#: Of what the first level sends, the key and count of one record.
FATAL = (2, 9)


class Native(Counting):
    """Is in native code that lets no other thread run, the first time that it has a number."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "hung"

    def process_record(self, record: mr.Record) -> None:
        if record.value.number == 42 and not self.file.exists():
            self.file.write_text(str(os.getpid()))
            ctypes.PyDLL(None).sleep(3600)
        super().process_record(record)


class Poisoned(Passing):
    """Is so each time that it has one record."""

    def process_record(self, record: mr.Record) -> None:
        if (record.value.key, record.value.count) == FATAL:
            ctypes.PyDLL(None).sleep(3600)
        super().process_record(record)


def hangs(*_: Any, **__: Any) -> bool:
    """Wait for a disk that does not answer."""
    time.sleep(3600)
    return True


class HungDisk(Counting):
    """Has the disk of its worker hang, the first time that it has a number."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "disk"

    def process_record(self, record: mr.Record) -> None:
        if record.value.number == 42 and not self.file.exists():
            self.file.write_text(str(os.getpid()))
            local_blobs.LocalAppender.append = hangs  # type: ignore[method-assign]
        super().process_record(record)


def ended(pid: int) -> bool:
    """Return whether a process is gone."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def hung_sink(folder: Path) -> Callable[[pa.RecordBatch], None]:
    """Return a sink that hangs once, after the disk has."""
    disk, sink = folder / "disk", folder / "sink"

    def write(rows: pa.RecordBatch) -> None:
        if disk.exists() and ended(int(disk.read_text())) and not sink.exists():
            sink.write_text(str(os.getpid()))
            time.sleep(3600)

    return write


class Letter(msgspec.Struct):
    computation: str
    reason: str


def told(letter: mr.DeadLetter) -> Letter:
    return Letter(letter.computation, letter.reason)


def main(spark: SparkSession, root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in ("stopped", "native", "poisoned", "outside"):
        folder = root / case
        folder.mkdir()
        source = Numbers(folder / "rows")
        source.allow(20)
        kinds: dict[str, Any] = {"native": Native, "outside": HungDisk}
        counting = kinds[case](folder) if case in kinds else Counting()
        p = numbers(source, folder / "out", counting, Poisoned() if case == "poisoned" else None)
        p.dead_letter("rejects")
        p.stream("rejects").map(told).to("letters", Letter)
        p.sink("letters", mr.sinks.Parquet(folder / "letters"))
        if case == "outside":
            p.sink("passed", mr.sinks.Function(hung_sink(folder)))
        # A disk or a sink that hangs is no fault of the pipeline, and no attempt.
        attempts = 1 if case == "outside" else 2
        run: Any = p.start(
            spark, checkpoint=str(folder / "checkpoint"), realtime=True, tasks=2, intervals=4,
            attempts=attempts, hang_limit="4 s", progress=False,
        )  # fmt: skip
        before = case == "poisoned" or run.process_available("120 s")
        pids = list[int]()
        if case == "stopped":
            pids = [run._run.engine._control_loop._hosts[1, 0].pid]
            os.kill(pids[0], signal.SIGSTOP)
        source.allow(100)
        seen = [before, run.process_available("180 s")]
        where = {"native": ["hung"], "outside": ["disk", "sink"]}.get(case, [])
        pids += [int((folder / name).read_text()) for name in where]
        out = passed(folder / "out")
        right = wanted(100)
        if case == "poisoned":
            del right[FATAL]
        files = list((folder / "letters").glob("epoch=*/*.parquet"))
        letters = ds.dataset(files).to_table().select(["computation", "reason"]).to_pylist()
        found[case] = [*seen, out == right, all(map(ended, pids)), letters]
        run.stop()
    return found
