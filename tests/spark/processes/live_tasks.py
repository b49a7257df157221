"""A program whose tasks become more while they have much to do, and fewer when they have nothing.

Its cases are those of ``test_live_tasks.py``.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.balance import task_count
from millrace.model.errors import UpdateFailed
from millrace.spark.engine import Engine
from millrace.spark.realtime_engine import RealtimeEngine
from tests.spark.processes.live_pipeline import Counting, Row
from tests.spark.processes.live_program import Case

#: Of each of two processes: half a minute of work for one task.
ROWS = 3500


class Slow(Counting):
    """Counts, and takes its time."""

    def process_record(self, record: mr.Record) -> None:
        time.sleep(0.004)
        super().process_record(record)


def pipeline(case: Case) -> mr.Pipeline:
    """Return a pipeline of one level, with a sink."""
    p = mr.Pipeline("numbers")
    policy = mr.BoundedDelay("1 s")
    p.inject("numbers", case.input, timestamp="at", low_watermark=policy, format=Row)
    p.add(Slow(), name="Counting")
    p.sink("counts", mr.sinks.Parquet(case.folder / "out"))
    return p


def wait_for_tasks(run: Any, tasks: int) -> list[int]:
    """Wait until a level has so many tasks; return all numbers that it had."""
    seen, until = [run.status().tasks], time.monotonic() + 120
    while seen[-1] != tasks:
        assert time.monotonic() < until, seen
        time.sleep(0.05)
        if (now := run.status().tasks) != seen[-1]:
            seen.append(now)
    return seen


def _without_a_last_mark(engine: RealtimeEngine, timeout: Any) -> None:
    """As after a timeout, which a last mark of an idle run can be faster than."""
    engine._giving_up = True


def main(spark: SparkSession, root: Path) -> dict[str, Any]:
    case = Case(spark, root, "followed")
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in (("_APART_S", 0.2), ("_BUSY_S", 1.0), ("_IDLE_S", 3.0)):
            patch.setattr(task_count, name, seconds)
        run = case.start(pipeline(case), realtime=True, tasks=(1, 2))
        found: dict[str, Any] = {}
        run.limit_rate("numbers", 5000)
        case.input.allow(ROWS)
        found["more"] = wait_for_tasks(run, 2)
        found["held back"] = run.status().held_back
        run = run.update(pipeline(case))
        found["updated"] = run.status().tasks
        os.kill(run.hosts[1, 1].pid, signal.SIGKILL)
        found["done"] = [run.process_available("120 s"), case.counts()]
        found["fewer"] = wait_for_tasks(run, 1)
        case.input.allow(ROWS + 50)
        found["in the end"] = [run.process_available("120 s"), case.counts()]
    found["generation"] = run.status().generation
    # What is stopped before a last mark is taken up by as many tasks as left it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealtimeEngine, "hand_over", Engine.hand_over)
        patch.setattr(RealtimeEngine, "stop", _without_a_last_mark)
        try:
            run.update(pipeline(case), tasks=2)
        except UpdateFailed as failed:
            found["left"] = str(failed)
            run = failed.run
    case.input.allow(ROWS + 100)
    found["taken up"] = [run.process_available("120 s"), case.counts(), run.status().tasks]
    run.stop()
    known = mr.ops.open_checkpoint(str(case.folder / "checkpoint"))
    found["state"] = [
        sum(one.cells["count"] for one in known["Counting"].scan()),
        known.overview.streams["numbers"].injected,
    ]
    found["intervals"] = len(known["Counting"].intervals)
    return found
