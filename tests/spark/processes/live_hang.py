"""A program whose workers hang: stopped, in native code once, and each time by one record."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

import millrace as mr
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


class Letter(msgspec.Struct):
    computation: str
    reason: str


def told(letter: mr.DeadLetter) -> Letter:
    return Letter(letter.computation, letter.reason)


def ended(pid: int) -> bool:
    """Return whether a process is gone."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def main(spark: SparkSession, root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in ("stopped", "native", "poisoned"):
        folder = root / case
        folder.mkdir()
        source = Numbers(folder / "rows")
        source.allow(20)
        counting = Native(folder) if case == "native" else Counting()
        p = numbers(source, folder / "out", counting, Poisoned() if case == "poisoned" else None)
        p.dead_letter("rejects")
        p.stream("rejects").map(told).to("letters", Letter)
        p.sink("letters", mr.sinks.Parquet(folder / "letters"))
        run: Any = p.start(
            spark, checkpoint=str(folder / "checkpoint"), realtime=True, tasks=2, intervals=4,
            attempts=2, hang_limit="4 s", progress=False,
        )  # fmt: skip
        before = case == "poisoned" or run.process_available("120 s")
        pid = 0
        if case == "stopped":
            pid = run._run.engine._control_loop._hosts[1, 0].pid
            os.kill(pid, signal.SIGSTOP)
        source.allow(100)
        seen = [before, run.process_available("180 s")]
        if case == "native":
            pid = int((folder / "hung").read_text())
        out = passed(folder / "out")
        right = wanted(100)
        if case == "poisoned":
            del right[FATAL]
        files = list((folder / "letters").glob("epoch=*/*.parquet"))
        letters = ds.dataset(files).to_table().select(["computation", "reason"]).to_pylist()
        found[case] = [*seen, out == right, not pid or ended(pid), letters]
        run.stop()
    return found
