"""Channels: the last record consumed of each sender, by interval; repeated records are dropped.

A sender is an interval of a computation, or a process of an injector. Its records reach an interval
in the order of their ids. So one number for each sender is enough. It is stored among the
interval's rows: a commit moves it in the same atomic step as the state that the records changed.

Source: MillWheel 6.1.1 (exactly-once delivery), where a set of ids does this;
docs/design/2026-11-22-the-real-time-plane.md, "Channels".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.kernel import families
from millrace.kernel.ordering import SPAN, coded, lasts
from millrace.kernel.record_ids import FIRST_INJECTED, ROW_BITS, are_weak, is_weak

#: Of a record's id: who sent it, and which part of it did.
Sender = tuple[int, int]
#: Of a record's id: its number among what the sender sent.
Number = tuple[int, int]
#: Interval -> rows of its channels that change.
Consumed = Mapping[int, Mapping[bytes, bytes | None]]

_ORIGIN_BITS: Final = 48
_ORIGIN_MASK: Final = (1 << _ORIGIN_BITS) - 1
_ROW_MASK: Final = (1 << ROW_BITS) - 1
#: So many bits of an origin, and a sequence's number, are a word with no sign.
_HIGH_BITS: Final = 63 - ROW_BITS
#: So many records are looked at at once: what that needs stays near the processor.
_AT_ONCE: Final = 8_192
_PART_BITS: Final = 31
#: In the lower part of a sender of weak productions, whose numbers are not of commits.
WEAK_PART: Final = 1 << 30
_PART_MASK: Final = (1 << _PART_BITS) - 1
_NONE: Final[Number] = (-1, -1)
_NOTHING: Final[Number] = (0, 0)

Ints = npt.NDArray[np.int64]


def sender_of(origin: int, sequence: int) -> Sender:
    """Return who sent a record.

    Senders of weak productions are others than those of strong ones, whose numbers say commits: a
    computation may be the one today and the other tomorrow.

    >>> sender_of((3 << 48) | 12, (7 << 33) | 5), number_of((3 << 48) | 12, (7 << 33) | 5)
    ((3, 7), (12, 5))
    """
    part = sequence >> ROW_BITS
    return origin >> _ORIGIN_BITS, part | WEAK_PART if is_weak(origin) else part


def number_of(origin: int, sequence: int) -> Number:
    """Return a record's number among what its sender sent."""
    return origin & _ORIGIN_MASK, sequence & _ROW_MASK


