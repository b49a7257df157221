"""Columns of many elements: what is aggregated of them, those of a key and window side by side.

Source: Dataflow patent, "AssignWindows" and "MergeWindows", FIG. 5, here before the grouping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.dataflow.aggregations.vector import Mask
from millrace.dataflow.element_types import Picks
from millrace.dataflow.windows.window_fn import Hashes, Ints, WindowFn, assigned_columns, overlaps

#: Python's types of values that make a column of one kind.
_ARROW: dict[type, pa.DataType] = {
    int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()
}  # fmt: skip


def by_type(picked: Sequence[Any]) -> Iterator[tuple[Mask, pa.Array]]:
    """Yield which values are of a type that makes a column, and that column.

    >>> [(there.tolist(), values.to_pylist()) for there, values in by_type([1, "a", None, 2])]
    [([True, False, False, True], [1, 2]), ([False, True, False, False], ['a'])]
    """
    kinds = [type(value) for value in picked]
    for kind in filter(set(kinds).__contains__, _ARROW):
        there = np.fromiter((each is kind for each in kinds), bool, len(kinds))
        values = _column([v for v in picked if type(v) is kind], kind)
        if values is not None:
            yield there, values


def fields_of(
    picks: Picks, fields: Sequence[Sequence[Any]], count: int
) -> Iterator[tuple[Mask, pa.Array]]:
    """Yield which tuples make columns of one type each, and these, as a struct.

    Where a value is of another type than most of its column, the tuple is left out; None is a null.

    Args:
        picks: What is chosen.
        fields: The items of the tuples, side by side.
        count: How many tuples there are.

    >>> picks = Picks(("price",), (), (None,))
    >>> ((there, values),) = fields_of(picks, [[1, None, 2, "x"]], 4)
    >>> there.tolist(), values.to_pylist()
    ([True, True, True, False], [{'0': 1}, {'0': None}, {'0': 2}])
    """
    there = np.ones(count, dtype=bool)
    kinds: list[type] = []
    for field in fields[: len(picks.sources)]:
        those = set(map(type, field)) - {type(None)}
        kind = next(iter(those), int)
        if len(those) > 1:
            types = [type(value) for value in field]
            kind = max(_ARROW, key=types.count)
            there &= np.fromiter((k in (kind, type(None)) for k in types), bool, count)
        kinds.append(kind)
    if not there.any():
        return
    if not there.all():
        left = np.flatnonzero(there).tolist()
        fields = [[field[n] for n in left] for field in fields]
    columns = []
    for n, field in enumerate(fields):
        column = _column(field, kinds[n]) if n < len(kinds) else pa.array(field, pa.bool_())
        if column is None:
            return
        columns.append(column)
    yield there, _struct(columns, int(there.sum()))


def fields_read(
    picks: Picks, read: Callable[[str | None], pa.Array | None], count: int
) -> pa.Array | None:
    """Return the columns of what is chosen by name, as a struct; None if not all of it is.

    Args:
        picks: What is chosen.
        read: Returns a column by its name; None if there is no such column.
        count: Its length.
    """
    if not picks.named:
        return None
    columns = []
    for name in picks.reads:
        column = read(name)
        if column is None:
            return None
        columns.append(column)
    for n in range(len(picks.sources), len(columns)):
        if not pa.types.is_boolean(columns[n].type):
            return None
        columns[n] = pc.fill_null(columns[n], False)
    return _struct(columns, count)


def _struct(columns: list[pa.Array], count: int) -> pa.Array:
    if not columns:
        return pa.nulls(count)
    return pa.StructArray.from_arrays(columns, names=[str(n) for n in range(len(columns))])


def _column(values: Sequence[Any], kind: type) -> pa.Array | None:
    """Return values of one type as a column; None if they are none."""
    try:
        return pa.array(values, _ARROW[kind])
    except (KeyError, OverflowError, pa.ArrowInvalid, UnicodeError):
        return None


@dataclass(frozen=True)
class Segments:
    """Elements, sorted.

    Attributes:
        order: Positions of the elements, those of a segment side by side and in order of arrival,
            or by time where windows merge.
        starts: Where in ``order`` each segment begins.
        windows: Where windows merge, start and end of each segment's.
    """

    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]
    windows: tuple[Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self.starts)


def segments(window_fn: WindowFn, codes: Ints, hashes: Hashes, timestamps: Ints) -> Segments:
    """Return the elements by key and window.

    Elements of one segment are in the same windows: of sliding ones, in the same several; where
    those that overlap merge, in one that holds the windows of all.

    Args:
        window_fn: One that assigns columns; see :func:`has_columns`.
        codes: The number of each element's key.
        hashes: The keys' hashes.
        timestamps: Microseconds.
    """
    if window_fn.merges:
        _, starts, ends = assigned_columns(window_fn, timestamps, hashes)
        order = by_code(codes, starts)
        starts, ends = starts[order], ends[order]
        begins = overlaps(codes[order], starts, ends)
        return Segments(order, begins, (starts[begins], np.maximum.reduceat(ends, begins)))
    return alike_segments(codes, window_fn.alike(timestamps, hashes))


def alike_segments(codes: Ints, minor: Ints) -> Segments:
    """Return elements by two numbers."""
    order = by_code(codes, minor)
    codes, minor = codes[order], minor[order]
    apart = (codes[1:] != codes[:-1]) | (minor[1:] != minor[:-1])
    return Segments(order, np.concatenate(([0], np.flatnonzero(apart) + 1)))


def by_code(codes: Ints, minor: Ints) -> npt.NDArray[np.intp]:
    """Return the order by code and then by minor, stable."""
    least = int(minor.min())
    width = int(minor.max()) - least + 1
    if width * (int(codes.max()) + 1) < 2**62:
        return np.argsort(codes * width + (minor - least), kind="stable")
    return np.lexsort((minor, codes))
