"""Outstanding: how the timestamps of pending work are spread, in bounded memory.

Source: MillWheel, "Low Watermarks" (7.2): given a global summary of work in the system, outliers
can be stripped away: a 99% low watermark is the progress of 99% of the timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from millrace.model.time import MAX_TIMESTAMP

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
        found: dict[int, int] = {}
        for at_us in timestamps:
            found[at_us] = found.get(at_us, 0) + 1
        return cls().changed(found)

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