class Channels:
    """What the intervals of one computation, as far as one task owns them, have consumed.

    Args:
        weak: Whether that counts of weak productions, too. Where it does not, they are always
            fresh, and leave no trace.

    Attributes:
        weak: The same.
    """

    def __init__(self, *, weak: bool = True) -> None:
        self.weak = weak
        self._known: dict[int, dict[Sender, Number]] = {}
        self._moved: dict[int, dict[Sender, Number | None]] = {}

    def knows(self, interval: int) -> bool:
        """Return whether an interval's channels have been read."""
        return interval in self._known

    def load(
        self,
        interval: int,
        found: Iterable[families.ChannelRow],
        is_gone: Callable[[Sender], bool] = lambda _: False,
    ) -> None:
        """Take an interval's rows; those of senders that are gone go with its next commit.

        Args:
            interval: Its id.
            found: The rows.
            is_gone: Whether nothing of a sender can ever come again.
        """
        known = {(row.who, row.part): (row.origin, row.sequence) for row in found}
        gone = list(filter(is_gone, known))
        for sender in gone:
            del known[sender]
        self._known[interval] = known
        if gone:
            self._moved.setdefault(interval, {}).update(dict.fromkeys(gone))

    def fresh(
        self,
        intervals: Ints,
        origins: Ints,
        sequences: Ints,
        seen: Callable[[Sender, Number], None],
    ) -> npt.NDArray[np.bool_] | None:
        """Move the channels past some records; return which of them were not consumed before.

        All records of one sender for one interval that are under way together must be given
        together: a number is consumed whole.

        Args:
            intervals: The interval of each record; all of them were loaded.
            origins: First half of the ids.
            sequences: Second half.
            seen: Called with each sender and the highest number of it that an interval is given,
                fresh or not.

        Returns:
            A flag for each; None if all are fresh.
        """
        if self._take_ahead(intervals, origins, sequences, seen):
            return None
        weak = are_weak(origins)
        if not self.weak and weak.any():
            return self._fresh_but(~weak, intervals, origins, sequences, seen)
        parts = (origins >> _ORIGIN_BITS << _PART_BITS) | (sequences >> ROW_BITS)
        if weak.any():
            parts |= np.where(weak, WEAK_PART, 0)
        owners, owner_of = coded(intervals)
        senders, sender_of_each = coded(parts)
        count = len(owners) * len(senders)
        pair_of = owner_of * len(senders) + sender_of_each
        highs, lows = origins & _ORIGIN_MASK, sequences & _ROW_MASK
        pairs, most, last = lasts(pair_of, count, highs, lows)
        before_high, before_low = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        for pair, high, low in zip(pairs.tolist(), most.tolist(), last.tolist(), strict=True):
            interval, packed = int(owners[pair // len(senders)]), int(senders[pair % len(senders)])
            sender = (packed >> _PART_BITS, packed & _PART_MASK)
            seen(sender, (high, low))
            known = self._known[interval].get(sender, _NONE)
            before_high[pair], before_low[pair] = known
            if (high, low) > known:
                self._move(interval, sender, (high, low))
        high_known = before_high[pair_of]
        fresh: npt.NDArray[np.bool_] = (highs > high_known) | (
            (highs == high_known) & (lows > before_low[pair_of])
        )
        return None if fresh.all() else fresh

    def _take_ahead(
        self,
        intervals: Ints,
        origins: Ints,
        sequences: Ints,
        seen: Callable[[Sender, Number], None],
    ) -> bool:
        """Do as :meth:`fresh` if all records are ahead of what was consumed, and of few senders.

        That is as good as every turn. Then the first and the last number of each sender for each
        interval say all that there is to say. Of a turn of 10,000 records it saves two to four
        hundredths, which is as much as ``realtime_throughput`` may lose.

        Returns:
            Whether it was so; if not, nothing was done.
        """
        ends = _ends(intervals, origins, sequences)
        if ends is None:
            return False
        for interval, sender, first, _ in ends:
            if self._known[interval].get(sender, _NONE) >= first:
                return False
        for interval, sender, _, last in ends:
            seen(sender, last)
            self._move(interval, sender, last)
        return True

    def _fresh_but(
        self,
        others: npt.NDArray[np.bool_],
        intervals: Ints,
        origins: Ints,
        sequences: Ints,
        seen: Callable[[Sender, Number], None],
    ) -> npt.NDArray[np.bool_] | None:
        """Do as :meth:`fresh`, where all records but some are fresh."""
        if not others.any():
            return None
        fresh = self.fresh(intervals[others], origins[others], sequences[others], seen)
        if fresh is None:
            return None
        flags = ~others
        flags[others] = fresh
        return flags

    def fresh_few(self, interval: int, ids: Sequence[tuple[int, int]]) -> list[bool]:
        """Do as :meth:`fresh` for a few records of one interval, given both halves of their ids.

        >>> channels = Channels()
        >>> channels.load(0, [])
        >>> channels.fresh_few(0, [(1, 7), (1, 8)]), channels.fresh_few(0, [(1, 8), (2, 0)])
        ([True, True], [False, True])
        """
        known, most, flags = self._known[interval], dict[Sender, Number](), list[bool]()
        for origin, sequence in ids:
            if not self.weak and is_weak(origin):
                flags.append(True)
                continue
            sender, number = sender_of(origin, sequence), number_of(origin, sequence)
            new = number > known.get(sender, _NONE)
            flags.append(new)
            if new and number > most.get(sender, _NONE):
                most[sender] = number
        if most:
            known |= most
            self._moved.setdefault(interval, {}).update(most)
        return flags

    def advance(self, interval: int, through: Mapping[Sender, Number]) -> None:
        """Move an interval's channels to the last records that a partial stands for."""
        known = self._known[interval]
        for sender, number in through.items():
            if number > known.get(sender, _NONE):
                self._move(interval, sender, number)

    def _move(self, interval: int, sender: Sender, number: Number) -> None:
        self._known[interval][sender] = number
        self._moved.setdefault(interval, {})[sender] = number

    def take(self) -> Consumed:
        """Return interval -> rows of the channels that have moved since, for its commit."""
        moved, self._moved = self._moved, {}
        changes: dict[int, dict[bytes, bytes | None]] = {}
        for interval, senders in moved.items():
            packed = changes[interval] = {}
            for sender, number in senders.items():
                row, value = families.ChannelRow(*sender, *(number or _NOTHING)).pack()
                packed[row] = None if number is None else value
        return changes


def _ends(
    intervals: Ints, origins: Ints, sequences: Ints
) -> list[tuple[int, Sender, Number, Number]] | None:
    """Return each sender for each interval, with the first and the last of its numbers.

    Returns:
        None if numbers do not fit into a word each, or there are many senders, or weak ones.
    """
    low, high = int(origins.min()), int(origins.max())
    part, parts = int(sequences.min()) >> ROW_BITS, (int(sequences.max()) >> ROW_BITS) + 1
    step = int(intervals.max()) + 1
    if high - low >= 1 << _HIGH_BITS or low >> _ORIGIN_BITS != high >> _ORIGIN_BITS:
        return None
    if (parts - part) * step > SPAN:
        return None
    if low >> _ORIGIN_BITS < FIRST_INJECTED and are_weak(origins).any():
        return None
    first = np.full((parts - part) * step, np.iinfo(np.int64).max)
    last = np.full((parts - part) * step, -1, np.int64)
    for at in range(0, len(origins), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        pairs = ((sequences[some] >> ROW_BITS) - part) * step + intervals[some]
        numbers = (origins[some] - low) << ROW_BITS | (sequences[some] & _ROW_MASK)
        np.minimum.at(first, pairs, numbers)
        np.maximum.at(last, pairs, numbers)

    def number(of: Ints, pair: int) -> Number:
        return (low & _ORIGIN_MASK) + (int(of[pair]) >> ROW_BITS), int(of[pair]) & _ROW_MASK

    return [
        (
            pair % step,
            (low >> _ORIGIN_BITS, part + pair // step),
            number(first, pair),
            number(last, pair),
        )
        for pair in np.flatnonzero(last >= 0).tolist()
    ]
