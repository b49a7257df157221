"""WindowColumns: groupings whose windows emit once, kept and folded as columns and not key by key.

Most groupings are plain: fixed windows, one pane when the low watermark has passed, a sum or a
count. Nothing of a window is asked for before that, so its elements need not be found key by key
when others come: each bundle leaves one chunk for each window, all keys together, and the pane is
made of the chunks. That costs a row for each bundle and window, where a row and a timer for each
key cost thirty times as much when keys are many and elements of one few.

The panes are those of :class:`~millrace.dataflow.grouping.GroupByKeyAndWindow`, which says when a
grouping is that plain.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.dataflow.aggregations import CombineFn, Count, Max, Mean, Min, Sum
from millrace.dataflow.formats import itself
from millrace.dataflow.partial import Partial
from millrace.dataflow.windows import FixedWindows
from millrace.model.bundle import Absorbed, Emitted, Keyed
from millrace.model.errors import CoderError
from millrace.model.pane import Pane, PanedCoder, Window
from millrace.model.time import MAX_TIMESTAMP

_Ints = npt.NDArray[np.int64]
_LARGEST = 2**63 - 1

_FOLDS: dict[type[CombineFn], Any] = {
    Sum: np.add,
    Count: np.add,
    Mean: np.add,
    Min: np.minimum,
    Max: np.maximum,
}


def foldable(combine: CombineFn) -> bool:
    """Return whether a CombineFn's accumulator is a number and a count."""
    return type(combine) in _FOLDS


