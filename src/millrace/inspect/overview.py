"""Overview: where a pipeline stands after an epoch, as a run or its checkpoint knows it.

The end of an epoch log, read beside a run that goes on.

What the log says is read here and nowhere else of this package. A run collects entries that it does
not need any more, also while they are being read: then there are newer ones, and it is read again.

Load of a run: what its computations cost, and the keys that most of their records are of.

Run end: what a run leaves in its checkpoint's mailbox when it ends in order.

So a later query reports that the run was stopped, and not that it does not answer. A run that dies
leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from millrace.balance.load import Loads
from millrace.compile.change.registry import Registry
from millrace.compile.topology import INJECTOR, injector_name
from millrace.epochlog import reader
from millrace.epochlog.entries import Claim, Completion, Manifest, SourceStats
from millrace.epochlog.history import Moment
from millrace.epochlog.renames import read_under, titled, titled_claim
from millrace.epochlog.run_log import RunLog
from millrace.inspect.json_text import key_text, shortened
from millrace.kernel.results import NO_TIMES, Counters, HookTimes
from millrace.kernel.user_errors import Reasons, merge, total
from millrace.model.errors import DamagedStore, NotKept
from millrace.model.keys import decode_key
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, format_timestamp
from millrace.store import EpochLog, Mailbox
from millrace.watermark.propagation import LowWatermarks
from millrace.watermark.report import PendingTimers

T = TypeVar("T")

# Each round is another collection that came in between, so that one is unlucky once or twice.
_ROUNDS = 5


class Ended(NamedTuple):
    """What the log says.

    Attributes:
        claim: The last; None if no run has claimed the checkpoint yet.
        completion: Of the epoch; None if none has completed yet.
        unfinished: The manifest of an epoch that was begun since and is not completed.
    """

    claim: Claim | None
    completion: Completion | None
    unfinished: Manifest | None


def ended(log: EpochLog, epoch: int | None = None) -> Ended:
    """Return what a log says after an epoch; by default the last that has completed.

    Raises:
        NotKept: The log does not say it, or not any more.
        DamagedStore: An entry that is needed is gone or cannot be read.
    """
    found = Ended(*_steadily(log, lambda: reader.latest(log)))
    if epoch is None or (found.completion is not None and found.completion.epoch == epoch):
        return found
    completion = _steadily(log, lambda: reader.completion_of(log, epoch))
    if completion is None:
        kept = _steadily(log, lambda: list(reader.completions(log)))
        there = f"{kept[0].epoch} to {kept[-1].epoch}" if kept else "none"
        raise NotKept(
            f"epoch {epoch} is not in the epoch log of this checkpoint; there are {there}. Open it "
            "without an epoch to have the last."
        )
    return Ended(found.claim, completion, None)


def fitted(found: Ended) -> Ended:
    """Return it with a low watermark for all that the claim has, also what is new since the epoch.

    Computations and streams are called in it what their pipeline calls them. What is new stands
    before time until its first epoch.
    """
    claim, completion, unfinished = found
    if claim is not None and completion is not None:
        registry = claim.registry.checked()
        completion = titled(read_under(completion, registry.read_as), registry.called)
    if claim is not None:
        claim = titled_claim(claim)
    if claim is None or completion is None:
        return Ended(claim, completion, unfinished)
    computations = claim.topology["computations"]
    injectors = map(injector_name, claim.topology["injected"])
    shown = [*computations, *injectors]

    def with_all(known: LowWatermarks) -> LowWatermarks:
        return LowWatermarks(
            dict.fromkeys(computations, MIN_TIMESTAMP) | known.inputs,
            dict.fromkeys(shown, MIN_TIMESTAMP) | known.outputs,
            {p: with_all(of) for p, of in known.percentiles.items()},
        )

    return Ended(claim, replace(completion, after=with_all(completion.after)), unfinished)


def moments(log: EpochLog) -> list[Moment]:
    """Return where the low watermarks stood after each epoch that a log still has."""
    claim = ended(log).claim
    registry = Registry() if claim is None else claim.registry.checked()

    def of(done: Completion) -> Moment:
        return Moment.of(read_under(done, registry.read_as), registry.called)

    return _steadily(log, lambda: list(map(of, reader.completions(log))))


def known_otherwise(found: Ended) -> dict[str, str]:
    """Return computation, as the log knows it -> what its pipeline calls it, where they differ."""
    claim = found.claim
    return {} if claim is None else claim.registry.checked().called


def _steadily(log: EpochLog, read: Callable[[], T]) -> T:
    """Read, and again where entries were collected meanwhile."""
    for _ in range(_ROUNDS):
        before = log.first(), log.last()
        try:
            return read()
        except DamagedStore:
            if (log.first(), log.last()) == before:
                raise
    return read()


class ComputationOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One computation after an epoch. All times in microseconds.

    Attributes:
        name: Its name.
        low_watermark: Of its input.
        output_low_watermark: What it shows its consumers.
        oldest_work: The oldest of its low-watermark timers and holds; None if it has none, or if a
            key interval has not reported yet.
        next_wall_timer: Its earliest wall-clock timer; None if it has none.
        pending_timers: How many low-watermark timers it has set that have not fired.
        pending_wall_timers: Likewise of the wall clock.
        moved: When the low watermark that it shows last moved, by the clock; None if it has not.
        counters: What it did since the beginning.
    """

    name: str
    low_watermark: int
    output_low_watermark: int
    moved: int | None
    oldest_work: int | None
    next_wall_timer: int | None
    pending_timers: int
    pending_wall_timers: int
    counters: Counters


