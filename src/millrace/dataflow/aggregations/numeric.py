"""Sum, Count and Mean: aggregations that a retraction can be taken out of."""

from __future__ import annotations

from decimal import Context, Decimal, Inexact
from typing import Any, Final

import numpy as np

from millrace.dataflow.aggregations.vector import (
    Column,
    Columns,
    VectorFold,
    none_where,
    quotients,
)
from millrace.model.brief import brief
from millrace.model.errors import PipelineError

#: So many digits a sum of Decimals may have; none of them is ever rounded.
_DIGITS_MAX: Final = 1_000
_exact = Context(prec=_DIGITS_MAX, traps=[Inexact])
#: A mean of Decimals is rounded to 28 digits, half to even, whatever the process's context is.
_rounded = Context(prec=28)


class Sum(VectorFold):
    """The sum of numbers; 0 for none. Of Decimals it is exact, and a Decimal.

    >>> Sum().uncombine(Sum().add(5, 3), 5)
    3
    """

    accumulator = int | float | Decimal
    inverts = True
    folds = (np.add,)
    numbers_only = True

    def create(self) -> int:
        """Return 0."""
        return 0

    def add(self, accumulator: Any, value: Any) -> Any:
        """Return the sum of both."""
        if type(accumulator) is not Decimal and (
            type(value) is int or (type(value) is float and value == value)
        ):
            return accumulator + value
        return total(accumulator, number(value, "sum"), "sum")

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return the sum of both."""
        return total(accumulator, other, "sum")

    def uncombine(self, accumulator: Any, value: Any) -> Any:
        """Return the difference."""
        return total(accumulator, _negative(value, "sum"), "sum")

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
        return value if value in (int, float, Decimal) else Any


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
    """The arithmetic mean of numbers, a float; of Decimals a Decimal of 28 digits; None for none.

    >>> Mean().extract(Mean().add(Mean().add(Mean().create(), 1), 2))
    1.5
    """

    accumulator = tuple[int | float | Decimal, int]
    inverts = True
    folds = (np.add, np.add)
    numbers_only = True

    def create(self) -> tuple[int, int]:
        """Return sum and count of nothing."""
        return 0, 0

    def add(self, accumulator: Any, value: Any) -> Any:
        """Add to sum and count."""
        added, count = accumulator
        return total(added, number(value, "mean"), "mean"), count + 1

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Add sums and counts."""
        return total(accumulator[0], other[0], "mean"), accumulator[1] + other[1]

    def uncombine(self, accumulator: Any, value: Any) -> Any:
        """Take from sum and count."""
        added, count = accumulator
        return total(added, _negative(value, "mean"), "mean"), count - 1

    def extract(self, accumulator: Any) -> float | Decimal | None:
        """Return the quotient."""
        added, count = accumulator
        if type(added) is Decimal and count:
            return _rounded.divide(added, count)
        return added / count if count else None

    def extracted(self, columns: Columns) -> list[Any] | None:
        """Return the quotients."""
        added, count = columns
        found = quotients(added, count)
        return None if found is None else none_where(count == 0, found)

    def of(self, values: Column) -> tuple[Column, Column]:
        """Return the values, and 1 for each."""
        return values, np.ones(len(values), np.int64)

    def result_type(self, value: Any) -> Any:
        """Return float, or for Decimals Decimal, or None for no values."""
        return (Decimal if value is Decimal else float) | None


def total(one: Any, other: Any, what: str) -> Any:
    """Return the sum of two numbers; exact if one is a Decimal and none a float.

    Raises:
        PipelineError: A Decimal meets a float, or the sum has too many digits.

    >>> total(0, Decimal("0.10"), "sum"), total(Decimal("1e27"), Decimal("0.01"), "sum")
    (Decimal('0.10'), Decimal('1000000000000000000000000000.01'))
    """
    if type(one) is not Decimal and type(other) is not Decimal:
        return one + other
    if float in (type(one), type(other)):
        raise PipelineError(
            f"{what} was given Decimals and floats, {one!r} and {other!r}, whose sum would be "
            "exact for neither. Make them all Decimals, Decimal(str(value)), or all floats."
        )
    try:
        return _exact.add(one, other)
    except Inexact:
        raise PipelineError(
            f"{what} of {one!r} and {other!r} has more than {_DIGITS_MAX} digits, and Decimals "
            "are not rounded."
        ) from None


def number(value: Any, what: str) -> Any:
    """Return a number as it is, or say why it is none.

    Raises:
        PipelineError: NaN, an infinite Decimal, a bool, text, None, and all else that is not an
            int, a float or a Decimal.

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
    if isinstance(value, Decimal):
        if value.is_finite():
            return value
        raise PipelineError(
            f"{what} was given {brief(value, 120)}, and Decimals are added exactly. Filter such "
            "values out before the window."
        )
    if isinstance(value, bool | np.bool_):
        raise PipelineError(f"{what} was given {value!r}: count truths with int(value).")
    if isinstance(value, np.floating):
        return number(float(value), what)
    if hasattr(value, "__index__"):
        return value.__index__()
    raise PipelineError(
        f"{what} was given {brief(value, 120)} ({type(value).__name__}). Expected an int, a float "
        "or a Decimal."
    )


def _negative(value: Any, what: str) -> Any:
    """Return a number with the other sign; of a Decimal no digit is rounded."""
    found = number(value, what)
    return found.copy_negate() if type(found) is Decimal else -found
