"""The engine of epochs: the part that is common to both ways of beginning them.

The driver begins epochs itself if it reads all sources (:mod:`millrace.spark.driven_engine`).
Structured Streaming begins them if Spark reads one (:mod:`millrace.spark.microbatch_engine`).
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from pyspark.sql import DataFrame, SparkSession

from millrace.balance.preparation import Preparation
from millrace.balance.task_count import EpochTaskCount
from millrace.balance.transfer import remap
from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest, processes_of
from millrace.epochlog.run_log import RunLog
from millrace.injectors.offsets import Offsets, Piece
from millrace.model.errors import CheckpointMismatch, MillraceError
from millrace.model.time import SECOND, Duration, duration_us
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.epoch.input import EpochInput
from millrace.runtime.partials_stage import Payoff
from millrace.runtime.realtime.incarnation_start import from_live_tasks
from millrace.runtime.reports import TaskReport
from millrace.runtime.sink_contract import sinks_by_edge
from millrace.spark.clock import now_us
from millrace.spark.compat import session_for_jobs
from millrace.spark.engine import EFFECT_S, Engine, RemapResult, RunParts, Setup, ended
from millrace.spark.external import injectors_of
from millrace.spark.failure import cannot_run_workers, failed, headline
from millrace.spark.job import run_patiently
from millrace.spark.parallelism import tasks_for
from millrace.spark.plan import SETTINGS, StreamPlan
from millrace.spark.rehearsal import Rehearsal
from millrace.spark.source import sources_of
from millrace.spark.status import Status
from millrace.store import MemoryHardState

_log = logging.getLogger("millrace")

#: An idle pipeline has an epoch in a minute, with which it finds out whether it was superseded; a
#: due timer or a low watermark on the move does not wait for it.
_IDLE_US: Final = 60 * SECOND
#: An alarm goes by another clock than epochs do. One that rings just before a low watermark moves
#: is an epoch for nothing.
_SURELY_US: Final = 1_000

#: An injector has at least so long to answer before a stop goes on without it.
_PATIENCE_S: Final = 1.0

#: Returns, of the pieces of an epoch, the rows of its first stage, and the pieces of each of their
#: partitions, or None where they are among the rows.
Rows = Callable[[Mapping[str, Sequence[Piece]]], tuple[DataFrame, list[list[bytes]] | None]]


class EpochEngine(Engine):
    """Runs epochs, one after the other.

    Args:
        parts: Of the run.
        input: What the driver reads of injectors.
        session: That errors are looked up in.

    Attributes:
        turns_ahead: How many turns begin until one has surely looked at all that there was before.
    """

    plane: ClassVar[str] = "by epochs"
    turns_ahead: ClassVar[int]

    def __init__(self, parts: RunParts, input: EpochInput, session: SparkSession) -> None:
        super().__init__()
        self._session = session
        self._topology = parts.topology
        self._run_log = parts.run_log
        self._publisher = parts.publisher
        self._clock = parts.clock
        self._plan = parts.plan
        self._input = input
        self._driver = EpochDriver(
            parts.topology, parts.run_log, parts.publisher, tasks=parts.tasks
        )
        self._attempts = parts.attempts
        self._balancer = parts.balancer()
        self._task_count = EpochTaskCount(parts.allowed, parts.tasks, levels=parts.topology.depth)
        self._turn = threading.Lock()
        self._begun = 0
        self._idle = 0
        self._wanted = 0
        self._draining = False
        self._epoch_since: float | None = None
        self._payoff = Payoff()

    @abstractmethod
    def _ring_in(self, delay_us: int) -> None:
        """Have the next epoch begin after so long at the latest; :attr:`news` is held."""

    @property
    def under_way_s(self) -> float:
        """For how many seconds the epoch has been under way."""
        return time.monotonic() - (self._epoch_since or time.monotonic())

    # -- what the run asks -------------------------------------------------------------------------

    def process_available(self, timeout: Duration | None) -> bool:
        """Wait until all input that is there now is processed, and low watermarks stand still."""
        with self.news:
            wanted = self._wanted = self._begun + self.turns_ahead
            self._ring_in(0)
        self.run.wait_until(lambda: self._idle >= wanted, timeout)
        return self._idle >= wanted

    def end_input(self) -> None:
        """Have the next epoch be the last."""
        with self.news:
            self._draining = True
            self._ring_in(0)

    def hold_back(self) -> None:
        """Wait until epochs obey the new pauses: the current one, and one planned, may not yet."""
        with self.news:
            wanted = self._wanted = self._begun + self.turns_ahead
            self._ring_in(0)
            until = time.monotonic() + EFFECT_S
            while self.run.active and (self._begun < wanted or self._epoch_since is not None):
                left = until - time.monotonic()
                if left <= 0 or self._begun > wanted:
                    return
                self.news.wait(min(left, 0.1))

    def end_if_superseded(self) -> None:
        """Have an epoch begin: that of a run which was superseded is refused, and ends it."""
        with self.news:
            self._ring_in(0)

    def quiesced_epoch(self) -> tuple[int, str]:
        """Return the last epoch: between two of them nothing is under way, and none waits."""
        return self._run_log.completed, ""

    def remap(self, name: str, preparation: Preparation) -> RemapResult:
        """Read rows beside the epochs; split and merge key intervals between two of them."""
        run_log, beside = self._run_log, self.run.housekeeping
        while True:
            with self._turn:
                if self.run.stopping or not self.run.active:
                    raise ended()
                if preparation.is_near():
                    result = remap(run_log, preparation.remaps, ready=preparation.ready)[name]
                    beside.offer(run_log.collectable())
                    return RemapResult(len(result.intervals), run_log.completed)
            beside.prepare(preparation)

    def _gives_up_input(self, until_s: float) -> bool:
        """End the run without an injector that has not answered in time; return whether it has.

        The thread that looks after the run is in user code then, and begins nothing any more when
        it comes back.

        Args:
            until_s: When a stop is to end, by the monotonic clock.
        """
        asked, now_s = self._input.asking, time.monotonic()
        if asked is None or now_s < max(until_s, asked.since_s + _PATIENCE_S):
            return False
        _log.warning(
            "the injector of %r has not answered for %.1f s, and the run has ended without it. The "
            "next run asks it again. Does its advance() or split() wait for something?",
            asked.stream,
            now_s - asked.since_s,
        )
        self.run.give_up()
        self.hang_up()
        return True

    def add_to(self, status: Status, *, active: bool) -> Status:
        """Return a status with the number of tasks that the next epoch is to have."""
        return replace(status, tasks=self._task_count.tasks)

    # -- one epoch ---------------------------------------------------------------------------------

    @contextmanager
    def _one_turn(self) -> Iterator[None]:
        """Have the turn to run an epoch; of what goes wrong in it the run fails.

        Raises:
            NotBegun: The run has been stopped.
        """
        # Not just waiting for the turn: a stop may have it, and wait for this to end.
        while not self._turn.acquire(timeout=0.05):
            if self.run.stopping:
                raise NotBegun
        try:
            if self.run.stopping or self._run_log.drained:
                raise NotBegun
            self._epoch_since = time.monotonic()
            yield
        except NotBegun:
            raise
        except BaseException as error:  # whatever it was, the run is over
            self._ended_by(error)
            raise
        finally:
            self._epoch_since = None
            self._turn.release()
            with self.news:
                self.news.notify_all()

    def _ended_by(self, error: BaseException) -> None:
        """Have the run fail, unless it was stopped: then the next run takes the epoch over."""
        if self.run.stopping:
            _log.warning("the epoch under way was not finished: %s", headline(error))
        elif isinstance(error, MillraceError):
            self.run.fail(error)
        else:
            said = cannot_run_workers(error)
            self.run.fail(said or failed(self._topology.name, error, self._session))

    def _begin_turn(self) -> int:
        """Return the number of a turn that begins; what was said before, it goes by."""
        with self.news:
            self._begun += 1
            return self._begun

    def _asked(self) -> dict[str, Offsets]:
        """Ask injectors how far the next epoch reads.

        Raises:
            RunFailed: One has failed.
        """
        if self._draining:
            return self._input.unmoved()
        run_log, published = self._run_log, self._driver.published(self._clock())
        self._publisher.throttle.read({}, self._clock())
        processes = processes_of(run_log.sources)
        waiting = {
            stream: self._publisher.waiting(stream, processes, published)
            for stream in self._input.streams
        }
        try:
            asked = self._input.asked(run_log.source_offsets, waiting)
        except Exception as error:
            raise failed(self._topology.name, error, self._session) from error
        run_log.forget_ended(self._input.there)
        return asked

    def _run_epoch(
        self,
        turn: int,
        number: int,
        offsets: Mapping[str, Offsets],
        rows: Rows,
        *,
        read_by_spark: bool,
        asked_us: int | None = None,
        splitting: Mapping[str, str] | None = None,
    ) -> None:
        """Run one epoch.

        Args:
            turn: In which it is run.
            number: Its number.
            offsets: How far injectors are read, unless it was begun before.
            rows: Returns the rows of its first stage.
            read_by_spark: Whether Spark has rows for it that the driver does not see.
            asked_us: What time it was before sources were asked how far it reads; None: Spark asks
                its own, or it was begun before.
            splitting: Settings by which Spark cuts its rows.
        """
        run_log, started = self._run_log, time.perf_counter()
        pieces: Mapping[str, Sequence[Piece]] = {}
        moved = False

        def unread(manifest: Manifest) -> TaskReport | None:
            nonlocal pieces, moved
            pieces = self._input.pieces(manifest, run_log.source_offsets)
            if not self.run.active:
                raise NotBegun
            moved = self._input.moved(manifest, run_log.source_offsets)
            return None if read_by_spark else self._input.unread(manifest, pieces)

        def stages(manifest: Manifest) -> tuple[TaskReport, float]:
            frame, lots = rows(pieces)
            return run_patiently(
                self._plan,
                frame,
                manifest,
                self._topology.sinks,
                lots=lots,
                lift=self._payoff.wanted(),
                attempts=self._attempts,
            )

        self._driver.tasks = self._task_count.tasks
        ran = self._driver.run(
            number,
            stages,
            wall_time_us=self._clock(),
            draining=self._draining,
            splitting=splitting,
            offsets=offsets,
            asked_us=asked_us,
            unread=unread,
        )
        if ran is None:
            return
        report = ran.report
        read = {stream: stats.records for stream, stats in report.sources.items()}
        self._publisher.throttle.read(read, self._clock())
        self._payoff.seen(
            records=report.records, liftable=report.liftable, partials=report.partials
        )
        self._task_count.ran(report.seconds)
        if self._balancer is not None and not run_log.drained:
            self._balancer.tasks = self._task_count.tasks
            self._balancer.after_epoch(busy=bool(report.records))
        self.run.housekeeping.offer(run_log.collectable())
        self.run.measured(report, time.perf_counter() - started, ran.parts)
        settled = self._driver.settled(ran.manifest, self._driver.published(self._clock()))
        # An injector that has no record there may have some at its next offset.
        if report.is_quiet and settled and not moved:
            self._idle = turn
        self._set_alarm(settled)

    def _set_alarm(self, settled: bool) -> None:
        # Under the lock of those who ask for an epoch, so that the later word is theirs.
        with self.news:
            if not settled or self._draining or self._idle < self._wanted:
                self._ring_in(0)
                return
            next_us = min(
                self._run_log.authority.next_wall_timer_us(),
                self._publisher.changes_us(),
                self._publisher.throttle.changes_us(),
            )
            left_us = max(0, min(next_us - self._clock(), _IDLE_US))
            self._ring_in(left_us + _SURELY_US)


class NotBegun(Exception):
    """An epoch is given up that a stopped run does not want to begin."""


class EpochSetup(Setup):
    """What epochs do otherwise on the way to a run: see :class:`~millrace.spark.engine.Setup`."""

    #: An epoch's commits are small beside what it costs.
    intervals_each: ClassVar[int] = 8
    beside: Rehearsal | None = None

    def _prepare(self, topology: Topology) -> None:
        self._trigger_us = duration_us(self._options["trigger"], "start(trigger)")
        self.fitting = tasks_for(self._spark)
        self.sources = sources_of(topology, self._spark)
        self._injectors = injectors_of(topology)

    def warm_up(self, plan: StreamPlan, tasks: int, intervals: int) -> None:
        """Rehearse epochs in a thread: the first take seconds, and idle workers end in a minute."""
        if self.beside is None:
            first = RunLog(plan.topology, MemoryHardState(), intervals=intervals).begin(
                0, wall_time_us=now_us(), injectors={}, tasks=tasks
            )
            assert first is not None, "no epoch has completed"
            rows = partial(self._no_rows, plan, tasks)
            self.beside = Rehearsal(plan, first, self._spark, rows, self._injectors.values())
        self.beside.repeat()

    def _session_of_run(self) -> SparkSession:
        """Return a session for the jobs of a run: that of rehearsals, which are over by then."""
        rehearsal, self.beside = self.beside, None
        if rehearsal is None:
            return session_for_jobs(self._spark, SETTINGS)
        rehearsal.finish()
        return rehearsal.session

    @abstractmethod
    def _no_rows(
        self, plan: StreamPlan, tasks: int, session: SparkSession, processes: int
    ) -> Sequence[tuple[DataFrame, list[list[bytes]] | None]]:
        """Return the rows of epochs without a record, as :data:`Rows` does: of each shape.

        Args:
            plan: Of the run.
            tasks: How many a level there are.
            session: For the rows.
            processes: How many all injectors have.
        """

    def check_claimed(self, run_log: RunLog) -> None:
        """Refuse a stream that was read by the other kind of source: its offsets are lost on it."""
        ours = {source.stream.name for source in self.sources if source.injector is not None}
        read = {stream for stream, stats in run_log.sources.items() if stats.records}
        injected = {spec.name for spec in run_log.topology.injected()}
        if run_log.open is not None and not run_log.open.live:
            other = sorted((run_log.open.offsets.keys() ^ ours) & injected)
            if other:
                raise CheckpointMismatch(
                    f"epoch {run_log.open.epoch} of this checkpoint is unfinished, and in it "
                    f"streams {other} were read by the other kind of source, "
                    f"{_kinds(other, ours)}. Start the pipeline as it was, and end it with "
                    "run.stop()."
                )
        spark_then = (read & ours) - run_log.source_offsets.keys()
        injector_then = (read & injected & run_log.source_offsets.keys()) - ours
        if other := sorted(spark_then | injector_then):
            raise CheckpointMismatch(
                f"streams {other} were read by the other kind of source, {_kinds(other, ours)}. "
                "How far, a source of this kind cannot be told. Leave the sources as they were, or "
                "start with a new checkpoint."
            )

    def take_over(self, run_log: RunLog) -> None:
        """Go on where live tasks ended."""
        from_live_tasks(run_log, sinks_by_edge(run_log.topology))


def _kinds(streams: Sequence[str], ours: Collection[str]) -> str:
    """Return what read streams, given those that an injector reads now, in words."""
    by_spark = "Spark's own, and now an mr.sources.Injector"
    by_injector = "an mr.sources.Injector, and now Spark's own"
    kinds = [by_spark if stream in ours else by_injector for stream in streams]
    return "; or ".join(dict.fromkeys(kinds))
