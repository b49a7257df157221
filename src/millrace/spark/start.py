"""One start: from a pipeline and a session to a run that goes on where its checkpoint stands.

What both planes do is done here, once and in one order: the pipeline is built and checked, options
are looked at, the checkpoint is opened and claimed, sinks and sources are bound to it, and the run
begins. What differs a :class:`~millrace.spark.engine.Setup` knows, which each plane has beside its
engine. All that can be refused is refused before the checkpoint is touched.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import SparkSession

from millrace.balance.load import RunLoads
from millrace.balance.policy import Balance
from millrace.compile.build import build
from millrace.compile.change.registry import Registry
from millrace.compile.explanation import PipelineExplanation
from millrace.compile.topology import Topology
from millrace.epochlog.claims import foreseen
from millrace.epochlog.fence import superseded_run
from millrace.epochlog.reader import LogTail, end_of
from millrace.epochlog.run_log import RunLog
from millrace.injectors.dead_letters import bind_letters
from millrace.injectors.injector import BoundInjector, Injector
from millrace.injectors.signal_injector import SignalInjector
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.inspect.lease import Lease, Term
from millrace.model.declarations import Declarations
from millrace.model.errors import (
    CheckpointMismatch,
    DamagedStore,
    LeaseReleased,
    PipelineError,
)
from millrace.model.time import SECOND, Duration, duration_us
from millrace.options import EpochOptions, RealtimeOptions, check_options, with_defaults
from millrace.runtime.realtime.weak import refused_weak
from millrace.runtime.sink_contract import bind_sinks, claim_sinks
from millrace.runtime.stuck import CallLimits
from millrace.spark.application import pipeline_at
from millrace.spark.clock import now_us
from millrace.spark.compat import need_python_sources
from millrace.spark.connect import refuse_connect
from millrace.spark.console import Quiet
from millrace.spark.driven_engine import DrivenSetup
from millrace.spark.engine import RunParts, Setup
from millrace.spark.failure import headline
from millrace.spark.handle import Handle
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.metrics.lines import lines_in
from millrace.spark.metrics.prometheus import Scrapes
from millrace.spark.microbatch_engine import MicroBatchSetup
from millrace.spark.parallelism import allowed_tasks, intervals_for, is_local, is_whole
from millrace.spark.plan import StreamPlan
from millrace.spark.progress_display import where_to_show
from millrace.spark.realtime.retry_policy import Downtime
from millrace.spark.realtime.standby import Standby
from millrace.spark.realtime_setup import RealtimeSetup
from millrace.spark.run import Run
from millrace.spark.session import check_session
from millrace.store import HardState, is_object_store, local_path, open_location

_log = logging.getLogger("millrace")

#: How often a program that waits for a lease looks after what it has ready.
_LOOK_S: Final = 10.0
#: A call that is ended at its time limit ends so many times later at the most.
_ENDED_WITHIN: Final = 1.5


def start(
    pipeline: Declarations,
    spark: SparkSession,
    *,
    checkpoint: str,
    realtime: bool = False,
    **options: Any,
) -> Handle:
    """Run a pipeline until it is stopped; see :meth:`millrace.Pipeline.start`."""
    starter = SparkStarter(spark, {"checkpoint": checkpoint, "realtime": realtime, **options})
    starter.check()
    check_session("start", spark)
    handle = Handle()
    handle._begin(pipeline, starter)
    return handle


@dataclass
class SparkStarter:
    """How a run was started: see :class:`~millrace.spark.handle.Starter`.

    Attributes:
        spark: The session.
        given: What ``start`` was given besides.
        moves: Whether that is another checkpoint than that of the run before.
        tasks: How many tasks a level to begin with, where their number follows the load; None: as
            many as there were.
        lease: That this program holds; None if it was not asked for, or not yet.
        owner: Of the claims, also of runs that updates lead to.
    """

    spark: SparkSession
    given: Mapping[str, Any]
    moves: bool = False
    tasks: int | None = None
    lease: Lease | None = None
    owner: str = field(default_factory=lambda: uuid4().hex)

    def run(self, pipeline: Declarations, *, again: bool = False) -> Run:
        """Return a run of a pipeline, with its tasks started."""
        opening = self._opening(pipeline)
        opening.follows = again
        opening.prepare()
        downtime = Downtime()
        if self.given.get("lease", False) and self.lease is None:
            self.lease = opening.wait_for_lease()
            downtime.gone()
        opening.claim()
        downtime.lap("to claim the checkpoint")
        return opening.begin(downtime)

    def successor(self, pipeline: Declarations, before: Run) -> _Opening:
        """Return a pipeline that is to go on where a run ends, built and checked."""
        opening = self._opening(pipeline)
        opening.prepare(before, moves=self.moves)
        return opening

    def _opening(self, pipeline: Declarations) -> _Opening:
        return _Opening(
            pipeline,
            self.spark,
            owner=self.owner,
            first_tasks=self.tasks,
            held=self.lease,
            **self.given,
        )

    def load(self, application: str) -> Declarations:
        """Import a pipeline that is named, anew."""
        loaded: Declarations = pipeline_at(application, "update", anew=True, spark=self.spark)
        return loaded

    def changed(self, options: Mapping[str, Any]) -> SparkStarter:
        """Return how to start with other options."""
        moves = options.get("checkpoint", self.given["checkpoint"]) != self.given["checkpoint"]
        if "lease" in options or (moves and self.lease is not None):
            raise PipelineError(
                "update(): the lease of a run, and with it the checkpoint, stay the same. Stop the "
                "run, and start the other pipeline."
            )
        given = {**self.given, **options}
        other = replace(self, given=given, moves=moves, tasks=None)
        other.check()
        return other

    def scaled(self, tasks: int) -> SparkStarter:
        """Return how to start with so many tasks a level; what an operator asked for stays."""
        return replace(self, tasks=tasks)

    def check(self) -> None:
        """Refuse what is no option of the plane."""
        apart = ("checkpoint", "realtime")
        options = {name: value for name, value in self.given.items() if name not in apart}
        check_options(RealtimeOptions if self.given["realtime"] else EpochOptions, options)


class _Opening:
    """One way from a pipeline to its run: it is prepared, claims the checkpoint, and begins.

    Args:
        pipeline: With a source for each injected stream.
        spark: A session.
        checkpoint: A directory or URL.
        realtime: Which plane.
        owner: Of its claim.
        first_tasks: How many tasks a level to begin with; see :class:`SparkStarter`.
        held: The lease of the checkpoint; None if this program does not hold it.
        options: Of the plane.

    Attributes:
        follows: Whether it claims the checkpoint after a run of its owner, and after no other.
        slots: See :class:`~millrace.spark.engine.Successor`; known once it is prepared.
        optional: The same.
    """

    follows = False
    slots = 0
    optional = False
    #: Of which checkpoint the end of the epoch log was read, and what stood there.
    _tail: tuple[str, LogTail | None] = "", None

    def __init__(
        self,
        pipeline: Declarations,
        spark: SparkSession,
        *,
        checkpoint: str,
        realtime: bool,
        owner: str,
        first_tasks: int | None = None,
        held: Lease | None = None,
        **options: Any,
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._checkpoint = checkpoint
        self._realtime = realtime
        self._owner = owner
        self._first_tasks = first_tasks
        self._lease = held
        kind: type[Any] = RealtimeOptions if realtime else EpochOptions
        self._options: dict[str, Any] = with_defaults(kind, options)
        # Made when there is a run: only then does anybody write there.
        self._scratch = Path(tempfile.gettempdir()) / f"millrace-{uuid4().hex}"
        self._before: Run | None = None
        self._takes_scrapes = False
        self._scrapes: Scrapes | None = None
        self._console = Quiet(spark)
        # What a query was started with before there is a claim, and the numbers in it.
        self._started: tuple[StreamPlan, Registry] | None = None
        self._look_at = 0.0
        self._ready_logged = False
        # The run that holds the lease, once its log was looked at; and what silences Spark's log.
        self._looked_at_run = -1
        self._quieting: threading.Thread | None = None

    def prepare(self, before: Run | None = None, *, moves: bool = False) -> None:
        """Build and check the pipeline, and all that is said of the run.

        Args:
            before: The run where it goes on; None if there is none.
            moves: Whether it goes on with another checkpoint than that of the run before.

        Raises:
            PipelineError: The pipeline, a source, an option or the application cannot do it.
                Nothing was written.
        """
        options = self._options
        self._before = before
        if before is not None:
            self.follows = not moves
        self._topology = topology = build(self._pipeline)
        _bind_injectors(topology, self._checkpoint)
        bind_letters(topology, self._checkpoint)
        if not topology.injected():
            raise PipelineError(f"{self._pipeline!r} injects no stream, so it would never run.")
        self._setup = setup = self._setup_of(topology)
        self._publisher = WatermarkPublisher.of(topology)
        self._allowed = allowed = allowed_tasks(options["tasks"], setup.fitting)
        self._tasks = tasks = self._tasks_to_begin_with(before)
        waits = bool(options["lease"]) and self._lease is None
        setup.check(tasks, allowed, slots_later=waits)
        most, each = allowed.most, setup.intervals_each
        self._intervals = intervals_of(options["intervals"], most, each=each)
        # What cannot be sent to workers is found before the checkpoint is touched.
        StreamPlan(topology, setup.sources, tasks=tasks)
        self._limits = call_limits(
            options["stuck_after"], options["time_limit"], options.get("hang_limit")
        )
        check_attempts(options["attempts"])
        check_cache_limit(options.get("cache_limit"))
        check_clock(options["clock"])
        self._term = lease_term(options["lease"])
        self._balance = balance_of(options["balance"], self._intervals)
        # A port that the run before has is left to this one.
        there = None if before is None else before.parts.scrapes
        if there is not None and there.where == options["metrics"]:
            self._takes_scrapes = True
        elif not waits:
            self._scrapes = scrapes_of(options["metrics"])
        if isinstance(setup, RealtimeSetup) and not moves:
            self.slots = setup.slots(tasks)
        if before is not None and self._first_tasks is not None:
            self.optional = True

    def stand_by(self, changed: Callable[[], None]) -> Standby:
        """Start the query beside the run before; see :class:`~millrace.spark.engine.Successor`."""
        assert isinstance(self._setup, RealtimeSetup), "it has slots"
        with self._given_up():
            state = self._state(beside=True)
            plan = self._plan_as_foreseen(state, end_of(state.epochs))
            return self._setup.stand_by(plan, self._tasks, changed)

    def wait_for_lease(self) -> Lease:
        """Wait until this program holds the lease of the checkpoint, and return it.

        In real time a query waits, too, started. Another is started if that fails, or if it would
        not fit any more what goes on.

        Raises:
            LeaseReleased: The run that held it was stopped or drained.
            StoreError: The checkpoint cannot be read or written.
        """
        with self._given_up():
            lease = Lease(self._checkpoint, self._pipeline.name, term=self._term)
            if not lease.acquire(self._keep_ready):
                raise LeaseReleased(
                    f"the run that held the lease of {self._checkpoint} was stopped or drained, so "
                    "its standbys end too. Start the pipeline again to continue where it ended."
                )
            self._lease = lease
            ready = self._setup.is_warm or not self._realtime
            if self._started is not None and ready and self._fits():
                self._scrapes = scrapes_of(self._options["metrics"])
            else:
                self._drop_started()
                self.prepare()  # which refuses what has to be there by now
            return lease

    def claim(self) -> None:
        """Claim the checkpoint.

        Raises:
            PipelineError: A sink cannot do it. Nothing was written.
            CheckpointMismatch: The checkpoint is of another pipeline or topology, or was drained.
                The same.
            CheckpointUnwritable: The checkpoint cannot be written.
            ZombieWriter: Where it is to go on where a run ends, another has claimed it since.
        """
        with self._given_up():
            self._scratch.mkdir(mode=0o700, exist_ok=True)
            state = self._state()
            end = self._read_end(state)
            if self.follows and (end.claim is None or end.claim.owner != self._owner):
                raise superseded_run()
            self._setup.check_left(end.manifest, self._tasks)
            bound = bind_sinks(self._topology, state.uuid)
            if not self.follows:  # the run that has the checkpoint goes on until now
                end = self._read_end(state)
            self._run_log = RunLog(
                bound, state, intervals=self._intervals, end=end, owner=self._owner
            )
            if self.optional and self._before is not None:
                # Only now: the run before was told of pauses while the tasks of this one started.
                self._publisher.throttle.take(*self._before.publisher.throttle.asked())

    def begin(self, downtime: Downtime) -> Run:
        """Return the run, with its tasks started; the checkpoint is claimed.

        Args:
            downtime: Of the run before it; one that has not begun if there is none.
        """
        options, run_log, setup = self._options, self._run_log, self._setup
        with self._given_up():
            check_not_drained(self._checkpoint, run_log)
            setup.check_claimed(run_log)
            claim_sinks(run_log.topology, run_log)
            setup.take_over(run_log)
            plan = self._plan_as_claimed()
            if self._before is not None and self._takes_scrapes:
                self._scrapes = self._before.leave_scrapes() or scrapes_of(options["metrics"])
            if self._lease is not None:
                self._lease.generation = run_log.generation
            parts = RunParts(
                topology=run_log.topology,
                run_log=run_log,
                loads=RunLoads(run_log),
                publisher=self._publisher,
                housekeeping=Housekeeping(run_log.state),
                plan=plan,
                tasks=self._tasks,
                allowed=self._allowed,
                limits=self._limits,
                attempts=options["attempts"],
                balance=self._balance,
                explanation=self._explanation(run_log.topology, plan, self._tasks),
                clock=options["clock"] or now_us,
                console=self._console,
                progress_target=where_to_show(options["progress"], self._spark),
                scrapes=self._scrapes,
                lines=lines_in(run_log.state),
                mailbox=run_log.state.mailbox,
                scratch=self._scratch,
                lease=self._lease,
            )
            run = Run(parts, setup.engine(parts))
            run.engine.downtime = downtime
            self._console.begin()
            run.launch()
        return run

    def close(self) -> None:
        """Let go of everything: there will be no run."""
        if self._scrapes is not None:
            self._scrapes.close()
        self._setup.end_beside()
        if self._quieting is not None:
            self._quieting.join()
        self._console.end()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @contextmanager
    def _given_up(self) -> Iterator[None]:
        """Let go of everything if something fails."""
        try:
            yield
        except BaseException as failure:
            self.close()
            # The run before goes on, or is started again, where there is one.
            if self._before is None and self._lease is not None:
                self._lease.release(failure)
            raise

    # -- while another program holds the lease -----------------------------------------------------

    def _keep_ready(self, term: Term) -> None:
        """Keep this program ready to take over what runs now.

        In real time a query waits, and by epochs one is rehearsed. What they must know of the
        checkpoint is the same for as long as one run has it.

        Args:
            term: The lease, as its holder has renewed it.
        """
        if self._setup.is_warm and not self._ready_logged:
            self._ready_logged = True
            _log.info("all tasks are started, and wait for the lease")
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_S
        self._spark.conf.get("spark.app.name")  # a session of Connect that is idle expires
        try:
            if (failure := self._setup.failure_beside) is not None:
                _log.warning("the waiting tasks have failed, others start: %s", headline(failure))
                self._drop_started()
            if self._started is None or term.generation != self._looked_at_run:
                self._fit_to_checkpoint(term.generation)
            if self._started is not None:
                self._setup.warm_up(self._started[0], self._tasks, self._intervals)
            if self._quieting is None:
                self._quieting = threading.Thread(target=self._console.begin, daemon=True)
                self._quieting.start()
        except Exception as error:  # noqa: BLE001  without it the run begins later, and no worse
            _log.warning("this program is not ready to take over: %s", headline(error))

    def _fit_to_checkpoint(self, generation: int) -> None:
        """Have a plan that fits the checkpoint, unless as many tasks as it needs do not fit here.

        Args:
            generation: Of the run that has it; 0 if it has not begun, or has not said so.
        """
        state = self._state(beside=True)
        end = self._read_end(state)
        if not self._has_as_many(end):
            self._drop_started()
            self.prepare()
        if self._started is not None and self._foreseen(state, end)[1] != self._started[1]:
            self._drop_started()
        if self._has_as_many(end):
            self._plan_as_foreseen(state, end)
        # An epoch of that run says how many tasks it has.
        begun = end.manifest or (end.completions[-1] if end.completions else None)
        if begun is not None and begun.generation == generation:
            self._looked_at_run = generation

    def _fits(self) -> bool:
        """Return whether live tasks have left nothing for another number of them."""
        return not self._realtime or self._tasks_left() in (None, self._tasks)

    def _has_as_many(self, end: LogTail) -> bool:
        """Return whether there are as many tasks here as live ones have left something for."""
        live = 0 if end.manifest is None else end.manifest.live
        return not self._realtime or live in (0, self._tasks)

    def _plan_as_foreseen(self, state: HardState, end: LogTail) -> StreamPlan:
        """Return the plan of what goes on next, as far as it is known before there is a claim.

        Args:
            state: The checkpoint.
            end: Of its epoch log.
        """
        if self._started is None:
            topology, registry = self._foreseen(state, end)
            self._started = self._plan(topology, state, live=self._realtime), registry
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        return self._started[0]

    def _drop_started(self) -> None:
        """End the query that waits, if there is one, and wait until it has ended."""
        self._started, self._ready_logged = None, False
        self._setup.end_beside()

    def _foreseen(self, state: HardState, end: LogTail) -> tuple[Topology, Registry]:
        return foreseen(end, bind_sinks(self._topology, state.uuid))

    def _tasks_to_begin_with(self, before: Run | None) -> int:
        """Return how many tasks a level there are first.

        What live tasks have left under way is taken up by as many, and so it is where a changed
        pipeline goes on with the load of a run.
        """
        allowed = self._allowed
        if not (allowed.follows_load and self._realtime):
            return allowed.within(self._setup.fitting)
        if before is None and (left := self._tasks_left()) is not None:
            return left
        there = allowed.least if before is None else before.parts.tasks
        return allowed.within(self._first_tasks or there)

    def _setup_of(self, topology: Topology) -> Setup:
        given = self._spark, topology, self._checkpoint, self._options, self._scratch
        if self._realtime:
            return RealtimeSetup(*given)
        sources = [spec.injection.source for spec in topology.injected() if spec.injection]
        if all(isinstance(source, Injector) for source in sources):
            return DrivenSetup(*given)
        refuse_connect(
            self._spark,
            "start()",
            "Spark calls an epoch of its own streaming sources in the process that has the run, "
            "and would call a copy in the server",
            "Over Connect, read with mr.sources.Kafka, Files, Delta or Iceberg, or an "
            "mr.sources.Injector of your own; or run bounded input by p.run_batch(spark).",
        )
        need_python_sources("start()")
        return MicroBatchSetup(*given)

    def _state(self, *, beside: bool = False) -> HardState:
        """Open the checkpoint; perhaps beside the run that has it."""
        name, segments = self._pipeline.name, self._options.get("segments")
        return open_location(self._checkpoint, pipeline=name, segments=segments, beside=beside)

    def _read_end(self, state: HardState) -> LogTail:
        """Return what stands at the end of the checkpoint's epoch log; what came since is read."""
        uuid, known = self._tail
        end = end_of(state.epochs, known if uuid == state.uuid else None)
        self._tail = state.uuid, end
        return end

    def _tasks_left(self) -> int | None:
        return tasks_left(self._checkpoint, self._read_end)

    def _plan(self, topology: Topology, state: HardState, *, live: bool) -> StreamPlan:
        """Return the plan of a topology that has the numbers of the checkpoint."""
        sources = [source.of(topology) for source in self._setup.sources]
        plan = StreamPlan(topology, sources, tasks=self._tasks)
        cache = cache_of(self._options["cache"], self._checkpoint, self._spark)
        plan.attach(state, cache, self._limits, self._options.get("cache_limit"), live=live)
        return plan

    def _plan_as_claimed(self) -> StreamPlan:
        """Return the plan of what goes on with the checkpoint, which is claimed.

        Raises:
            CheckpointMismatch: A query was started with another: somebody has claimed the
                checkpoint since.
        """
        run_log = self._run_log
        if self._started is not None and run_log.registry == self._started[1]:
            return self._started[0]
        if self._started is not None and self._before is not None:
            raise CheckpointMismatch(
                f"another run has claimed checkpoint {self._checkpoint!r} while a changed pipeline "
                "was about to take over. Nothing was lost. Start one of them."
            )
        self._drop_started()
        return self._plan(run_log.topology, run_log.state, live=self._realtime)

    def _explanation(self, topology: Topology, plan: StreamPlan, tasks: int) -> PipelineExplanation:
        weak = refused_weak(topology, tasks=tasks) if self._realtime else {}
        return PipelineExplanation(topology, plan.python_reasons, weak, realtime=self._realtime)


