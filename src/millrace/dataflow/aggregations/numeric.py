"""Count, Sum, Mean, Variance and StdDev: of numbers, and a retraction can be taken out of them."""

from __future__ import annotations

import math
from decimal import Context, Decimal, Inexact
from typing import Any, Final

import numpy as np

from millrace.dataflow.aggregations.vector import (
    LARGEST,
    SMALLEST,
    Column,
    Columns,
    Mask,
    Starts,
    VectorFold,
    none_where,
    quotients,
)
from millrace.model.errors import PipelineError, brief

#: So many digits a sum of Decimals may have; none of them is ever rounded.
_DIGITS_MAX: Final = 1_000
_exact = Context(prec=_DIGITS_MAX, traps=[Inexact])
#: What the first of two integers counts that are a sum beyond 64 bits.
_UPPER: Final = 1 << 62
#: A mean of Decimals is rounded to 28 digits, half to even, whatever the process's context is.
_rounded = Context(prec=28)


class FoldOfItself(VectorFold):
    """A fold whose accumulator is the result."""

    def extract(self, accumulator: Any) -> Any:
        """Return the accumulator."""
        return accumulator

    def extracted(self, columns: Columns) -> list[Any]:
        """Return the accumulators."""
        return self.joined(columns)

    def of(self, values: Column) -> tuple[Column]:
        """Return the values."""
        return (values,)


class Sum(FoldOfItself):
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

    def result_type(self, value: Any) -> Any:
        """Return the numbers' own type."""
        return value if value in (int, float, Decimal) else Any


class Count(FoldOfItself):
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

    def of(self, values: Column) -> tuple[Column]:
        """Return 1 for each."""
        return (np.ones(len(values), np.int64),)

    def result_type(self, value: Any) -> Any:
        """Return int."""
        return int


def _packed(added: Any) -> Any:
    """Return a sum as an accumulator has it: an integer beyond 64 bits as two."""
    if type(added) is int and not SMALLEST <= added <= LARGEST:
        return divmod(added, _UPPER)
    return added


def _unpacked(added: Any) -> Any:
    """Return the sum that was packed.

    >>> [_unpacked(_packed(n)) == n for n in (1 << 63, -(1 << 63) - 1, -(1 << 70), 7, 0.5)]
    [True, True, True, True, True]
    """
    if type(added) is tuple or type(added) is list:
        upper, lower = added
        return upper * _UPPER + lower
    return added


