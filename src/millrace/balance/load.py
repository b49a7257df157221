"""Loads: what the key intervals of a run cost lately, and its hottest keys, in the driver.

They are soft: a run that starts knows nothing of them, and learns it in some epochs.

Hot keys are a summary of Misra and Gries: of the keys that intervals name, the heaviest are kept,
and the count of the heaviest discarded one is subtracted from each. So a key's count is too low by
a 65th of the records at most, however many keys there are. (Agarwal and others, "Mergeable
summaries", 2012.)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millrace.balance.policy import Weight
from millrace.epochlog.run_log import RunLog
from millrace.kernel.results import NO_TIMES, IntervalResult, Load
from millrace.model.keys import hash_key
from millrace.store import Repair
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.map_change import Remapped

#: What is left of an epoch's weight after the next: half is of the last three epochs.
KEPT: Final = 0.8

_KEYS: Final = 64
#: Records of a computation in whose sample keys are hot or not. One in 128 is looked at, so each of
#: the twenty samples is a share of 5 %: of fewer records, one sample would make its key hot.
_ENOUGH: Final = 2_560.0


class HotKey(NamedTuple):
    """A key that many of the records of a computation are of, lately.

    Attributes:
        encoded: The key, encoded.
        share: About how many, of all.
    """

    encoded: bytes
    share: float


class Lately(NamedTuple):
    """What an interval cost in an epoch, of late: those before count less and less.

    Attributes:
        records: Records an epoch.
        committed_bytes: What it committed.
        seconds: Time in user code.
        rows: Rows of its state now.
        state_bytes: About their size.
        hottest: Encoded key -> about how many records an epoch.
    """

    records: float
    committed_bytes: float
    seconds: float
    rows: int
    state_bytes: int
    hottest: dict[bytes, float]


class Loads:
    """What the intervals of one computation cost, epoch by epoch.

    Attributes:
        seconds: Time in user code since the run began.
        committed_bytes: What was committed since.
        rows: Rows of state of the intervals that have worked since.
        state_bytes: About their size.
        times: How long calls of hooks took since the run began.
        cache_hits: Intervals of an epoch, or mark, whose cache stood where they began.
        cache_misses: Those whose cache was brought there first.

    >>> loads = Loads()
    >>> for _ in range(40):
    ...     loads.add({0: Load(records=90, hottest={b"a": 60}), 1: Load(records=30)})
    >>> [round(loads.lately(n).records) for n in (0, 1, 2)]
    [90, 30, 0]
    >>> [(key, round(share, 2)) for key, share in loads.hottest()]
    [(b'a', 0.5)]

    Of few records no key is named:

    >>> few = Loads()
    >>> few.add({0: Load(records=100, hottest={b"a": 128})})
    >>> few.hottest()
    []
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.committed_bytes = self.rows = self.state_bytes = 0
        self.times = NO_TIMES
        self.cache_hits = self.cache_misses = 0
        self._epoch = 0
        self._known: dict[int, tuple[int, Lately]] = {}
        self._records = 0.0
        self._hot: dict[bytes, float] = {}

    def add(self, loads: dict[int, Load]) -> None:
        """Take an epoch's: interval -> its load; the others did nothing."""
        self._epoch += 1
        # What counts less and less are epochs, and where those have few records, records.
        faded = max(self._records * KEPT, min(self._records, _ENOUGH))
        ratio = faded / self._records if self._records else 1.0
        self._records = faded
        hot = {key: records * ratio for key, records in self._hot.items()}
        for interval, load in loads.items():
            before = self._known.get(interval)
            self.seconds += load.seconds
            self.committed_bytes += load.committed_bytes
            self.times = self.times.then(load.times)
            self.rows += load.rows - (0 if before is None else before[1].rows)
            self.state_bytes += load.state_bytes - (0 if before is None else before[1].state_bytes)
            self._records += load.records
            for key, records in load.hottest.items():
                hot[key] = hot.get(key, 0.0) + records
            lately = _NEVER if before is None else self.lately(interval)
            weight = 1.0 if before is None else 1.0 - KEPT
            self._known[interval] = self._epoch, _after(lately, load, weight)
        self._hot = _heaviest(hot)

    def open(self, repair: Repair) -> None:
        """Take what it was to have a cache where an interval begins."""
        missed = bool(repair.deltas_applied or repair.rebuilt)
        self.cache_misses += missed
        self.cache_hits += not missed

    def lately(self, interval: int) -> Lately:
        """Return what an interval cost in an epoch, of late."""
        lately = self._known.get(interval)
        if lately is None:
            return _NEVER
        at, load = lately
        left = KEPT ** (self._epoch - at)
        return load if left == 1.0 else _weighed(load, left)

    def busiest(self) -> float:
        """Return the share of the busiest interval in the time in user code, of late."""
        return next(iter(self.shares(1).values()), 0.0)

    def shares(self, most: int = 64) -> dict[int, float]:
        """Return the busiest intervals' shares in the time in user code, of late, greatest first.

        >>> loads = Loads()
        >>> loads.add({0: Load(seconds=3.0), 1: Load(seconds=1.0), 2: Load()})
        >>> loads.shares()
        {0: 0.75, 1: 0.25}
        """
        seconds = {
            interval: load.seconds * KEPT ** (self._epoch - at)
            for interval, (at, load) in [*self._known.items()]
        }
        together = sum(seconds.values())
        busiest = heapq.nlargest(most, seconds, key=seconds.__getitem__)
        return {
            interval: seconds[interval] / together for interval in busiest if seconds[interval] > 0
        }

    def intervals(self) -> list[int]:
        """Return the intervals that have worked."""
        return list(self._known)

    def forget(self, gone: Iterable[int]) -> None:
        """Forget intervals that are no more."""
        for interval in gone:
            lately = self._known.pop(interval, None)
            if lately is not None:
                self.rows -= lately[1].rows
                self.state_bytes -= lately[1].state_bytes

    def weights(self, intervals: IntervalMap) -> dict[int, Weight]:
        """Return interval id -> what it costs, for the balancer: by time, where that was taken.

        Of few records, what was not looked at is taken to be of other keys: few samples do not say
        which of them are hot.
        """
        least = _ENOUGH * (1.0 - KEPT)
        lately = [(interval.id, self.lately(interval.id)) for interval in intervals.intervals]
        timed = any(load.seconds for _, load in lately)
        return {
            interval: Weight(
                load.seconds if timed else load.records,
                tuple(
                    (hash_key(key), share)
                    for key, share in _shares(load.hottest, max(least, load.records))
                ),
            )
            for interval, load in lately
        }

    def remap(self, made: Remapped) -> None:
        """Give new intervals the known loads of the intervals that they were made from.

        Of a split, each has its hot keys, and by its width of the rest.
        """
        known = {n: self.lately(n) for parents in made.parents.values() for n in parents}
        width = Counter[int]()
        for child, of in made.parents.items():
            width[of[0]] += made.intervals.width(child)
        for child, of in made.parents.items():
            interval = made.intervals.intervals[made.intervals.places[child]]
            share = made.intervals.width(child) / width[of[0]]
            loads = [
                _within(known[parent], interval, share if len(of) == 1 else 1.0) for parent in of
            ]
            self._known[child] = (
                self._epoch,
                Lately(
                    sum(load.records for load in loads),
                    sum(load.committed_bytes for load in loads),
                    sum(load.seconds for load in loads),
                    sum(load.rows for load in loads),
                    sum(load.state_bytes for load in loads),
                    {key: n for load in loads for key, n in load.hottest.items()},
                ),
            )
            self.rows += self._known[child][1].rows
            self.state_bytes += self._known[child][1].state_bytes
        self.forget(known)

    def hottest(self, most: int = 5) -> list[HotKey]:
        """Return the keys with the most recent records, the most first; of few records none."""
        if self._records < _ENOUGH:
            return []
        # An epoch may be added meanwhile: it makes a new dict.
        shares = _shares(self._hot, self._records)
        shares.sort(key=lambda item: (-item[1], item[0]))
        return [HotKey(key, share) for key, share in shares[:most]]


