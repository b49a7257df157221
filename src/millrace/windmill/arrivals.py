"""GetWork: the records that arrived for a computation, put in order and cut by interval and key.

Everything here works on whole columns: sorting and cutting a bundle of a hundred thousand records
must not cost a Python call for each.

Source: Streaming Engine, GetWork; MillWheel, "Keys" (4.2): processing is serialised per key.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.watermark.intervals import IntervalMap, KeyInterval

Column = npt.NDArray[Any]


class Arrivals:
    """Records of one computation, as columns of equal length, in any order.

    Attributes:
        hashes: uint64, the keys' hashes.
        keys: Encoded keys.
        values: Decoded values.
        timestamps: int64, microseconds.
        streams: Name of the stream of each record; or one name, of all of them.
        origins: int64, first half of the record ids.
        sequences: int64, second half.
    """

    __slots__ = ("hashes", "keys", "origins", "sequences", "streams", "timestamps", "values")

    def __init__(
        self,
        hashes: Column,
        keys: Sequence[bytes],
        values: Sequence[Any],
        timestamps: Column,
        streams: Sequence[str] | str,
        origins: Column,
        sequences: Column,
    ) -> None:
        self.hashes = hashes
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.streams = streams
        self.origins = origins
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def together(cls, parts: Sequence[Arrivals]) -> Arrivals:
        """Return several lots as one."""
        if len(parts) == 1:
            return parts[0]
        empty = np.empty(0, dtype=np.int64)
        return cls(
            np.concatenate([part.hashes for part in parts] or [empty.astype(np.uint64)]),
            [key for part in parts for key in part.keys],
            [value for part in parts for value in part.values],
            np.concatenate([part.timestamps for part in parts] or [empty]),
            [name for part in parts for name in part.stream_names()],
            np.concatenate([part.origins for part in parts] or [empty]),
            np.concatenate([part.sequences for part in parts] or [empty]),
        )

    def stream_names(self) -> Sequence[str]:
        """Return the stream of each record."""
        return [self.streams] * len(self) if isinstance(self.streams, str) else self.streams

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
        if by_time:
            order = np.lexsort((self.sequences, self.origins, self.timestamps, self.hashes))
        else:
            order = _order(self.hashes, self.origins, self.sequences)
        hashes = self.hashes[order]
        positions = order.tolist()
        keys = [self.keys[n] for n in positions]
        _separate_collisions(hashes, keys, positions)
        records = KeyedRecords(
            hashes.astype(">u8").tobytes(),
            keys,
            [self.values[n] for n in positions],
            self.timestamps[positions].tolist(),
            self.streams if isinstance(self.streams, str) else [self.streams[n] for n in positions],
            self.origins[positions].tolist(),
            self.sequences[positions].tolist(),
            _cuts(hashes, keys),
        )
        where = intervals.locate(hashes[records.cuts[:-1]])
        firsts = [0, *(np.flatnonzero(np.diff(where)) + 1).tolist(), len(where)]
        for first, last in itertools.pairwise(firsts):
            yield intervals.intervals[where[first]], records.of_keys(first, last)


class KeyedRecords:
    """Records of one interval, sorted by key; the records of key k lie in cuts[k]:cuts[k + 1].

    Attributes:
        hash8s: The hashes, 8 bytes each, big-endian.
        streams: The stream of each record; or one, of all of them.
        cuts: Where keys begin; one more than there are keys.
    """

    __slots__ = (
        "cuts", "hash8s", "keys", "origins", "sequences", "streams", "timestamps", "values",
    )  # fmt: skip

    def __init__(
        self,
        hash8s: bytes,
        keys: list[bytes],
        values: list[Any],
        timestamps: list[int],
        streams: list[str] | str,
        origins: list[int],
        sequences: list[int],
        cuts: list[int],
    ) -> None:
        self.hash8s = hash8s
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.streams = streams
        self.origins = origins
        self.sequences = sequences
        self.cuts = cuts

    def of_keys(self, first: int, last: int) -> KeyedRecords:
        """Return the same records with only the cuts of some keys: nothing is copied but those."""
        return KeyedRecords(
            self.hash8s,
            self.keys,
            self.values,
            self.timestamps,
            self.streams,
            self.origins,
            self.sequences,
            self.cuts[first : last + 1],
        )


NO_RECORDS = KeyedRecords(b"", [], [], [], "", [], [], [0])


def _order(hashes: Column, origins: Column, sequences: Column) -> npt.NDArray[np.intp]:
    # A shuffle mostly fetches blocks in the senders' order, and then ids already ascend: one stable
    # sort by hash does. The full sort costs about three times as much.
    steps = np.diff(origins)
    ascending = bool(((steps > 0) | ((steps == 0) & (np.diff(sequences) >= 0))).all())
    if ascending:
        return np.argsort(hashes, kind="stable")
    return np.lexsort((sequences, origins, hashes))


def _separate_collisions(hashes: Column, keys: list[bytes], positions: list[int]) -> None:
    """Where two keys share a hash, put the records of each together, in place."""
    same = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not any(keys[n] != keys[n + 1] for n in same.tolist()):
        return
    start = 0
    for stop in [*(np.flatnonzero(hashes[1:] != hashes[:-1]) + 1).tolist(), len(keys)]:
        if len(set(keys[start:stop])) > 1:
            pairs = sorted(
                zip(keys[start:stop], positions[start:stop], strict=True), key=lambda pair: pair[0]
            )
            keys[start:stop] = [key for key, _ in pairs]
            positions[start:stop] = [position for _, position in pairs]
        start = stop


def _cuts(hashes: Column, keys: list[bytes]) -> list[int]:
    changes = np.flatnonzero(hashes[1:] != hashes[:-1]) + 1
    cuts = [0, *changes.tolist(), len(keys)]
    # Keys with one hash are next to each other, but are not one key.
    extra = [
        n
        for start, stop in itertools.pairwise(cuts)
        if stop - start > 1 and keys[start] != keys[stop - 1]
        for n in range(start + 1, stop)
        if keys[n] != keys[n - 1]
    ]
    return sorted([*cuts, *extra]) if extra else cuts