class StreamOverview(msgspec.Struct, frozen=True, kw_only=True):
    """One injected stream after an epoch.

    Attributes:
        name: Its name.
        low_watermark: What its injector published last, in microseconds.
        newest: Latest timestamp read, in microseconds; None before the first record.
        injected: Records read since the beginning.
        dead_letters: Records that became dead letters as they were read, since the beginning.
        reasons: Why -> how many, and the first of them.
        refused_low_watermarks: Low watermarks of its processes that were refused.
        dropped: Records that its source was told to drop, such as tombstones.
    """

    name: str
    low_watermark: int
    newest: int | None
    injected: int
    dead_letters: int
    reasons: Reasons
    refused_low_watermarks: int
    dropped: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline after an epoch.

    Attributes:
        generation: How many runs have claimed the checkpoint.
        epoch: The last completed epoch; -1 before the first.
        wall_time: The clock of that epoch in microseconds; None before the first.
        drained: Whether its input has ended for good.
        unfinished: An epoch that was begun and is not completed; None if there is none.
        computations: By name.
        streams: The injected streams, by name.
    """

    generation: int
    epoch: int
    wall_time: int | None
    drained: bool
    unfinished: int | None
    computations: dict[str, ComputationOverview]
    streams: dict[str, StreamOverview]


def overview_of_log(found: Ended) -> Overview:
    """Return the overview of what an epoch log says."""
    claim, completion, unfinished = found
    if claim is None:
        return _NOTHING
    names: Iterable[str] = sorted(claim.topology["computations"])
    streams: Iterable[str] = sorted(claim.topology["injected"])
    if completion is None:
        return Overview(
            generation=claim.generation,
            epoch=-1,
            wall_time=None,
            drained=False,
            unfinished=None if unfinished is None else unfinished.epoch,
            computations=_computations(names, _BEFORE, {}, {}, {}, {}, {}),
            streams=_streams(streams, _BEFORE, {}),
        )
    oldest, timers, pending = {}, {}, {}
    for name in names:
        reports = completion.reports.get(name, {})
        missing = any(interval not in reports for interval in completion.numbers.get(name, ()))
        oldest[name] = min(
            (report.oldest_work_us() for report in reports.values()), default=MAX_TIMESTAMP
        )
        if missing:
            oldest[name] = MIN_TIMESTAMP
        timers[name] = min((r.wall_timer_us for r in reports.values()), default=MAX_TIMESTAMP)
        pending[name] = PendingTimers.of(reports.values())
    return Overview(
        generation=claim.generation,
        epoch=completion.epoch,
        wall_time=completion.wall_time_us,
        drained=completion.drained,
        unfinished=None if unfinished is None else unfinished.epoch,
        computations=_computations(
            names, completion.after, completion.moved, oldest, timers, pending, completion.counters
        ),
        streams=_streams(streams, completion.after, completion.sources),
    )


def dead_letters_of(overview: Overview) -> dict[str, int]:
    """Return computation or injected stream -> its dead letters, of those that have some.

    A stream that has the name of a computation is called ``stream NAME``.
    """
    computations = overview.computations.values()
    letters = {computation.name: computation.counters.dead_letters for computation in computations}
    streams = {
        origin_of(stream.name, letters): stream.dead_letters for stream in overview.streams.values()
    }
    return {name: count for name, count in (letters | streams).items() if count}


def origin_of(stream: str, computations: Container[str]) -> str:
    """Return by which name dead letters of an injected stream are counted beside computations'.

    >>> origin_of("clicks", {"Spikes"}), origin_of("clicks", {"clicks"})
    ('clicks', 'stream clicks')
    """
    return f"stream {stream}" if stream in computations else stream


def reasons_of(overview: Overview) -> Reasons:
    """Return why there are dead letters -> how many, and the first of them."""
    found: Reasons = {}
    for stream in overview.streams.values():
        merge(found, stream.reasons)
    for computation in overview.computations.values():
        merge(found, computation.counters.reasons)
    return found


def overview_of_run(run_log: RunLog) -> Overview:
    """Return the overview of a run, after the last epoch that it has completed.

    It may be asked for beside the run's own thread, and reads no checkpoint.
    """
    bulletins = run_log.authority.bulletins
    shown = run_log.authority.low_watermarks
    # An epoch may be counted meanwhile: dict() copies at once what a loop would trip over.
    counters = {
        name: msgspec.structs.replace(known, counted=dict(known.counted))
        for name, known in run_log.counters.items()
    }
    last, unfinished = run_log.history.moments[-1:], run_log.open
    known = _computations(
        list(shown.inputs),  # each after all that feed it
        shown,
        dict(run_log.moved),
        {name: bulletin.oldest_work_us for name, bulletin in bulletins.items()},
        {name: bulletin.next_wall_timer_us for name, bulletin in bulletins.items()},
        {name: bulletin.pending_timers for name, bulletin in bulletins.items()},
        counters,
    )
    titles = run_log.topology.titles
    return Overview(
        generation=run_log.generation,
        epoch=run_log.completed,
        wall_time=last[0].wall_time_us if last else None,
        drained=run_log.drained,
        unfinished=None if unfinished is None else unfinished.epoch,
        computations={
            titles[name]: msgspec.structs.replace(one, name=titles[name])
            for name, one in known.items()
        },
        streams=_streams(
            [n.removeprefix(INJECTOR) for n in list(shown.outputs) if n.startswith(INJECTOR)],
            shown,
            dict(run_log.sources),
        ),
    )


_BEFORE = LowWatermarks({}, {})
_NOTHING = Overview(
    generation=0, epoch=-1, wall_time=None, drained=False, unfinished=None,
    computations={}, streams={},
)  # fmt: skip


def _computations(
    names: Iterable[str],
    shown: LowWatermarks,
    moved: Mapping[str, tuple[int, int]],
    oldest: Mapping[str, int],
    timers: Mapping[str, int],
    pending: Mapping[str, PendingTimers],
    counters: Mapping[str, Counters],
) -> dict[str, ComputationOverview]:
    return {
        name: ComputationOverview(
            name=name,
            low_watermark=shown.inputs.get(name, MIN_TIMESTAMP),
            output_low_watermark=shown.outputs.get(name, MIN_TIMESTAMP),
            moved=moved[name][1] if name in moved else None,
            oldest_work=some_time(oldest.get(name, MAX_TIMESTAMP)),
            next_wall_timer=some_time(timers.get(name, MAX_TIMESTAMP)),
            pending_timers=known.low_watermark,
            pending_wall_timers=known.wall_clock,
            counters=counters.get(name) or Counters(),
        )
        for name in names
        for known in [pending.get(name, PendingTimers())]
    }


def _streams(
    names: Iterable[str], shown: LowWatermarks, sources: Mapping[str, SourceStats]
) -> dict[str, StreamOverview]:
    return {
        name: StreamOverview(
            name=name,
            low_watermark=shown.outputs.get(injector_name(name), MIN_TIMESTAMP),
            newest=None if stats.newest_us == MIN_TIMESTAMP else stats.newest_us,
            injected=stats.records,
            dead_letters=total(stats.letters),
            reasons=dict(stats.letters),
            refused_low_watermarks=stats.refused_watermarks,
            dropped=stats.dropped,
        )
        for name in names
        for stats in [sources.get(name) or SourceStats()]
    }


def some_time(us: int) -> int | None:
    """Return an instant; None for before time and the end of time, which say that there is none."""
    return us if MIN_TIMESTAMP < us < MAX_TIMESTAMP else None


class KeyShare(msgspec.Struct, frozen=True):
    """A hot key.

    Attributes:
        key: As text; of one of more than 200 characters the beginning, its length and its hash.
        share: Of the computation's records, lately: between 0 and 1, and about.
    """

    key: str
    share: float


class ComputationLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one computation cost, as far as its run saw it.

    Attributes:
        seconds: Time in user code, and in what is done for it, since the run began.
        committed_bytes: What it committed since, before compression: changed rows, productions.
        state_rows: Rows of its state, in the key intervals that have worked since.
        state_bytes: About their size in a cache.
        busiest: Share of its busiest key interval in that time, lately; 0 if it cost none.
        intervals: Key interval -> its share in that time, lately, of the busiest 64.
        hottest: The keys with the most records, lately, the most first.
        cache_hits: Key intervals of an epoch, or mark, whose cache stood where they began, since.
        cache_misses: Those whose cache had to be brought there from the log first.
        times: How long calls of its hooks took since, a record or timer each; none of a grouping
            kept as columns, which makes no such calls.
    """

    seconds: float
    committed_bytes: int
    state_rows: int
    state_bytes: int
    busiest: float
    intervals: dict[int, float] = {}
    hottest: list[KeyShare]
    cache_hits: int = 0
    cache_misses: int = 0
    times: HookTimes = NO_TIMES


