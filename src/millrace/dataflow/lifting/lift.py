"""Lift: makes partials of records on their way to one grouping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.dataflow.aggregations import CombineFn, Distinct
from millrace.dataflow.lifting.folds import Column, distinct_counts, fold_of, needs_values
from millrace.dataflow.lifting.segments import Segments, segments
from millrace.dataflow.partial import Partial, PartialCoder
from millrace.dataflow.windows import Sessions
from millrace.dataflow.windows.window_fn import WindowFn
from millrace.model.coder import Coder
from millrace.model.pane import Window

#: A partial stands for so many records at least, on the average; else it does not pay.
WORTHWHILE = 2

#: Python's types of values that make a column of one kind.
_ARROW = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}


@dataclass(frozen=True)
class Lifted:
    """What became of records: some are in partials, the others go on as they are.

    Attributes:
        taken: Of each record, whether it is in a partial.
        first: Of each partial, the position of the first of its records to arrive. It goes under
            that one's key, id and timestamp.
        partials: The partials.
    """

    taken: npt.NDArray[np.bool_]
    first: npt.NDArray[np.intp]
    partials: list[Partial]

    def __len__(self) -> int:
        return len(self.partials)

    def at(self, positions: npt.NDArray[np.intp], count: int) -> Lifted:
        """Return the same for records that lie at these positions among others."""
        taken = np.zeros(count, dtype=bool)
        taken[positions] = self.taken
        return Lifted(taken, positions[self.first], self.partials)

    @classmethod
    def concat(cls, parts: list[Lifted]) -> Lifted:
        """Return several that took different ones of the same records as one."""
        return cls(
            np.logical_or.reduce([part.taken for part in parts]),
            np.concatenate([part.first for part in parts]),
            [partial for part in parts for partial in part.partials],
        )


@dataclass(frozen=True)
class Lift:
    """How a sender combines values for a grouping.

    Attributes:
        window_fn: Of the grouping.
        combine: Of the grouping; one that :func:`fold_of` knows.
        column: Name of the column to aggregate, if it is one.
        pick: Chooses the value to aggregate of an element.
        coder: Of the partials.
        sized: Whether a trigger asks for the size of elements.
    """

    window_fn: WindowFn
    combine: CombineFn
    column: str | None
    pick: Callable[[Any], Any]
    coder: PartialCoder
    sized: bool

    @property
    def needs_values(self) -> bool:
        """Whether the values matter, and not only how many there are."""
        return needs_values(self.combine) or self.sized

    def apply(
        self,
        keys: pa.Array,
        hashes: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.int64],
        values: pa.Array | None,
        *,
        by_time: bool = False,
    ) -> Lifted | None:
        """Return the partials of records, in order of arrival; None if it does not pay.

        What ``values`` does not say to be a number stays as it is, so that the grouping tells what
        is wrong with it.

        Args:
            keys: Encoded.
            hashes: Of the keys.
            timestamps: Microseconds; none of them late.
            values: What is aggregated; None if :attr:`needs_values` is false.
            by_time: The grouping takes a key's records in order of time, and not of arrival.
        """
        names: list[bytes] = []
        if isinstance(self.combine, Distinct) and not self.sized:
            usable, column, names = _coded(values)
        else:
            usable, column = _column(values, len(timestamps))
        if column is None:
            return None
        positions = np.flatnonzero(usable)
        if len(positions) < WORTHWHILE:
            return None
        codes = pc.dictionary_encode(keys).indices.to_numpy(zero_copy_only=False).astype(np.int64)
        codes, hashes, times = codes[positions], hashes[positions], timestamps[positions]
        # Every key has a window at least: what is not worth it mostly shows here already.
        if (int(codes.max()) + 1) * WORTHWHILE > len(timestamps):
            return None
        found = segments(self.window_fn, codes, hashes, times)
        if len(found) * WORTHWHILE > len(positions):
            return None
        column = column[positions][found.order]
        accumulators = self._folded(column, found.starts, names)
        if accumulators is None:
            return None
        earliest = np.minimum.reduceat(times[found.order], found.starts)
        latest = np.maximum.reduceat(times[found.order], found.starts)
        counts = np.diff(found.starts, append=len(positions))
        first = (
            _first_by(found, times) if by_time else np.minimum.reduceat(found.order, found.starts)
        )
        made = zip(
            self._windows(earliest, latest),
            accumulators,
            counts.tolist(),
            self._sizes(column, found.starts),
            earliest.tolist(),
            latest.tolist(),
            strict=True,
        )
        return Lifted(usable, positions[first], [Partial(*parts) for parts in made])

    def apply_encoded(
        self,
        coder: Coder,
        keys: pa.Array,
        hashes: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.int64],
        encoded: pa.Array,
        *,
        by_time: bool = False,
    ) -> Lifted | None:
        """Return the partials of records whose values are bytes, as :meth:`apply` does.

        Args:
            coder: Of the values.
            keys: Encoded.
            hashes: Of the keys.
            timestamps: Microseconds; none of them late.
            encoded: The values.
            by_time: See :meth:`apply`.
        """
        if len(np.unique(hashes)) * WORTHWHILE > len(hashes):
            return None  # before anything is decoded
        if not self.needs_values:
            return self.apply(keys, hashes, timestamps, None, by_time=by_time)
        try:
            pick, decode = self.pick, coder.decode
            picked = [pick(decode(value)) for value in encoded.to_pylist()]
        except Exception:  # noqa: BLE001  the grouping meets it too, and can say at which record
            return None
        return self.apply_picked(keys, hashes, timestamps, picked, by_time=by_time)

    def apply_picked(
        self,
        keys: pa.Array,
        hashes: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.int64],
        picked: list[Any],
        *,
        by_time: bool = False,
    ) -> Lifted | None:
        """Return the partials of records, as :meth:`apply` does, of values as Python has them."""
        kinds = [type(value) for value in picked]
        made = []
        for kind, arrow in _ARROW.items():
            there = np.fromiter((each is kind for each in kinds), bool, len(kinds))
            if not there.any():
                continue
            some = pa.array(there)
            try:
                values = pa.array([v for v in picked if type(v) is kind], arrow)
            except (OverflowError, pa.ArrowInvalid, UnicodeError):
                continue
            lifted = self.apply(
                keys.filter(some), hashes[there], timestamps[there], values, by_time=by_time
            )
            if lifted is not None:
                made.append(lifted.at(np.flatnonzero(there), len(picked)))
        return Lifted.concat(made) if made else None

    def _folded(
        self, values: Column, starts: npt.NDArray[np.intp], names: list[bytes]
    ) -> list[Any] | None:
        if names:
            return list(distinct_counts(values, starts, names))
        fold = fold_of(self.combine)
        assert fold is not None, "a Lift is made for those only"
        return fold(values, starts)

    def _windows(self, earliest: Column, latest: Column) -> list[Window | None]:
        if not isinstance(self.window_fn, Sessions):
            return [None] * len(earliest)
        ends = latest + self.window_fn.gap_us
        return list(map(Window, earliest.tolist(), ends.tolist()))

    def _sizes(self, values: Column, starts: npt.NDArray[np.intp]) -> list[int]:
        if not self.sized:
            return [0] * len(starts)
        return np.add.reduceat(encoded_sizes(values), starts).tolist()  # type: ignore[no-any-return]


def _first_by(found: Segments, times: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the position of each segment's earliest element; of equal ones the first to come."""
    numbers = np.repeat(np.arange(len(found)), np.diff(found.starts, append=len(found.order)))
    order = found.order[np.lexsort((found.order, times[found.order], numbers))]
    return order[found.starts]


