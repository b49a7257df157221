"""The numbers that elements bring to a grouping, and how they are folded as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.dataflow.aggregations import CombineFn, Count, Max, Mean, Min, Sum
from millrace.dataflow.formats import itself
from millrace.dataflow.partial import Partial
from millrace.model.errors import CoderError

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]

LARGEST = 2**63 - 1

#: What the numbers of a column are in a chunk: integers or floats, little-endian.
DTYPES = {"i": np.dtype("<i8"), "f": np.dtype("<f8")}

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


def fold_of(combine: CombineFn) -> Any:
    """Return the function of NumPy that folds a CombineFn's numbers."""
    return _FOLDS[type(combine)]


def folded(fold: Any, column: npt.NDArray[Any], starts: Positions) -> npt.NDArray[Any]:
    """Return each segment's total, as Python's integers where sums might not fit into 64 bits."""
    if fold is np.add and column.dtype.kind == "i":
        largest = max(int(column.max()), -int(column.min()))
        if largest * len(column) > LARGEST:
            column = column.astype(object)
    with np.errstate(invalid="ignore", over="ignore"):
        return fold.reduceat(column, starts)  # type: ignore[no-any-return]


def results(combine: CombineFn, numbers: list[Any], counts: list[int]) -> list[Any]:
    """Return the results of totals and counts."""
    if type(combine) is Count:
        return counts
    if type(combine) is Mean:
        return [total / count for total, count in zip(numbers, counts, strict=True)]
    return numbers


def weights(values: Sequence[Any]) -> tuple[Ints, list[int]]:
    """Return how many elements each value stands for, and the positions of the partials."""
    found = np.ones(len(values), np.int64)
    partials = [n for n, value in enumerate(values) if type(value) is Partial]
    for n in partials:
        found[n] = values[n].elements
    return found, partials


def numbers_of(
    combine: CombineFn, pick: Callable[[Any], Any], values: Sequence[Any], kept: Mask
) -> tuple[list[Any], dict[int, Exception]]:
    """Return the number that each element brings, and why some bring none.

    Args:
        combine: Of the grouping.
        pick: Chooses the value to aggregate of an element.
        values: Elements and partials.
        kept: Of each, whether it is not dropped: of what is, the number does not matter.
    """
    refused: dict[int, Exception] = {}
    if type(combine) is Count and pick is itself:
        return [0] * len(values), refused
    try:
        picked: list[Any] = [v if type(v) is Partial else pick(v) for v in values]
    except Exception:  # noqa: BLE001  found again below, at its record
        picked = list(values)
        for n, value in enumerate(values):
            try:
                picked[n] = value if type(value) is Partial else pick(value)
            except Exception as error:  # noqa: BLE001  a user's function may raise anything
                refused[n] = error
    if type(combine) is Count:
        return [0] * len(values), refused
    for n, value in enumerate(picked):
        if _is_plain(value):
            continue
        picked[n] = 0
        if kept[n] and n not in refused:
            try:
                picked[n] = _number(combine, value)
            except Exception as error:  # noqa: BLE001  whatever the value is
                refused[n] = error
    return picked, refused


def too_large() -> CoderError:
    """Return what to say of a sum that a column cannot hold."""
    return CoderError("the accumulator cannot be stored: a sum is beyond 64 bits.")


def fits(total: Any) -> bool:
    """Return whether a column can hold a total."""
    return type(total) is float or -LARGEST <= total <= LARGEST


def _number(combine: CombineFn, value: Any) -> Any:
    """Return the number of a partial, or of a value that is no plain one."""
    accumulator = (
        value.accumulator if type(value) is Partial else combine.add(combine.create(), value)
    )
    number = accumulator[0] if type(combine) is Mean else accumulator
    if not fits(number):
        raise too_large()
    return number


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number as a column has it."""
    if type(value) is int:
        return -LARGEST <= value <= LARGEST
    return type(value) is float and value == value
