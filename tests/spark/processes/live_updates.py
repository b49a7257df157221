"""A program whose pipeline changes while rows come: the other's tasks are started beside its own.

Its cases are those of ``test_live_updates.py``.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import UpdateFailed
from millrace.spark import realtime_engine
from millrace.spark.realtime.standby import Standby
from millrace.spark.realtime_engine import RealtimeEngine
from tests.spark.processes.live_pipeline import Counting, Passing, Row
from tests.spark.processes.live_program import Case, Said
from tests.spark.processes.live_rests import Load


class Summing(Counting):
    """Counts, and has another cell beside the count."""

    total = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0) + 1)
        super().process_record(record)


class Ends(mr.Computation):
    """Beside the other of its level."""

    inputs = {"numbers": mr.by(lambda row: row.number % 10)}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)


class Others(Ends):
    """Likewise."""


class Never(Ends):
    """Does not come to work."""


def pipeline(case: Case, counting: mr.Computation, *more: Any) -> mr.Pipeline:
    """Return a pipeline of one level, with a sink, and more computations."""
    p = mr.Pipeline("numbers")
    policy = mr.BoundedDelay("1 s")
    p.inject("numbers", case.input, timestamp="at", low_watermark=policy, format=Row)
    p.add(counting, name="Counting")
    p.sink("counts", mr.sinks.Parquet(case.folder / "out"))
    for computation in more:
        p.add(computation)
    return p


def killing(times: int) -> Callable[[RealtimeEngine, Standby], BaseException | None]:
    """Return what waits for the tasks beside a run, and kills one when they are there."""
    wait, left = RealtimeEngine._waited_for, [None] * times

    def wait_and_kill(engine: RealtimeEngine, beside: Standby) -> BaseException | None:
        failure = wait(engine, beside)
        if left and failure is None:
            left.pop()
            os.kill(beside._called[1, 0].pid, signal.SIGKILL)
            while beside.ready:
                time.sleep(0.01)
        return failure

    return wait_and_kill


def main(spark: SparkSession, root: Path) -> dict[str, Any]:
    case = Case(spark, root, "updated")
    said, log = Said(), logging.getLogger("millrace")
    log.addHandler(said)
    # All tasks are there twice, and need not fit thrice.
    run = case.start(pipeline(case, Counting()), realtime=True, tasks=2, standby=True)
    case.input.allow(300)
    found: dict[str, Any] = {"begun": [run.process_available("90 s"), run.updated]}
    with Load(case, 300):
        run = run.update(pipeline(case, Summing(), Ends))
        found["computation and cell"] = run.updated
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RealtimeEngine, "_waited_for", killing(1))
            run = run.update(pipeline(case, Summing(), Ends, Others))
        found["killed before"] = run.updated
        os.kill(run.hosts[1, 0].pid, signal.SIGKILL)
        said.wait_for("the incarnation ended")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(realtime_engine, "_TRIES", 1)
            patch.setattr(RealtimeEngine, "_waited_for", killing(1))
            try:
                run.update(pipeline(case, Summing(), Ends, Others, Never))
            except UpdateFailed as failed:
                found["failed"] = [str(failed), failed.run is run, run.status().state]
    found["done"] = [run.process_available("90 s"), case.counts()]
    while run.status().standby != "ready":
        time.sleep(0.05)
    # With another level, there are no slots for the tasks of both.
    run = run.update(pipeline(case, Summing(), Ends, Others, Passing()), standby=False)
    found["no room"] = [run.updated, said.wait_for("slots would be needed")]
    with Load(case, case.input.allowed()):
        time.sleep(0.5)
    found["in the end"] = [run.process_available("90 s"), case.counts()]
    run.stop()
    log.removeHandler(said)
    known = mr.ops.open_checkpoint(str(case.folder / "checkpoint"))
    found["state"] = [
        sum(one.cells["count"] for one in known["Counting"].scan()),
        known.overview.streams["numbers"].injected,
    ]
    return found
