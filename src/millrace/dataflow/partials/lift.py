"""Lift: makes partials of records on their way to one grouping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.dataflow.aggregations.vector import Vector, numbers
from millrace.dataflow.element_types import Chosen, Picks
from millrace.dataflow.partials.columns import Segments, by_type, fields_of, fields_read, segments
from millrace.dataflow.partials.partial import Partial, PartialCoder
from millrace.dataflow.windows.window_fn import WindowFn
from millrace.model.coder import Coder
from millrace.model.errors import RAISED
from millrace.model.pane import Window

#: A partial stands for so many records at least, on the average; else it does not pay.
WORTHWHILE = 2


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
        vector: The vector form of its aggregation.
        value: What is aggregated of an element: a column name, a function, several, or all of it.
        pick: Chooses that of an element.
        coder: Of the partials.
        sized: Whether a trigger asks for the size of elements.
    """

    window_fn: WindowFn
    vector: Vector
    value: Chosen | Picks
    pick: Callable[[Any], Any]
    coder: PartialCoder
    sized: bool

    @property
    def needs_values(self) -> bool:
        """Whether the values matter, and not only how many there are."""
        return self.vector.needs_values or self.sized

    def column(self, read: Callable[[str | None], pa.Array | None], count: int) -> pa.Array | None:
        """Return what is aggregated, as a column; None if that takes the elements themselves.

        Args:
            read: Returns a column of the elements by its name, the elements for None; None if they
                are no such column.
            count: How many elements there are.
        """
        if isinstance(self.value, Picks):
            return fields_read(self.value, read, count)
        return read(self.value) if self.value is None or isinstance(self.value, str) else None

    @property
    def takes_elements(self) -> bool:
        """Whether what is aggregated may be chosen of elements, where there is no column of it."""
        named = self.value.named if isinstance(self.value, Picks) else isinstance(self.value, str)
        return not named and self.value is not None

    def picked(self, elements: Sequence[Any]) -> Sequence[Any]:
        """Return what is aggregated of elements: of each a value, or of several a column each."""
        if isinstance(self.value, Picks):
            return self.value.columns(elements)
        return [self.pick(element) for element in elements]

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
        count = len(timestamps)
        taken = values if values is not None else pa.nulls(count)
        usable = self.vector.usable(taken)
        if usable is None:
            return None
        sizes = None
        if self.sized:
            sizes = encoded_sizes(taken)
            if sizes is None:
                return None
            usable &= taken.is_valid().to_numpy(zero_copy_only=False)
        positions = np.flatnonzero(usable)
        if len(positions) < WORTHWHILE:
            return None
        codes = pc.dictionary_encode(keys).indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if len(positions) < count:
            codes, hashes, timestamps = codes[positions], hashes[positions], timestamps[positions]
        # Every key has a window at least: what is not worth it mostly shows here already.
        if (int(codes.max()) + 1) * WORTHWHILE > count:
            return None
        found = segments(self.window_fn, codes, hashes, timestamps)
        if len(found) * WORTHWHILE > len(positions):
            return None
        chosen = positions[found.order]
        accumulators = self.vector.accumulators(taken.take(pa.array(chosen)), found.starts)
        if accumulators is None:
            return None
        ordered = timestamps[found.order]
        first = (
            _first_by(found, timestamps)
            if by_time
            else np.minimum.reduceat(found.order, found.starts)
        )
        made = zip(
            _windows(found),
            accumulators,
            np.diff(found.starts, append=len(positions)).tolist(),
            [0] * len(found)
            if sizes is None
            else np.add.reduceat(sizes[chosen], found.starts).tolist(),
            np.minimum.reduceat(ordered, found.starts).tolist(),
            np.maximum.reduceat(ordered, found.starts).tolist(),
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
            picked = self.picked([coder.decode(value) for value in encoded.to_pylist()])
        except RAISED:  # the grouping meets it too, and can say at which record
            return None
        return self.apply_picked(keys, hashes, timestamps, picked, by_time=by_time)

    def apply_picked(
        self,
        keys: pa.Array,
        hashes: npt.NDArray[np.uint64],
        timestamps: npt.NDArray[np.int64],
        picked: Sequence[Any],
        *,
        by_time: bool = False,
    ) -> Lifted | None:
        """Return the partials of records, as :meth:`apply` does, of what :meth:`picked` gave."""
        made = []
        several = self.value if isinstance(self.value, Picks) else None
        for there, values in (
            by_type(picked) if several is None else fields_of(several, picked, len(hashes))
        ):
            some = pa.array(there)
            lifted = self.apply(
                keys.filter(some), hashes[there], timestamps[there], values, by_time=by_time
            )
            if lifted is not None:
                made.append(lifted.at(np.flatnonzero(there), len(hashes)))
        return Lifted.concat(made) if made else None


def _windows(found: Segments) -> list[Window | None]:
    """Return the window of each segment where windows merge; else it is that of its timestamp."""
    if found.windows is None:
        return [None] * len(found)
    starts, ends = found.windows
    return list(map(Window, starts.tolist(), ends.tolist()))


def _first_by(found: Segments, times: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Return the position of each segment's earliest element; of equal ones the first to come."""
    numbers = np.repeat(np.arange(len(found)), np.diff(found.starts, append=len(found.order)))
    order = found.order[np.lexsort((found.order, times[found.order], numbers))]
    return order[found.starts]


def encoded_sizes(values: pa.Array) -> npt.NDArray[np.int64] | None:
    """Return how many bytes msgpack takes for each value; None if they are of another kind.

    >>> encoded_sizes(pa.array([5, 200, -33, 70000])).tolist()
    [1, 2, 2, 5]
    >>> encoded_sizes(pa.array(["a", "b" * 40])).tolist()
    [2, 42]
    """
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
        lengths = found.astype(np.int64)
        headers = np.searchsorted(
            [0 if pa.types.is_binary(kind) else 32, 256, 65536], lengths, "right"
        )
        encoded: npt.NDArray[np.int64] = lengths + np.array([1, 2, 3, 5])[headers]
        return encoded
    column = numbers(values)
    if column is None:
        return None
    sizes: npt.NDArray[np.int64] = np.full(len(column), 9, np.int64)
    if column.dtype == np.int64:
        for bits, size in ((32, 5), (16, 3), (8, 2)):
            sizes[(column >= -(1 << (bits - 1))) & (column < 1 << bits)] = size
        sizes[(column >= -32) & (column < 128)] = 1
    return sizes