class RunLoads(dict[str, Loads]):
    """Computation -> what its intervals cost, in a run whose epochs it follows."""

    def __init__(self, run_log: RunLog) -> None:
        super().__init__((spec.name, Loads()) for spec in run_log.topology.computations)
        run_log.observer = self

    def epoch_completed(self, results: Iterable[IntervalResult]) -> None:
        """Add what intervals cost in an epoch."""
        loads: dict[str, dict[int, Load]] = {name: {} for name in self}
        for result in results:
            loads[result.computation][result.interval] = result.load
            if not result.replayed:
                self[result.computation].open(result.repair)
        for name, known in self.items():
            known.add(loads[name])

    def remapped(self, made: Mapping[str, Remapped]) -> None:
        """Give new intervals the known loads of the intervals that they were made from."""
        for name, remap in made.items():
            self[name].remap(remap)


_NEVER: Final = Lately(0.0, 0.0, 0.0, 0, 0, {})


def _after(faded: Lately, load: Load, weight: float) -> Lately:
    """Return what an interval cost of late, with what it cost now, which has a weight."""
    hottest = dict(faded.hottest)
    for key, n in load.hottest.items():
        hottest[key] = hottest.get(key, 0.0) + n * weight
    return Lately(
        faded.records + load.records * weight,
        faded.committed_bytes + load.committed_bytes * weight,
        faded.seconds + load.seconds * weight,
        load.rows,
        load.state_bytes,
        _heaviest(hottest),
    )


def _shares(hottest: Mapping[bytes, float], records: float) -> list[tuple[bytes, float]]:
    """Return encoded keys with their shares in so many records, together one at the most.

    Few records are few samples, and each stands for many: keys may be estimated to have more
    records than there were. Their proportions are right all the same.
    """
    records = max(records, sum(hottest.values()))
    return [(key, n / records) for key, n in hottest.items() if records]


def _within(load: Lately, one: KeyInterval, share: float) -> Lately:
    """Return what of an interval's load is in a part of it, which has a share of the hashes."""
    hottest = {k: n for k, n in load.hottest.items() if one.start <= hash_key(k) < one.end}
    hot, all_hot = sum(hottest.values()), sum(load.hottest.values())
    records = hot + max(0.0, load.records - all_hot) * share
    part = records / load.records if load.records else share
    return Lately(
        records,
        load.committed_bytes * part,
        load.seconds * part,
        int(load.rows * share),
        int(load.state_bytes * share),
        hottest,
    )


def _weighed(load: Lately, by: float) -> Lately:
    return load._replace(
        records=load.records * by,
        committed_bytes=load.committed_bytes * by,
        seconds=load.seconds * by,
        hottest={key: n * by for key, n in load.hottest.items()},
    )


def _heaviest(counts: dict[bytes, float]) -> dict[bytes, float]:
    """Return the heaviest keys, without what the heaviest of the others has."""
    if len(counts) <= _KEYS:
        return counts
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    less = ordered[_KEYS][1]
    return {key: n - less for key, n in ordered[:_KEYS] if n > less}
