"""Entries of the epoch log: claims of a run, manifests of epochs, completions.

Where key intervals stand is said by completions: each says what its epoch changed, and the first
after a claim says all. So an entry is as long as what happened, however many intervals there are.

They are JSON, to be read without us. One totally ordered, numbered list holds all three, and an
entry is put only if its number is free. So the log is also the fence between drivers: a new run
first puts a claim; a superseded driver's next entry finds its number taken.

Source: MillWheel, "State Manipulation" (6.2): sequencers; docs/architecture.md, "The
commit protocol".

Source stats: what was observed of an injected stream, by a task, in an epoch, or ever since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from millrace.compile.change.registry import Registry
from millrace.compile.topology import INJECTOR, ComputationSpec
from millrace.injectors.offsets import Offsets, SourceOffset
from millrace.kernel.results import Counters, IntervalResult
from millrace.kernel.user_errors import Reasons, merge
from millrace.model.time import MIN_TIMESTAMP
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.percentiles import Ahead
from millrace.watermark.propagation import LowWatermarks, WatermarkPropagation
from millrace.watermark.report import ONLY, ProcessState, Report


class SourceStats(msgspec.Struct, omit_defaults=True):
    """What was observed of one injected stream.

    Attributes:
        newest_us: Latest timestamp of its records; MIN_TIMESTAMP before the first.
        records: Records read, without those that were refused or dropped.
        refused_watermarks: Low watermarks of its processes that were refused.
        letters: Records that became dead letters as they were read, by reason.
        dropped: Records that its source was told to drop.
        processes: Process of its injector -> what was observed of it.
        ahead: How far its records came ahead of its low watermark; None unless the pipeline uses
            percentiles.

    >>> stats = SourceStats(newest_us=5, records=2)
    >>> stats.add(SourceStats(newest_us=3, records=1, dropped=4))
    >>> stats.newest_us, stats.records, stats.dropped
    (5, 3, 4)
    """

    newest_us: int = MIN_TIMESTAMP
    records: int = 0
    refused_watermarks: int = 0
    letters: Reasons = {}
    dropped: int = 0
    processes: dict[str, ProcessState] = {}
    ahead: Ahead | None = None

    def count(self, records: int, newest_us: int, ahead: Ahead | None = None) -> None:
        """Count records, at least one, that were accepted.

        Args:
            records: How many.
            newest_us: Their latest timestamp.
            ahead: How far they came ahead of the low watermark.
        """
        self.records += records
        self.newest_us = max(self.newest_us, newest_us)
        if ahead is not None:
            self.ahead = ahead if self.ahead is None else self.ahead.merged(ahead)

    def hear(self, process: str, seen: ProcessState) -> None:
        """Take what was observed of a process."""
        self.processes[process] = self.processes.get(process, ProcessState()).merged(seen)

    def by_process(self) -> dict[str, ProcessState]:
        """Return what was observed of each process; an injector that names none has one."""
        if self.processes or self.newest_us == MIN_TIMESTAMP:
            return self.processes
        return {ONLY: ProcessState(self.newest_us)}

    def add(self, other: SourceStats) -> None:
        """Add what another task, or a later epoch, observed of the stream."""
        self.newest_us = max(self.newest_us, other.newest_us)
        self.records += other.records
        self.refused_watermarks += other.refused_watermarks
        self.dropped += other.dropped
        merge(self.letters, other.letters)
        for name, process in other.processes.items():
            self.hear(name, process)
        if other.ahead is not None:
            self.ahead = other.ahead if self.ahead is None else self.ahead.merged(other.ahead)


#: Injected stream -> what was observed of it.
Sources = dict[str, SourceStats]


def add_sources(known: Sources, more: Mapping[str, SourceStats]) -> None:
    """Add what was observed of injected streams to what is known of them."""
    for stream, stats in more.items():
        known.setdefault(stream, SourceStats()).add(stats)


def processes_of(sources: Mapping[str, SourceStats]) -> dict[str, dict[str, ProcessState]]:
    """Return injected stream -> process of its injector -> what was observed of it."""
    return {stream: stats.processes for stream, stats in sources.items() if stats.processes}


def ahead_of(sources: Mapping[str, SourceStats]) -> dict[str, Ahead]:
    """Return injected stream -> how far its records came ahead of its low watermark."""
    return {stream: stats.ahead for stream, stats in sources.items() if stats.ahead is not None}


class IntervalEntry(msgspec.Struct, frozen=True):
    """A key interval as the log writes it: bounds in hexadecimal, the end inclusive."""

    id: int
    first: str
    last: str

    @classmethod
    def of(cls, interval: KeyInterval) -> IntervalEntry:
        """Return an interval's entry."""
        return cls(interval.id, f"{interval.start:016x}", f"{interval.end - 1:016x}")

    def interval(self) -> KeyInterval:
        """Return the interval."""
        return KeyInterval(self.id, int(self.first, 16), int(self.last, 16) + 1)


