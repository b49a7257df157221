"""Overview: where a pipeline stands after an epoch, as a run or its checkpoint knows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from millrace.compile.topology import INJECTOR, injector_name
from millrace.inspect.ended import Ended
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.propagation import LowWatermarks
from millrace.watermark.report import PendingTimers
from millrace.windmill.epochs import Epochs
from millrace.windmill.results import Counters
from millrace.windmill.source_stats import SourceStats
from millrace.windmill.user_errors import Reasons, merge, total


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
    """Return computation or injected stream -> its dead letters, of those that have some."""
    found = {one.name: one.dead_letters for one in overview.streams.values()}
    for one in overview.computations.values():
        found[one.name] = found.get(one.name, 0) + one.counters.dead_letters
    return {name: count for name, count in found.items() if count}


def reasons_of(overview: Overview) -> Reasons:
    """Return why there are dead letters -> how many, and the first of them."""
    found: Reasons = {}
    for stream in overview.streams.values():
        merge(found, stream.reasons)
    for computation in overview.computations.values():
        merge(found, computation.counters.reasons)
    return found


def overview_of_run(epochs: Epochs) -> Overview:
    """Return the overview of a run, after the last epoch that it has completed.

    It may be asked for beside the run's own thread, and reads no checkpoint.
    """
    bulletins = epochs.authority.bulletins
    shown = epochs.authority.low_watermarks
    # An epoch may be counted meanwhile: dict() copies at once what a loop would trip over.
    counters = {
        name: msgspec.structs.replace(known, counted=dict(known.counted))
        for name, known in epochs.counters.items()
    }
    last, unfinished = epochs.history.moments[-1:], epochs.open
    known = _computations(
        list(shown.inputs),  # each after all that feed it
        shown,
        dict(epochs.moved),
        {name: bulletin.oldest_work_us for name, bulletin in bulletins.items()},
        {name: bulletin.next_wall_timer_us for name, bulletin in bulletins.items()},
        {name: bulletin.pending_timers for name, bulletin in bulletins.items()},
        counters,
    )
    titles = epochs.topology.titles
    return Overview(
        generation=epochs.generation,
        epoch=epochs.completed,
        wall_time=last[0].wall_time_us if last else None,
        drained=epochs.drained,
        unfinished=None if unfinished is None else unfinished.epoch,
        computations={
            titles[name]: msgspec.structs.replace(one, name=titles[name])
            for name, one in known.items()
        },
        streams=_streams(
            [n.removeprefix(INJECTOR) for n in list(shown.outputs) if n.startswith(INJECTOR)],
            shown,
            dict(epochs.sources),
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
