"""Status: where a run stands, for people and programs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from millrace.balance.load import Loads
from millrace.epochlog.run_log import RunLog
from millrace.injectors.advance import Backlog
from millrace.injectors.signal_injector import BacklogProbe
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.inspect import ComputationLoad, load_of_run, overview_of_run
from millrace.inspect.overview import dead_letters_of
from millrace.kernel.results import CallStats, Counters
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND
from millrace.runtime.reports import TaskReport
from millrace.runtime.stragglers import Left
from millrace.runtime.stuck import Stuck
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.realtime.latency import StepTimes
from millrace.spark.status_text import as_html, as_line, as_text
from millrace.store import Collected, Repair, SnapshotStats

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Status:
    """A run at one moment. ``print`` it; a notebook shows it as tables.

    Attributes:
        pipeline: Its name.
        state: ``running``, ``stopped``, ``drained`` or ``failed``.
        epoch: The last completed epoch; -1 before the first.
        generation: How many runs have claimed the checkpoint, this one included.
        low_watermarks: Computation -> low watermark of its input, in microseconds.
        oldest_work: Computation -> its oldest pending work, the least of low-watermark timers and
            holds, in microseconds of event time; without those that have none.
        wall_timers: Computation -> when its next wall-clock timer is due, in microseconds; without
            those that have none.
        pending_timers: Computation -> how many low-watermark timers it has set that have not fired,
            those included by which its windows close and its state expires.
        pending_wall_timers: Likewise of the wall clock.
        moved: Computation -> when its output watermark last moved, in microseconds of the clock;
            without computations whose watermark has not moved yet.
        newest: Injected stream -> latest timestamp read.
        injected: Injected stream -> records read since the beginning.
        dead_letters: Computation, or injected stream that refused them -> dead letters since the
            beginning. A stream with the name of a computation is ``stream NAME``.
        refused_low_watermarks: Injected stream -> low watermarks of its processes that were
            refused since the beginning.
        dropped: Injected stream -> records that its source was told to drop, such as tombstones,
            since the beginning.
        idle: Injected stream -> processes of its injector that are left out, for they are silent.
        missing: Injected stream -> expected processes that were never heard of.
        counters: Computation -> what it did since the beginning.
        records_per_second: Records read, over the last epochs of this process.
        epoch_seconds: How long the last epoch took.
        epoch_parts: Part of it -> how long that took, in seconds, by the driver's clock:
            ``planning``, ``tasks``, ``sinks``, ``completing``; empty in real time.
        task_seconds: Python time of this process's epochs, over all tasks.
        replayed: Commits that this process found made by an earlier attempt.
        repaired: Commits by which caches had to be brought forward.
        rebuilt: Caches that were lost, evicted, damaged or of no use, and were built again.
        recovered_bytes: What was read for both, of snapshots and commits.
        damaged: Damaged or missing snapshots, commits and caches met on the way; each is logged.
        snapshots: Snapshots of key intervals that were written.
        snapshot_bytes: Their size.
        collected: Commits, snapshots, grown segments and entries of the epoch log that were not
            needed any more.
        stuck: Calls of user code, and calls to services with all their attempts, that have not
            returned for long; the longest first.
        load: Computation -> time in user code, size of its state, hottest keys, as far as this
            process saw them.
        backlog: Injected stream -> what waits in its source, of those that can tell.
        injected_bytes: Injected stream -> bytes of the values that this process's epochs have read.
        received_bytes: Computation -> bytes of the values that came to it in them.
        calls: Computation -> what became of its calls to services, in this process's epochs.
        held_back: Injected stream -> what an operator asked of it: to be paused, or a rate.
        left: Injected stream -> what a batch that ended early has not read of its pieces.
        housekeeping_failures: Snapshots and collections that failed; each is logged and tried
            again.
        steps: Step that a record takes in real time -> how long it took in the last half minute, by
            level: ``injectors, turn``, ``level 1, on the way``, ``level 1, before its turn``,
            ``level 1, turn``; empty on the epoch plane.
        tasks: Tasks a level; by epochs of the next one.
        standby: In real time with ``standby=True``: whether the second query could take over now,
            ``ready`` or ``starting``; else empty.
        strangers: Connections to the driver of the real-time plane that did not prove the key of
            this process's tasks, and were closed; see the log.
    """

    pipeline: str
    state: str
    epoch: int
    generation: int
    low_watermarks: dict[str, int]
    oldest_work: dict[str, int]
    wall_timers: dict[str, int]
    moved: dict[str, int]
    newest: dict[str, int]
    injected: dict[str, int]
    dead_letters: dict[str, int]
    refused_low_watermarks: dict[str, int]
    dropped: dict[str, int]
    idle: dict[str, list[str]]
    missing: dict[str, list[str]]
    counters: dict[str, Counters]
    records_per_second: float
    epoch_seconds: float
    task_seconds: float
    replayed: int
    repaired: int
    rebuilt: int
    recovered_bytes: int
    damaged: int
    snapshots: int
    snapshot_bytes: int
    collected: int
    housekeeping_failures: int
    stuck: list[Stuck]
    load: dict[str, ComputationLoad] = field(default_factory=dict)
    held_back: dict[str, str] = field(default_factory=dict)
    left: dict[str, list[Left]] = field(default_factory=dict)
    epoch_parts: dict[str, float] = field(default_factory=dict)
    backlog: dict[str, Backlog] = field(default_factory=dict)
    injected_bytes: dict[str, int] = field(default_factory=dict)
    received_bytes: dict[str, int] = field(default_factory=dict)
    pending_timers: dict[str, int] = field(default_factory=dict)
    pending_wall_timers: dict[str, int] = field(default_factory=dict)
    steps: dict[str, StepTimes] = field(default_factory=dict)
    strangers: int = 0
    tasks: int = 0
    standby: str = ""
    calls: dict[str, CallStats] = field(default_factory=dict)

    @property
    def low_watermark(self) -> int:
        """Return the lowest low watermark of all computations, in microseconds."""
        return min(self.low_watermarks.values(), default=MIN_TIMESTAMP)

    @property
    def lag(self) -> float | None:
        """Return how far that is behind the newest record, in seconds of event time."""
        return self.behind(self.low_watermark)

    def behind(self, low_watermark: int) -> float | None:
        """Return how far a low watermark is behind the newest record of all streams.

        Args:
            low_watermark: In microseconds, such as ``status.low_watermarks["Counter"]``.

        Returns:
            Seconds of event time, 0 at the end of time; None if either is not known yet.
        """
        newest_us = max(self.newest.values(), default=MIN_TIMESTAMP)
        if newest_us == MIN_TIMESTAMP or low_watermark == MIN_TIMESTAMP:
            return None
        if low_watermark >= MAX_TIMESTAMP:
            return 0.0
        return max(0, newest_us - low_watermark) / SECOND

    @property
    def late(self) -> int:
        """Return how many records were late, over all computations."""
        return sum(counters.late for counters in self.counters.values())

    def __str__(self) -> str:
        return as_text(self)

    def __repr__(self) -> str:
        return f"<Status of {as_line(self)}>"

    def _repr_html_(self) -> str:
        return as_html(self)


class Repairs:
    """Sums of what it took to bring caches forward."""

    def __init__(self) -> None:
        self.deltas_applied = self.rebuilt = self.bytes_read = self.damaged = 0

    def add(self, repair: Repair) -> None:
        """Add one."""
        self.deltas_applied += repair.deltas_applied
        # Where nothing had been committed yet, there was nothing to lose.
        self.rebuilt += repair.rebuilt and bool(repair.deltas_applied or repair.snapshot)
        self.bytes_read += repair.bytes_read
        self.damaged += repair.damaged


class Progress:
    """What this process saw of its own epochs of a pipeline."""

    def __init__(
        self,
        pipeline: str,
        housekeeping: Housekeeping | None = None,
        waiting: BacklogProbe | None = None,
    ) -> None:
        self._pipeline = pipeline
        # A rate over the last epochs: long enough to read, short enough to follow.
        self._recent: deque[tuple[int, float]] = deque(maxlen=20)
        self._seconds = self._task_seconds = 0.0
        self._parts: dict[str, float] = {}
        self._injected_bytes: dict[str, int] = {}
        self._received_bytes: dict[str, int] = {}
        self._calls: dict[str, CallStats] = {}
        self._replayed = 0
        self._repairs = Repairs()
        self._written = SnapshotStats()
        self._housekeeping = housekeeping
        self._waiting = waiting

    def add(
        self, report: TaskReport, seconds: float, parts: Mapping[str, float] | None = None
    ) -> None:
        """Take one epoch, and how long it and its parts took."""
        self._seconds, self._parts = seconds, dict(parts or {})
        self._task_seconds += report.seconds
        self._injected_bytes = _more(self._injected_bytes, report.injected_bytes)
        self._received_bytes = _more(self._received_bytes, report.received_bytes)
        self._calls = self._calls | {
            name: self._calls.get(name, CallStats()).then(stats)
            for name, stats in report.calls.items()
        }
        if report.records:
            self._recent.append((report.records, seconds))
        self._replayed += sum(result.replayed for result in report.results)
        self._written.add(report.written)
        for result in report.results:
            self._repairs.add(result.repair)

    def status(
        self,
        run_log: RunLog,
        loads: Mapping[str, Loads],
        publisher: WatermarkPublisher,
        *,
        state: str,
        stuck: Sequence[Stuck] = (),
    ) -> Status:
        """Return the status of a run."""
        seconds = sum(spent for _, spent in self._recent)
        overview, titles = overview_of_run(run_log), run_log.topology.titles
        computations = overview.computations.values()
        streams = overview.streams.values()
        beside = self._housekeeping
        collected = beside.collected if beside is not None else Collected()
        return Status(
            pipeline=self._pipeline,
            state=state,
            epoch=overview.epoch,
            generation=overview.generation,
            low_watermarks={
                computation.name: computation.low_watermark for computation in computations
            },
            oldest_work=_there(
                {computation.name: computation.oldest_work for computation in computations}
            ),
            wall_timers=_there(
                {computation.name: computation.next_wall_timer for computation in computations}
            ),
            pending_timers={
                computation.name: computation.pending_timers for computation in computations
            },
            pending_wall_timers={
                computation.name: computation.pending_wall_timers for computation in computations
            },
            moved=_there({computation.name: computation.moved for computation in computations}),
            newest=_there({stream.name: stream.newest for stream in streams}),
            injected={stream.name: stream.injected for stream in streams if stream.injected},
            dead_letters=dead_letters_of(overview),
            refused_low_watermarks={
                stream.name: stream.refused_low_watermarks
                for stream in streams
                if stream.refused_low_watermarks
            },
            dropped={stream.name: stream.dropped for stream in streams if stream.dropped},
            idle=publisher.idle(),
            missing=publisher.missing(),
            counters={computation.name: computation.counters for computation in computations},
            records_per_second=sum(n for n, _ in self._recent) / seconds if seconds else 0.0,
            epoch_seconds=self._seconds,
            epoch_parts=self._parts,
            task_seconds=self._task_seconds,
            replayed=self._replayed,
            repaired=self._repairs.deltas_applied,
            rebuilt=self._repairs.rebuilt,
            recovered_bytes=self._repairs.bytes_read,
            damaged=self._repairs.damaged,
            snapshots=self._written.snapshots,
            snapshot_bytes=self._written.bytes,
            collected=collected.files,
            housekeeping_failures=self._written.failed
            + (beside.failed if beside is not None else 0),
            stuck=list(stuck),
            load=_titled(load_of_run(loads), titles),
            backlog={} if self._waiting is None else self._waiting.now(),
            injected_bytes=self._injected_bytes,
            received_bytes=_titled(self._received_bytes, titles),
            calls=_titled(self._calls, titles),
            held_back=publisher.throttle.descriptions(),
        )


def _more(known: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Return sums; another thread may read what is known, so that is left as it is."""
    return {name: known.get(name, 0) + more.get(name, 0) for name in (*known, *more)}


def _titled(known: Mapping[str, T], titles: Mapping[str, str]) -> dict[str, T]:
    """Return what is known of computations, by what the pipeline calls them."""
    return {titles.get(name, name): value for name, value in known.items()}


def _there(known: dict[str, int | None]) -> dict[str, int]:
    """Return those that are known, or some time."""
    return {name: n for name, n in known.items() if n is not None}
