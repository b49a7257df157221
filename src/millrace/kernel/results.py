"""Results: counters and cost of one bundle of a key interval, which its task reports to the driver.

An :class:`IntervalResult` has three parts: what the bundle did (:class:`Counters`), its cost
(:class:`Load`, with :class:`HookTimes`), and the part of both that its commit stores
(:class:`Footing`).

Counts and report are in the footing of the bundle's commit, so an attempt that replays the commit
reports the same. The cost is not: a replay has none.

Counters are stored with the commits, so a restart counts nothing twice. Times of hooks are a
histogram of the duration of calls of user code, one call a record or timer.

Reading the clock twice for each call would add a twentieth to the cost of a short one. So short
calls are timed in one bundle of 63, and weighted for the bundles between; long calls are all timed.
Work around a hook, such as unpacking a pane, counts as its time; a call that raised is not counted.
Buckets are powers of two: a percentile is right within a factor of 2.

Load: what an interval's bundles cost, and the keys that most of their records are of.

It is measured by whoever runs the bundles and goes to the driver with the reports. It is no part of
a commit: an attempt that replays one has done nothing, and says so.

Which keys are hot is found by looking at one record in many: at about one in 128, and in a bundle
of more than 2,048 at about 16, at uneven distances. The records of a bundle are sorted by key, so
this is a sample by strata, and a key's share is missed by about a sample's. A sketch that is fed
each record (Space-Saving, as in ``datasketches``) costs a call a record, which is more than all
that is done with one in a grouping kept as columns; this costs a bisection a sample.

Source: MillWheel, "Architecture" (7.1): intervals are split and moved by load.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from math import frexp
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from millrace.kernel.bundle import KeyedRecords, RecentIntervals
from millrace.kernel.router import RowsBuilder
from millrace.kernel.user_errors import Reasons, merge, tell_first
from millrace.model.record import Record, Timer
from millrace.model.time import format_timestamp
from millrace.store import NOTHING, Commit, Repair, Size, View
from millrace.watermark.report import Report

Given = TypeVar("Given", Record, Timer)

#: Bundles between two that are timed. With them an odd number, or the same interval would be met
#: again and again: their number is a power of two.
_BETWEEN: Final = 62
#: Where calls take so long, on the average of a bundle, each one is timed.
_LONG_S: Final = 50e-6
#: What a small bundle takes that makes no calls, or hardly more.
_AROUND_S: Final = 500e-6

#: Calls below 2 ** -20 seconds, about a microsecond, count as of that; above 64 s, as of 128.
SHORTEST: Final = -20
LONGEST: Final = 7
_SHORTEST_S: Final = 2.0 ** (SHORTEST - 1)  # of nought there is no exponent


class HookTimes(msgspec.Struct, array_like=True, frozen=True):
    """How long calls took.

    Attributes:
        calls: Binary exponent of a time in seconds that they took less than, and at least half
            of -> how many they are, about.
        seconds: About how long they took together.

    >>> some = HookTimes({-10: 90, -3: 9, 2: 1}, 5.0)
    >>> some.percentiles()
    [0.0009765625, 0.125, 0.125]
    >>> some.then(HookTimes({2: 900}, 3000.0)).percentiles((50,))
    [4.0]
    """

    calls: dict[int, int] = {}
    seconds: float = 0.0

    def then(self, later: HookTimes) -> HookTimes:
        """Return these and later ones."""
        if not later.calls:
            return self
        if not self.calls:
            return later
        return HookTimes(Counter(self.calls) + Counter(later.calls), self.seconds + later.seconds)

    def percentiles(self, wanted: tuple[int, ...] = (50, 95, 99)) -> list[float]:
        """Return times in seconds that so many of 100 calls took less than; none without calls."""
        exponents = sorted(self.calls)
        until = list(accumulate(self.calls[exponent] for exponent in exponents))
        return [
            2.0 ** exponents[bisect_left(until, until[-1] * percent / 100)]
            for percent in wanted
            if until
        ]


NO_TIMES: Final = HookTimes()


class CallStats(msgspec.Struct, array_like=True):
    """What became of the calls of a computation, in a task, an epoch or a process.

    Attributes:
        made: Attempts that were begun. One for a batch is one.
        retried: Those of them that were not a call's first.
        timed_out: Those that took too long.
        answered: Calls with a response.
        failed: Calls that failed for good.
        durations: Of attempts, as :class:`HookTimes` has them.
        seconds: How long attempts took together.
        in_flight: Requests that were being answered when this was taken.
        waiting: Calls that waited for a place, a pause or the circuit breaker then.
        breaker_open_us: For how long the breaker had been open then; 0 if it was closed.
        pending: Records whose outcome had not been taken up then; none between two epochs.

    >>> stats = CallStats(made=1)
    >>> stats.took(0.02)
    >>> stats.add(CallStats(made=2, in_flight=7))
    >>> stats.made, stats.in_flight, stats.times.percentiles((50,))
    (3, 7, [0.03125])
    """

    made: int = 0
    retried: int = 0
    timed_out: int = 0
    answered: int = 0
    failed: int = 0
    durations: dict[int, int] = {}
    seconds: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    breaker_open_us: int = 0
    pending: int = 0

    @property
    def times(self) -> HookTimes:
        """How long attempts took."""
        return HookTimes(self.durations, self.seconds)

    def took(self, *seconds: float) -> None:
        """Count how long attempts took."""
        exponents = [frexp(max(duration, _SHORTEST_S))[1] for duration in seconds]
        for exponent, n in Counter(exponents).items():
            exponent = min(exponent, LONGEST)
            self.durations[exponent] = self.durations.get(exponent, 0) + n
        self.seconds += sum(seconds)

    def add(self, other: CallStats) -> None:
        """Add what another task counts at the same time."""
        self.made += other.made
        self.retried += other.retried
        self.timed_out += other.timed_out
        self.answered += other.answered
        self.failed += other.failed
        for exponent, n in other.durations.items():
            self.durations[exponent] = self.durations.get(exponent, 0) + n
        self.seconds += other.seconds
        self.in_flight += other.in_flight
        self.waiting += other.waiting
        self.breaker_open_us = max(self.breaker_open_us, other.breaker_open_us)
        self.pending += other.pending

    def then(self, later: CallStats) -> CallStats:
        """Return these counts and later ones, and what was in flight later."""
        both = msgspec.structs.replace(self, durations=dict(self.durations))
        both.in_flight = both.waiting = both.breaker_open_us = both.pending = 0
        both.add(later)
        return both


class HookTimer:
    """Times the calls of a computation's hooks, bundle by bundle.

    Args:
        process_record: What is called with a record.
        process_timer: What is called with a timer.

    Attributes:
        process_record: The same, or what times it, as long as a bundle is timed.
        process_timer: Likewise.
    """

    def __init__(
        self, process_record: Callable[[Record], Any], process_timer: Callable[[Timer], Any]
    ) -> None:
        self._plain = process_record, process_timer
        self.process_record, self.process_timer = self._plain
        self._found: list[float] | None = None
        self._left = self._untimed = 0

    def begin(self, clock: Callable[[], float]) -> None:
        """Begin a bundle.

        Args:
            clock: Returns seconds, from any start.
        """
        if self._found is not None:
            self._found = None
            self.process_record, self.process_timer = self._plain  # also if the last one has failed
        if self._left:
            self._left -= 1
            return
        self._left = _BETWEEN
        durations: list[float] = []
        self._found = durations
        record, timer = self._plain
        self.process_record = _timed(record, clock, durations.append)
        self.process_timer = _timed(timer, clock, durations.append)

    def end(self, calls: int, seconds: float) -> HookTimes:
        """End a bundle; return what is known of its calls, and of those before it.

        Args:
            calls: How many were made in it.
            seconds: How long it took.
        """
        durations = self._found
        if not durations:
            self._untimed += calls
            # Of a bundle that was not timed it is known only with all that is done around its
            # calls. One without calls is not the one that is timed.
            if durations is not None or seconds - _AROUND_S >= _LONG_S * calls:
                self._left = 0
            return NO_TIMES
        took = sum(durations)
        if took >= _LONG_S * calls:
            self._left = 0
        each, self._untimed = divmod(self._untimed, len(durations))
        counts: dict[int, int] = {}
        for duration in durations:
            exponent = min(frexp(max(duration, _SHORTEST_S))[1], LONGEST)
            counts[exponent] = counts.get(exponent, 0) + each + 1
        return HookTimes(counts, took * (each + 1))


def _timed(
    hook: Callable[[Given], Any], clock: Callable[[], float], took: Callable[[float], None]
) -> Callable[[Given], Any]:
    def call(given: Given) -> Any:
        began = clock()
        returned = hook(given)
        took(clock() - began)
        return returned

    return call


_NO_HOOK: Callable[[Record], Any] = print
#: The code of what stands between the machine and a hook that is timed.
TIMED: Final = _timed(_NO_HOOK, float, print).__code__


#: Hottest keys that an interval names in a report.
HOTTEST: Final = 4

_STRIDE: Final = 128
_SAMPLES: Final = 16

#: Bundles between two in which the state is sized, at last; as many records count as a bundle.
_SIZED_EVERY: Final = 63
_RECORDS: Final = 32

#: Of a commit with many, about so many rows are measured, and stand for the rest.
_ROWS: Final = 8
#: Small commits between two whose rows are measured. With them an odd number, or the same intervals
#: would be met again and again: their number is a power of two.
_UNMEASURED: Final = 6
#: No commit with more rows is small.
_SMALL: Final = 64


class Load(msgspec.Struct, array_like=True, frozen=True):
    """What an interval cost in a bundle, or in those of an epoch.

    Attributes:
        records: Records, those that partials stand for included.
        committed_bytes: About what it committed: changed rows and productions.
        seconds: Time in user code, and in what is done for it.
        rows: Rows of its state, as the last of the bundles found it.
        state_bytes: About their size.
        hottest: Encoded key -> about how many of the records are of it; at most :data:`HOTTEST`.
        times: How long calls of its hooks took.
    """

    records: int = 0
    committed_bytes: int = 0
    seconds: float = 0.0
    rows: int = 0
    state_bytes: int = 0
    hottest: dict[bytes, int] = {}
    times: HookTimes = NO_TIMES

    def then(self, later: Load) -> Load:
        """Return this and what a later bundle of the interval cost.

        >>> both = Load(2, 10, 0.5, 7, 90, {b"a": 2}).then(Load(3, 10, 0.5, 8, 99, {b"a": 1}))
        >>> both.records, both.committed_bytes, both.seconds, both.rows, both.hottest
        (5, 20, 1.0, 8, {b'a': 3})
        """
        hottest = self.hottest
        if later.hottest:
            hottest = dict(hottest)
            for key, records in later.hottest.items():
                hottest[key] = hottest.get(key, 0) + records
        return Load(
            self.records + later.records,
            self.committed_bytes + later.committed_bytes,
            self.seconds + later.seconds,
            later.rows,
            later.state_bytes,
            hottest,
            self.times.then(later.times),
        )

    def committing(self, size: int) -> Load:
        """Return the same with so many bytes committed."""
        return Load(
            self.records, size, self.seconds, self.rows, self.state_bytes, self.hottest, self.times
        )

    def reported(self) -> Load:
        """Return the same with no more keys than an interval names."""
        if len(self.hottest) <= HOTTEST:
            return self
        return msgspec.structs.replace(self, hottest=_most(self.hottest))


NO_LOAD: Final = Load()


class StateSizes:
    """Knows about how large the state of one computation's intervals is.

    To ask a cache takes as long as a record or two. So an interval's is asked in its first bundles,
    and then ever more rarely, at least once in 64 bundles or two thousand records.
    """

    def __init__(self) -> None:
        self._known = RecentIntervals[_Known]()

    def of(self, interval: int, records: int, view: View, intervals: int) -> Size:
        """Return the size of an interval's state, about as a bundle finds it.

        Args:
            interval: Its id.
            records: Of the bundle.
            view: Of its cache.
            intervals: How many the computation has.
        """
        known = self._known.get(interval)
        if known is None:
            known = _Known(view.size)
            self._known.put(interval, known, intervals)
            return known.size
        known.left -= 1 + records // _RECORDS
        if known.left < 0:
            known.left = known.between
            known.between = min(2 * known.between + 1, _SIZED_EVERY)
            known.size = view.size
        return known.size


class _Known:
    """The size of an interval's state, and for how many bundles it is taken for that."""

    __slots__ = ("between", "left", "size")

    def __init__(self, size: Size) -> None:
        self.size = size
        self.left = 0
        self.between = 1


