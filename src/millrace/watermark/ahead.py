"""Ahead: how far records come in front of the low watermark that their injector had published.

What an injector still has to send nobody has counted, so its percentile low watermarks go by what
it sent last. If of those records a share was at least so far ahead of the low watermark, then a low
watermark that much higher holds for that share of the records to come.

Source: MillWheel 7.2, percentile low watermarks; Dataflow patent, "Percentile Watermark": a time up
to which some specific subset of the data has been processed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
        found = self
        while found.records > RECORDS_MAX:
            found = found.halved()
        return found

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
            mine = {b: (count + among - 1 - n) // among for b, count in self.counts.items()}
            parts.append(Ahead({bucket: count for bucket, count in mine.items() if count}))
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
    above, found = injectors, dict[int, dict[str, int]]()
    for percentile in reversed(list(known)):
        wanted = given.get(percentile, {})
        above = found[percentile] = {
            stream: max(us, wanted.get(stream, us), known[percentile][injector_name(stream)])
            for stream, us in above.items()
        }
    return dict(sorted(found.items()))