def _bind_injectors(topology: Topology, checkpoint: str) -> None:
    """Have injectors know their checkpoint, before they are sent to workers."""
    names = {spec.name for spec in topology.injected()}
    for spec in topology.injected():
        source = None if spec.injection is None else spec.injection.source
        if isinstance(source, SignalInjector):
            source.bind(checkpoint)
        elif spec.injection is not None and isinstance(source, BoundInjector):
            was = [name for name in spec.injection.was if name not in names]
            source.bind(checkpoint, spec.name, was)


def _whole_end_of(state: HardState) -> LogTail:
    return end_of(state.epochs)


def tasks_left(checkpoint: str, read: Callable[[HardState], LogTail] = _whole_end_of) -> int | None:
    """Return how many live tasks a level have left something under way; None if none have.

    Args:
        checkpoint: A directory or URL.
        read: Returns what stands at the end of its epoch log.
    """
    try:
        state = open_location(checkpoint)
    except (CheckpointMismatch, DamagedStore):
        return None  # there is no checkpoint yet, or one that is refused when it is claimed
    unfinished = read(state).manifest
    return (unfinished.live or None) if unfinished is not None else None


def lease_term(lease: bool | Duration) -> Duration | None:
    """Return the term of a lease; None: as long as it is by default, or there is none.

    Raises:
        PipelineError: It is no time, or none at all.
    """
    if lease is None or isinstance(lease, bool):
        return None
    if duration_us(lease, "start(lease)") <= 0:
        raise PipelineError(f'start(lease={lease!r}): expected a time above 0, such as "2 s".')
    return lease


