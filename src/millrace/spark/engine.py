"""The seam between a run and its plane: what engines differ in, and what they do before a run.

A run, its start and its handle are one for both planes, and know nothing else of them. There are
three engines: of epochs that the driver begins, of epochs that are Spark's micro-batches, and of
tasks that do not end.

Where a changed pipeline takes over, the engine of the run that ends says when: what can be done
before is done beside it, by the :class:`Successor`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

from pyspark.sql import SparkSession

from millrace.balance.balancer import Balancer
from millrace.balance.load import RunLoads
from millrace.balance.policy import Balance
from millrace.balance.preparation import Preparation
from millrace.balance.task_count import TaskRange
from millrace.balance.transfer import remap
from millrace.compile.explanation import PipelineExplanation
from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.epochlog.run_log import RunLog
from millrace.injectors.advance import Backlog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.inspect.lease import Lease
from millrace.model.errors import CheckpointMismatch, PipelineError, StoreError, ZombieWriter
from millrace.model.time import Duration
from millrace.runtime.stuck import CallLimits
from millrace.spark.console import Quiet
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.metrics.prometheus import Scrapes
from millrace.spark.plan import StreamPlan
from millrace.spark.progress_display import ProgressTarget
from millrace.spark.realtime.retry_policy import Downtime
from millrace.spark.source import Source
from millrace.spark.status import Status
from millrace.store import Mailbox

if TYPE_CHECKING:
    from millrace.spark.realtime.standby import Standby
    from millrace.spark.run import Run

#: How long a stream that is held back may take to stand still, before who asked is told.
EFFECT_S: Final = 60.0


class RemapResult(NamedTuple):
    """What became of a remap.

    Attributes:
        intervals: How many the computation has now.
        epoch: After which it took effect.
        pause: How long the run stood still for it, in words; "" if no longer than it took.
    """

    intervals: int
    epoch: int
    pause: str = ""


@dataclass(frozen=True)
class RunParts:
    """What every run has, and what its engine is made of, whatever its plane.

    Attributes:
        topology: The pipeline.
        run_log: Of the checkpoint that it claimed.
        loads: What its key intervals cost.
        publisher: What injectors publish.
        housekeeping: Collects beside the epochs.
        plan: Of the pipeline, attached to the checkpoint.
        tasks: Tasks a level, to begin with.
        allowed: How many there may be later.
        limits: How long user code, and a task, may take.
        attempts: How often what fails by the pipeline's own code is tried in vain.
        balance: How hard key intervals follow the load; None if they do not.
        explanation: How the pipeline runs.
        clock: Returns wall-clock microseconds since 1970.
        console: Spark's share of it.
        progress_target: Where progress is shown.
        scrapes: Answers Prometheus; None if nobody asked for that.
        lines: Where metrics are kept.
        mailbox: Where others ask something of the run.
        scratch: Directory of this run alone, removed with it.
        lease: Of the checkpoint, given back when the run ends; None if nobody waits for it.
    """

    topology: Topology
    run_log: RunLog
    loads: RunLoads
    publisher: WatermarkPublisher
    housekeeping: Housekeeping
    plan: StreamPlan
    tasks: int
    allowed: TaskRange
    limits: CallLimits
    attempts: int
    balance: Balance | None
    explanation: PipelineExplanation
    clock: Callable[[], int]
    console: Quiet
    progress_target: ProgressTarget
    scrapes: Scrapes | None
    lines: MetricLines
    mailbox: Mailbox
    scratch: Path
    lease: Lease | None = None

    def balancer(
        self,
        *,
        is_near: Callable[[Preparation], bool] = Preparation.is_near,
        remap: Callable[..., Any] = remap,
    ) -> Balancer | None:
        """Return what has key intervals follow the load; None if they do not.

        Args:
            is_near: As :class:`~millrace.balance.balancer.Balancer` takes it.
            remap: The same.
        """
        if self.balance is None:
            return None
        beside = self.housekeeping.prepare_beside
        return Balancer(
            self.run_log,
            self.loads,
            self.tasks,
            self.balance,
            beside=beside,
            is_near=is_near,
            remap=remap,
        )


class Successor(Protocol):
    """A pipeline that is to go on where a run ends, built and checked.

    Attributes:
        slots: How many slots its tasks take for as long as it runs; 0 by epochs.
        optional: Whether it takes over at a mark, with its tasks started beside, or not at all; the
            run goes on as it was then.
    """

    slots: int
    optional: bool

    def stand_by(self, changed: Callable[[], None]) -> Standby:
        """Start its query beside the run; of one with slots.

        Args:
            changed: Called when the query may be ready.

        Raises:
            MillraceError: It cannot be. Nothing was written.
        """
        ...

    def claim(self) -> None:
        """Claim the checkpoint, which the run before loses; while nothing is under way.

        Raises:
            CheckpointMismatch: The pipeline cannot go on there. Nothing was written.
            SinkError: A sink cannot be bound. The same.
        """
        ...

    def begin(self, downtime: Downtime) -> Run:
        """Return its run, which goes on with the checkpoint.

        Args:
            downtime: Of the run before it.
        """
        ...

    def close(self) -> None:
        """Release its resources: it will not begin."""
        ...


class UpdateResult(NamedTuple):
    """What became of an update.

    Attributes:
        pause: For how long nothing was under way, by part and in words.
        seconds: The same as a number.
    """

    pause: str
    seconds: float


class Engine(ABC):
    """Runs a pipeline's tasks: all that planes differ in once a run has its checkpoint.

    Its methods are called from any thread, but :meth:`launch`, :meth:`watch`, :meth:`again` and
    :meth:`hang_up` from the one that looks after the run.

    Attributes:
        plane: Its name, for messages.
        run: That it is the engine of, once it is.
        query: Spark's, that runs the tasks now; None if there is none.
        downtime: Measures for how long nothing was under way, here or on the way from a run before.
        news: Notified when something may have changed that somebody waits for.
        scale: Called when there are to be more tasks a level, or fewer, with how many; it returns
            at once. Of an engine that cannot change their number itself.
    """

    plane: ClassVar[str]
    run: Run
    query: Any = None
    scale: Callable[[int], object]

    def __init__(self) -> None:
        self.news = threading.Condition()
        self.downtime = Downtime()
        self.scale = lambda _: None

    @abstractmethod
    def launch(self) -> None:
        """Start tasks: the first ever, or those after an end that was no end of the run."""

    @abstractmethod
    def watch(self) -> BaseException | None:
        """Wait until the tasks have ended; return why, or None if that is the end of the run."""

    @abstractmethod
    def again(self, failure: BaseException) -> bool:
        """Wait out the back-off after a failure; return whether tasks are started again.

        If not, the run's error is set.
        """

    def hang_up(self) -> None:  # noqa: B027  not all have something to do
        """Take it that nothing is started any more."""

    @abstractmethod
    def process_available(self, timeout: Duration | None) -> bool:
        """Wait until all input that is there now is processed, and low watermarks stand still."""

    @abstractmethod
    def end_input(self) -> None:
        """Raise low watermarks to the end of time, fire what waits, and end; without waiting."""

    @abstractmethod
    def stop(self, timeout: Duration) -> None:
        """End the tasks when what is under way is done, or, after the timeout, without that."""

    @abstractmethod
    def hold_back(self) -> None:
        """Have tasks go by what the publisher's throttle says; wait until they do."""

    @abstractmethod
    def quiesced_epoch(self) -> tuple[int, str]:
        """Return an epoch beyond which nothing was done when it completed.

        Returns:
            And how long the run stood still for it, in words; "" if it did not.
        """

    @abstractmethod
    def remap(self, name: str, preparation: Preparation) -> RemapResult:
        """Split and merge key intervals of a computation while nothing is under way.

        Args:
            name: Of the computation.
            preparation: Of the remap; what it wants to have read is read beside the tasks.

        Raises:
            PipelineError: It cannot be, or the run has ended before; nothing has changed.
        """

    @abstractmethod
    def end_if_superseded(self) -> None:
        """End soon if another run has claimed the checkpoint."""

    def hand_over(self, successor: Successor, timeout: Duration) -> Run:
        """End this run, and return one of another pipeline that goes on where it ends.

        Here by stopping the one, and starting the other.

        Args:
            successor: The other.
            timeout: As of :meth:`stop`.

        Raises:
            Exception: There is none. This run was ended for it if :attr:`Run.handed_over` says so,
                and otherwise is as it was.
        """
        downtime = Downtime()
        downtime.gone()
        self.run.handed_over = True
        self.run.stop(timeout)
        downtime.lap("until the run before had ended")
        successor.claim()
        return successor.begin(downtime)

    def _make_way(self, successor: Successor, downtime: Downtime) -> Run:
        """Have another pipeline go on, while nothing is under way; from its claim on this run ends.

        Args:
            successor: The other.
            downtime: Since nothing is under way.
        """
        try:
            successor.claim()
        except StoreError as error:
            # A claim that could not be written has perhaps been, and then this run cannot go on.
            if not isinstance(error, CheckpointMismatch | ZombieWriter):
                self.run.stopping = self.run.handed_over = True
            raise
        self.run.stopping = self.run.handed_over = True
        downtime.lap("to claim the checkpoint")
        return successor.begin(downtime)

    def went_on(self) -> UpdateResult:
        """Return for how long nothing was under way after a hand-over, once something is."""
        pause = self.downtime.back("until the next epoch could begin") or ""
        return UpdateResult(pause, self.downtime.seconds)

    @property
    def under_way_s(self) -> float:
        """For how many seconds what is under way has been."""
        return 0.0

    def backlog(self) -> Mapping[str, Callable[[], Backlog | None]]:
        """Return stream -> what asks its source what waits there; of sources that are the engine's.

        Others are injectors, which the run asks itself.
        """
        return {}

    def hosts(self) -> Mapping[tuple[int, int], Any]:
        """Return (level, number) of a task -> the process that it runs in.

        Raises:
            PipelineError: Tasks of this plane stay in no process.
        """
        raise PipelineError(
            f"run.hosts: a run {self.plane} has no tasks that stay in a process: Spark runs others "
            "for each epoch, and shows them in its UI. With realtime=True they stay."
        )

    def add_to(self, status: Status, *, active: bool) -> Status:
        """Return a status with what the engine alone knows."""
        return status