class Mean(VectorFold):
    """The arithmetic mean of numbers, a float; of Decimals a Decimal of 28 digits; None for none.

    A sum beyond 64 bits, as instants have, is two integers in the accumulator: msgpack's have 64.

    >>> Mean().extract(Mean().add(Mean().add(Mean().create(), 1), 2))
    1.5
    """

    accumulator = tuple[int | float | Decimal | tuple[int, int], int]
    inverts = True
    folds = (np.add, np.add)
    numbers_only = True

    def create(self) -> tuple[int, int]:
        """Return sum and count of nothing."""
        return 0, 0

    def add(self, accumulator: Any, value: Any) -> Any:
        """Add to sum and count."""
        added, count = accumulator
        if type(added) is int and type(value) is int and SMALLEST <= added + value <= LARGEST:
            return added + value, count + 1
        return _packed(total(_unpacked(added), number(value, "mean"), "mean")), count + 1

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Add sums and counts."""
        added = total(_unpacked(accumulator[0]), _unpacked(other[0]), "mean")
        return _packed(added), accumulator[1] + other[1]

    def uncombine(self, accumulator: Any, value: Any) -> Any:
        """Take from sum and count."""
        added, count = accumulator
        return _packed(total(_unpacked(added), _negative(value, "mean"), "mean")), count - 1

    def extract(self, accumulator: Any) -> float | Decimal | None:
        """Return the quotient."""
        added, count = _unpacked(accumulator[0]), accumulator[1]
        if type(added) is Decimal and count:
            return _rounded.divide(added, count)
        return added / count if count else None

    def split(self, accumulator: Any) -> tuple[Any, ...]:
        """Return sum and count."""
        return _unpacked(accumulator[0]), accumulator[1]

    def extracted(self, columns: Columns) -> list[Any] | None:
        """Return the quotients."""
        added, count = columns
        means = quotients(added, count)
        return None if means is None else none_where(count == 0, means)

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
    checked = number(value, what)
    return checked.copy_negate() if type(checked) is Decimal else -checked


class Variance(VectorFold):
    """The variance of numbers, a float; None where there are too few.

    It is as exact as floats allow however large the numbers are, as it never squares them but only
    how far they lie from a mean. A value cannot be taken out again without losing that.

    Args:
        sample: Divide by one less than how many there are, as for a sample of more; None below
            two. Else they are all there is, and the variance of one is 0.

    Source: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances" (1979).

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(Variance(), [1, 2, 6]), combine(Variance(sample=False), [1, 2, 6])
    (7.0, 4.666666666666667)
    """

    #: How many, their mean, and the sum of the squares of their distances from it.
    accumulator = tuple[int, float, float]
    numbers_only = True

    def __init__(self, *, sample: bool = True) -> None:
        self.sample = sample

    def create(self) -> tuple[int, float, float]:
        """Return those of no values."""
        return 0, 0.0, 0.0

    def add(self, accumulator: Any, value: Any) -> Any:
        """Return those with one more value."""
        count, mean, squares = accumulator
        at = self._finite(value)
        away = at - mean
        mean += away / (count + 1)
        return count + 1, mean, squares + away * (at - mean)

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return those of the values of both."""
        (count, mean, squares), (more, their_mean, their_squares) = accumulator, other
        if not count or not more:
            return other if not count else accumulator
        both, away = count + more, their_mean - mean
        squares += their_squares + away * away * count * more / both
        return both, mean + away * more / both, squares

    def extract(self, accumulator: Any) -> float | None:
        """Return the variance."""
        count, _, squares = accumulator
        divisor = count - 1 if self.sample else count
        return float(squares / divisor) if divisor > 0 else None

    def extracted(self, columns: Columns) -> list[Any] | None:
        """Return the variances."""
        count, _, squares = columns
        divisor = count - 1 if self.sample else count
        variances = quotients(squares, divisor)
        return (
            None if variances is None else none_where(divisor <= 0, self._of_variances(variances))
        )

    def _of_variances(self, variances: Column) -> Column:
        return variances

    def result_type(self, value: Any) -> Any:
        """Return float, or None for too few values."""
        return float | None

    # -- whole columns -----------------------------------------------------------------------------

    def takes(self, values: Column) -> Mask:
        """Return which are finite."""
        return np.isfinite(values)

    def of(self, values: Column) -> Columns:
        """Return 1, the value and 0 for each."""
        ones = np.ones(len(values), np.int64)
        return ones, values.astype(np.float64), np.zeros(len(values))

    def reduce(self, columns: Columns, starts: Starts) -> Columns:
        """Return those of segments, by way of how far the means lie from the first of each."""
        counts, means, squares = columns
        sizes = np.diff(starts, append=len(counts))
        with np.errstate(invalid="ignore", over="ignore"):
            first, count = means[starts], np.add.reduceat(counts, starts)
            away = means - np.repeat(first, sizes)
            mean = first + np.add.reduceat(counts * away, starts) / count
            away = means - np.repeat(mean, sizes)
            total = np.add.reduceat(squares + counts * away * away, starts)
        return count, mean, total

    def _finite(self, value: Any) -> float:
        what = type(self).__name__.lower()
        try:
            at = float(number(value, what))
        except OverflowError:
            at = math.inf
        if math.isinf(at):
            raise PipelineError(
                f"{what} was given {brief(value, 120)}, which is no finite float: nothing lies a "
                "known way from it. Filter such values out before the window."
            )
        return at


class StdDev(Variance):
    """The standard deviation of numbers: the square root of their variance.

    Args:
        sample: See :class:`Variance`.

    >>> from millrace.dataflow.aggregations import combine
    >>> combine(StdDev(), [2, 4]), combine(StdDev(), [2])
    (1.4142135623730951, None)
    """

    def extract(self, accumulator: Any) -> float | None:
        """Return the square root of the variance."""
        variance = super().extract(accumulator)
        return None if variance is None else math.sqrt(variance)

    def _of_variances(self, variances: Column) -> Column:
        with np.errstate(invalid="ignore"):
            return np.sqrt(variances)
