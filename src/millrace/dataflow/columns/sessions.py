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

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.dataflow.columns.numbers import (
    DTYPES,
    Ints,
    Mask,
    fits,
    fold_of,
    folded,
    numbers_of,
    results,
    too_large,
    weights,
)
from millrace.dataflow.columns.plain import PlainGrouping
from millrace.dataflow.windows import Sessions
from millrace.model.bundle import Bundle, Done, Emitted, Keyed, Stored
from millrace.model.pane import Window
from millrace.model.time import MAX_TIMESTAMP

#: Once in so many bundles all chunks are merged: each costs a search whenever a session ends.
MERGE_EVERY: Final = 32

#: What is put back is cut by end into so many chunks of at least so many stretches, so that what
#: ends late is not read for what ends soon.
PARTS_MAX: Final = 8
PART_LEAST: Final = 2_000


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """Stretches of activity, as columns of equal length, by hash.

    Attributes:
        kind: ``i`` if the numbers are integers, ``f`` if floats.
        hashes: Of the keys, 8 bytes each, little-endian as are the next.
        keys: Encoded.
        starts: When each begins, microseconds.
        ends: When each ends: a gap after its last element.
        numbers: What the values were folded to.
        counts: How many values.
    """

    kind: str
    hashes: bytes
    keys: list[bytes]
    starts: bytes
    ends: bytes
    numbers: bytes
    counts: bytes


class _Stretches(NamedTuple):
    """Stretches in memory; the numbers are Python's where integers and floats meet."""

    keys: list[bytes]
    hashes: npt.NDArray[np.uint64]
    starts: Ints
    ends: Ints
    numbers: npt.NDArray[Any]
    counts: Ints

    def take(self, chosen: npt.NDArray[np.intp]) -> _Stretches:
        return _Stretches(
            [self.keys[n] for n in chosen.tolist()],
            self.hashes[chosen],
            self.starts[chosen],
            self.ends[chosen],
            self.numbers[chosen],
            self.counts[chosen],
        )


@dataclass(frozen=True, repr=False)
class SessionColumns(PlainGrouping):
    """Folds bundles and chunks into sessions.

    Attributes:
        window_fn: Of the grouping.
    """

    window_fn: Sessions

    def run(self, bundle: Bundle) -> Done:
        """Return the sessions that are over, and chunks of the others."""
        done = Done()
        fresh = []
        if bundle.records is not None:
            fresh = self._absorb(bundle.records, bundle, done)
        merges = bundle.number % MERGE_EVERY == 0
        due = list(bundle.stored(MAX_TIMESTAMP if merges else bundle.low_watermark_us))
        parts = [*map(_stretches, (_decode(chunk.chunk) for chunk in due)), *fresh]
        done.removed = [chunk.row for chunk in due]
        if parts:
            self._finish(self._merged(parts), bundle, done)
        return done

    # -- elements ----------------------------------------------------------------------------------

    def _absorb(self, records: Keyed, bundle: Bundle, done: Done) -> list[_Stretches]:
        """Return the stretches of a bundle's records."""
        starts = np.array(records.timestamps, dtype=np.int64)
        ends = starts + self.window_fn.gap_us
        elements, partials = weights(records.values)
        for n in partials:
            window = records.values[n].window
            starts[n], ends[n] = window.start, window.end
        kept = ends > bundle.low_watermark_before_us
        pick, values = self.pick, records.values
        numbers, done.refused = numbers_of(self.combine, pick, values, np.ones_like(kept))
        if not kept.all():
            stored = list(bundle.stored(MAX_TIMESTAMP))
            self._rescue(records, stored, starts, ends, kept, done.refused)
            if done.refused:  # but not what is dropped
                numbers, done.refused = numbers_of(self.combine, pick, values, kept)
        self._count(done, elements, kept, partials)
        kept[list(done.refused)] = False
        floats = np.array([type(number) is float for number in numbers], dtype=bool)
        made = []
        for kind, chosen in (("i", kept & ~floats), ("f", kept & floats)):
            positions = np.flatnonzero(chosen)
            if not len(positions):
                continue
            key_of = records.key_of[positions]
            some = _Stretches(
                [records.keys[key] for key in key_of.tolist()],
                records.hashes[key_of],
                starts[positions],
                ends[positions],
                np.array([numbers[n] for n in positions.tolist()], DTYPES[kind]),
                elements[positions],
            )
            made.append(some)
        return made

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
        for key in np.unique(records.key_of[~kept]).tolist():
            known = [
                (start, end)
                for chunk in stored
                for start, end in _of_key(chunk.chunk, records.hashes[key], records.keys[key])
            ]
            first, last = np.searchsorted(records.key_of, [key, key + 1]).tolist()
            for n in range(first, last):
                start, end = int(starts[n]), int(ends[n])
                if not kept[n]:
                    kept[n] = any(start < other[1] and other[0] < end for other in known)
                if kept[n] and n not in refused:
                    known.append((start, end))

    # -- sessions ----------------------------------------------------------------------------------

    def _merged(self, parts: list[_Stretches]) -> _Stretches:
        """Return stretches with those of one key that overlap as one."""
        keys = [key for part in parts for key in part.keys]
        if len({part.numbers.dtype for part in parts}) > 1:
            parts = [
                part._replace(numbers=np.array(part.numbers.tolist(), dtype=object))
                for part in parts
            ]
        columns = (np.concatenate([part[n] for part in parts]) for n in range(1, 6))
        hashes, starts, ends, numbers, counts = columns
        index: dict[bytes, int] = {}
        codes = np.fromiter(
            (index.setdefault(key, len(index)) for key in keys), np.int64, len(keys)
        )
        order = np.lexsort((starts, codes))
        codes, starts, ends = codes[order], starts[order], ends[order]
        tops = _latest_ends(codes, ends)
        apart = (codes[1:] != codes[:-1]) | (starts[1:] >= tops[:-1])
        begins = np.concatenate(([0], np.flatnonzero(apart) + 1))
        first = order[begins]
        return _Stretches(
            [keys[n] for n in first.tolist()],
            hashes[first],
            starts[begins],
            np.maximum.reduceat(ends, begins),
            folded(fold_of(self.combine), numbers[order], begins),
            np.add.reduceat(counts[order], begins),
        )

    def _finish(self, sessions: _Stretches, bundle: Bundle, done: Done) -> None:
        """Emit the sessions that are over, and put the rest back."""
        over = sessions.ends <= bundle.low_watermark_us
        going_on: dict[int, int] = {}
        if over.any():
            removed = set(done.removed)
            others = (one for one in bundle.stored(MAX_TIMESTAMP) if one.row not in removed)
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
        found: dict[int, int] = {}
        by_hash = over[np.argsort(sessions.hashes[over], kind="stable")]
        hashes = sessions.hashes[by_hash]
        for other in others:
            chunk = _decode(other.chunk)
            theirs = np.frombuffer(chunk.hashes, "<u8")
            first, last = np.searchsorted(theirs, hashes), np.searchsorted(theirs, hashes, "right")
            starts, ends = np.frombuffer(chunk.starts, "<i8"), np.frombuffer(chunk.ends, "<i8")
            for position in np.flatnonzero(last > first).tolist():
                n = int(by_hash[position])
                for m in range(first[position], last[position]):
                    overlap = starts[m] < sessions.ends[n] and sessions.starts[n] < ends[m]
                    if overlap and chunk.keys[m] == sessions.keys[n]:
                        found[n] = min(other.at_us, found.get(n, other.at_us))
        return found

    def _panes(self, sessions: _Stretches, wall_time_us: int) -> Emitted:
        pane = self._pane(Window(), wall_time_us)
        ends = sessions.ends.tolist()
        return Emitted(
            self.output,
            sessions.keys,
            sessions.hashes.tolist(),
            results(self.combine, sessions.numbers.tolist(), sessions.counts.tolist()),
            pane,
            list(zip(sessions.starts.tolist(), ends, strict=True)),
            [end_us - 1 for end_us in ends],
        )


