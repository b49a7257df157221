"""Epochs that the driver begins itself: with a job, without one, rolled back, and beside others."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import file_updates
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.epochlog.entries import Manifest, decode_entry
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch
from millrace.runtime.epoch.driver import EpochDriver
from millrace.spark import epoch_engine, job
from millrace.spark.driven_engine import DrivenEngine


class Numbers(mr.sources.Injector):
    """Counts as far as a file says."""

    schema = "n long, at long"

    def __init__(self, path: Path) -> None:
        self.path = path

    def processes(self) -> list[str]:
        return ["all"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        while (trap := self.path.with_name("no-answer")).exists():
            trap.with_name("asked").touch()
            time.sleep(0.01)
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


class Slowly(mr.Computation):
    """Takes its time for the first eight numbers."""

    inputs = {"numbers": mr.by("n")}
    outputs = {"same": int}

    def process_record(self, record: mr.Record) -> None:
        time.sleep(0.15 * (record.value["n"] < 8))
        self.produce("same", record.value["n"])


class Summed(mr.Computation):
    """Adds up numbers that leave the same rest."""

    inputs = {"numbers": mr.by(lambda row: row["n"] % 3)}
    outputs = {"sums": int}
    sum = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.sum.set(self.sum.get(0) + record.value["n"])
        self.produce("sums", self.sum.get(0))


class Doubled(mr.Computation):
    """Doubles; its process dies, once, where a file says so."""

    inputs = {"sums": mr.by(int)}
    outputs = {"doubled": int}

    def __init__(self, dies: Path) -> None:
        self.dies = dies

    def process_record(self, record: mr.Record) -> None:
        if self.dies.exists():
            self.dies.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        self.produce("doubled", 2 * record.value)


def _let(there: Path, numbers: int) -> None:
    """Let an injector have so many; it may look at any moment."""
    file_updates.replace(there, str(numbers))


def _until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline, "not within two minutes"
        time.sleep(0.01)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("tasks", [1, 2])
def test_jobs_run_where_something_is_due_and_a_stop_rolls_one_back(
    spark: SparkSession, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int
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

    _let(there, 3)
    run = tools.start(pipeline(Numbers(there)), tasks=tasks)
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
    _let(there, 9)
    _until((tmp_path / "hangs").exists)
    epoch = run.status().epoch
    stopper = threading.Thread(target=run.stop, args=("0 s",))
    stopper.start()
    stopper.join(60)
    assert not stopper.is_alive()
    assert (run.status().state, run.status().epoch) == ("stopped", epoch)
    assert run._run.run_log.open is not None
    (tmp_path / "trap").unlink()
    _let(there, 20)  # the open epoch ends where it was to end, all the same

    # A stream of a DataFrame goes on with none of it.
    feed = tools.feed("n long, at long")
    with pytest.raises(CheckpointMismatch, match=r"unfinished.* \['numbers'\] were re"):
        tools.start(pipeline(feed.stream))
    run = tools.start(pipeline(Numbers(there)), tasks=tasks)
    tools.step(run)
    assert run.status().injected == {"numbers": 20}
    assert run._run.run_log.source_offsets["numbers"]["all"].offset == 20
    tools.clock.now += 30 * mr.SECOND
    tools.step(run)
    assert sorted(kept.values) == [*range(20)]
    run.stop()
    with pytest.raises(CheckpointMismatch, match=r"\['numbers'\] were read by the other kind"):
        tools.start(pipeline(feed.stream))


def test_an_epoch_has_as_many_tasks_as_its_work_is_worth(tools: Any, tmp_path: Path) -> None:
    there, kept = tmp_path / "there", tools.Kept()
    p = mr.Pipeline("driven")
    p.inject("numbers", Numbers(there), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Slowly)
    p.sink("same", kept)
    _let(there, 8)
    run = tools.start(p, tasks=(1, 3), balance=True)
    tools.step(run)
    assert run.status().tasks == 3
    _let(there, 9)
    tools.step(run)
    for _ in range(20):  # an epoch without a job each
        tools.step(run)
    assert run.status().tasks == 1
    _let(there, 12)
    tools.step(run)
    assert sorted(kept.values) == [*range(12)]
    log = run._run.run_log.state.epochs
    entries = [decode_entry(log.read(n)) for n in range(1, log.last() + 1)]
    tasks = [one.tasks for one in entries if isinstance(one, Manifest)]
    # As many as the session has, then the most, and fewer by and by.
    assert tasks[:2] == [2, 3]
    assert set(tasks) == {1, 2, 3}


@pytest.mark.parametrize("tasks", [1, 2])
def test_one_task_a_level_needs_no_shuffle_and_may_die_at_any_level(
    spark: SparkSession, tools: Any, tmp_path: Path, tasks: int
) -> None:
    there, kept = tmp_path / "there", tools.Kept()
    p = mr.Pipeline("driven")
    p.inject("numbers", Numbers(there), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Summed)
    p.add(Doubled(tmp_path / "dies"))
    p.sink("doubled", kept)
    _let(there, 6)
    run = tools.start(p, tasks=tasks, attempts=3)
    tools.step(run)
    jobs = spark.sparkContext.statusTracker()
    before = {*jobs.getJobIdsForGroup()}
    _let(there, 9)
    tools.step(run)
    made = [jobs.getJobInfo(job) for job in {*jobs.getJobIdsForGroup()} - before]
    stages = max(len(job.stageIds) for job in made if job is not None)
    assert stages == 1 if tasks == 1 else stages > 2
    (tmp_path / "dies").touch()
    _let(there, 12)
    tools.step(run)
    assert not (tmp_path / "dies").exists(), "a process died"
    totals = [2 * sum(range(n % 3, n + 1, 3)) for n in range(12)]
    assert sorted(kept.values) == sorted(totals)


def test_an_idle_run_wakes_up_for_the_wall_clock_and_its_sink_has_the_views_of_the_session(
    spark: SparkSession, tools: Any, tmp_path: Path
) -> None:
    there, kept = tmp_path / "there", tools.Kept()
    spark.createDataFrame([(0, "zero"), (1, "one")], "value long, word string").createTempView("w")
    spark.range(1).createTempView("`a-view`")
    spark.range(1).createTempView("base")
    spark.sql("CREATE TEMP VIEW broken AS SELECT * FROM base")
    spark.catalog.dropTempView("base")
    named: list[str] = []

    def name(rows: Any, _: int) -> None:
        assert rows.sparkSession.table("`a-view`").count() == 1
        named.extend(
            row["word"] for row in rows.join(rows.sparkSession.table("w"), "value").collect()
        )

    p = mr.Pipeline("driven")
    p.inject("numbers", Numbers(there), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Remind(tmp_path))
    p.sink("reminders", kept)
    p.sink("reminders", name)
    _let(there, 2)
    run = tools.start(p, clock=None)
    _until(lambda: kept.values == [0, 1])  # without anybody who asks for an epoch
    run.stop()
    assert named == ["zero", "one"]
    for view in ("w", "a-view", "broken"):
        spark.catalog.dropTempView(view)
    assert not spark.sql("SHOW VIEWS IN global_temp").collect()


def test_an_injector_beside_a_dataframe(
    tools: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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

    _let(there, 3)
    run = tools.start(pipeline(feed.stream))
    tools.step(run)
    feed.add((50, mr.SECOND), (51, mr.SECOND))
    tools.step(run)
    _let(there, 5)
    _until(lambda: run.status().injected == {"numbers": 5, "others": 2})
    run.stop()
    assert run._run.run_log.source_offsets["numbers"]["all"].offset == 5
    _let(there, 6)
    run = tools.start(pipeline(feed.stream))
    tools.step(run)
    assert run.status().injected == {"numbers": 6, "others": 2}
    (tmp_path / "no-answer").touch()
    _until((tmp_path / "asked").exists)
    run.stop("0 s")
    assert "the injector of 'numbers' has not answered" in caplog.text
    (tmp_path / "no-answer").unlink()
    with pytest.raises(CheckpointMismatch, match=r"\['others'\] were read by the other kind"):
        tools.start(pipeline(Numbers(there)))


class Totals(mr.Computation):
    """Adds up by the last digit, and says what it has so far."""

    inputs = {"numbers": mr.by(lambda row: row["n"] % 2)}
    outputs = {"totals": int}
    total = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0) + record.value["n"])
        self.produce("totals", self.total.get())


class Last(mr.Computation):
    """A second level, with code that hangs, or ends its process."""

    inputs = {"totals": mr.by(lambda total: total % 3)}
    outputs = {"passed": int}
    seen = mr.ValueState(int)

    def __init__(self, *, hangs: int = -1, kills: int = -1) -> None:
        self.hangs, self.kills = hangs, kills

    def process_record(self, record: mr.Record) -> None:
        if record.value == self.kills:
            os.kill(os.getpid(), signal.SIGSEGV)
        while record.value == self.hangs:
            time.sleep(0.01)
        self.seen.set(self.seen.get(0) + 1)
        self.produce("passed", record.value)


def _totals(until: int) -> list[int]:
    """Return all totals of the numbers below one."""
    return sorted(total for odd in (0, 1) for total in accumulate(range(odd, until, 2)))


def _totals_pipeline(there: Path, *sinks: Any, **how: int) -> mr.Pipeline:
    p = mr.Pipeline("totals")
    p.inject("numbers", Numbers(there), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Totals)
    p.add(Last(**how))
    for sink in sinks:
        p.sink("passed", sink)
    return p


class Died(Exception):
    """What a test has a driver die of."""


@pytest.mark.timeout(400)
def test_a_driver_may_die_at_each_write_of_an_epoch(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after the manifest, the tasks' commits, what sinks publish, and the completion."""
    there, files = tmp_path / "there", tmp_path / "out"
    dies_at = ""

    def dying(owner: Any, name: str, before: str, after: str) -> None:
        method = getattr(owner, name)

        def wrapped(*args: Any, **how: Any) -> Any:
            if dies_at == before:
                raise Died(before)
            found = method(*args, **how)
            if dies_at == after:
                raise Died(after)
            return found

        monkeypatch.setattr(owner, name, wrapped)

    dying(RunLog, "write", "begins", "has begun")
    dying(job, "_called", "runs the job", "has run the job")
    dying(mr.sinks.Parquet, "publish", "publishes", "has published")
    dying(RunLog, "complete", "completes", "has completed")
    points = ["begins", "has begun", "runs the job", "has run the job", "publishes"]
    points += ["has published", "completes", "has completed"]

    kept = tools.Kept()
    for round, point in enumerate(points):
        _let(there, round * 4 + 2)
        run = tools.start(_totals_pipeline(there, mr.sinks.Parquet(str(files)), kept))
        tools.step(run)
        dies_at = point
        _let(there, round * 4 + 4)
        with pytest.raises(Exception, match=point):
            run.wait("60 s")
        assert run.status().state == "failed"
        dies_at = ""
    run = tools.start(_totals_pipeline(there, mr.sinks.Parquet(str(files)), kept))
    tools.step(run)
    assert run.drain("60 s")

    wanted = _totals(4 * len(points))
    assert sorted(kept.values) == wanted
    found = [str(file) for file in files.rglob("*.parquet")]
    assert sorted(ds.dataset(found).to_table()["value"].to_pylist()) == wanted
    assert run.status().injected == {"numbers": 4 * len(points)}


