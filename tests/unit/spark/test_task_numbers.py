"""How many tasks a level a run may have, and begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.balance.task_count import TaskRange
from millrace.epochlog.entries import LiveMark
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import PipelineError
from millrace.spark.parallelism import allowed_tasks
from millrace.spark.start import tasks_left
from millrace.store import open_location


class Counted(mr.Computation):
    inputs = {"in": mr.by(str)}

    def process_record(self, record: mr.Record) -> None: ...


def test_one_number_is_the_least_and_the_most() -> None:
    assert allowed_tasks(None, 4) == allowed_tasks(4, 9) == TaskRange(4, 4)
    assert allowed_tasks((2, 16), 4) == allowed_tasks([2, 16], 4) == TaskRange(2, 16)


@pytest.mark.parametrize("wanted", [(0, 4), (4, 2), (2,), (1, 2, 3), (True, 4), (1.0, 4), ()])
def test_what_is_not_the_least_and_the_most(wanted: Any) -> None:
    with pytest.raises(PipelineError, match=r"expected the least and the most tasks a level"):
        allowed_tasks(wanted, 4)


def test_what_is_no_number_of_tasks() -> None:
    with pytest.raises(PipelineError, match=r"tasks=0: expected a number of tasks a level"):
        allowed_tasks(0, 4)


def test_what_live_tasks_left_under_way_is_taken_up_by_as_many(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "ckpt")
    assert tasks_left(checkpoint) is None
    assert not Path(checkpoint).exists(), "to look makes none"
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    p.add(Counted)
    run_log = RunLog(p.build(), open_location(checkpoint, pipeline="p"), intervals=2)
    assert tasks_left(checkpoint) is None
    manifest = run_log.begin(0, wall_time_us=0, injectors={}, live=3)
    assert manifest is not None
    assert tasks_left(checkpoint) == 3
    left = LiveMark(tasks=3, incarnation=1)
    run_log.complete(manifest, [], {}, live=left, goes_on=True)
    assert tasks_left(checkpoint) == 3, "tasks do not wait at a mark"
    assert run_log.open is not None
    run_log.complete(run_log.open, [], {}, live=left)
    assert tasks_left(checkpoint) is None
    assert run_log.begin(2, wall_time_us=0, injectors={}, tasks=5) is not None
    assert tasks_left(checkpoint) is None, "tasks that end with their epoch need not be as many"