def load_of_run(loads: Mapping[str, Loads]) -> dict[str, ComputationLoad]:
    """Return computation -> its load. It may be asked for beside the run's own thread."""
    return {name: _load_of(load) for name, load in loads.items()}


def _load_of(loads: Loads) -> ComputationLoad:
    return ComputationLoad(
        seconds=loads.seconds,
        committed_bytes=loads.committed_bytes,
        state_rows=loads.rows,
        state_bytes=loads.state_bytes,
        busiest=loads.busiest(),
        intervals=loads.shares(),
        hottest=[KeyShare(_key_text(decode_key(key)), share) for key, share in loads.hottest()],
        cache_hits=loads.cache_hits,
        cache_misses=loads.cache_misses,
        times=loads.times,
    )


def _key_text(key: Any) -> str:
    return shortened(key_text(key), key)


#: Letters sort behind the digits that requests begin with, of which old ones are removed.
_PREFIX: Final = "ended-"


class RunEnd(msgspec.Struct, frozen=True):
    """How a run ended.

    Attributes:
        state: ``stopped``, by request, ``drained`` or ``failed``.
        epoch: The last that it completed; -1 if none was.
        at_us: When, by the driver's clock.

    >>> print(RunEnd("stopped", 7, 0))
    The run was stopped at 1970-01-01T00:00:00Z by request, after epoch 7.
    """

    state: str
    epoch: int
    at_us: int

    def __str__(self) -> str:
        how = {
            "stopped": "The run was stopped at {} by request",
            "drained": "The run was drained at {}",
        }.get(self.state, "The run failed at {}")
        after = f"after epoch {self.epoch}" if self.epoch >= 0 else "before its first epoch"
        return f"{how.format(format_timestamp(self.at_us))}, {after}."


def leave_run_end(mailbox: Mailbox, generation: int, end: RunEnd) -> None:
    """Say in a mailbox how a run ended; what earlier runs left there is removed."""
    name = f"{_PREFIX}{generation}"
    mailbox.put(name, msgspec.json.encode(end))
    mailbox.remove(n for n in mailbox.names() if n.startswith(_PREFIX) and n != name)


def run_end(mailbox: Mailbox, generation: int) -> RunEnd | None:
    """Return how a run ended, if it ended in order and said so."""
    data = mailbox.read(f"{_PREFIX}{generation}")
    return None if data is None else msgspec.json.decode(data, type=RunEnd)