@pytest.mark.timeout(400)
def test_what_hangs_or_kills_its_process_is_set_aside_and_a_stream_is_held_to_a_rate(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where a host lets nobody set what makes jobs faster.
    others = {"spark.sql.adaptive.enabled": "true"}
    monkeypatch.setattr(epoch_engine, "SETTINGS", others)
    there, kept, rejects = tmp_path / "there", tools.Kept(), tools.Kept()
    p = _totals_pipeline(there, kept, hangs=12, kills=16)
    p.dead_letter("rejects")
    p.sink("rejects", rejects)
    _let(there, 10)
    run = tools.start(p, time_limit="1 s", attempts=2)
    tools.step(run)
    assert sorted([*kept.values, 12, 16]) == _totals(10)
    hung, killed = sorted(
        (letter["reason"] for letter in rejects.values), key=lambda reason: "SIGSEGV" in reason
    )
    # Alone in a process, where it is looked for what kills it, it is killed itself.
    assert re.search(r"(took longer than|killed after) 1 s", hung)
    assert "ends the process that it runs in: signal SIGSEGV" in killed

    # By the rate, ten records take ten seconds of the clock that the test has.
    run.limit_rate("numbers", 1.0)
    _let(there, 20)
    tools.step(run)
    _let(there, 30)
    tools.step(run)
    assert run.status().injected == {"numbers": 20}
    tools.clock.now += 20 * mr.SECOND
    tools.step(run)
    assert run.status().injected == {"numbers": 30}
    run.stop()
    assert sorted([*kept.values, 12, 16]) == _totals(30)


def test_worker_processes_that_die_more_often_than_attempts_end_the_run(
    tools: Any, tmp_path: Path
) -> None:
    there, kept = tmp_path / "there", tools.Kept()
    _let(there, 10)
    run = tools.start(_totals_pipeline(there, kept, kills=16), attempts=1)
    with pytest.raises(mr.MillraceError, match="worker"):
        run.wait("60 s")
    # What its first level has committed counts once when another goes on.
    run = tools.start(_totals_pipeline(there, kept))
    tools.step(run)
    assert sorted(kept.values) == _totals(10)