class Chunk(msgspec.Struct, array_like=True, frozen=True):
    """What one bundle has of one window: columns of equal length, by key.

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


@dataclass(frozen=True)
class WindowColumns:
    """Folds bundles into chunks, and chunks into panes.

    Attributes:
        window_fn: Of the grouping.
        combine: Of the grouping; :func:`foldable`.
        pick: Chooses the value to aggregate of an element.
        coder: Of the output.
        trigger: The trigger that fires, as text.
        output: Output stream.
    """

    window_fn: FixedWindows
    combine: CombineFn
    pick: Callable[[Any], Any]
    coder: PanedCoder
    trigger: str
    output: str

    def __repr__(self) -> str:
        return "columns"

    # -- elements ----------------------------------------------------------------------------------

    def absorb(self, records: Keyed, low_watermark_us: int) -> Absorbed:
        """Return the chunks of a bundle's records, by the end of their window.

        Args:
            records: Of the bundle.
            low_watermark_us: Elements of windows that end here or before are dropped.
        """
        ends = self._ends(records)
        weights = np.ones(len(ends), np.int64)
        partial = [n for n, value in enumerate(records.values) if type(value) is Partial]
        for n in partial:
            weights[n] = records.values[n].elements
        open_ = ends > low_watermark_us
        numbers, refused = self._numbers(records.values, open_)
        for n in refused:
            open_[n] = False
        chunks: dict[int, list[bytes]] = {}
        kinds = np.array([type(number) is float for number in numbers], dtype=bool)
        for kind, chosen in (("i", open_ & ~kinds), ("f", open_ & kinds)):
            positions = np.flatnonzero(chosen)
            if len(positions):
                self._fold(kind, positions, records, ends, numbers, weights, chunks, refused)
        late = np.ones(len(ends), dtype=bool) & (ends <= low_watermark_us)
        counted = {"dropped_late": int(weights[late].sum()), "lifted": int(weights[partial].sum())}
        return Absorbed(chunks, refused, {name: n for name, n in counted.items() if n})

    def _ends(self, records: Keyed) -> _Ints:
        at_us = np.array(records.timestamps, dtype=np.int64)
        size, offset = self.window_fn.size_us, self.window_fn.offset_us
        shifted = at_us - offset
        if self.window_fn.phase_shift:
            shifted = shifted - (records.hashes % np.uint64(size)).astype(np.int64)[records.key_of]
        ends: _Ints = at_us - shifted % size + size
        return ends

    def _numbers(
        self, values: Sequence[Any], open_: npt.NDArray[np.bool_]
    ) -> tuple[list[Any], dict[int, Exception]]:
        """Return the number that each element brings, and why some bring none."""
        refused: dict[int, Exception] = {}
        if type(self.combine) is Count and self.pick is itself:
            return [0] * len(values), refused
        pick = self.pick
        try:
            picked: list[Any] = [v if type(v) is Partial else pick(v) for v in values]
        except Exception:  # noqa: BLE001  found again below, at its record
            picked = list(values)
            for n, value in enumerate(values):
                try:
                    picked[n] = value if type(value) is Partial else pick(value)
                except Exception as error:  # noqa: BLE001  a user's function may raise anything
                    refused[n] = error
        if type(self.combine) is Count:
            return [0] * len(values), refused
        for n, value in enumerate(picked):
            if _is_plain(value):
                continue
            if not open_[n] or n in refused:
                picked[n] = 0
                continue
            try:
                folded = self._folded(value)
            except Exception as error:  # noqa: BLE001  whatever the value is
                refused[n], folded = error, 0
            picked[n] = folded
        return picked, refused

    def _folded(self, value: Any) -> Any:
        """Return the number of a partial, or of a value that is no plain one."""
        accumulator = (
            value.accumulator
            if type(value) is Partial
            else self.combine.add(self.combine.create(), value)
        )
        number = accumulator[0] if type(self.combine) is Mean else accumulator
        if type(number) is int and not -_LARGEST <= number <= _LARGEST:
            raise CoderError(f"the accumulator cannot be stored: {number} is beyond 64 bits.")
        if type(number) not in (int, float):
            raise CoderError(
                f"{self.combine!r} was given {value!r} ({type(value).__name__}). Expected numbers, "
                "or window(..., allowed_lateness=1), with which values may be of any type."
            )
        return number

    def _fold(
        self,
        kind: str,
        positions: npt.NDArray[np.intp],
        records: Keyed,
        ends: _Ints,
        numbers: list[Any],
        weights: _Ints,
        chunks: dict[int, list[bytes]],
        refused: dict[int, Exception],
    ) -> None:
        """Add the chunks of elements of one kind."""
        keys, ends = records.key_of[positions], ends[positions]
        windows, which = np.unique(ends, return_inverse=True)
        order = np.argsort(which * len(records.keys) + keys, kind="stable")
        keys, which = keys[order], which[order]
        changed = (keys[1:] != keys[:-1]) | (which[1:] != which[:-1])
        starts = np.concatenate(([0], np.flatnonzero(changed) + 1))
        column = np.array([numbers[n] for n in positions[order].tolist()], _DTYPES[kind])
        fold = _FOLDS[type(self.combine)]
        totals = _reduced(fold, column, starts)
        counts = np.add.reduceat(weights[positions][order], starts)
        keys, which = keys[starts], which[starts]
        if totals.dtype == object:
            fits = np.array([-_LARGEST <= total <= _LARGEST for total in totals], dtype=bool)
            error = CoderError("the accumulator cannot be stored: a sum is beyond 64 bits.")
            of_segment = np.repeat(fits, np.diff(starts, append=len(order)))
            refused.update(dict.fromkeys(positions[order][~of_segment].tolist(), error))
            totals = totals[fits].astype(np.int64)
            counts, keys, which = counts[fits], keys[fits], which[fits]
        bounds = np.searchsorted(which, np.arange(len(windows) + 1))
        for n, end_us in enumerate(windows.tolist()):
            first, last = bounds[n], bounds[n + 1]
            mine = keys[first:last]
            chunk = Chunk(
                kind,
                records.hashes[mine].tobytes(),
                [records.keys[key] for key in mine.tolist()],
                totals[first:last].tobytes(),
                counts[first:last].tobytes(),
            )
            chunks.setdefault(end_us, []).append(_encode(chunk))

    # -- panes -------------------------------------------------------------------------------------

    def emit(self, end_us: int, chunks: Sequence[bytes], wall_time_us: int) -> Emitted:
        """Return the panes of a window, by key.

        Args:
            end_us: Of the window.
            chunks: All that bundles have left of it.
            wall_time_us: Now.
        """
        parts = [_decode(chunk) for chunk in chunks]
        start_us = end_us - self.window_fn.size_us
        pane = Pane(
            Window(start_us, end_us), production_time=wall_time_us, percentile=100,
            trigger=self.trigger,
        )  # fmt: skip
        keys, hashes, numbers, counts = self._together(parts)
        results: list[Any] = numbers
        if type(self.combine) is Count:
            results = counts
        elif type(self.combine) is Mean:
            results = [total / count for total, count in zip(numbers, counts, strict=True)]
        at_us = min(end_us, MAX_TIMESTAMP) - 1
        return Emitted(self.output, keys, hashes, results, pane, at_us)

    def merge(self, chunks: Sequence[bytes]) -> list[bytes]:
        """Return fewer chunks that say the same."""
        parts = [_decode(chunk) for chunk in chunks]
        merged = []
        for kind in sorted({part.kind for part in parts}):
            keys, hashes, numbers, counts = self._together([p for p in parts if p.kind == kind])
            if any(type(n) is int and not -_LARGEST <= n <= _LARGEST for n in numbers):
                return list(chunks)  # together they are beyond a column
            chunk = Chunk(
                kind,
                np.array(hashes, "<u8").tobytes(),
                keys,
                np.array(numbers, _DTYPES[kind]).tobytes(),
                np.array(counts, "<i8").tobytes(),
            )
            merged.append(_encode(chunk))
        return merged

    def _together(
        self, parts: Sequence[Chunk]
    ) -> tuple[list[bytes], list[int], list[Any], list[int]]:
        """Return keys, hashes, numbers and counts of several chunks, each key once."""
        hashes = np.concatenate([np.frombuffer(part.hashes, "<u8") for part in parts])
        keys = [key for part in parts for key in part.keys]
        counts = np.concatenate([np.frombuffer(part.counts, "<i8") for part in parts])
        order = np.argsort(hashes, kind="stable")
        hashes, counts = hashes[order], counts[order]
        keys = [keys[n] for n in order.tolist()]
        same = np.flatnonzero(hashes[1:] == hashes[:-1])
        one_kind = len({part.kind for part in parts}) == 1
        columns = [np.frombuffer(part.numbers, _DTYPES[part.kind]) for part in parts]
        starts = np.concatenate(([0], np.flatnonzero(hashes[1:] != hashes[:-1]) + 1))
        fold = _FOLDS[type(self.combine)]
        if not one_kind or any(keys[n] != keys[n + 1] for n in same.tolist()):
            numbers = [number for column in columns for number in column.tolist()]
            return _one_by_one(
                fold, keys, hashes.tolist(), [numbers[n] for n in order.tolist()], counts.tolist()
            )
        return (
            [keys[n] for n in starts.tolist()],
            hashes[starts].tolist(),
            _reduced(fold, np.concatenate(columns)[order], starts).tolist(),
            np.add.reduceat(counts, starts).tolist(),
        )


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number as a column has it."""
    if type(value) is int:
        return -_LARGEST <= value <= _LARGEST
    return type(value) is float and value == value


def _reduced(fold: Any, column: npt.NDArray[Any], starts: npt.NDArray[np.intp]) -> Any:
    """Return each segment's total, as Python's integers where sums might not fit into 64 bits."""
    if fold is np.add and column.dtype.kind == "i":
        largest = max(int(column.max()), -int(column.min()))
        if largest * len(column) > _LARGEST:
            column = column.astype(object)
    with np.errstate(invalid="ignore", over="ignore"):
        return fold.reduceat(column, starts)


def _one_by_one(
    fold: Any, keys: list[bytes], hashes: list[int], numbers: list[Any], counts: list[int]
) -> tuple[list[bytes], list[int], list[Any], list[int]]:
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


_DTYPES = {"i": np.dtype("<i8"), "f": np.dtype("<f8")}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Chunk).decode
