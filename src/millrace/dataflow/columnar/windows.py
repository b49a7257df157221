"""WindowColumns: windows that do not merge as columns, a chunk for each bundle and window."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.dataflow.aggregations.vector import Positions
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
from millrace.dataflow.partials.columns import alike_segments
from millrace.dataflow.windows.window_fn import Ints, assigned_columns, is_ours, last_instant_us
from millrace.model.pane import Window
from millrace.model.time import MAX_TIMESTAMP

#: A window that lives for very many bundles has its chunks put together once in so many.
MERGE_EVERY: Final = 256


class WindowChunk(msgspec.Struct, array_like=True, frozen=True):
    """What a bundle has of one window: columns of equal length, by key.

    Attributes:
        kinds: Of the columns of the accumulators.
        start: When the window begins; it ends at the instant when the chunk is wanted.
        hashes: Of the keys, 8 bytes each, little-endian as are the columns.
        keys: Encoded.
        columns: The accumulators.
    """

    kinds: str
    start: int
    hashes: bytes
    keys: list[bytes]
    columns: list[bytes]


class _Folded(NamedTuple):
    """Accumulators of a window, each key once."""

    keys: list[bytes]
    hashes: npt.NDArray[np.uint64]
    accumulators: Accumulators

    def chunks(self, start: int) -> Iterator[bytes]:
        """Yield them as chunks, one of each kind."""
        for kinds, chosen in self.accumulators.by_kinds().items():
            yield _encode(
                WindowChunk(
                    kinds,
                    start,
                    self.hashes[chosen].tobytes(),
                    [self.keys[n] for n in chosen.tolist()],
                    self.accumulators.take(chosen).encoded(kinds),
                )
            )


#: End and start of a window: in the order in which they are complete.
_Ends = tuple[int, int]


@dataclass(frozen=True, repr=False)
class WindowColumns(PlainGrouping):
    """Folds bundles into chunks, and chunks into panes."""

    def run(self, bundle: ColumnarBundle) -> Done:
        """Return the panes of the windows that are complete, and chunks of the others."""
        done = Done()
        if bundle.records is not None:
            self._absorb(bundle.records, bundle.arrival_watermark_us, done)
        due: dict[_Ends, list[WindowChunk]] = {}
        for stored in bundle.stored(bundle.input_watermark_us):
            _by_window(due, stored.at_us, [stored.chunk])
            done.removed.append(stored.row)
        for end_us in [end_us for end_us in done.added if end_us <= bundle.input_watermark_us]:
            _by_window(due, end_us, done.added.pop(end_us))
        for (end_us, start_us), chunks in sorted(due.items()):
            done.emitted.append(self._panes(start_us, end_us, chunks, bundle.wall_time_us))
        if bundle.number % MERGE_EVERY == 0:
            self._merge(bundle, done)
        return done

    def pending(self, chunks: Iterable[tuple[int, bytes]]) -> dict[int, int]:
        """Return how many keys have a window that ends at an instant."""
        found: dict[_Ends, list[WindowChunk]] = {}
        for end_us, chunk in chunks:
            _by_window(found, end_us, [chunk])
        counts: dict[int, int] = {}
        for (end_us, _), parts in found.items():
            keys = np.unique(np.frombuffer(b"".join(part.hashes for part in parts), "<u8"))
            counts[end_us] = counts.get(end_us, 0) + len(keys)
        return counts

    # -- elements ----------------------------------------------------------------------------------

    def _absorb(self, records: Keyed, low_watermark_us: int, done: Done) -> None:
        """Add the chunks of a bundle's records."""
        at_us = np.array(records.timestamps, dtype=np.int64)
        hashes = records.hashes[records.key_of]
        elements, partials = weights(records.values)
        kept = np.ones(len(at_us), dtype=bool)
        # Of Millrace's windows, only those of late elements can have expired.
        late = np.flatnonzero((at_us < low_watermark_us) | (not is_ours(self.window_fn)))
        rows, _, ends = assigned_columns(self.window_fn, at_us[late], hashes[late])
        kept[late] = False
        kept[late[rows[ends > low_watermark_us]]] = True
        parts, done.refused = brought(self.fold, self.pick, records.values, kept)
        expired = late[rows[ends <= low_watermark_us]]
        taken = np.ones(len(at_us), dtype=bool)
        taken[list(done.refused)] = False
        self._count(done, elements[expired[taken[expired]]], elements[partials])
        for part in parts:
            chosen = np.flatnonzero(kept[part.positions] & taken[part.positions])
            positions, accumulators = part.positions[chosen], part.accumulators.take(chosen)
            if len(positions):
                self._fold(positions, accumulators, records, at_us, low_watermark_us, done)

    def _fold(
        self,
        positions: Positions,
        accumulators: Accumulators,
        records: Keyed,
        at_us: Ints,
        low_watermark_us: int,
        done: Done,
    ) -> None:
        """Add the chunks of elements."""
        # Those of one key that are in the same windows are put together first, so that an element
        # in many windows costs little more than one in a single.
        keys, at_us = records.key_of[positions], at_us[positions]
        hashes = records.hashes[keys]
        segments_of_windows = alike_segments(keys, self.window_fn.alike(at_us, hashes))
        of_segment = accumulators.take(segments_of_windows.order).reduced(
            self.fold, segments_of_windows.starts
        )
        first = segments_of_windows.order[segments_of_windows.starts]
        rows, starts, ends = assigned_columns(self.window_fn, at_us[first], hashes[first])
        if low_watermark_us >= ends.min(initial=MAX_TIMESTAMP):
            live = ends > low_watermark_us
            rows, starts, ends = rows[live], starts[live], ends[live]
        if not len(rows):
            return
        # By window, and by key in each.
        order = np.lexsort((rows, starts, ends))
        rows, starts, ends = rows[order], starts[order], ends[order]
        keys = keys[first[rows]]
        other = (ends[1:] != ends[:-1]) | (starts[1:] != starts[:-1])
        begins = np.concatenate(([0], np.flatnonzero(other | (keys[1:] != keys[:-1])) + 1))
        made = of_segment.take(rows)
        if len(begins) < len(rows):
            made = made.reduced(self.fold, begins)
        keys = keys[begins]
        cuts = np.flatnonzero(np.concatenate(([True], other[begins[1:] - 1], [True]))).tolist()
        for first_key, stop in itertools.pairwise(cuts):
            changed_keys = np.arange(first_key, stop)
            folded = _Folded(
                [records.keys[key] for key in keys[changed_keys].tolist()],
                records.hashes[keys[changed_keys]],
                made.take(changed_keys),
            )
            start_us, end_us = int(starts[begins[first_key]]), int(ends[begins[first_key]])
            done.added.setdefault(end_us, []).extend(folded.chunks(start_us))

    # -- panes -------------------------------------------------------------------------------------

    def _panes(
        self, start_us: int, end_us: int, chunks: Sequence[WindowChunk], wall_time_us: int
    ) -> Emitted:
        """Return the panes of a window, by key."""
        pane = self._pane(Window(start_us, end_us), wall_time_us)
        keys, hashes, accumulators = self._together(chunks)
        at_us = last_instant_us(end_us)
        return Emitted(
            self.output,
            keys,
            hashes.tolist(),
            self._results(keys, [(start_us, end_us)] * len(keys), accumulators.columns),
            pane,
            None,
            [at_us] * len(keys),
        )

    def _merge(self, bundle: ColumnarBundle, done: Done) -> None:
        """Put the chunks of each window that is not complete together."""
        removed, waiting = set(done.removed), dict[int, list[Stored]]()
        for stored in bundle.stored(MAX_TIMESTAMP):
            if stored.row not in removed:
                waiting.setdefault(stored.at_us, []).append(stored)
        for end_us, those in waiting.items():
            added = done.added.get(end_us, [])
            if len(those) + len(added) > 2:  # one for integers, one for floats
                done.added[end_us] = self._merged(
                    end_us, [*(stored.chunk for stored in those), *added]
                )
                done.removed += [stored.row for stored in those]

    def _merged(self, end_us: int, chunks: Sequence[bytes]) -> list[bytes]:
        """Return fewer chunks that say the same."""
        by_window: dict[_Ends, list[WindowChunk]] = {}
        _by_window(by_window, end_us, chunks)
        merged: list[bytes] = []
        for (_, start_us), parts in by_window.items():
            for kinds in sorted({part.kinds for part in parts}):
                folded = self._together([part for part in parts if part.kinds == kinds])
                merged += folded.chunks(start_us)
        return merged

    def _together(self, parts: Sequence[WindowChunk]) -> _Folded:
        """Return what several chunks of a window say, each key once."""
        hashes = np.concatenate([np.frombuffer(part.hashes, "<u8") for part in parts])
        keys = [key for part in parts for key in part.keys]
        accumulators = Accumulators.together(
            [Accumulators.decoded(part.kinds, part.columns) for part in parts]
        )
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        same = ordered[1:] == ordered[:-1]
        if any(keys[order[n]] != keys[order[n + 1]] for n in np.flatnonzero(same).tolist()):
            index: dict[bytes, int] = {}
            codes = np.array([index.setdefault(key, len(index)) for key in keys])
            order = np.lexsort((codes, hashes))
            codes = codes[order]
            same = codes[1:] == codes[:-1]
        starts = np.concatenate(([0], np.flatnonzero(~same) + 1))
        first = order[starts]
        return _Folded(
            [keys[n] for n in first.tolist()],
            hashes[first],
            accumulators.take(order).reduced(self.fold, starts),
        )


def _by_window(
    windows: dict[_Ends, list[WindowChunk]], end_us: int, chunks: Sequence[bytes]
) -> None:
    """Add chunks that are wanted at an instant to those of their windows."""
    for chunk in map(_decode, chunks):
        windows.setdefault((end_us, chunk.start), []).append(chunk)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WindowChunk).decode
