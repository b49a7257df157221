"""What a start refuses before the checkpoint is touched."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.spark.driven_engine import DrivenSetup
from millrace.spark.microbatch_engine import MicroBatchSetup, free_name
from millrace.spark.offset_files import progress_location
from millrace.spark.realtime_setup import batch_ms, marks_us
from millrace.spark.start import check_attempts, check_clock, intervals_of

NOTHING: Any = None


def intervals(wanted: Any) -> int:
    return intervals_of(wanted, 2, each=8)


@pytest.mark.parametrize("trigger", ["soon", None, -1])
def test_a_trigger_that_is_no_duration(trigger: Any) -> None:
    refused = r"start\(trigger\): .* is not a duration"
    with pytest.raises(PipelineError, match=refused):
        MicroBatchSetup(NOTHING, NOTHING, "checkpoint", {"trigger": trigger}, Path())
    with pytest.raises(PipelineError, match=refused):
        DrivenSetup(NOTHING, NOTHING, "checkpoint", {"trigger": trigger}, Path())


def test_two_runs_of_one_name_in_a_session() -> None:
    queries = [SimpleNamespace(name=name) for name in ("millrace: p", "millrace: p (2)", None)]
    session: Any = SimpleNamespace(streams=SimpleNamespace(active=queries))
    assert free_name(session, "millrace: p") == "millrace: p (3)"
    assert free_name(session, "millrace: q") == "millrace: q"


@pytest.mark.parametrize(
    ("check", "refused", "said"),
    [
        (check_attempts, [0, 2.5, "3", None, True], r"start\(attempts=.*\): expected 1 or more"),
        (intervals, [0, 3, 64.0, "64", True], r"intervals=.*: expected a power of two"),
        (check_clock, [5, "now"], r"clock=.*: expected a function"),
        (batch_ms, [0, "1 us"], r"spark_batch=.*: expected a millisecond or more"),
        (marks_us, [0, "0 s"], r"marks=.*: expected a time above 0"),
        (mr.spark.realtime_settings, [0, "2", (1, 8)], r"realtime_settings\(tasks=.*1 or more"),
        (mr.ops.Balance, [0.5, -1, "x", math.nan], r"Balance\(above=.*: expected above="),
        (lambda n: mr.ops.Balance(splits=n), [0, 1.5, "8"], r"splits=.*whole numbers from 1 on"),
        (lambda n: mr.ops.Balance(intervals=n), [0, None], r"intervals=.*whole numbers from 1"),
    ],
    ids=[
        *("attempts", "intervals", "clock", "spark_batch", "marks", "tasks", "above", "splits"),
        "intervals to come",
    ],
)
def test_what_is_no_value_of_an_option(check: Any, refused: list[Any], said: str) -> None:
    for value in refused:
        with pytest.raises(PipelineError, match=said):
            check(value)


def test_what_is_a_value_of_an_option() -> None:
    check_attempts(1)
    check_clock(None)
    check_clock(time.time_ns)
    assert (intervals(1), intervals(64), intervals(None)) == (1, 64, 16)
    assert (batch_ms("12 h"), marks_us("2 s")) == (43_200_000, 2_000_000)
    assert progress_location("/ckpt", Path("/offsets")) == "/offsets"
