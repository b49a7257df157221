"""CombineFn: what is computed over the values of a window.

Source: Dataflow patent, "Aggregation API 200" and "uncombine"; MillWheel 4.4, combining.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from millrace.dataflow.value import Value
from millrace.model.equality import equalities
from millrace.model.errors import PipelineError, brief

if TYPE_CHECKING:
    from millrace.dataflow.aggregations.vector import Vector


class CombineFn(Value):
    """Folds values into an accumulator, so that order and grouping of the values do not matter.

    A value: equal by what it was made with, and it must pickle. ``add`` and ``merge`` may change
    the accumulator that they are given and return it; ``extract`` must not. The accumulator is
    kept between bundles as msgpack, by its type.

    Derive from it, and define ``create``, ``add``, ``merge`` and ``extract``; define ``uncombine``
    as well where a value can be taken out again. Without it, over a stream with retractions the
    values themselves are kept, and the result is computed from them anew.

    >>> class Longest(CombineFn):
    ...     accumulator = str
    ...
    ...     def create(self):
    ...         return ""
    ...
    ...     def add(self, accumulator, value):
    ...         return max(accumulator, value, key=len)
    ...
    ...     def merge(self, accumulator, other):
    ...         return self.add(accumulator, other)
    ...
    ...     def extract(self, accumulator):
    ...         return accumulator
    >>> combine(Longest(), ["mill", "millrace", "race"])
    'millrace'
    """

    #: The type of the accumulator, for state. By default whatever msgpack carries: then a tuple
    #: comes back as a list.
    accumulator: ClassVar[Any] = Any

    #: Whether ``uncombine`` works on an accumulator that the value is not in, as a difference does.
    inverts: ClassVar[bool] = False

    #: Why the values of a key must not be combined in parts, by ``fanout``; None if they may be.
    whole: ClassVar[str | None] = None

    #: What compares the values that the accumulator keeps, for messages; None if nothing does.
    comparison: ClassVar[str | None] = None

    def create(self) -> Any:
        """Return the accumulator of no values."""
        raise NotImplementedError(f"{type(self).__name__} has no create")

    def add(self, accumulator: Any, value: Any) -> Any:
        """Return the accumulator with one more value in it."""
        raise NotImplementedError(f"{type(self).__name__} has no add")

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return the accumulator of the values of both: of windows that merge, or of partials."""
        raise NotImplementedError(f"{type(self).__name__} has no merge")

    def extract(self, accumulator: Any) -> Any:
        """Return the result. Called for every pane; the accumulator must stay as it is."""
        raise NotImplementedError(f"{type(self).__name__} has no extract")

    def uncombine(self, accumulator: Any, value: Any) -> Any:
        """Return the accumulator without a value that was added before, or will be."""
        raise NotImplementedError(f"{type(self).__name__} has no uncombine")

    @property
    def uncombines(self) -> bool:
        """Whether a value can be taken out again."""
        return type(self).uncombine is not CombineFn.uncombine

    @property
    def stable(self) -> bool:
        """Whether a result stays as it is when ``add`` gets more values."""
        return False

    @property
    def checked(self) -> bool:
        """Whether accumulators are read back as they are written: those of a user's own."""
        return not type(self).__module__.startswith("millrace.")

    def for_retractions(self) -> CombineFn:
        """Return what to fold by where values are taken back."""
        return self if self.uncombines else Recomputed(self)

    def making(self, format: Any) -> CombineFn:
        """Return the same with results of a record format."""
        return self

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of a value that it goes by, by name."""
        return ()

    def vector(self, values: Any) -> Vector | str:
        """Return how whole columns of values of a type are folded, or why they are not.

        See :class:`~millrace.dataflow.aggregations.VectorFold`.
        """
        return f"{self!r} folds values one by one: it is no mr.agg.VectorFold"

    def accumulator_type(self, value: Any) -> Any:
        """Return the type of the accumulator for values of a type; Any if that is not known."""
        return self.accumulator

    def result_type(self, value: Any) -> Any:
        """Return the type of the result for values of a type; Any if that is not known."""
        return Any


class Listed(CombineFn):
    """A CombineFn whose accumulator is the list of the values, in order of arrival."""

    def create(self) -> list[Any]:
        """Return no values."""
        return []

    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        """Append a value."""
        accumulator.append(value)
        return accumulator

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        """Append the other's values."""
        accumulator.extend(other)
        return accumulator

    def uncombine(self, accumulator: list[Any], value: Any) -> list[Any]:
        """Drop one value that equals this one."""
        return without(accumulator, value, self)

    def accumulator_type(self, value: Any) -> Any:
        """Return the type of the list."""
        return list[value]


class Recomputed(Listed):
    """A CombineFn that keeps the values, so that one can be taken out where the other cannot.

    It costs the memory of a window's values, and a pane costs a pass over them.
    """

    def __init__(self, plain: CombineFn) -> None:
        self.plain = plain

    def add(self, accumulator: list[Any], value: Any) -> list[Any]:
        """Keep a value, having let the other judge it."""
        self.plain.add(self.plain.create(), value)
        return super().add(accumulator, value)

    def extract(self, accumulator: list[Any]) -> Any:
        """Return the other's result for the values that are left."""
        return combine(self.plain, accumulator)

    def result_type(self, value: Any) -> Any:
        """Return the other's type."""
        return self.plain.result_type(value)


def combine(function: CombineFn, values: Any) -> Any:
    """Return what a CombineFn makes of all the values at once.

    >>> from millrace.dataflow.aggregations import Sum
    >>> combine(Sum(), [1, 2, 3])
    6
    """
    accumulator = function.create()
    for value in values:
        accumulator = function.add(accumulator, value)
    return function.extract(accumulator)


def without(values: list[Any], value: Any, function: CombineFn) -> list[Any]:
    """Return a list without one value equal to this one, or say that a retraction has no match."""
    for is_equal in equalities(value):
        for position in range(len(values) - 1, -1, -1):
            if is_equal(values[position]):
                del values[position]
                return values
    raise PipelineError(
        f"{function!r} was to take {brief(value)} out, which is not among its {len(values)} "
        "values. A retraction must meet the value that it takes back. Was the key or the value "
        "made by a step or a computation that does not return the same for the same?"
    )