class WarmStandby(Protocol):
    """What waits, started, for a run to begin: a query with its tasks, or an epoch's rehearsal."""

    @property
    def ready(self) -> bool:
        """Whether a run would begin at once."""

    @property
    def failure(self) -> BaseException | None:
        """Why it will not be ready any more; None if it is, or may be yet."""

    def end(self) -> None:
        """Give it up, without waiting: see :meth:`wait`."""

    def wait(self) -> None:
        """Wait until it has let go of what it had; after :meth:`end`."""


class Setup(ABC):
    """What a plane does otherwise on the way to a run; ``start`` does the rest for both.

    It is made before the checkpoint is touched, and refuses a source, or an application, that its
    plane cannot run.

    Args:
        spark: A session; for real time, of an application with its settings.
        topology: Of the pipeline.
        checkpoint: A directory or URL.
        options: All of the plane.
        scratch: Directory of the run, which is made later.

    Raises:
        PipelineError: A source, a sink or the session cannot do it.

    Attributes:
        intervals_each: Key intervals a task, unless the user says how many.
        sources: Of the pipeline, as Spark reads them.
        fitting: How many tasks a level there are, unless the user says how many.
        beside: What was started before there is a run, which has it then; None if nothing was.
    """

    intervals_each: ClassVar[int]
    beside: WarmStandby | None = None
    sources: Sequence[Source]
    fitting: int

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        checkpoint: str,
        options: Mapping[str, Any],
        scratch: Path,
    ) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._options = options
        self._scratch = scratch
        self._prepare(topology)

    @abstractmethod
    def _prepare(self, topology: Topology) -> None:
        """Look at the sources, and refuse those that the plane cannot read."""

    @abstractmethod
    def check(self, tasks: int, allowed: TaskRange, *, slots_later: bool = False) -> None:
        """Refuse what tasks need and do not have; before the checkpoint is touched.

        Args:
            tasks: How many a level there are to begin with.
            allowed: How many there may be later.
            slots_later: Whether there need not be slots for all of them yet.
        """

    def check_left(self, unfinished: Manifest | None, tasks: int) -> None:  # noqa: B027
        """Refuse what a run before has left under way, before the checkpoint is claimed.

        Args:
            unfinished: The manifest of the epoch that is open; None if none is.
            tasks: Tasks a level that would take it up.

        Raises:
            CheckpointMismatch: They cannot.
        """

    def check_claimed(self, run_log: RunLog) -> None:  # noqa: B027  not all have something to do
        """Refuse a checkpoint that the plane cannot go on with."""

    @property
    def is_warm(self) -> bool:
        """Whether what waits is ready."""
        return self.beside is not None and self.beside.ready

    @property
    def failure_beside(self) -> BaseException | None:
        """Why what waits has failed; None if it has not, or nothing waits."""
        return None if self.beside is None else self.beside.failure

    @abstractmethod
    def warm_up(self, plan: StreamPlan, tasks: int, intervals: int) -> None:
        """Start what takes Spark long the first time, before there is a run: see :attr:`beside`.

        Args:
            plan: Of the run, as far as is known.
            tasks: How many a level it begins with.
            intervals: Key intervals of a computation that is new.
        """

    def end_beside(self) -> None:
        """End what waits, if something does and no run has it."""
        beside, self.beside = self.beside, None
        if beside is not None:
            beside.end()
            beside.wait()

    def take_over(self, run_log: RunLog) -> None:  # noqa: B027  not all have something to do
        """Go on where the other plane ended, once sinks are claimed."""

    @abstractmethod
    def engine(self, parts: RunParts) -> Engine:
        """Return what runs the tasks."""


def ended() -> PipelineError:
    """Return the error of who wants something of a run that has ended."""
    return PipelineError(
        "this run has ended before it could be done. Of a checkpoint that no run has: `millrace "
        "remap --stopped`, `millrace checkpoint savepoint add`."
    )
