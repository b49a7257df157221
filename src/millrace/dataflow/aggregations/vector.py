"""The vector form of an aggregation: what it does to whole columns of values at once.

Values come sorted into segments, those of one key and window side by side. What comes out is an
accumulator for each, equal to what ``add`` would have made of them one by one (sums of floats up to
rounding, as always where they are added in another order).

An aggregation says it in its own class. Four clients use it and know of no aggregation by name:
combining before the shuffle (:mod:`millrace.dataflow.partials`), keeping as columns
(:mod:`millrace.dataflow.columnar`), and, by the scalar form, fan-out and key by key.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.dataflow.aggregations.combine_fn import CombineFn
from millrace.dataflow.value import last_word

#: Numbers: int64 or float64; objects where some are Python's, beyond 64 bits or of both kinds.
Column = npt.NDArray[Any]
#: Columns of equal length.
Columns = tuple[Column, ...]
#: Where each segment begins.
Starts = npt.NDArray[np.intp]
Positions = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

SMALLEST, LARGEST = -(2**63), 2**63 - 1


class Vector(Protocol):
    """What becomes of values before they are shuffled.

    Attributes:
        needs_values: Whether the values matter, and not only how many there are.
    """

    @property
    def needs_values(self) -> bool:
        """See above."""
        ...

    def usable(self, values: pa.Array) -> Mask | None:
        """Return which values can be folded; None if a column of this type cannot be.

        What is left out goes on by itself, so that the grouping tells what is wrong with it.
        """

    def accumulators(self, values: pa.Array, starts: Starts) -> list[Any] | None:
        """Return the accumulator of each segment; None if one would be beyond what can be stored.

        Args:
            values: Usable ones, sorted into segments; nulls if they do not matter.
            starts: Where each segment begins.
        """


class VectorFold(CombineFn):
    """A CombineFn of numbers that folds whole columns as well.

    Its accumulator is a number, or a tuple of numbers, always as many. Besides the methods of a
    :class:`~millrace.dataflow.aggregations.CombineFn` it has ``of``, the accumulators of single
    values as columns. ``folds`` is NumPy's function that merges each column, or ``reduce`` merges
    them, where that is not one by one. Then values are combined before the shuffle, and windows are
    kept as columns, where a built-in aggregation's would be. Scalar and vector form must agree; a
    class that defines ``create``, ``add`` or ``merge`` anew and not the vector form is folded value
    by value.

    >>> import numpy as np
    >>> class Range(VectorFold):
    ...     accumulator = tuple[int | float, int | float] | None
    ...     folds = (np.minimum, np.maximum)
    ...
    ...     def create(self):
    ...         return None
    ...
    ...     def add(self, accumulator, value):
    ...         return self.merge(accumulator, (value, value))
    ...
    ...     def merge(self, accumulator, other):
    ...         if accumulator is None or other is None:
    ...             return accumulator or other
    ...         return min(accumulator[0], other[0]), max(accumulator[1], other[1])
    ...
    ...     def extract(self, accumulator):
    ...         return None if accumulator is None else accumulator[1] - accumulator[0]
    ...
    ...     def of(self, values):
    ...         return values, values
    >>> columns = Range().of(np.array([5, 9, 6, 2]))
    >>> [column.tolist() for column in Range().reduce(columns, np.array([0, 3]))]
    [[5, 2], [9, 2]]
    """

    #: NumPy's function that merges each column of the accumulators: ``np.add`` and so on.
    folds: ClassVar[tuple[np.ufunc, ...]] = ()

    #: Whether ``add`` refuses whatever is no number; else only values that are declared as numbers
    #: are kept as columns.
    numbers_only: ClassVar[bool] = False

    #: Whether the values matter, and not only how many there are.
    needs_values: ClassVar[bool] = True

    @property
    def stable(self) -> bool:
        """Whether a result stays as it is: it is made of numbers."""
        return True

    def of(self, values: Column) -> Columns:
        """Return the accumulators of single values, as columns of their length.

        Args:
            values: int64 or float64, without NaN; those that ``takes`` has let through.
        """
        raise NotImplementedError(f"{type(self).__name__} has no of")

    def takes(self, values: Column) -> Mask:
        """Return which numbers the vector form takes; ``add`` takes or refuses the others."""
        return np.ones(len(values), dtype=bool)

    def reduce(self, columns: Columns, starts: Starts) -> Columns:
        """Return the accumulators of segments of accumulators.

        Integers that might leave 64 bits come and go as objects, which NumPy adds as Python does.
        """
        return tuple(
            folded(fold, column, starts) for fold, column in zip(self.folds, columns, strict=True)
        )

    def vector(self, values: Any) -> Vector | str:
        """Return this, or why values of a type are folded one by one."""
        return for_numbers(self, self, values) if self.needs_values else self

    def keeps(self, values: Any) -> bool:
        """Return whether accumulators of values of a type can be kept as columns."""
        if self.needs_values and values not in (int, float) and not self.numbers_only:
            return False  # the smallest may be of anything
        return not self.needs_values or values in (int, float, Any)

    # -- from accumulators to columns and back -----------------------------------------------------

    def usable(self, values: pa.Array) -> Mask | None:
        """Return which values are numbers that the vector form takes."""
        if not self.needs_values:
            return np.ones(len(values), dtype=bool)
        column = numbers(values)
        if column is None:
            return None
        return self.takes(column) & plain(column, values)

    def accumulators(self, values: pa.Array, starts: Starts) -> list[Any] | None:
        """Return the accumulator of each segment; None if a sum is beyond 64 bits."""
        column = numbers(values) if self.needs_values else np.zeros(len(values), np.int64)
        assert column is not None, "only usable values are folded"
        columns = self.reduce(self.of(column), starts)
        if not all(within(column).all() for column in columns):
            return None
        return self.joined(columns)

    @property
    def width(self) -> int:
        """How many columns its accumulators have."""
        return len(self.folds) or len(self.of(np.ones(1, np.int64)))

    def gather(self, values: Sequence[Any]) -> Iterator[tuple[Positions, Columns]]:
        """Yield what values bring that the vector form takes: positions, and their accumulators.

        Args:
            values: As Python has them. ``add`` takes or refuses those that are in no yield.
        """
        if not self.needs_values:
            yield np.arange(len(values)), self.of(np.zeros(len(values), np.int64))
            return
        for kind in (int, float):
            positions = of_type(values, kind)
            if not len(positions):
                continue
            whole = len(positions) == len(values)
            column, good = plain_column(
                values if whole else [values[n] for n in positions.tolist()]
            )
            good &= self.takes(column)
            if not good.all():
                positions, column = positions[good], column[good]
            if len(positions):
                yield positions, self.of(column)

    def split(self, accumulator: Any) -> tuple[Any, ...]:
        """Return the parts of an accumulator: one for each column."""
        return tuple(accumulator) if isinstance(accumulator, tuple | list) else (accumulator,)

    def results(self, columns: Columns) -> Sequence[Any]:
        """Return the results of the accumulators that columns hold the parts of."""
        extracted = None
        if last_word(type(self), ("extracted",), ("extract", "joined")):
            extracted = self.extracted(columns)
        return list(map(self.extract, self.joined(columns))) if extracted is None else extracted

    def extracted(self, columns: Columns) -> list[Any] | None:
        """Return what :meth:`extract` does, of whole columns; None: ask it one by one."""
        return None

    def joined(self, columns: Columns) -> list[Any]:
        """Return the accumulators that columns hold the parts of."""
        parts = [column.tolist() for column in columns]
        return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def of_type(values: Sequence[Any], kind: type) -> Positions:
    """Return where values of a type lie, which most often are all or none.

    A bool is no int, and neither is what is of a class of a user's.

    >>> of_type([1, True, 2.0, 3], int).tolist()
    [0, 3]
    """
    kinds = set(map(type, values))
    if kinds == {kind}:
        return np.arange(len(values))
    if kind not in kinds:
        return np.array([], np.intp)
    return np.flatnonzero(np.fromiter((type(v) is kind for v in values), bool, len(values)))


def plain_column(values: Sequence[Any]) -> tuple[Column, Mask]:
    """Return a column of the numbers of the type that most of some values have, and where it is.

    >>> column, good = plain_column([1, None, 3, "x"])
    >>> column.tolist(), good.tolist()
    ([1, 0, 3, 0], [True, False, True, False])
    """
    positions = max(of_type(values, int), of_type(values, float), key=len)
    dtype = np.float64 if len(positions) and type(values[positions[0]]) is float else np.int64
    whole = len(positions) == len(values)
    some = values if whole else [values[n] for n in positions.tolist()]
    try:
        found = np.array(some, dtype)
    except OverflowError:
        positions = positions[np.fromiter(map(fits, some), bool, len(some))]
        whole, found = False, np.array([values[n] for n in positions.tolist()], dtype)
    if whole:
        return found, ~np.isnan(found)
    column, good = np.zeros(len(values), dtype), np.zeros(len(values), dtype=bool)
    column[positions], good[positions] = found, ~np.isnan(found)
    return column, good


def folded(fold: np.ufunc, column: Column, starts: Starts) -> Column:
    """Return each segment's total, as Python's integers where a sum might not fit into 64 bits.

    >>> import numpy as np
    >>> folded(np.add, np.array([2**62, 2**62, 5]), np.array([0, 2])).tolist()
    [9223372036854775808, 5]
    """
    integers = column.dtype.kind == "i"
    if fold is np.add and integers and _largest(column) * len(column) > LARGEST:
        column = column.astype(object)
    with np.errstate(invalid="ignore", over="ignore"):
        totals: Column = fold.reduceat(column, starts)
    return totals


def _largest(column: Column) -> int:
    """Return how far from zero integers go."""
    return max(int(column.max()), -int(column.min())) if len(column) else 0


def quotients(dividends: Column, divisors: Column) -> Column | None:
    """Return what Python makes of divisions, NaN where one is by nothing; None if it makes another.

    Integers beyond 53 bits are rounded by Python after they are divided, and by NumPy before.

    >>> import numpy as np
    >>> quotients(np.array([3, 4]), np.array([2, 0])).tolist()
    [1.5, nan]
    >>> quotients(np.array([2**60]), np.array([3]))
    """
    for column in (dividends, divisors):
        if column.dtype == object:
            return None
        if column.dtype.kind == "i" and _largest(column) > 2**53:
            return None
    results = np.full(len(dividends), np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        np.divide(dividends, divisors, out=results, where=divisors != 0)
    return results


def none_where(missing: Mask, column: Column) -> list[Any]:
    """Return a column as Python has it, with None in some places."""
    values: list[Any] = column.tolist()
    for n in np.flatnonzero(missing).tolist():
        values[n] = None
    return values


def within(column: Column) -> Mask:
    """Return which numbers a column of 64 bits can hold."""
    if column.dtype != object:
        return np.ones(len(column), dtype=bool)
    return np.fromiter(map(fits, column), bool, len(column))


def fits(number: Any) -> bool:
    """Return whether a number is one that a column of 64 bits can hold."""
    return type(number) is float or (type(number) is int and SMALLEST <= number <= LARGEST)


def vector_of(combine: CombineFn, values: Any) -> Vector | str:
    """Return the vector form of an aggregation of values of a type, or why it has none.

    A class that defines how single values are combined anew inherits the vector form of something
    else.
    """
    vector = combine.vector(values)
    if isinstance(vector, str):
        return vector
    if not last_word(type(combine), ("vector", "of", "folds", "reduce"), _SCALAR):
        return f"{combine!r} combines values in a way of its own, with no vector form of that"
    return vector


_SCALAR = ("create", "add", "merge")


def for_numbers(combine: CombineFn, vector: Vector, values: Any) -> Vector | str:
    """Return a vector form that is of numbers, or that values of a type are none."""
    if {values, *typing.get_args(values)} & {int, float, Any}:
        return vector
    return f"{combine!r} is lifted for numbers, and the values are {values!r}"


def numbers(values: pa.Array) -> Column | None:
    """Return a column as int64 or float64, with nulls as 0; None if it has other values."""
    if pa.types.is_integer(values.type):
        try:
            values = values.cast(pa.int64())
        except pa.ArrowInvalid:  # beyond 64 bits
            return None
    elif pa.types.is_floating(values.type):
        values = values.cast(pa.float64())
    else:
        return None
    if values.null_count:
        values = pc.fill_null(values, pa.scalar(0, values.type))
    return values.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def plain(column: Column, values: pa.Array) -> Mask:
    """Return which numbers are there, and not NaN."""
    mask: Mask = ~np.isnan(column)
    return mask & values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else mask