def _latest_ends(codes: Ints, ends: Ints) -> Ints:
    """Return, for each stretch, the latest end of its key so far; codes ascend."""
    # All keys in one run: each key's ends are lifted above those of the key before.
    values, ranks = np.unique(ends, return_inverse=True)
    lifted = ranks + codes * len(values)
    latest: Ints = values[np.maximum.accumulate(lifted) - codes * len(values)]
    return latest


def _of_key(chunk: bytes, hashed: Any, key: bytes) -> list[tuple[int, int]]:
    """Return start and end of a key's stretches in a chunk."""
    decoded = _decode(chunk)
    theirs = np.frombuffer(decoded.hashes, "<u8")
    first, last = np.searchsorted(theirs, hashed), np.searchsorted(theirs, hashed, "right")
    starts, ends = np.frombuffer(decoded.starts, "<i8"), np.frombuffer(decoded.ends, "<i8")
    return [(int(starts[n]), int(ends[n])) for n in range(first, last) if decoded.keys[n] == key]


def _stretches(chunk: Chunk) -> _Stretches:
    """Return what a chunk says."""
    return _Stretches(
        chunk.keys,
        np.frombuffer(chunk.hashes, "<u8"),
        np.frombuffer(chunk.starts, "<i8"),
        np.frombuffer(chunk.ends, "<i8"),
        np.frombuffer(chunk.numbers, DTYPES[chunk.kind]),
        np.frombuffer(chunk.counts, "<i8"),
    )


def _put(stretches: _Stretches, done: Done, at_us: int | None = None) -> None:
    """Add stretches as chunks, wanted when the first may be over, or at an instant."""
    if stretches.numbers.dtype == object:
        good = np.array([fits(number) for number in stretches.numbers], dtype=bool)
        for n in np.flatnonzero(~good).tolist():
            done.failed.append((stretches.keys[n], int(stretches.ends[n]), too_large()))
        floats = np.array([type(number) is float for number in stretches.numbers], dtype=bool)
        kinds = {"i": np.flatnonzero(good & ~floats), "f": np.flatnonzero(good & floats)}
    else:
        kinds = {stretches.numbers.dtype.kind: np.arange(len(stretches.keys))}
    for kind, chosen in kinds.items():
        if not len(chosen):
            continue
        some = stretches.take(chosen[np.argsort(stretches.hashes[chosen], kind="stable")])
        chunk = Chunk(
            kind,
            some.hashes.tobytes(),
            some.keys,
            some.starts.tobytes(),
            some.ends.tobytes(),
            some.numbers.astype(DTYPES[kind]).tobytes(),
            some.counts.tobytes(),
        )
        wanted_us = int(some.ends.min()) if at_us is None else at_us
        done.added.setdefault(wanted_us, []).append(_encode(chunk))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Chunk).decode
