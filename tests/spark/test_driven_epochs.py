"""Epochs that the driver begins itself: with a job, without one, rolled back, and beside others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import CheckpointMismatch
from millrace.runtime.epoch.driver import EpochDriver
from millrace.spark.driven_engine import DrivenEngine


class Numbers(mr.sources.Injector):
    """Counts as far as a file says."""

    schema = "n long, at long"

    def __init__(self, path: Path) -> None:
        self.path = path

    def processes(self) -> list[str]:
        return ["all"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(int(self.path.read_text()))

    def read(self, process: str, start: Any, end: Any) -> Any:
        return ((n, n * mr.SECOND) for n in range(start or 0, end))


class Remind(mr.Computation):
    """Sends each number when the wall clock is at it, and hangs at one as long as a file is there.

    Numbers of a DataFrame come at once.
    """

    inputs = {"numbers": mr.by("n")}
    outputs = {"reminders": int}

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process_record(self, record: mr.Record) -> None:
        if record.value["n"] == 7:
            (self.folder / "hangs").touch()
            while (self.folder / "trap").exists():
                time.sleep(0.01)
        self.set_timer("", at=self.wall_time + record.value["n"] * mr.SECOND, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("reminders", self.key)


def _until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline, "not within two minutes"
        time.sleep(0.01)


@pytest.mark.timeout(400)
def test_jobs_run_where_something_is_due_and_a_stop_rolls_one_back(
    spark: SparkSession, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, kept, due = tmp_path / "there", tools.Kept(), dict[int, bool]()
    is_due = EpochDriver.due

    def noting(self: EpochDriver, manifest: Any) -> bool:
        due[manifest.epoch] = is_due(self, manifest)
        return due[manifest.epoch]

    monkeypatch.setattr(EpochDriver, "due", noting)

    def pipeline(source: Any) -> mr.Pipeline:
        p = mr.Pipeline("driven")
        p.inject("numbers", source, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
        p.add(Remind(tmp_path))
        p.sink("reminders", kept)
        return p

    there.write_text("3")
    run = tools.start(pipeline(Numbers(there)))
    tools.step(run)
    assert isinstance(run._run.engine, DrivenEngine)
    assert kept.values == [0]
    tools.step(run)
    assert set(due.values()) == {False}
    assert run.status().epoch_parts["tasks"] < 0.1
    due.clear()
    tools.clock.now += mr.SECOND
    tools.step(run)
    assert kept.values == [0, 1]
    assert [epoch for epoch in due if due[epoch]] == [min(due)] == [max(kept.epochs)]

    # Stopped while a task hangs, the epoch is rolled back, and the next run does it.
    (tmp_path / "trap").touch()
    there.write_text("9")
    _until((tmp_path / "hangs").exists)
    epoch = run.status().epoch
    stopper = threading.Thread(target=run.stop, args=("0 s",))
    stopper.start()
    stopper.join(60)
    assert not stopper.is_alive()
    assert (run.status().state, run.status().epoch) == ("stopped", epoch)
    assert run._run.run_log.open is not None
    (tmp_path / "trap").unlink()
    there.write_text("20")  # the open epoch ends where it was to end, all the same

    # A stream of a DataFrame goes on with none of it.
    feed = tools.feed("n long, at long")
    with pytest.raises(CheckpointMismatch, match=r"unfinished.* \['numbers'\] were re"):
        tools.start(pipeline(feed.stream))
    run = tools.start(pipeline(Numbers(there)))
    tools.step(run)
    assert run.status().injected == {"numbers": 20}
    assert run._run.run_log.places["numbers"]["all"].offset == 20
    tools.clock.now += 30 * mr.SECOND
    tools.step(run)
    assert sorted(kept.values) == [*range(20)]
    run.stop()
    with pytest.raises(CheckpointMismatch, match=r"\['numbers'\] were read by the other kind"):
        tools.start(pipeline(feed.stream))


def test_an_idle_run_wakes_up_for_the_wall_clock(tools: Any, tmp_path: Path) -> None:
    there, kept = tmp_path / "there", tools.Kept()
    p = mr.Pipeline("driven")
    p.inject("numbers", Numbers(there), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Remind(tmp_path))
    p.sink("reminders", kept)
    there.write_text("2")
    run = tools.start(p, clock=None)
    _until(lambda: kept.values == [0, 1])  # without anybody who asks for an epoch
    run.stop()


def test_an_injector_beside_a_dataframe(tools: Any, tmp_path: Path) -> None:
    """Spark begins the epochs then; and how far the injector is read is in the manifest, too."""
    there, kept, feed = tmp_path / "there", tools.Kept(), tools.feed("n long, at long")

    def pipeline(more: Any) -> mr.Pipeline:
        p = mr.Pipeline("mixed")
        policy = mr.BoundedDelay("1 s")
        p.inject("numbers", Numbers(there), timestamp="at", low_watermark=policy)
        p.inject("others", more, timestamp="at", low_watermark=policy)
        for stream in ("numbers", "others"):
            p.sink(stream, kept)
        return p

    there.write_text("3")
    run = tools.start(pipeline(feed.stream))
    tools.step(run)
    feed.add((50, mr.SECOND), (51, mr.SECOND))
    tools.step(run)
    there.write_text("5")
    _until(lambda: run.status().injected == {"numbers": 5, "others": 2})
    run.stop()
    assert run._run.run_log.places["numbers"]["all"].offset == 5
    there.write_text("6")
    run = tools.start(pipeline(feed.stream))
    tools.step(run)
    assert run.status().injected == {"numbers": 6, "others": 2}
    run.stop()
    with pytest.raises(CheckpointMismatch, match=r"\['others'\] were read by the other kind"):
        tools.start(pipeline(Numbers(there)))