def _column(values: pa.Array | None, count: int) -> tuple[npt.NDArray[np.bool_], Column | None]:
    """Return which records can be folded, and a column of all values; None if none can."""
    everything = np.ones(count, dtype=bool)
    if values is None:
        return everything, np.zeros(count, np.int8)
    usable = everything
    if values.null_count:
        usable = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_integer(values.type):
        try:
            return usable, pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:  # beyond 64 bits
            return usable, None
    if pa.types.is_floating(values.type):
        column = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
        return usable & ~np.isnan(column), column
    return usable, None


def _coded(
    values: pa.Array | None,
) -> tuple[npt.NDArray[np.bool_], Column | None, list[bytes]]:
    """Return which values can be told apart, their numbers, and each number's encoded value."""
    assert values is not None, "distinct needs values"
    usable = values.is_valid().to_numpy(zero_copy_only=False)
    kind = values.type
    if not usable.any() or not (
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)
    ):
        return usable, None, []
    coded = pc.dictionary_encode(values)
    codes = pc.fill_null(coded.indices, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return usable, codes, [_encode(name) for name in coded.dictionary.to_pylist()]


_encode = msgspec.msgpack.Encoder().encode


def encoded_sizes(values: Column) -> npt.NDArray[np.int64]:
    """Return how many bytes msgpack takes for each number.

    >>> encoded_sizes(np.array([5, 200, -33, 70000])).tolist()
    [1, 2, 2, 5]
    """
    sizes = np.full(len(values), 9, dtype=np.int64)
    if values.dtype == np.int64:
        for bits, size in ((32, 5), (16, 3), (8, 2)):
            sizes[(values >= -(1 << (bits - 1))) & (values < 1 << bits)] = size
        sizes[(values >= -32) & (values < 128)] = 1
    return sizes
