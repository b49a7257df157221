"""The clock that a run was given: driver and tasks go by it."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

import millrace as mr
from millrace.spark.realtime_setup import pickled_clock
from millrace.testing.on_spark import ScriptedClock


def test_tasks_go_by_the_clock_that_the_run_was_given(tmp_path: Path) -> None:
    clock = ScriptedClock(tmp_path / "clock")
    copy = pickle.loads(pickled_clock(clock))
    clock.set(7)

    assert copy() == 7
    assert pickled_clock(None) == b""


def test_a_clock_that_cannot_be_sent_to_tasks_is_refused() -> None:
    lock = threading.Lock()

    with pytest.raises(mr.MillraceError, match=r"clock=.*cannot be sent to the tasks"):
        pickled_clock(lambda: int(lock.locked()))