class CommitSizes:
    """Knows about how much the commits of one computation hold, in the order of their making.

    To measure the rows of a small commit takes as long as a tenth of a record. So those of one in
    seven are measured, and stand for as many of those that follow.

    >>> sizes, rows = CommitSizes(), [(b"row", b"value")] * 3
    >>> [sizes.of(Commit("count", 0, n, 1, 1, rows[:n], b"abc")) for n in (2, 3)]
    [19, 27]
    """

    def __init__(self) -> None:
        self._left = 0
        self._rows = 1
        self._bytes = 0

    def of(self, commit: Commit) -> int:
        """Return about how many bytes a commit holds: changed rows, productions and report."""
        rows = commit.mutations
        count = len(rows)
        rest = len(commit.productions) + len(commit.report)
        if not count:
            return rest
        if self._left and count <= _SMALL:
            self._left -= 1
            return rest + count * self._bytes // self._rows
        if count > _ROWS:
            # From another place each time: what lies first is not what lies last.
            step = -(-count // _ROWS)
            rows = rows[commit.number % step :: step]
        size = 0
        for row, value in rows:
            size += len(row) + (0 if value is None else len(value))
        self._left, self._rows, self._bytes = _UNMEASURED, len(rows), size
        return rest + size * count // len(rows)


class KeySampler:
    """Finds the hottest keys of the bundles of one computation, in the order of their running."""

    def __init__(self) -> None:
        self._ahead = 0
        self._drawn = 1

    def hottest(self, records: KeyedRecords, count: int) -> dict[bytes, int]:
        """Return encoded key -> about how many of a bundle's records are of it, of the hottest.

        Args:
            records: Of the bundle.
            count: How many they are, those that partials stand for included.
        """
        at = self._ahead
        if at >= count:
            self._ahead = at - count
            return {}
        stride = max(_STRIDE, count // _SAMPLES)
        looked_at, half, drawn = [], stride // 2, self._drawn
        while at < count:
            looked_at.append(at)
            # Uneven, or bundles of one length would beat with it. A linear congruential generator,
            # whose low bits repeat soon: a schedule that is run again draws the same.
            drawn = (drawn * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
            at += half + (drawn >> 8) % stride
        self._drawn = drawn
        # A long one, of a large bundle, is nothing to small ones that follow.
        self._ahead = min(at - count, _STRIDE * 3 // 2)
        counts: dict[bytes, int] = {}
        cuts, encoded = records.cuts, records.encoded
        plain = records.weights is None and not cuts[0]
        for place in looked_at if plain else _places(records, looked_at):
            key = encoded[bisect_right(cuts, place) - 1]
            counts[key] = counts.get(key, 0) + stride
        return counts if len(counts) <= HOTTEST else _most(counts)


def _places(records: KeyedRecords, looked_at: list[int]) -> list[int]:
    """Return where records lie of which it is known the how many-th they are."""
    first, last = records.cuts[0], records.cuts[-1]
    if records.weights is None:
        return [first + n for n in looked_at]
    until = np.cumsum(records.weights[first:last])
    return [first + int(n) for n in np.searchsorted(until, looked_at, side="right")]


def _most(records_by_key: dict[bytes, int]) -> dict[bytes, int]:
    """Return the keys with the most records, the most first."""
    return dict(sorted(records_by_key.items(), key=lambda item: (-item[1], item[0]))[:HOTTEST])


_log = logging.getLogger("millrace")


class FirstLate(msgspec.Struct, array_like=True, frozen=True):
    """The first late record that a computation met.

    Attributes:
        key: Its key, as text, cut if it is long.
        stream: The stream it came by.
        timestamp_us: Its event time.
        low_watermark_us: The low watermark that it was behind.
        epoch: When it was delivered.
    """

    key: str
    stream: str
    timestamp_us: int
    low_watermark_us: int
    epoch: int


class Counters(msgspec.Struct, array_like=True):
    """What happened in a bundle, an epoch, or since the beginning.

    Attributes:
        records: Records delivered to user code, late ones included.
        late: Those behind the low watermark.
        worst_lateness_us: How far behind the worst was.
        timers: Timers fired.
        keys: Keys' parts of bundles.
        productions: Rows sent to consumers.
        dead_letters: Records and timers that user code failed on and that were set aside.
        first_late: The first record behind the low watermark; None if there was none.
        counted: What the computation counted itself, by name.
        duplicates_filtered: Records that an injector delivered again, and user code did not get.
        reasons: Why they were set aside -> how many, and the first of them.
    """

    records: int = 0
    late: int = 0
    worst_lateness_us: int = 0
    timers: int = 0
    keys: int = 0
    productions: int = 0
    dead_letters: int = 0
    first_late: FirstLate | None = None
    counted: dict[str, int] = {}
    duplicates_filtered: int = 0
    reasons: Reasons = {}

    def add(self, other: Counters) -> None:
        """Add another's counts to these."""
        self.records += other.records
        self.late += other.late
        self.worst_lateness_us = max(self.worst_lateness_us, other.worst_lateness_us)
        self.timers += other.timers
        self.keys += other.keys
        self.productions += other.productions
        self.dead_letters += other.dead_letters
        self.first_late = self.first_late or other.first_late
        for name, n in other.counted.items():
            self.counted[name] = self.counted.get(name, 0) + n
        self.duplicates_filtered += other.duplicates_filtered
        if other.reasons:
            merge(self.reasons, other.reasons)


def count(
    counters: Mapping[str, Counters],
    said: Iterable[tuple[str, Counters]],
    titles: Mapping[str, str],
) -> None:
    """Add what happened; say in the log who has met a first late record, or sent a dead letter.

    Args:
        counters: By computation.
        said: What happened lately, by computation.
        titles: Computation -> what its user calls it.
    """
    for name, more in said:
        if counters[name].first_late is None and more.first_late is not None:
            _tell_first_late(titles[name], more.first_late)
        if more.reasons and not counters[name].reasons:
            tell_first(titles[name], more.reasons)
        counters[name].add(more)


def _tell_first_late(computation: str, late: FirstLate) -> None:
    _log.warning(
        "%s: the first late record: key %s, stream %r, timestamp %s, low watermark %s, epoch %d. "
        "It was delivered with record.late set. Later ones are only counted.",
        computation,
        late.key,
        late.stream,
        format_timestamp(late.timestamp_us),
        format_timestamp(late.low_watermark_us),
        late.epoch,
        extra={
            "millrace": {
                "event": "late_record",
                "computation": computation,
                "key": late.key,
                "stream": late.stream,
                "epoch": late.epoch,
            }
        },
    )


class IntervalResult(msgspec.Struct, array_like=True):
    """One interval after a bundle, or after all bundles between two marks.

    Attributes:
        computation: Its name.
        interval: The interval's id.
        number: Number of its last commit.
        report: What pins its low watermark.
        counters: What happened.
        replayed: Whether an earlier attempt had committed. Then no user code ran, or, where the
            commit holds no productions, only to make those again.
        chain: That commit's.
        repair: What it took to bring its cache to where the bundle begins.
        load: What it cost this attempt.
    """

    computation: str
    interval: int
    number: int
    report: Report
    counters: Counters
    replayed: bool = False
    chain: int = 0
    repair: Repair = NOTHING
    load: Load = NO_LOAD


#: A result, and what leaves for consumers: that goes another way than the result.
Produced = tuple[IntervalResult, RowsBuilder]


class Footing(msgspec.Struct, array_like=True):
    """What a commit carries besides state and productions, so that a replay reports the same.

    Attributes:
        report: What pins the interval's low watermark.
        counters: What happened.
        weak: Whether the productions are not in the commit. It stands in the commit, and is not
            taken from the pipeline, as that may have changed since.
    """

    report: Report
    counters: Counters
    weak: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Footing).decode


def footing(report: Report, counters: Counters, *, weak: bool) -> bytes:
    """Return what a commit carries besides state and productions."""
    return _encode(Footing(report, counters, weak))


def footing_of(commit: Commit) -> Footing:
    """Return what a commit carries besides state and productions."""
    return _decode(commit.report)


def result_of(commit: Commit, footing: Footing, *, replayed: bool = False) -> IntervalResult:
    """Return the result that a commit says, which an earlier attempt or incarnation made."""
    return IntervalResult(
        commit.computation,
        commit.interval,
        commit.number,
        footing.report,
        footing.counters,
        replayed,
        commit.chain,
    )