class Grouped(msgspec.Struct, frozen=True):
    """Key intervals, and how they are grouped into tasks.

    Attributes:
        intervals: Each of them.
        cuts: See :class:`IntervalMap`.
    """

    intervals: list[IntervalEntry]
    cuts: list[int]


#: The key intervals of a computation: how many, where they are of equal size, else each of them.
Partition = int | list[IntervalEntry] | Grouped


def interval_map(partition: Partition) -> IntervalMap:
    """Return the interval map that an entry says."""
    if isinstance(partition, int):
        return IntervalMap.uniform(partition)
    if isinstance(partition, Grouped):
        return IntervalMap([entry.interval() for entry in partition.intervals], partition.cuts)
    uniform = IntervalMap.uniform(1 << (len(partition) - 1).bit_length())
    intervals = IntervalMap([entry.interval() for entry in partition])
    return uniform if intervals == uniform else intervals


def partition_of(intervals: IntervalMap) -> Partition:
    """Return what an entry says of an interval map.

    >>> partition_of(IntervalMap.uniform(64))
    64
    """
    count = len(intervals)
    if not count & (count - 1) and intervals == IntervalMap.uniform(count):
        return count
    entries = [IntervalEntry.of(interval) for interval in intervals.intervals]
    return Grouped(entries, [*intervals.cuts]) if intervals.cuts else entries


class Changes(msgspec.Struct):
    """What became of key intervals between two completions.

    Attributes:
        since: Number of the entry of the earlier one; 0 is before all. None: all is said.
        numbers: Computation -> interval id -> number of its last commit.
        chains: Computation -> interval id -> that commit's chain, by which a cache or a snapshot
            of another history is told.
        reports: Computation -> interval id -> its last report.
    """

    since: int | None
    numbers: dict[str, dict[int, int]] = {}
    chains: dict[str, dict[int, int]] = {}
    reports: dict[str, dict[int, Report]] = {}

    @classmethod
    def of(cls, results: Iterable[IntervalResult], since: int) -> Changes:
        """Return the changed positions of intervals, from the results of an epoch."""
        changed = cls(since)
        for result in results:
            name, interval = result.computation, result.interval
            changed.reports.setdefault(name, {})[interval] = result.report
            if result.number:
                changed.numbers.setdefault(name, {})[interval] = result.number
                changed.chains.setdefault(name, {})[interval] = result.chain
        return changed


class InjectorEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an injector publishes, for people and for explanations; nothing depends on it.

    Attributes:
        policy: Its low-watermark policy, as text; empty if it has none.
        expected: Processes that must be heard of.
        idle_us: Time-out after which a silent process is left out; None: never.
        skew_us: How far ahead of the low watermark a process may be read; None: any distance.
        behind_newest_us: How far a process publishes behind its newest record; None: its policy
            goes by something else.
    """

    policy: str
    expected: tuple[str, ...]
    idle_us: int | None
    skew_us: int | None = None
    behind_newest_us: int | None = None


class Restoration(msgspec.Struct, frozen=True):
    """What a checkpoint that went back to a savepoint has left in sinks.

    Attributes:
        after: The savepoint's epoch: what epochs after it have written is taken back.
        until: The last of those.
    """

    after: int
    until: int


class Claim(msgspec.Struct, tag="claim", kw_only=True):
    """A run takes the checkpoint over.

    Attributes:
        generation: 1 for the first run, one more for each that follows.
        topology: What the checkpoint depends on, as ``compile/change/identity.py`` says it.
        registry: The numbers that the checkpoint knows the pipeline by.
        owner: Random name of a program's start of the pipeline, and of the runs that its updates
            led to: so it knows a claim of its own whose write was said to have failed.
        sinks: Stream that sinks read -> schema of its format; an unfinished epoch depends on it.
        senders: Computation -> who feeds it.
        backwards: Computation -> sender -> how far back steps between them may move timestamps, in
            microseconds, where they may.
        sink_senders: Stream that sinks read, or the steps that make it -> who feeds it.
        injectors: Injected stream -> how it publishes.
        base: The epoch that is the first batch of Spark's own offsets, as far as it was known.
        ids: Computation -> the first id that no key interval of it was given yet, where that is not
            the one after the highest of its map: intervals have come and gone.
        copying: Whether this is a copy of another checkpoint, or goes back to a savepoint, and is
            not whole yet.
        final_sinks: Sinks that cannot take back what they were given.
        taken_back: What sinks were told to take back when runs started, after restores.
    """

    generation: int
    topology: dict[str, Any]
    registry: Registry
    owner: str = ""
    sinks: dict[str, Any] = {}
    senders: dict[str, list[str]] = {}
    backwards: dict[str, dict[str, int]] = {}
    sink_senders: dict[str, list[str]] = {}
    injectors: dict[str, InjectorEntry] = {}
    base: int = 0
    ids: dict[str, int] = {}
    copying: bool = False
    final_sinks: list[str] = []
    taken_back: list[Restoration] = []


class Manifest(msgspec.Struct, tag="manifest", kw_only=True):
    """Everything that an epoch's outcome depends on, besides its input and the hard state.

    A retry reads it back, and so sees the same clock, the same watermarks and the same commits.

    Attributes:
        epoch: Its number, from 0.
        generation: The run that wrote it.
        wall_time_us: The clock of the epoch.
        injectors: Injected stream -> low watermark published with the epoch.
        percentiles: Percentile -> the same for that share of its records.
        draining: Whether this epoch ends the input.
        before: Low watermarks when the epoch began.
        intervals: Computation -> key intervals.
        entry: Number of the entry of the epoch log that it is, or is in.
        follows: Number of the entry of the completion before it; 0 if there is none. Intervals
            begin where that one left them.
        changed: What that completion's epoch changed, so that who knew where intervals stood before
            it need not look it up; None of a run's first manifest.
        splitting: Settings by which the input is cut into partitions, which are part of the ids of
            injected records. Whoever runs the epoch knows what they mean.
        offsets: Injected stream whose injector the driver asks -> the processes of which the epoch
            reads something, or takes a promise, and where it ends. It begins at the offsets of the
            completion before it.
        edges: Numbers of the subscriptions; a sink that came later gets nothing of the epoch.
        live: How many live tasks a level run it: then segments are grown, and a mark ends it. What
            they leave under way is taken up by as many. 0 where tasks end with it.
        tasks: How many tasks a level run it, whoever tries again: what each of them commits may be
            one object. 0 where tasks do not end.
    """

    epoch: int
    generation: int
    wall_time_us: int
    injectors: dict[str, int]
    percentiles: dict[int, dict[str, int]] = {}
    draining: bool
    before: LowWatermarks
    intervals: dict[str, Partition]
    entry: int
    follows: int = 0
    changed: Changes | None = None
    splitting: dict[str, str] = {}
    offsets: dict[str, Offsets] = {}
    edges: list[int]
    live: int = 0
    tasks: int = 0

    def arrival_watermark_us(self, spec: ComputationSpec) -> int:
        """Return a computation's low watermark while the epoch's records are on their way to it.

        It is what its senders had shown when they sent them. An injector publishes for an epoch
        and then sends; a computation sends, and shows a new low watermark after.
        """
        shown = self.before.outputs
        senders = {
            sender: self.injectors[stream]
            if (stream := sender.removeprefix(INJECTOR)) != sender and not self.draining
            else shown[sender]
            for sender in spec.senders
        }
        return max(self.before.inputs[spec.name], spec.input_us(senders))

    def arrival_percentiles(self, spec: ComputationSpec) -> dict[int, int]:
        """Return its percentile low watermarks then: as the epoch before left them."""
        least_us = self.arrival_watermark_us(spec)
        return {
            percentile: max(known.inputs[spec.name], least_us)
            for percentile, known in self.before.percentiles.items()
        }

    def propagation(self) -> WatermarkPropagation:
        """Return the low watermarks of the epoch as far as the injectors' are known."""
        return WatermarkPropagation(self.before, self.injectors, self.percentiles)

    def interval_map(self, computation: str) -> IntervalMap:
        """Return the interval map of a computation."""
        return interval_map(self.intervals[computation])


