"""Percentiles of low watermarks: how the timestamps of what is still to be done are spread.

**Outstanding** is how those of pending work are spread, in bounded memory. **Ahead** is how far
records come in front of the low watermark that their injector had published. What an injector still
has to send nobody has counted, so its percentile low watermarks go by what it sent last. If of
those records a share was at least so far ahead of the low watermark, then a low watermark that much
higher holds for that share of the records to come.

Source: MillWheel, "Low Watermarks" (7.2): given a global summary of work in the system, outliers
can be stripped away: a 99% low watermark is the progress of 99% of the timestamps. Dataflow patent,
"Percentile Watermark": a time up to which some specific subset of the data has been processed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.compile.topology import injector_name
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

#: Each bucket is a tenth wider than the one before, so an estimate is within a tenth; all of time
#: has 451 of them.
_GROWTH = math.log(1.1)

#: When so many records are counted, all counts are halved: older ones count less and less, so the
#: estimate follows a source whose disorder changes.
RECORDS_MAX = 1 << 17


@runtime_checkable
class SaysPercentiles(Protocol):
    """A low-watermark policy that leaves nothing to be estimated: one that plays a script."""

    def percentile_us(self, percentile: int, epoch: int) -> int:
        """Return the percentile low watermark that an injector publishes with an epoch."""
        ...


class Ahead(msgspec.Struct, array_like=True, frozen=True):
    """A histogram of record timestamp less published low watermark.

    Attributes:
        counts: Bucket -> records; bucket 0 holds those that were not ahead.

    >>> ahead = Ahead.of(np.array([0, 1_000, 1_000, 1_000]), 0)
    >>> ahead.ahead_us(100), 900 < ahead.ahead_us(75) <= 1_000
    (0, True)
    """

    counts: dict[int, int] = {}

    @classmethod
    def of(cls, timestamps: npt.NDArray[np.int64], published_us: int) -> Ahead:
        """Return that of some records; empty if no low watermark is known, or it is at an end."""
        if not MIN_TIMESTAMP < published_us < MAX_TIMESTAMP:
            return cls()
        beyond = np.maximum(timestamps - published_us, 0)
        buckets, counts = np.unique(
            np.floor(np.log1p(beyond.astype(np.float64)) / _GROWTH).astype(np.int64),
            return_counts=True,
        )
        return cls(dict(zip(buckets.tolist(), counts.tolist(), strict=True)))

    def merged(self, other: Ahead) -> Ahead:
        """Return the histogram of both."""
        counts = dict(self.counts)
        for bucket, count in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + count
        return Ahead(counts)

    def faded(self) -> Ahead:
        """Return it with counts halved as long as it holds too many records."""
        ahead = self
        while ahead.records > RECORDS_MAX:
            ahead = ahead.halved()
        return ahead

    def halved(self) -> Ahead:
        """Return it with all counts halved."""
        return Ahead({bucket: count // 2 for bucket, count in self.counts.items() if count > 1})

    @property
    def records(self) -> int:
        """How many records are counted."""
        return sum(self.counts.values())

    def shared(self, among: int) -> list[Ahead]:
        """Return it in so many parts, as equal as can be.

        >>> [part.counts for part in Ahead({0: 3, 7: 1}).shared(2)]
        [{0: 2, 7: 1}, {0: 1}]
        """
        parts = list[Ahead]()
        for n in range(among):
            share = {b: (count + among - 1 - n) // among for b, count in self.counts.items()}
            parts.append(Ahead({bucket: count for bucket, count in share.items() if count}))
        return parts

    def ahead_us(self, percentile: int) -> int:
        """Return how far ahead of the low watermark a share of the records was, at least.

        Returns:
            Microseconds; 0 if nothing was counted.
        """
        stripped = self.records * (100 - percentile) // 100
        for bucket in sorted(self.counts):
            stripped -= self.counts[bucket]
            if stripped < 0:
                return edge_us(bucket)
        return 0


@cache
def edge_us(bucket: int) -> int:
    """Return the lower edge of a bucket; a hair below it, as floating point is not exact."""
    return max(0, math.floor(math.expm1(bucket * _GROWTH) * (1 - 1e-9)))


def never_back(
    injectors: Mapping[str, int],
    given: Mapping[int, Mapping[str, int]],
    known: Mapping[int, Mapping[str, int]],
) -> dict[int, dict[str, int]]:
    """Return what injectors publish for percentiles: none below a higher one, none falling.

    Args:
        injectors: Injected stream -> low watermark that it publishes.
        given: Percentile -> injected stream -> what is wanted for that share.
        known: Percentile, ascending -> what is shown so far, by the injectors' names.
    """
    above, published = injectors, dict[int, dict[str, int]]()
    for percentile in reversed(list(known)):
        wanted = given.get(percentile, {})
        above = published[percentile] = {
            stream: max(us, wanted.get(stream, us), known[percentile][injector_name(stream)])
            for stream, us in above.items()
        }
    return dict(sorted(published.items()))


#: Buckets of a sketch. It is part of the report of every key interval, so it must be small; 64 over
#: the span of what is pending place a percentile to within a 32nd of that span.
_BUCKETS_MAX = 64


class Outstanding(msgspec.Struct, array_like=True, frozen=True):
    """Counts of pending timers and holds by timestamp, in buckets of 2**shift microseconds.

    Counts can be taken back, so it is exact but for the width of its buckets. That doubles when
    more than 64 are in use, and never shrinks but when nothing is left.

    Attributes:
        shift: Bucket b holds the timestamps in ``[b << shift, (b + 1) << shift)``.
        counts: Bucket -> how many, more than none.
        floor_us: Oldest work of an interval whose spread is not known; no share passes it.

    >>> spread = Outstanding.of([10, 20, 30, 40])
    >>> spread.passed_us(100), spread.passed_us(75), spread.passed_us(50)
    (10, 20, 30)
    >>> spread.changed({10: -1, 50: 1}).passed_us(100)
    20
    """

    shift: int = 0
    counts: dict[int, int] = {}
    floor_us: int = MAX_TIMESTAMP

    @classmethod
    def of(cls, timestamps: Iterable[int]) -> Outstanding:
        """Return the sketch of some timestamps."""
        counts: dict[int, int] = {}
        for at_us in timestamps:
            counts[at_us] = counts.get(at_us, 0) + 1
        return cls().changed(counts)

    def changed(self, by: Mapping[int, int]) -> Outstanding:
        """Return the sketch after some timestamps were added, or taken back.

        Args:
            by: Timestamp -> how many more there are; below zero, fewer.
        """
        if not by:
            return self
        shift, counts = self.shift, dict(self.counts)
        for at_us, more in by.items():
            _count(counts, at_us >> shift, more)
        return _fitted(shift, counts, self.floor_us)

    def merged(self, other: Outstanding) -> Outstanding:
        """Return the sketch of both; the order of merging does not matter."""
        coarse, fine = (self, other) if self.shift >= other.shift else (other, self)
        counts = dict(coarse.counts)
        for bucket, count in fine.counts.items():
            _count(counts, bucket >> (coarse.shift - fine.shift), count)
        return _fitted(coarse.shift, counts, min(self.floor_us, other.floor_us))

    def coarser(self, shift: int) -> Outstanding:
        """Return it in buckets of at least ``2**shift`` microseconds."""
        return self.merged(Outstanding(max(shift, self.shift)))

    def passed_us(self, percentile: int) -> int:
        """Return the time that a share of what is outstanding has passed: it is at or after it.

        Args:
            percentile: The share, 1 to 100. What is left, rounded down to whole timers and holds,
                may be older.

        Returns:
            Microseconds, by less than a bucket too early at most; MAX_TIMESTAMP if nothing is
            outstanding.
        """
        stripped = sum(self.counts.values()) * (100 - percentile) // 100
        for bucket in sorted(self.counts):
            stripped -= self.counts[bucket]
            if stripped < 0:
                return min(self.floor_us, bucket << self.shift)
        return self.floor_us


NOTHING_OUTSTANDING = Outstanding()


def _count(counts: dict[int, int], bucket: int, more: int) -> None:
    count = counts.get(bucket, 0) + more
    if count:
        counts[bucket] = count
    else:
        counts.pop(bucket, None)


def _fitted(shift: int, counts: dict[int, int], floor_us: int) -> Outstanding:
    if not counts:
        return Outstanding(floor_us=floor_us)
    while len(counts) > _BUCKETS_MAX:
        shift += 1
        halved: dict[int, int] = {}
        for bucket, count in counts.items():
            _count(halved, bucket >> 1, count)
        counts = halved
    return Outstanding(shift, counts, floor_us)
