"""Load: what an interval's bundles cost, and the keys that most of their records are of.

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

from bisect import bisect_right
from typing import Final

import msgspec
import numpy as np

from millrace.store import Commit, Size, View
from millrace.windmill.arrivals import KeyedRecords
from millrace.windmill.hook_times import NO_TIMES, HookTimes

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
        self._known: dict[int, _Known] = {}

    def of(self, interval: int, records: int, view: View) -> Size:
        """Return the size of an interval's state, about as a bundle finds it.

        Args:
            interval: Its id.
            records: Of the bundle.
            view: Of its cache.
        """
        known = self._known.get(interval)
        if known is None:
            known = self._known[interval] = _Known(view.size)
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
        found: dict[bytes, int] = {}
        cuts, encoded = records.cuts, records.encoded
        plain = records.weights is None and not cuts[0]
        for place in looked_at if plain else _places(records, looked_at):
            key = encoded[bisect_right(cuts, place) - 1]
            found[key] = found.get(key, 0) + stride
        return found if len(found) <= HOTTEST else _most(found)


def _places(records: KeyedRecords, looked_at: list[int]) -> list[int]:
    """Return where records lie of which it is known the how many-th they are."""
    first, last = records.cuts[0], records.cuts[-1]
    if records.weights is None:
        return [first + n for n in looked_at]
    until = np.cumsum(records.weights[first:last])
    return [first + int(n) for n in np.searchsorted(until, looked_at, side="right")]


def _most(found: dict[bytes, int]) -> dict[bytes, int]:
    """Return the keys with the most records, the most first."""
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0]))[:HOTTEST])
