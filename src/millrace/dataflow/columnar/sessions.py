"""SessionColumns: sessions as columns, chunks of sessions as far as they are known.

A chunk has stretches of activity: of each a key, when it starts and ends, number and count. Those
of one key that overlap are one session, wherever they lie. A chunk is wanted when the first of its
stretches may be over. Then it is merged with the others that are due and with what the bundle
brings; a session that ends by the low watermark is emitted, unless a stretch in a chunk that is not
due goes on from it: then it is put beside that one. The rest is put back. So a stretch is read when
it may be over, and not whenever its key has records.

Source: Dataflow patent, FIG. 5, "MergeWindows"; here for all keys at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.dataflow.aggregations.vector import Mask
from millrace.dataflow.columnar.chunks import (
    Accumulators,
    ColumnarBundle,
    Done,
    Emitted,
    Keyed,
    PlainGrouping,
    Stored,
    brought,
    weights,
)
from millrace.dataflow.partials.columns import by_code
from millrace.dataflow.windows.window_fn import Ints, assigned_columns, last_instant_us, overlaps
from millrace.model.pane import Window
from millrace.model.time import MAX_TIMESTAMP

#: Once in so many bundles all chunks are merged: each costs a search whenever a session ends.
MERGE_EVERY: Final = 32

#: What is put back is cut by end into so many chunks of at least so many stretches, so that what
#: ends late is not read for what ends soon.
PARTS_MAX: Final = 8
PART_LEAST: Final = 2_000


class SessionChunk(msgspec.Struct, array_like=True, frozen=True):
    """Stretches of activity, as columns of equal length, by hash.

    Attributes:
        kinds: Of the columns of the accumulators.
        hashes: Of the keys, 8 bytes each, little-endian as are the next.
        keys: Encoded.
        starts: When each begins, microseconds.
        ends: When each ends: for sessions, a gap after the last element.
        columns: The accumulators.
    """

    kinds: str
    hashes: bytes
    keys: list[bytes]
    starts: bytes
    ends: bytes
    columns: list[bytes]


class _Stretches(NamedTuple):
    """Stretches in memory."""

    keys: list[bytes]
    hashes: npt.NDArray[np.uint64]
    starts: Ints
    ends: Ints
    accumulators: Accumulators

    def take(self, chosen: npt.NDArray[np.intp]) -> _Stretches:
        return _Stretches(
            [self.keys[n] for n in chosen.tolist()],
            self.hashes[chosen],
            self.starts[chosen],
            self.ends[chosen],
            self.accumulators.take(chosen),
        )


@dataclass(frozen=True, repr=False)
class SessionColumns(PlainGrouping):
    """Folds bundles and chunks into sessions."""

    def run(self, bundle: ColumnarBundle) -> Done:
        """Return the sessions that are over, and chunks of the others."""
        done = Done()
        fresh = []
        if bundle.records is not None:
            fresh = self._absorb(bundle.records, bundle, done)
        merges = bundle.number % MERGE_EVERY == 0
        due = list(bundle.stored(MAX_TIMESTAMP if merges else bundle.input_watermark_us))
        parts = [*map(_stretches, (_decode(chunk.chunk) for chunk in due)), *fresh]
        done.removed = [chunk.row for chunk in due]
        if parts:
            self._finish(self._merged(parts), bundle, done)
        return done

    def pending(self, chunks: Iterable[tuple[int, bytes]]) -> dict[int, int]:
        """Return how many sessions end at an instant, as far as they are known."""
        parts = [_stretches(_decode(chunk)) for _, chunk in chunks]
        if not parts:
            return {}
        hashes = np.concatenate([part.hashes for part in parts])
        starts = np.concatenate([part.starts for part in parts])
        ends = np.concatenate([part.ends for part in parts])
        codes = np.unique(hashes, return_inverse=True)[1]
        order = by_code(codes, starts)
        ends = ends[order]
        begins = overlaps(codes[order], starts[order], ends)
        instants, counts = np.unique(np.maximum.reduceat(ends, begins), return_counts=True)
        return dict(zip(instants.tolist(), counts.tolist(), strict=True))

    # -- elements ----------------------------------------------------------------------------------

    def _absorb(self, records: Keyed, bundle: ColumnarBundle, done: Done) -> list[_Stretches]:
        """Return the stretches of a bundle's records."""
        at_us = np.array(records.timestamps, dtype=np.int64)
        hashes = records.hashes[records.key_of]
        _, starts, ends = assigned_columns(self.window_fn, at_us, hashes)
        elements, partials = weights(records.values)
        if partials:
            starts, ends = starts.copy(), ends.copy()
        for n in partials:
            window = records.values[n].window
            starts[n], ends[n] = window.start, window.end
        kept = ends > bundle.arrival_watermark_us
        fold, pick, values = self.fold, self.pick, records.values
        parts, done.refused = brought(fold, pick, values, np.ones_like(kept))
        if not kept.all():
            stored = list(bundle.stored(MAX_TIMESTAMP))
            self._rescue(records, stored, starts, ends, kept, done.refused)
            if done.refused:  # but not what is dropped
                parts, done.refused = brought(fold, pick, values, kept)
        taken = np.ones(len(kept), dtype=bool)
        taken[list(done.refused)] = False
        self._count(done, elements[~kept & taken], elements[partials])
        stretches = []
        for part in parts:
            chosen = np.flatnonzero(kept[part.positions] & taken[part.positions])
            if not len(chosen):
                continue
            positions = part.positions[chosen]
            keys = records.key_of[positions]
            order = by_code(keys, starts[positions])
            positions, keys = positions[order], keys[order]
            begins = overlaps(keys, starts[positions], ends[positions])
            firsts = positions[begins]
            some = _Stretches(
                [records.keys[key] for key in keys[begins].tolist()],
                hashes[firsts],
                starts[firsts],
                np.maximum.reduceat(ends[positions], begins),
                part.accumulators.take(chosen[order]).reduced(fold, begins),
            )
            stretches.append(some)
        return stretches

    def _rescue(
        self,
        records: Keyed,
        stored: list[Stored],
        starts: Ints,
        ends: Ints,
        kept: Mask,
        refused: Collection[int],
    ) -> None:
        """Keep elements that have expired by themselves, but not the session that they belong to.

        An element sees the sessions that the key had and the elements before it, as it would if
        elements came one by one.
        """
        late = np.unique(records.key_of[~kept])
        hashes, keys = records.hashes[late], [records.keys[key] for key in late.tolist()]
        known = [_Times() for _ in keys]
        for chunk in (_decode(each.chunk) for each in stored):
            starts_us, ends_us = (
                np.frombuffer(chunk.starts, "<i8"),
                np.frombuffer(chunk.ends, "<i8"),
            )
            for n, m in _matches(chunk, hashes, keys):
                known[n].add(int(starts_us[m]), int(ends_us[m]))
        for key, times in zip(late.tolist(), known, strict=True):
            first, last = np.searchsorted(records.key_of, [key, key + 1]).tolist()
            for n in range(first, last):
                start, end = int(starts[n]), int(ends[n])
                if not kept[n]:
                    kept[n] = times.overlap(start, end)
                if kept[n] and n not in refused:
                    times.add(start, end)

    # -- sessions ----------------------------------------------------------------------------------

    def _merged(self, parts: list[_Stretches]) -> _Stretches:
        """Return stretches with those of one key that overlap as one."""
        keys = [key for part in parts for key in part.keys]
        hashes = np.concatenate([part.hashes for part in parts])
        starts = np.concatenate([part.starts for part in parts])
        ends = np.concatenate([part.ends for part in parts])
        accumulators = Accumulators.together([part.accumulators for part in parts])
        index: dict[bytes, int] = {}
        codes = np.fromiter(
            (index.setdefault(key, len(index)) for key in keys), np.int64, len(keys)
        )
        order = np.lexsort((starts, codes))
        codes, starts, ends = codes[order], starts[order], ends[order]
        begins = overlaps(codes, starts, ends)
        first = order[begins]
        return _Stretches(
            [keys[n] for n in first.tolist()],
            hashes[first],
            starts[begins],
            np.maximum.reduceat(ends, begins),
            accumulators.take(order).reduced(self.fold, begins),
        )

    def _finish(self, sessions: _Stretches, bundle: ColumnarBundle, done: Done) -> None:
        """Emit the sessions that are over, and put the rest back."""
        over = sessions.ends <= bundle.input_watermark_us
        going_on: dict[int, int] = {}
        if over.any():
            removed = set(done.removed)
            others = (
                stored for stored in bundle.stored(MAX_TIMESTAMP) if stored.row not in removed
            )
            going_on = self._going_on(sessions, np.flatnonzero(over), others)
        for at_us in sorted(set(going_on.values())):
            together = [n for n, instant_us in going_on.items() if instant_us == at_us]
            _put(sessions.take(np.array(together)), done, at_us)
        left = np.flatnonzero(~over)
        over[list(going_on)] = False
        ended = np.flatnonzero(over)
        if len(ended):
            by_end = ended[np.lexsort((sessions.hashes[ended], sessions.ends[ended]))]
            done.emitted.append(self._panes(sessions.take(by_end), bundle.wall_time_us))
        by_end = left[np.argsort(sessions.ends[left], kind="stable")]
        parts = min(PARTS_MAX, max(1, len(left) // PART_LEAST))
        for part in np.array_split(by_end, parts):
            if len(part):
                _put(sessions.take(part), done)

    def _going_on(
        self, sessions: _Stretches, over: npt.NDArray[np.intp], others: Iterable[Stored]
    ) -> dict[int, int]:
        """Return the sessions that a stretch in another chunk goes on from, and its instant."""
        positions: dict[int, int] = {}
        by_hash = over[np.argsort(sessions.hashes[over], kind="stable")]
        hashes = sessions.hashes[by_hash]
        keys = [sessions.keys[n] for n in by_hash.tolist()]
        for other in others:
            chunk = _decode(other.chunk)
            starts, ends = np.frombuffer(chunk.starts, "<i8"), np.frombuffer(chunk.ends, "<i8")
            for position, m in _matches(chunk, hashes, keys):
                n = int(by_hash[position])
                if starts[m] < sessions.ends[n] and sessions.starts[n] < ends[m]:
                    positions[n] = min(other.at_us, positions.get(n, other.at_us))
        return positions

    def _panes(self, sessions: _Stretches, wall_time_us: int) -> Emitted:
        pane = self._pane(Window(), wall_time_us)
        ends = sessions.ends.tolist()
        windows = list(zip(sessions.starts.tolist(), ends, strict=True))
        return Emitted(
            self.output,
            sessions.keys,
            sessions.hashes.tolist(),
            self._results(sessions.keys, windows, sessions.accumulators.columns),
            pane,
            windows,
            list(map(last_instant_us, ends)),
        )


def _matches(
    chunk: SessionChunk, hashes: npt.NDArray[np.uint64], keys: Sequence[bytes]
) -> Iterator[tuple[int, int]]:
    """Yield the positions of keys, and those of each one's stretches in a chunk."""
    theirs = np.frombuffer(chunk.hashes, "<u8")
    first, last = np.searchsorted(theirs, hashes), np.searchsorted(theirs, hashes, "right")
    for n in np.flatnonzero(last > first).tolist():
        for m in range(first[n], last[n]):
            if chunk.keys[m] == keys[n]:
                yield n, m


class _Times:
    """Times of one key that stretches take up, found by bisection: intervals side by side."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def overlap(self, start: int, end: int) -> bool:
        """Return whether a part of an interval is taken up."""
        return bisect_right(self._ends, start) < bisect_left(self._starts, end)

    def add(self, start: int, end: int) -> None:
        """Take an interval up."""
        first, stop = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if first < stop:
            start, end = min(start, self._starts[first]), max(end, self._ends[stop - 1])
        self._starts[first:stop] = [start]
        self._ends[first:stop] = [end]


def _stretches(chunk: SessionChunk) -> _Stretches:
    """Return what a chunk says."""
    return _Stretches(
        chunk.keys,
        np.frombuffer(chunk.hashes, "<u8"),
        np.frombuffer(chunk.starts, "<i8"),
        np.frombuffer(chunk.ends, "<i8"),
        Accumulators.decoded(chunk.kinds, chunk.columns),
    )


def _put(stretches: _Stretches, done: Done, at_us: int | None = None) -> None:
    """Add stretches as chunks, wanted when the first may be over, or at an instant."""
    for kinds, chosen in stretches.accumulators.by_kinds().items():
        some = stretches.take(chosen[np.argsort(stretches.hashes[chosen], kind="stable")])
        chunk = SessionChunk(
            kinds,
            some.hashes.tobytes(),
            some.keys,
            some.starts.tobytes(),
            some.ends.tobytes(),
            some.accumulators.encoded(kinds),
        )
        wanted_us = int(some.ends.min()) if at_us is None else at_us
        done.added.setdefault(wanted_us, []).append(_encode(chunk))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionChunk).decode
