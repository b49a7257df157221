"""Sum, Count and Mean: aggregations that a retraction can be taken out of."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.dataflow.aggregations.vector import (
    Column,
    Columns,
    VectorFold,
    none_where,
    quotients,
)
from millrace.model.errors import PipelineError


class Sum(VectorFold):
    """The sum of numbers; 0 for none.

    >>> Sum().uncombine(Sum().add(5, 3), 5)
    3
    """

    accumulator = int | float
    inverts = True
    folds = (np.add,)
    numbers_only = True

    def create(self) -> int:
        """Return 0."""
        return 0

    def add(self, accumulator: Any, value: Any) -> Any:
        """Return the sum of both."""
        if type(value) is int or (type(value) is float and value == value):
            return accumulator + value
        return accumulator + number(value, "sum")

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return the sum of both."""
        return accumulator + other

    def uncombine(self, accumulator: Any, value: Any) -> Any:
        """Return the difference."""
        return accumulator - number(value, "sum")

    def extract(self, accumulator: Any) -> Any:
        """Return the sum."""
        return accumulator

    def extracted(self, columns: Columns) -> list[Any]:
        """Return the sums."""
        return self.joined(columns)

    def of(self, values: Column) -> tuple[Column]:
        """Return the values."""
        return (values,)

    def result_type(self, value: Any) -> Any:
        """Return the numbers' own type."""
        return value if value in (int, float) else Any


class Count(VectorFold):
    """How many values there are.

    >>> Count().add(0, "anything")
    1
    """

    accumulator = int
    inverts = True
    folds = (np.add,)
    needs_values = False

    def create(self) -> int:
        """Return 0."""
        return 0

    def add(self, accumulator: int, value: Any) -> int:
        """Return one more."""
        return accumulator + 1

    def merge(self, accumulator: int, other: int) -> int:
        """Return the sum of both."""
        return accumulator + other

    def uncombine(self, accumulator: int, value: Any) -> int:
        """Return one less."""
        return accumulator - 1

    def extract(self, accumulator: int) -> int:
        """Return the count."""
        return accumulator

    def extracted(self, columns: Columns) -> list[Any]:
        """Return the counts."""
        return self.joined(columns)

    def of(self, values: Column) -> tuple[Column]:
        """Return 1 for each."""
        return (np.ones(len(values), np.int64),)

    def result_type(self, value: Any) -> Any:
        """Return int."""
        return int


class Mean(VectorFold):
    """The arithmetic mean of numbers, a float; None for none.

    >>> Mean().extract(Mean().add(Mean().add(Mean().create(), 1), 2))
    1.5
    """

    accumulator = tuple[int | float, int]
    inverts = True
    folds = (np.add, np.add)
    numbers_only = True

    def create(self) -> tuple[int, int]:
        """Return sum and count of nothing."""
        return 0, 0

    def add(self, accumulator: Any, value: Any) -> Any:
        """Add to sum and count."""
        total, count = accumulator
        return total + number(value, "mean"), count + 1

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Add sums and counts."""
        return accumulator[0] + other[0], accumulator[1] + other[1]

    def uncombine(self, accumulator: Any, value: Any) -> Any:
        """Take from sum and count."""
        total, count = accumulator
        return total - number(value, "mean"), count - 1

    def extract(self, accumulator: Any) -> float | None:
        """Return the quotient."""
        total, count = accumulator
        return total / count if count else None

    def extracted(self, columns: Columns) -> list[Any] | None:
        """Return the quotients."""
        total, count = columns
        found = quotients(total, count)
        return None if found is None else none_where(count == 0, found)

    def of(self, values: Column) -> tuple[Column, Column]:
        """Return the values, and 1 for each."""
        return values, np.ones(len(values), np.int64)

    def result_type(self, value: Any) -> Any:
        """Return float, or None for no values."""
        return float | None


def number(value: Any, what: str) -> Any:
    """Return a number as it is, or say why it is none.

    Raises:
        PipelineError: NaN, a bool, text, None, and all else that is not an int or a float.

    >>> number(3, "sum")
    3
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value != value:
            raise PipelineError(
                f"{what} was given NaN, which would make every result of its window NaN. Filter "
                "such values out before the window."
            )
        return value
    if hasattr(value, "__index__") or hasattr(value, "__float__"):
        if isinstance(value, bool):
            raise PipelineError(f"{what} was given {value!r}: count truths with int(value).")
        # numpy's scalars and Decimal, as the plain number.
        whole = hasattr(value, "__index__")
        return number(value.__index__() if whole else float(value), what)
    raise PipelineError(
        f"{what} was given {value!r} ({type(value).__name__}). Expected an int or a float."
    )
