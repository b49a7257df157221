"""GetWork: the records that arrived for a computation, put in order and cut by interval and key.

Everything here works on whole columns: sorting and cutting a bundle of a hundred thousand records
must not cost a Python call for each.

Source: Streaming Engine, GetWork; MillWheel, "Keys" (4.2): processing is serialised per key.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.model.record import Record
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.windmill.arrival_order import (
    arrival_order,
    collide,
    collisions_apart,
    cuts_by_hash,
    cuts_by_key,
    in_order,
)
from millrace.windmill.key_column import KeyColumn, keys_at
from millrace.windmill.many_keys import decode_keys, key_rows
from millrace.windmill.source_ids import SourceIds

Column = npt.NDArray[Any]

#: Returns the n-th value of some records, decoded again: a record that is processed a second time
#: must not be what user code has made of it the first time.
Again = Callable[[int], Any]

#: Up to so many records Python sorts and cuts in less time than NumPy's calls cost, however short
#: the columns: a bundle of 1 record takes 40 us less, of 540, one of 10 takes 55 us less, of 640.
_FEW = 50
#: From so many records a run on, a list is put together from slices: they cost what 16 items do.
_RUN = 16


class Arrivals:
    """Records of one computation, as columns of equal length, in any order.

    Attributes:
        hashes: uint64, the keys' hashes.
        keys: Encoded keys, a list of them or a :class:`KeyColumn`.
        values: Decoded values.
        timestamps: int64, microseconds.
        streams: Name of the stream of each record; or one name, of all of them.
        origins: int64, first half of the record ids.
        sequences: int64, second half.
        ids: Source ids; None where nobody filters duplicates by them.
        weights: How many records each stands for; None if for itself only.
        again: Decodes the n-th value again; None where values cannot change.
    """

    __slots__ = (
        "again", "hashes", "ids", "keys", "origins", "sequences", "streams", "timestamps", "values",
        "weights",
    )  # fmt: skip

    def __init__(
        self,
        hashes: Column,
        keys: Sequence[bytes],
        values: Sequence[Any],
        timestamps: Column,
        streams: Sequence[str] | str,
        origins: Column,
        sequences: Column,
        ids: SourceIds | None = None,
        weights: Column | None = None,
        again: Again | None = None,
    ) -> None:
        self.again = again
        self.hashes = hashes
        self.ids = ids
        self.weights = weights
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.streams = streams
        self.origins = origins
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def concat(cls, parts: Sequence[Arrivals]) -> Arrivals:
        """Return several lots as one."""
        if len(parts) == 1:
            return parts[0]
        empty = np.empty(0, dtype=np.int64)
        return cls(
            np.concatenate([part.hashes for part in parts] or [empty.astype(np.uint64)]),
            list(chain.from_iterable(part.keys for part in parts)),
            list(chain.from_iterable(part.values for part in parts)),
            np.concatenate([part.timestamps for part in parts] or [empty]),
            list(chain.from_iterable(part.stream_names() for part in parts)),
            np.concatenate([part.origins for part in parts] or [empty]),
            np.concatenate([part.sequences for part in parts] or [empty]),
            SourceIds.concat([part.ids or SourceIds.none(len(part)) for part in parts])
            if any(part.ids is not None for part in parts)
            else None,
            np.concatenate(
                [np.ones(len(p), np.int64) if p.weights is None else p.weights for p in parts]
            )
            if any(part.weights is not None for part in parts)
            else None,
            _again_in(parts),
        )

    def stream_names(self) -> Sequence[str]:
        """Return the stream of each record."""
        return [self.streams] * len(self) if isinstance(self.streams, str) else self.streams

    def take(self, order: npt.NDArray[np.intp]) -> Arrivals:
        """Return the records in another order."""
        pick = _picking(order)
        return Arrivals(
            self.hashes[order],
            self.keys.take(order) if isinstance(self.keys, KeyColumn) else pick(self.keys),
            pick(self.values),
            self.timestamps[order],
            self.streams if isinstance(self.streams, str) else pick(self.streams),
            self.origins[order],
            self.sequences[order],
            None if self.ids is None else self.ids.take(order),
            None if self.weights is None else self.weights[order],
            _again_at(self.again, order),
        )

    def by_interval(
        self, intervals: IntervalMap, *, by_time: bool = False
    ) -> Iterator[tuple[KeyInterval, KeyedRecords]]:
        """Yield the intervals that have records, with theirs.

        Within a key, records are ordered by id: by origin, then by their place in it. That is the
        order of arrival as the sender sent, and, unlike the order in which a shuffle happens to
        fetch its blocks, it is the same on every attempt.

        Args:
            intervals: The computation's interval map.
            by_time: Order the records of a key by timestamp first, for a batch.
        """
        if not len(self):
            return
        if len(self) <= _FEW and not by_time:
            arrived, cuts = self._sorted_by_hand()
        else:
            arrived, cuts = self._sorted(by_time=by_time)
        hashes = arrived.hashes[cuts[:-1]]
        keys = keys_at(arrived.keys, cuts[:-1])
        origins, sequences, ids = arrived.origins, arrived.sequences, arrived.ids
        if ids is not None:
            # From here on the id of a record is that of its source: the same when it comes again.
            origins, sequences = ids.halves_over(origins, sequences)
        records = KeyedRecords(
            key_rows(hashes.astype(">u8").tobytes(), keys),
            keys,
            decode_keys(keys),
            arrived.values,
            arrived.timestamps.tolist(),
            arrived.streams,
            _listed(origins),
            sequences.tolist(),
            cuts,
            ids,
            arrived.weights,
            arrived.again,
        )
        if len(intervals) == 1:
            yield intervals.intervals[0], records
            return
        where = intervals.locate(hashes)
        firsts = [0, *(np.flatnonzero(np.diff(where)) + 1).tolist(), len(where)]
        for first, last in itertools.pairwise(firsts):
            yield intervals.intervals[where[first]], records.of_keys(first, last)

    def _sorted(self, *, by_time: bool) -> tuple[Arrivals, list[int]]:
        """Return the records in order, and where keys begin."""
        arrived = self
        if by_time:
            arrived = arrived.take(
                np.lexsort((self.sequences, self.origins, self.timestamps, self.hashes))
            )
        elif not in_order(self.hashes, self.origins, self.sequences):
            arrived = arrived.take(arrival_order(self.hashes, self.origins, self.sequences))
        cuts = cuts_by_hash(arrived.hashes)
        if not collide(arrived.keys, arrived.hashes, cuts):
            return arrived, cuts
        apart = collisions_apart([*arrived.keys], cuts)
        if apart is not None:
            arrived = arrived.take(apart)
        return arrived, cuts_by_key([*arrived.keys], cuts)

    def _sorted_by_hand(self) -> tuple[Arrivals, list[int]]:
        """Return the same as :meth:`_sorted`, for a few records: without NumPy."""
        ranks = list(
            zip(
                self.hashes.tolist(), self.keys, self.origins.tolist(), self.sequences.tolist(),
                strict=True,
            )
        )  # fmt: skip
        arrived = self
        if any(one > other for one, other in itertools.pairwise(ranks)):
            order = sorted(range(len(ranks)), key=ranks.__getitem__)
            arrived = self.take(np.array(order, dtype=np.intp))
            ranks = [ranks[n] for n in order]
        names = [(hash, key) for hash, key, _, _ in ranks]
        changes = [n for n in range(1, len(names)) if names[n] != names[n - 1]]
        return arrived, [0, *changes, len(names)]


class KeyedRecords:
    """Records of one interval, sorted by key; the records of key k lie in cuts[k]:cuts[k + 1].

    Attributes:
        key_rows: The part of a row that names each key (:mod:`millrace.windmill.rows`).
        encoded: The keys, encoded.
        keys: The keys as user code has them.
        values: The records' values; the next columns are by record, too.
        streams: The stream of each record; or one, of all of them.
        cuts: Where keys begin; one more than there are keys.
        ids: Source ids; None where nobody filters duplicates by them.
        weights: How many records each stands for; None if for itself only.
        again: Decodes the n-th value again; None where values cannot change.
    """

    __slots__ = (
        "again", "cuts", "encoded", "ids", "key_rows", "keys", "origins", "sequences", "streams",
        "timestamps", "values", "weights",
    )  # fmt: skip

    def __init__(
        self,
        key_rows: list[bytes],
        encoded: list[bytes],
        keys: list[Any],
        values: Sequence[Any],
        timestamps: list[int],
        streams: Sequence[str] | str,
        origins: list[int],
        sequences: list[int],
        cuts: list[int],
        ids: SourceIds | None = None,
        weights: Column | None = None,
        again: Again | None = None,
    ) -> None:
        self.again = again
        self.ids = ids
        self.weights = weights
        self.key_rows = key_rows
        self.encoded = encoded
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.streams = streams
        self.origins = origins
        self.sequences = sequences
        self.cuts = cuts

    def of_keys(self, first: int, last: int) -> KeyedRecords:
        """Return the same records with only the cuts of some keys: no record is copied."""
        return KeyedRecords(
            self.key_rows[first:last],
            self.encoded[first:last],
            self.keys[first:last],
            self.values,
            self.timestamps,
            self.streams,
            self.origins,
            self.sequences,
            self.cuts[first : last + 1],
            self.ids,
            self.weights,
            self.again,
        )

    def count(self) -> int:
        """Return how many records there are, those that partials stand for included."""
        first, last = self.cuts[0], self.cuts[-1]
        return last - first if self.weights is None else int(self.weights[first:last].sum())

    def only(self, kept: npt.NDArray[np.bool_]) -> KeyedRecords:
        """Return some of the records, without the keys of which none is among them.

        Args:
            kept: One a record, from the first of the first key to the last of the last.
        """
        first, last = self.cuts[0], self.cuts[-1]
        before = np.concatenate(([0], np.cumsum(kept)))[np.array(self.cuts) - first]
        alive, flags = (np.diff(before) > 0).tolist(), kept.tolist()

        def those(column: Sequence[Any]) -> list[Any]:
            return list(itertools.compress(column[first:last], flags))

        return KeyedRecords(
            list(itertools.compress(self.key_rows, alive)),
            list(itertools.compress(self.encoded, alive)),
            list(itertools.compress(self.keys, alive)),
            those(self.values),
            those(self.timestamps),
            self.streams if isinstance(self.streams, str) else those(self.streams),
            those(self.origins),
            those(self.sequences),
            np.unique(before).tolist(),
            None if self.ids is None else self.ids.take(np.flatnonzero(kept) + first),
            None if self.weights is None else self.weights[first:last][kept],
            None if self.again is None else _again_at(self.again, np.flatnonzero(kept) + first),
        )

    def stream_of(self, n: int) -> str:
        """Return the stream of the n-th record."""
        return self.streams if isinstance(self.streams, str) else self.streams[n]

    def original(self, n: int) -> Any:
        """Return the n-th value as it arrived, whatever user code has done to it since."""
        return self.values[n] if self.again is None else self.again(n)

    def record(self, n: int, key: Any, *, late: bool) -> Record:
        """Return the n-th record, of a key, as it arrived."""
        return Record(
            key, self.original(n), self.timestamps[n], self.stream_of(n), late, self.origins[n],
            self.sequences[n],
        )  # fmt: skip


def _listed(origins: Column) -> list[int]:
    """Return a column as a list: one number over and over, where one process was read."""
    if (first := int(origins.min())) == int(origins.max()):
        return [first] * len(origins)
    return origins.tolist()  # type: ignore[no-any-return]


NO_RECORDS = KeyedRecords([], [], [], [], [], "", [], [], [0])


def _again_at(again: Again | None, order: npt.NDArray[np.intp]) -> Again | None:
    """Return what decodes values again that are in another order now."""
    return None if again is None else lambda n: again(int(order[n]))


def _again_in(parts: Sequence[Arrivals]) -> Again | None:
    """Return what decodes values of several lots again, which are one now."""
    if all(part.again is None for part in parts):
        return None
    starts = [0, *itertools.accumulate(map(len, parts))]

    def again(n: int) -> Any:
        part = bisect.bisect_right(starts, n) - 1
        of, within = parts[part], n - starts[part]
        return of.values[within] if of.again is None else of.again(within)

    return again


def _picking(order: npt.NDArray[np.intp]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return what returns the items of a list in another order.

    Where parts that are in order come together, long runs stay as they are.
    """
    starts = [0, *(np.flatnonzero(np.diff(order) != 1) + 1).tolist()]
    if len(starts) * _RUN > len(order):
        positions = order.tolist()
        return lambda items: list(map(items.__getitem__, positions))
    lengths = np.diff(starts, append=len(order)).tolist()
    runs = [
        slice(first, first + length)
        for first, length in zip(order[starts].tolist(), lengths, strict=True)
    ]
    return lambda items: list(chain.from_iterable(items[run] for run in runs))
