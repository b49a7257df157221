"""The seam between a run and its plane: what engines differ in, and what they do before a run.

A run, its start and its handle are one for both planes, and know nothing else of them. A third
engine would fit: epochs that the program drives itself, without Structured Streaming.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from millrace.injectors.advance import Backlog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.model.errors import PipelineError
from millrace.model.time import Duration
from millrace.plane.stuck import CallLimits
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.plan import StreamPlan
from millrace.spark.source import Source
from millrace.spark.status import Status
from millrace.windmill.balance_policy import Balance
from millrace.windmill.epochs import Epochs
from millrace.windmill.preparation import Preparation

if TYPE_CHECKING:
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


class Engine(ABC):
    """Runs a pipeline's tasks: all that planes differ in once a run has its checkpoint.

    Its methods are called from any thread, but :meth:`launch`, :meth:`watch`, :meth:`again` and
    :meth:`hang_up` from the one that looks after the run.

    Attributes:
        plane: Its name, for messages.
        run: That it is the engine of, once it is.
        query: Spark's, that runs the tasks now; None if there is none.
        news: Notified when something may have changed that somebody waits for.
    """

    plane: ClassVar[str]
    run: Run
    query: Any = None

    def __init__(self) -> None:
        self.news = threading.Condition()

    @abstractmethod
    def launch(self) -> None:
        """Start tasks: the first ever, or those after an end that was no end of the run."""

    @abstractmethod
    def watch(self) -> BaseException | None:
        """Wait until the tasks have ended; return why, or None if that is the end of the run."""

    @abstractmethod
    def again(self, failure: BaseException) -> bool:
        """Wait as long as it takes after a failure; return whether tasks are started again.

        If not, the run has been told what it fails with.
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


class Setup(ABC):
    """What a plane does otherwise on the way to a run; ``start`` does the rest for both.

    It is made before the checkpoint is touched, and refuses a source, or an application, that its
    plane cannot run.

    Attributes:
        intervals_each: Key intervals a task, unless the user says how many.
        sources: Of the pipeline, as Spark reads them.
        fitting: How many tasks a level there are, unless the user says how many.
    """

    intervals_each: ClassVar[int]
    sources: Sequence[Source]
    fitting: int

    @abstractmethod
    def check(self, tasks: int) -> None:
        """Refuse what this many tasks need and do not have; before the checkpoint is touched."""

    def check_claimed(self, epochs: Epochs) -> None:  # noqa: B027  not all have something to do
        """Refuse a checkpoint that the plane cannot go on with."""

    def take_over(self, epochs: Epochs) -> None:  # noqa: B027  not all have something to do
        """Go on where the other plane ended, once sinks are claimed."""

    @abstractmethod
    def engine(
        self,
        plan: StreamPlan,
        epochs: Epochs,
        publisher: WatermarkPublisher,
        tasks: int,
        limits: CallLimits,
        balance: Balance | None,
        housekeeping: Housekeeping,
    ) -> Engine:
        """Return what runs the tasks.

        Args:
            plan: Of the pipeline, attached to the checkpoint.
            epochs: Of the checkpoint, which is claimed.
            publisher: What injectors publish.
            tasks: Tasks a level.
            limits: How long user code, and a task, may take.
            balance: How hard key intervals follow the load; None if they do not.
            housekeeping: Of the run.
        """


def ended() -> PipelineError:
    """Return the error of who wants something of a run that has ended."""
    return PipelineError(
        "this run has ended before it could be done. Of a checkpoint that no run has: `millrace "
        "remap --stopped`, `millrace checkpoint savepoint add`."
    )
