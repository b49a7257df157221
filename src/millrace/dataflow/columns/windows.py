"""WindowColumns: fixed windows as columns, a chunk for each bundle and window."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from millrace.dataflow.columns.numbers import (
    DTYPES,
    Ints,
    Positions,
    fits,
    fold_of,
    folded,
    numbers_of,
    results,
    too_large,
    weights,
)
from millrace.dataflow.columns.plain import PlainGrouping
from millrace.dataflow.windows import FixedWindows
from millrace.model.bundle import Bundle, Done, Emitted, Keyed, Stored
from millrace.model.pane import Window
from millrace.model.time import MAX_TIMESTAMP

#: A window that lives for very many bundles has its chunks put together once in so many.
MERGE_EVERY: Final = 256


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """What a bundle has of one window: columns of equal length, by key.

    Attributes:
        kind: ``i`` if the numbers are integers, ``f`` if floats.
        hashes: Of the keys, 8 bytes each, little-endian as are the next.
        keys: Encoded.
        numbers: What the values were folded to.
        counts: How many values.
    """

    kind: str
    hashes: bytes
    keys: list[bytes]
    numbers: bytes
    counts: bytes


#: Keys, hashes, numbers and counts of a window, each key once.
_Folded = tuple[list[bytes], list[int], list[Any], list[int]]


@dataclass(frozen=True, repr=False)
class WindowColumns(PlainGrouping):
    """Folds bundles into chunks, and chunks into panes.

    Attributes:
        window_fn: Of the grouping.
    """

    window_fn: FixedWindows

    def run(self, bundle: Bundle) -> Done:
        """Return the panes of the windows that are complete, and chunks of the others."""
        done = Done()
        if bundle.records is not None:
            self._absorb(bundle.records, bundle.low_watermark_before_us, done)
        due: dict[int, list[bytes]] = {}
        for stored in bundle.stored(bundle.low_watermark_us):
            due.setdefault(stored.at_us, []).append(stored.chunk)
            done.removed.append(stored.row)
        for end_us in [end_us for end_us in done.added if end_us <= bundle.low_watermark_us]:
            due.setdefault(end_us, []).extend(done.added.pop(end_us))
        for end_us in sorted(due):
            done.emitted.append(self._panes(end_us, due[end_us], bundle.wall_time_us))
        if bundle.number % MERGE_EVERY == 0:
            self._merge(bundle, done)
        return done

    # -- elements ----------------------------------------------------------------------------------

    def _absorb(self, records: Keyed, low_watermark_us: int, done: Done) -> None:
        """Add the chunks of a bundle's records."""
        ends = self._ends(records)
        elements, partials = weights(records.values)
        kept = ends > low_watermark_us
        self._count(done, elements, kept, partials)
        numbers, done.refused = numbers_of(self.combine, self.pick, records.values, kept)
        kept[list(done.refused)] = False
        floats = np.array([type(number) is float for number in numbers], dtype=bool)
        for kind, chosen in (("i", kept & ~floats), ("f", kept & floats)):
            positions = np.flatnonzero(chosen)
            if len(positions):
                self._fold(kind, positions, records, ends, numbers, elements, done)

    def _ends(self, records: Keyed) -> Ints:
        at_us = np.array(records.timestamps, dtype=np.int64)
        size = self.window_fn.size_us
        shifted = at_us - self.window_fn.offset_us
        if self.window_fn.phase_shift:
            shifted = shifted - (records.hashes % np.uint64(size)).astype(np.int64)[records.key_of]
        ends: Ints = at_us - shifted % size + size
        return ends

    def _fold(
        self,
        kind: str,
        positions: Positions,
        records: Keyed,
        ends: Ints,
        numbers: list[Any],
        elements: Ints,
        done: Done,
    ) -> None:
        """Add the chunks of elements of one kind."""
        keys = records.key_of[positions]
        windows, which = np.unique(ends[positions], return_inverse=True)
        order = np.argsort(which * len(records.keys) + keys, kind="stable")
        keys, which = keys[order], which[order]
        changed = (keys[1:] != keys[:-1]) | (which[1:] != which[:-1])
        starts = np.concatenate(([0], np.flatnonzero(changed) + 1))
        column = np.array([numbers[n] for n in positions[order].tolist()], DTYPES[kind])
        totals = folded(fold_of(self.combine), column, starts)
        counts = np.add.reduceat(elements[positions][order], starts)
        keys, which = keys[starts], which[starts]
        if totals.dtype == object:
            good = np.array([fits(total) for total in totals], dtype=bool)
            of_element = np.repeat(good, np.diff(starts, append=len(order)))
            refused = positions[order][~of_element].tolist()
            done.refused.update(dict.fromkeys(refused, too_large()))
            totals = totals[good].astype(np.int64)
            counts, keys, which = counts[good], keys[good], which[good]
        bounds = np.searchsorted(which, np.arange(len(windows) + 1)).tolist()
        for n, end_us in enumerate(windows.tolist()):
            mine = slice(bounds[n], bounds[n + 1])
            if mine.start == mine.stop:
                continue
            chunk = Chunk(
                kind,
                records.hashes[keys[mine]].tobytes(),
                [records.keys[key] for key in keys[mine].tolist()],
                totals[mine].tobytes(),
                counts[mine].tobytes(),
            )
            done.added.setdefault(end_us, []).append(_encode(chunk))

    # -- panes -------------------------------------------------------------------------------------

    def _panes(self, end_us: int, chunks: Sequence[bytes], wall_time_us: int) -> Emitted:
        """Return the panes of a window, by key."""
        window = Window(end_us - self.window_fn.size_us, end_us)
        pane = self._pane(window, wall_time_us)
        keys, hashes, numbers, counts = self._together([_decode(chunk) for chunk in chunks])
        values = results(self.combine, numbers, counts)
        at_us = min(end_us, MAX_TIMESTAMP) - 1
        return Emitted(self.output, keys, hashes, values, pane, None, [at_us] * len(keys))

    def _merge(self, bundle: Bundle, done: Done) -> None:
        """Put the chunks of each window that is not complete together."""
        removed, waiting = set(done.removed), dict[int, list[Stored]]()
        for stored in bundle.stored(MAX_TIMESTAMP):
            if stored.row not in removed:
                waiting.setdefault(stored.at_us, []).append(stored)
        for end_us, those in waiting.items():
            mine = done.added.get(end_us, [])
            if len(those) + len(mine) > 2:  # one for integers, one for floats
                merged = self._merged([*(stored.chunk for stored in those), *mine])
                if merged is not None:
                    done.added[end_us] = merged
                    done.removed += [stored.row for stored in those]

    def _merged(self, chunks: Sequence[bytes]) -> list[bytes] | None:
        """Return fewer chunks that say the same; None if one would be beyond a column."""
        parts = [_decode(chunk) for chunk in chunks]
        merged = []
        for kind in sorted({part.kind for part in parts}):
            keys, hashes, numbers, counts = self._together([p for p in parts if p.kind == kind])
            if not all(map(fits, numbers)):
                return None
            columns = (
                np.array(column, dtype).tobytes()
                for column, dtype in ((hashes, "<u8"), (numbers, DTYPES[kind]), (counts, "<i8"))
            )
            hashed, totals, counted = columns
            merged.append(_encode(Chunk(kind, hashed, keys, totals, counted)))
        return merged

    def _together(self, parts: Sequence[Chunk]) -> _Folded:
        """Return what several chunks say, each key once."""
        hashes = np.concatenate([np.frombuffer(part.hashes, "<u8") for part in parts])
        keys = [key for part in parts for key in part.keys]
        counts = np.concatenate([np.frombuffer(part.counts, "<i8") for part in parts])
        columns = [np.frombuffer(part.numbers, DTYPES[part.kind]) for part in parts]
        order = np.argsort(hashes, kind="stable")
        hashes, counts = hashes[order], counts[order]
        keys = [keys[n] for n in order.tolist()]
        same = np.flatnonzero(hashes[1:] == hashes[:-1]).tolist()
        fold = fold_of(self.combine)
        if len({part.kind for part in parts}) > 1 or any(keys[n] != keys[n + 1] for n in same):
            numbers = [number for column in columns for number in column.tolist()]
            return _one_by_one(
                fold, keys, hashes.tolist(), [numbers[n] for n in order.tolist()], counts.tolist()
            )
        starts = np.concatenate(([0], np.flatnonzero(hashes[1:] != hashes[:-1]) + 1))
        return (
            [keys[n] for n in starts.tolist()],
            hashes[starts].tolist(),
            folded(fold, np.concatenate(columns)[order], starts).tolist(),
            np.add.reduceat(counts, starts).tolist(),
        )


def _one_by_one(
    fold: Any, keys: list[bytes], hashes: list[int], numbers: list[Any], counts: list[int]
) -> _Folded:
    """Return what :meth:`WindowColumns._together` does, with Python's numbers."""
    merge: Any = {np.add: operator.add, np.minimum: min, np.maximum: max}[fold]
    found: dict[bytes, tuple[int, Any, int]] = {}
    for key, hashed, number, count in zip(keys, hashes, numbers, counts, strict=True):
        known = found.get(key)
        if known is not None:
            number, count = merge(known[1], number), known[2] + count
        found[key] = hashed, number, count
    columns = list(zip(*found.values(), strict=True))
    return list(found), *(list(column) for column in columns)  # type: ignore[return-value]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Chunk).decode