class LiveMark(msgspec.Struct, kw_only=True):
    """What live tasks leave behind with a complete mark.

    Attributes:
        tasks: How many there were of each level.
        notes: "level-task" -> what the task knew when it passed the mark.
        receipts: Edge to a sink whose output outlives the driver -> what tasks say of the rows
            that they wrote to it since the mark before. They are published after this was written,
            and again by who goes on from it.
        incarnation: In which it was completed.
    """

    tasks: int
    notes: dict[str, bytes] = {}
    receipts: dict[int, list[bytes]] = {}
    incarnation: int


class Completion(msgspec.Struct, tag="completion", kw_only=True):
    """An epoch is over: every commit is durable and every sink has its rows, or receipts for them.

    Attributes:
        epoch: The epoch.
        generation: The run that finished it.
        drained: Whether the input has ended for good.
        wall_time_us: The clock of the epoch.
        after: Low watermarks after it.
        intervals: As in the manifest.
        since: Number of the entry of the completion before it, to which it adds; None if it says
            where every interval stands.
        numbers: Computation -> interval id -> number of its last commit. An interval that has had
            none is left out, and, if it is said since when, one whose last commit is older.
        chains: Likewise that commit's chain.
        reports: Likewise its last report.
        counters: Computation -> counts since the beginning.
        sources: Injected stream -> what was observed of it since the beginning.
        moved: Computation, or ``injector:<stream>``, -> the epoch in which the low watermark that
            it shows last moved, and the clock of that epoch.
        source_offsets: Injected stream -> process of its injector -> how far it was read.
        live: What live tasks leave behind; None where tasks ended with the epoch.
        begins: The manifest of the epoch after it, which has begun with it: live tasks do not wait
            at a mark. None if nothing was done beyond the epoch.
        base: The epoch that is the first batch of Spark's own offsets; the next one, where the
            driver read all streams itself.
        restored: What sinks are to take back before the next epoch, where the checkpoint went back
            to a savepoint with this one; else None.
    """

    epoch: int
    generation: int
    drained: bool
    wall_time_us: int
    after: LowWatermarks
    intervals: dict[str, Partition]
    since: int | None = None
    numbers: dict[str, dict[int, int]]
    chains: dict[str, dict[int, int]]
    reports: dict[str, dict[int, Report]]
    counters: dict[str, Counters]
    sources: Sources = {}
    moved: dict[str, tuple[int, int]] = {}
    source_offsets: dict[str, dict[str, SourceOffset]] = {}
    live: LiveMark | None = None
    begins: Manifest | None = None
    base: int = 0
    restored: Restoration | None = None


def interval_maps(
    names: Iterable[str],
    uniform: IntervalMap,
    said: Iterable[Completion | Manifest | None],
    ids: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, IntervalMap]:
    """Return the interval maps of computations; what is said later counts.

    Args:
        names: Of the computations. What else is said is of some that were dropped since.
        uniform: Of those of which nothing is said.
        said: Entries of the log.
        ids: Computation -> the first id that no interval of it was given, where some were: of
            those of which nothing is said any more, since the checkpoint went back to a savepoint.

    >>> interval_maps(["count"], IntervalMap.uniform(2), [None])["count"] == IntervalMap.uniform(2)
    True
    """
    maps = {n: uniform.renumbered(ids[n]) if ids.get(n) else uniform for n in names}
    for one in said:
        known = {} if one is None else one.intervals
        maps |= {name: interval_map(known[name]) for name in maps.keys() & known.keys()}
    return maps


Entry = Claim | Manifest | Completion

_decoder = msgspec.json.Decoder(Entry)
_manifest_decoder = msgspec.json.Decoder(Manifest)


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as JSON."""
    return msgspec.json.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """Return the entry that the JSON says."""
    entry: Entry = _decoder.decode(data)
    return entry


def decode_manifest(data: bytes) -> Manifest:
    """Return the manifest that the JSON says; tasks get nothing else."""
    manifest: Manifest = _manifest_decoder.decode(data)
    return manifest
