"""Two drivers on one checkpoint, as the run's handle sees them; Spark's query is a stand-in."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import millrace as mr
from millrace.balance.load import RunLoads
from millrace.balance.task_count import TaskRange
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.errors import MillraceError, PipelineError, RunFailed, ZombieWriter
from millrace.runtime.epoch.input import EpochInput
from millrace.runtime.stuck import NO_LIMITS
from millrace.spark.console import Quiet
from millrace.spark.engine import RunParts
from millrace.spark.handle import Handle
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.microbatch_engine import MicroBatchEngine
from millrace.spark.offset_files import ProgressFiles
from millrace.spark.progress_display import ProgressTarget
from millrace.spark.run import Run
from millrace.spark.split_settings import SplitSettings
from millrace.store import LocalBlobs, Mailbox, MemoryHardState

COLLISION = (
    "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected "
    "for 7.\nPlease make sure only one streaming job runs on a specific checkpoint location."
)


class Echo(mr.Computation):
    inputs = {"words": mr.by_key()}

    def process_record(self, record: mr.Record) -> None:
        raise NotImplementedError


class Query:
    """A query that has ended, or one that runs."""

    def __init__(self, error: str | None = None) -> None:
        self.error = error
        self.isActive = error is None

    def fail(self, error: str) -> None:
        self.error, self.isActive = error, False

    def exception(self) -> Exception | None:
        return None if self.error is None else RuntimeError(self.error)

    def stop(self) -> None:
        self.isActive = False


class NoFiles(ProgressFiles):
    """A query that writes nothing."""

    def __init__(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def give_back(self) -> None:
        pass


class Unsplit(SplitSettings):
    """A session without files to split."""

    def __init__(self) -> None:
        pass

    def repeat(self, wanted: Any) -> None:
        pass

    def give_back(self) -> None:
        pass


class Started:
    """Starts a run that has been made."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def run(self, _: mr.Pipeline, *, again: bool = False) -> Run:
        self._run.launch()
        return self._run


class Drivers:
    def __init__(self, folder: Path) -> None:
        p = mr.Pipeline("p")
        p.inject("words")
        p.add(Echo)
        self.topology = p.build()
        self.state = MemoryHardState()
        self.folder = folder

    def start(self, *queries: Query) -> Any:
        """Return a run that claims the checkpoint; each start of its query takes one of these."""
        run_log = RunLog(self.topology, self.state, intervals=2)
        nothing: Any = None
        left = list(queries)
        parts = RunParts(
            topology=self.topology,
            run_log=run_log,
            loads=RunLoads(run_log),
            publisher=WatermarkPublisher({}),
            housekeeping=Housekeeping(self.state),
            plan=nothing,
            tasks=1,
            allowed=TaskRange(1, 1),
            limits=NO_LIMITS,
            attempts=3,
            balance=None,
            explanation=nothing,
            clock=lambda: 0,
            console=Quiet(nothing),
            progress_target=ProgressTarget.NOWHERE,
            scrapes=None,
            lines=MetricLines(None),
            mailbox=Mailbox(LocalBlobs(self.folder)),
            scratch=self.folder / uuid4().hex,
        )
        engine = MicroBatchEngine(
            parts,
            EpochInput(self.topology, {}),
            start_query=lambda _epoch: left.pop(0),
            progress_files=NoFiles(),
            alarm=nothing,
            splitting=Unsplit(),
            readers=1,
        )
        starter: Any = Started(Run(parts, engine))
        handle = Handle()
        handle._begin(nothing, starter)
        return handle


@pytest.fixture
def drivers(tmp_path: Path) -> Drivers:
    return Drivers(tmp_path / "scratch")


def test_a_query_that_collided_with_the_earlier_drivers_offsets_is_begun_again(drivers) -> None:
    drivers.start(Query())
    run = drivers.start(Query(COLLISION), Query(COLLISION), Query())
    while run.query.error is not None:
        assert run.wait("10 ms") is False
    assert run.query.isActive


def test_it_is_not_begun_again_for_ever(drivers) -> None:
    run = drivers.start(*[Query(COLLISION)] * 20)
    with pytest.raises(RunFailed, match="Multiple streaming jobs"):
        run.wait("10 s")


def test_the_superseded_driver_ends_whatever_it_stumbled_over(drivers) -> None:
    for error in (COLLISION, "FileNotFoundException: the newer run has cleaned up"):
        query = Query()
        old = drivers.start(query)
        drivers.start(Query())
        query.fail(error)
        with pytest.raises(ZombieWriter, match="zombie writer: this run has generation") as ended:
            old.wait("10 s")
        assert error in str(ended.value.__cause__)


def test_another_failure_is_not_taken_for_a_collision(drivers) -> None:
    run = drivers.start(Query("the cluster is gone"), Query())
    with pytest.raises(MillraceError, match="the cluster is gone"):
        run.wait("10 s")


def test_a_run_that_was_stopped_is_not_begun_again(drivers) -> None:
    run = drivers.start(Query(), Query())
    run.stop()
    run.query.error = COLLISION
    assert run.wait("1 s") is True


def test_tasks_of_epochs_stay_in_no_process(drivers) -> None:
    run = drivers.start(Query())
    with pytest.raises(PipelineError, match=r"a run by epochs has no tasks that stay in a process"):
        run.hosts  # noqa: B018
    run.stop()