def scrapes_of(metrics: int | str | None) -> Scrapes | None:
    """Return what answers Prometheus; None if nobody asked for that."""
    return None if metrics is None else Scrapes(metrics)


def intervals_of(wanted: int | None, tasks: int, *, each: int) -> int:
    """Return the number of key intervals a computation.

    Args:
        wanted: What was asked for.
        tasks: Of a level.
        each: How many for each task, if nothing was.

    Raises:
        PipelineError: It is no power of two.
    """
    intervals = intervals_for(tasks, each=each) if wanted is None else wanted
    if not is_whole(intervals, 1) or intervals & (intervals - 1):
        raise PipelineError(f"intervals={intervals!r}: expected a power of two, such as 64.")
    return intervals


def cache_of(wanted: str | None, checkpoint: str, spark: SparkSession) -> str:
    """Return the directory for caches; "" lets each worker's host choose."""
    if wanted or is_object_store(checkpoint) or not is_local(spark):
        return wanted or ""
    return f"{local_path(checkpoint)}/cache"


def check_not_drained(checkpoint: str, run_log: RunLog) -> None:
    """Refuse a checkpoint that has ended.

    Raises:
        CheckpointMismatch: It was drained.
    """
    if run_log.drained:
        raise CheckpointMismatch(
            f"the run of checkpoint {checkpoint!r} was drained: its input ended, and every low "
            "watermark is at the end of time. Its outputs are complete. Start with a new "
            "checkpoint."
        )


