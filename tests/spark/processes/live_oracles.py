"""A program that runs in real time, in one session, what has an oracle.

Its cases are those of ``test_live_oracles.py``; a case that fails leaves the others alone.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import millrace as mr
from millrace.testing import Output, outputs_of
from millrace.testing.on_spark import ScriptedClock, ScriptedStream
from millrace_examples.nexmark import files, suite
from tests.spark import (
    conftest,
    test_nexmark,
    test_same_as_harness,
    test_transcripts,
    test_windows,
)

T0 = conftest.T0
#: Events of Nexmark that are there at once.
NEXMARK_ENTRY = 500


class Marked:
    """A sink in a folder, whose marks are read as they come."""

    def __init__(self, folder: Path) -> None:
        self.sink = mr.sinks.Parquet(folder)
        self._folder = folder
        self._marks: dict[int, list[Output]] = {}

    def table(self) -> pa.Table:
        """Return all rows as they are in the files."""
        files = sorted(self._folder.glob("epoch=*/*.parquet"))
        return pa.concat_tables([pq.ParquetFile(file).read() for file in files])

    @property
    def outputs(self) -> list[Output]:
        """All rows, mark by mark."""
        for folder in self._folder.glob("epoch=*"):
            mark = int(folder.name.partition("=")[2])
            if mark not in self._marks:
                self._marks[mark] = [
                    output
                    for file in sorted(folder.glob("*.parquet"))
                    for output in outputs_of(pq.ParquetFile(file).read())
                ]
        return [output for mark in sorted(self._marks) for output in self._marks[mark]]


class Live:
    """A run in real time that is fed by hand.

    Args:
        spark: The session.
        folder: For all that it writes.
        schemas: Injected stream -> columns of its source.
    """

    def __init__(self, spark: SparkSession, folder: Path, schemas: dict[str, str]) -> None:
        folder.mkdir()
        self._spark = spark
        self.clock = ScriptedClock(folder / "clock")
        self.clock.set(T0)
        self.checkpoint = str(folder / "checkpoint")
        self.told = Marked(folder / "told")
        self.sources = {
            name: ScriptedStream(folder / "in" / name, ddl) for name, ddl in schemas.items()
        }

    def start(self, p: mr.Pipeline, **options: Any) -> Any:
        how = {"tasks": 2, "progress": False, "clock": self.clock, **options}
        return p.start(self._spark, checkpoint=self.checkpoint, realtime=True, **how)


def settle(run: Any) -> None:
    """Have everything processed that is there."""
    if not run.process_available("120 s"):
        run.wait(0)
        raise AssertionError("not done in two minutes")


class Script(test_same_as_harness.OnSpark):
    """Runs the script of ``test_same_as_harness.py``."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._live = Live(spark, folder, test_same_as_harness.FEEDS)
        self.there = folder / "numbers"
        self.there.write_text('{"fast": 0, "slow": 0}')
        numbers = test_same_as_harness.Numbers(self.there)
        self.p = test_same_as_harness.pipeline(self._live.sources | {"numbers": numbers})
        self.p.sink("told", self._live.told.sink)
        self._start()

    def _start(self) -> None:
        self._run = self._live.start(self.p, intervals=4)

    def feed(self, stream: str, rows: list[tuple[Any, ...]]) -> None:
        self._live.sources[stream].append(rows)

    def clock(self, to_us: int) -> None:
        self._live.clock.set(T0 + to_us)

    def settle(self) -> None:
        settle(self._run)

    def end(self) -> None:
        assert self._run.drain("120 s")
        assert self._run.status().state == "drained"

    def found(self) -> dict[str, Any]:
        rows = conftest.Tools.harness_rows(self._live.told.outputs)
        return self._found(rows)


class Windows:
    """Runs the script of ``test_windows.py``."""

    t0 = T0

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._live = Live(spark, folder, {"scores": test_windows.SCORES})
        self.checkpoint = self._live.checkpoint
        self.clock = self._live.clock.set
        p = test_windows.pipeline(self._live.sources["scores"])
        p.sink("told", self._live.told.sink)
        self.run = self._live.start(p)

    def feed(self, rows: list[tuple[Any, ...]]) -> None:
        self._live.sources["scores"].append(rows)

    def settle(self) -> None:
        settle(self.run)

    def finish(self) -> Any:
        settle(self.run)
        assert self.run.drain("120 s")
        return self.run.status()

    def outputs(self) -> list[Output]:
        return self._live.told.outputs


def transcripts(spark: SparkSession, folder: Path) -> Any:
    """Run all transcripts that can be, and the wrong ones."""
    played = [one for one in test_transcripts.STREAMING if not one.has_percentiles]
    return test_transcripts.run(
        spark, test_transcripts.WRONG + played, realtime=True, folder=folder
    )


def same_as_harness(spark: SparkSession, folder: Path) -> None:
    """Run the script of everything."""
    script = Script(spark, folder)
    harness = test_same_as_harness.OnHarness(conftest.Tools, folder / "harness")
    try:
        # Clicks of several users count for one advertisement; words that begin otherwise are of one
        # length, and pass under one key: between their senders there is no order.
        merged = ("per_ad ", "odd ", "passed ")
        test_same_as_harness.compare(harness, script, merged=merged)
    finally:
        script._run.stop()


def windows(spark: SparkSession, folder: Path) -> None:
    """Run the script of windows."""
    script = Windows(spark, folder)
    try:
        test_windows.compare(script)
    finally:
        script.run.stop()


def nexmark(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Run all queries over all events, and kill workers of both levels amid them."""
    live = Live(spark, folder, files.COLUMNS | {"arrivals": files.COLUMNS["bids"]})
    p = suite.pipeline(
        live.sources, timestamp="at", unit="us", low_watermark=mr.BoundedDelay("5 s")
    )
    sinks = {name: Marked(folder / "out" / name) for name in suite.QUERIES}
    for name, sink in sinks.items():
        p.sink(name, sink.sink)
    events = test_nexmark.MADE
    run = live.start(p, clock=None)
    killed = []
    try:
        for first in range(0, len(events), NEXMARK_ENTRY):
            some = events[first : first + NEXMARK_ENTRY]
            for name, source in live.sources.items():
                of = "bids" if name == "arrivals" else name
                source.append([msgspec.structs.astuple(e) for stream, e in some if stream == of])
            if first == len(events) // 2:
                settle(run)  # of what comes after it, all is under way
            if first == len(events) // 2 + 2 * NEXMARK_ENTRY:
                for where in ((1, 0), (2, 1)):
                    os.kill(run.hosts[where].pid, signal.SIGKILL)
                    killed.append(where)
        settle(run)
        assert run.drain("120 s")
        counters = run.status().injected
    finally:
        run.stop()
    tables = {name: sink.table() for name, sink in sinks.items()}
    return {"tables": tables, "killed": killed, "injected": counters}


CASES: tuple[Callable[[SparkSession, Path], Any], ...] = (
    transcripts,
    same_as_harness,
    windows,
    nexmark,
)


def main(spark: SparkSession, root: Path) -> dict[str, tuple[Any, str]]:
    """Return what each case has found, and how it has failed."""
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[str, tuple[Any, str]] = {}
    for case in CASES:
        try:
            found[case.__name__] = case(spark, root / case.__name__), ""
        except Exception:  # noqa: BLE001  the test of the case raises it
            found[case.__name__] = None, traceback.format_exc()
    return found
