"""Consumed: of every sender the last record that a table has; what comes again is known by it.

A record's id on the wire, read as a place in a channel: who sent it, and its number among what
that sender has sent. Source: docs/design/2026-11-22-the-real-time-plane.md, "Channels".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.model.errors import InvariantViolation
from millrace.windmill.record_ids import ROW_BITS

_Integers = npt.NDArray[np.int64]


class News(NamedTuple):
    """What of some records is new.

    Attributes:
        fresh: By record, whether it is.
        senders: Who sent those.
        origins: By such a sender, the first half of its last record's id.
        sequences: The second half.
    """

    fresh: npt.NDArray[np.bool_]
    senders: list[int]
    origins: list[int]
    sequences: list[int]


class Consumed:
    """Of every sender, the id of the last record.

    Args:
        last: Sender -> both halves of that id.

    >>> consumed = Consumed({})
    >>> news = consumed.news(np.array([7, 7, 8]), np.array([0, 1, 0]))
    >>> news
    News(fresh=array([ True,  True,  True]), senders=[0], origins=[8], sequences=[0])
    >>> consumed.add(news)
    >>> consumed.news(np.array([8, 8]), np.array([0, 1])).fresh
    array([False,  True])
    """

    def __init__(self, last: dict[int, tuple[int, int]]) -> None:
        self._last = last

    def news(self, origins: _Integers, sequences: _Integers) -> News:
        """Return what of some records is new; one or more, those of a sender in its order.

        Raises:
            InvariantViolation: They are not in that order.
        """
        senders = senders_of(origins, sequences)
        found, first, inverse = np.unique(senders, return_index=True, return_inverse=True)
        if len(found) == len(senders):
            ends = first
        else:
            ends = _ends(senders, origins, sequences)
        before = np.array([self._last.get(one, (-1, -1)) for one in found.tolist()], np.int64)
        fresh = _after(origins, sequences, before[inverse, 0], before[inverse, 1])
        # A sender's records ascend: if its last one is known, all are.
        ends = ends[fresh[ends]]
        return News(fresh, senders[ends].tolist(), origins[ends].tolist(), sequences[ends].tolist())

    def add(self, news: News) -> None:
        """Take what was new for known: the table has it."""
        halves = zip(news.origins, news.sequences, strict=True)
        self._last.update(zip(news.senders, halves, strict=True))


def senders_of(origins: _Integers, sequences: _Integers) -> _Integers:
    """Return who sent records: a computation's interval, or a process of an injected stream.

    >>> from millrace.windmill.record_ids import production_ids
    >>> origin, sequences = production_ids(3, 7, 5, 2)
    >>> senders_of(np.full(2, origin), np.array(sequences)) == (3 << 31) + 5
    array([ True,  True])
    """
    return (origins >> 48 << 31) | (sequences >> ROW_BITS)


def _ends(senders: _Integers, origins: _Integers, sequences: _Integers) -> _Integers:
    """Return the place of the last record of each sender, in order of the senders."""
    order = np.argsort(senders, kind="stable")
    same = np.diff(senders[order]) == 0
    earlier, later = order[:-1][same], order[1:][same]
    ascends = _after(origins[later], sequences[later], origins[earlier], sequences[earlier])
    if not ascends.all():
        n = int(np.flatnonzero(~ascends)[0])
        a, b = int(earlier[n]), int(later[n])
        raise InvariantViolation(
            f"a sender's records came out of order at a sink: id ({origins[b]}, {sequences[b]}) "
            f"after ({origins[a]}, {sequences[a]})."
        )
    ends: _Integers = order[np.append(~same, True)]
    return ends


def _after(
    origins: _Integers, sequences: _Integers, before: _Integers, before_sequences: _Integers
) -> npt.NDArray[np.bool_]:
    after: npt.NDArray[np.bool_] = (origins > before) | (
        (origins == before) & (sequences > before_sequences)
    )
    return after