def check_attempts(attempts: int) -> None:
    """Refuse a number of attempts that is none.

    Raises:
        PipelineError: It is below 1, or no whole number.
    """
    if not is_whole(attempts, 1):
        raise PipelineError(f"start(attempts={attempts!r}): expected 1 or more; 3 is the default.")


def call_limits(
    stuck_after: Duration | None, time_limit: Duration | None, hang_limit: Duration | None = None
) -> CallLimits:
    """Return how long calls of user code may take, by the options of a run.

    Raises:
        PipelineError: One is no time, or none at all; or a process would be ended before a call in
            it is.
    """
    limits = CallLimits(
        _seconds(stuck_after, "stuck_after", "user code is reported"),
        _seconds(time_limit, "time_limit", "user code is ended"),
        _seconds(hang_limit, "hang_limit", "a process that hangs is ended"),
    )
    if limits.ended_s < inf and limits.hung_s < limits.ended_s * _ENDED_WITHIN:
        raise PipelineError(
            f"start(time_limit={time_limit!r}, hang_limit={hang_limit!r}): a process would be "
            "ended before a call of user code in it is. Give a hang_limit= of at least "
            f"{_ENDED_WITHIN:g} times the time limit, or None."
        )
    return limits


def _seconds(wanted: Duration | None, option: str, what: str) -> float:
    if wanted is None:
        return inf
    after_us = duration_us(wanted, f"start({option})")
    if after_us <= 0:
        raise PipelineError(
            f"start({option}={wanted!r}): expected a time after which {what}, "
            'such as "10 s", or None.'
        )
    return after_us / SECOND


def check_cache_limit(limit: int | None) -> None:
    """Refuse what is no number of bytes.

    Raises:
        PipelineError: It is none.
    """
    if limit is not None and not is_whole(limit, 0):
        raise PipelineError(
            f"cache_limit={limit!r}: expected a number of bytes, such as cache_limit=10 << 30, or "
            "None for caches as large as the state."
        )


def check_clock(clock: object) -> None:
    """Refuse what tells no time.

    Raises:
        PipelineError: It cannot be called.
    """
    if clock is not None and not callable(clock):
        raise PipelineError(
            f"clock={clock!r}: expected a function that returns microseconds since 1970, or None "
            "for the machine's clock."
        )


def balance_of(balance: bool | Balance, intervals: int) -> Balance | None:
    """Return how hard key intervals follow the load; None if they do not.

    Args:
        balance: As the user said.
        intervals: How many a computation is to have, unless he said.

    Raises:
        PipelineError: That is no ``mr.ops.Balance``, and neither True nor False.
    """
    if isinstance(balance, Balance):
        return balance
    if not isinstance(balance, bool):
        raise PipelineError(f"balance={balance!r}: expected True, False or an mr.ops.Balance.")
    return Balance(intervals=intervals) if balance else None
