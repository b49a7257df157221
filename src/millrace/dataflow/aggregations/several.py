"""Several: many aggregates of the same elements in one pass, as one aggregation.

What is folded is a tuple: all that the aggregates need of an element, and of each filter whether
the element passes it (:class:`~millrace.dataflow.element_types.Picks`). The accumulator is a tuple
as well, of the aggregates' own, or None of one to which no element has come. So whatever can be
done to one aggregation can be done to several: combining before the shuffle, keeping as columns,
fan-out, merging, taking back.

Source: Dataflow patent, "Aggregation API 200"; SQL's ``count(*) FILTER (WHERE ...)``.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millrace.dataflow.aggregations.combine_fn import CombineFn
from millrace.dataflow.aggregations.fields import (
    FieldsCoder,
    PartsCoder,
    Results,
    class_of_fields,
    record_of,
)
from millrace.dataflow.aggregations.vector import (
    Column,
    Columns,
    Mask,
    Positions,
    Starts,
    Vector,
    VectorFold,
    of_type,
    plain_column,
    vector_of,
)
from millrace.dataflow.element_types import SideBySide
from millrace.model.coder import Coder


class Part(NamedTuple):
    """One of several aggregates.

    Attributes:
        name: Of its result.
        combine: How.
        source: Where in the tuple its value is; None if it only counts.
        condition: Where in the tuple it says whether the element counts; None if all do.
        about: What it aggregates, as text.
    """

    name: str
    combine: CombineFn
    source: int | None
    condition: int | None
    about: str = ""

    @property
    def fold(self) -> VectorFold:
        """The aggregate, where it is known to be one of numbers."""
        assert isinstance(self.combine, VectorFold)
        return self.combine

    def present(self, values: pa.Array) -> Mask | None:
        """Return which elements count; None: all."""
        if self.condition is None:
            return None
        mask: Mask = values.field(self.condition).to_numpy(zero_copy_only=False)
        return mask.astype(bool)

    @property
    def vector(self) -> Vector:
        """The vector form of the aggregate, where it is known to have one."""
        vector = vector_of(self.combine, Any)
        assert not isinstance(vector, str), vector
        return vector


#: Of these an accumulator cannot be changed in place.
_NUMBERS = (int, float)


class Several(VectorFold):
    """Folds tuples into a dict of results, by name.

    Args:
        parts: The aggregates, in order.
        make: What to make of the results, by name; by default a dict.

    >>> from millrace.dataflow.aggregations import Count, Max, combine
    >>> several = Several((Part("n", Count(), None, None), Part("high", Max(), 0, 1)))
    >>> combine(several, [(3, True), (9, False), (5, True)])
    {'n': 3, 'high': 5}
    """

    def __init__(self, parts: tuple[Part, ...], make: type | None = None) -> None:
        self.parts = parts
        self.make = make
        self._record = record_of(tuple(part.name for part in parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return Several, (self.parts, self.make)

    def __repr__(self) -> str:
        shown = (f"{part.name}={part.combine!r}{part.about}" for part in self.parts)
        return f"Several({', '.join(shown)})"

    # -- value by value ----------------------------------------------------------------------------

    def create(self) -> Any:
        """Return that nothing has come to any."""
        return (None,) * len(self.parts)

    def add(self, accumulator: Any, value: Any) -> Any:
        """Add an element to the aggregates that it counts for."""
        accumulators = list(accumulator)
        for n, (_, combine, source, condition, _) in enumerate(self.parts):
            if condition is None or value[condition]:
                part_accumulator = accumulators[n]
                accumulators[n] = combine.add(
                    combine.create() if part_accumulator is None else part_accumulator,
                    None if source is None else value[source],
                )
        return accumulators

    def uncombine(self, accumulator: Any, value: Any) -> Any:
        """Take an element out of the aggregates that it counted for."""
        accumulators = list(accumulator)
        for n, (_, combine, source, condition, _) in enumerate(self.parts):
            if condition is None or value[condition]:
                part_accumulator = accumulators[n]
                accumulators[n] = combine.uncombine(
                    combine.create() if part_accumulator is None else part_accumulator,
                    None if source is None else value[source],
                )
        return accumulators

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Merge each with its like."""
        accumulators = list(accumulator)
        for n, (part, two) in enumerate(zip(self.parts, other, strict=True)):
            if two is None:
                continue
            part_accumulator = accumulators[n]
            if part_accumulator is None and type(two) not in _NUMBERS:
                # Not the other's own: what is merged next would change that, too.
                part_accumulator = part.combine.create()
            accumulators[n] = (
                two if part_accumulator is None else part.combine.merge(part_accumulator, two)
            )
        return accumulators

    def extract(self, accumulator: Any) -> Any:
        """Return the results by name."""
        results = (
            part.combine.extract(
                part.combine.create() if part_accumulator is None else part_accumulator
            )
            for part, part_accumulator in zip(self.parts, accumulator, strict=True)
        )
        return self._made(*results)

    def _made(self, *results: Any) -> Any:
        # Twice as fast as dict(zip(...)).
        fields = msgspec.structs.asdict(self._record(*results))
        return fields if self.make is None else self.make(**fields)

    # -- what is asked of it -----------------------------------------------------------------------

    @property
    def inverts(self) -> bool:  # type: ignore[override]  # each of them must
        """Whether all of them do."""
        return all(part.combine.inverts for part in self.parts)

    @property
    def whole(self) -> str | None:  # type: ignore[override]  # any of them may say
        """Why one of them must not be combined in parts."""
        reasons = (
            f"{part.name}={part.combine!r}: {part.combine.whole}"
            for part in self.parts
            if part.combine.whole is not None
        )
        return next(reasons, None)

    @property
    def uncombines(self) -> bool:
        """Whether a value can be taken out of all of them."""
        return all(part.combine.uncombines for part in self.parts)

    @property
    def stable(self) -> bool:
        """Whether the results of all of them stay as they are."""
        return all(part.combine.stable for part in self.parts)

    @property
    def checked(self) -> bool:
        """Whether one of them is of a user's own."""
        return any(part.combine.checked for part in self.parts)

    def for_retractions(self) -> Several:
        """Return the same, with the values kept for those that nothing can be taken out of."""
        parts = (part._replace(combine=part.combine.for_retractions()) for part in self.parts)
        return Several(tuple(parts), self.make)

    def making(self, format: Any) -> Several:
        """Return the same, with results of a class.

        Raises:
            PipelineError: The class cannot be made with them.
        """
        result_class = class_of_fields(format, [part.name for part in self.parts])
        return self if result_class is None else Several(self.parts, result_class)

    def accumulator_type(self, value: Any) -> Any:
        """Return the type of the tuple, or a coder of it if one of them has its own."""
        pairs = zip(self.parts, self._kinds(value), strict=True)
        types = [part.combine.accumulator_type(kind) for part, kind in pairs]
        if any(isinstance(each, Coder) and not isinstance(each, type) for each in types):
            return PartsCoder(tuple(types))
        return tuple[tuple(Any if each is Any else each | None for each in types)]  # type: ignore[misc]

    def result_type(self, value: Any) -> Any:
        """Return the coder of the results by name."""
        pairs = zip(self.parts, self._kinds(value), strict=True)
        return FieldsCoder(
            tuple((part.name, part.combine.result_type(kind)) for part, kind in pairs)
        )

    def _kinds(self, value: Any) -> list[Any]:
        """Return the type of what each aggregates, for the type of the tuples."""
        kinds = typing.get_args(value)
        return [
            kinds[part.source] if kinds and part.source is not None else Any for part in self.parts
        ]

    # -- whole columns -----------------------------------------------------------------------------

    def vector(self, values: Any) -> Vector | str:
        """Return this, or why one of them folds values one by one."""
        for part, kind in zip(self.parts, self._kinds(values), strict=True):
            vector = vector_of(part.combine, kind)
            if isinstance(vector, str):
                return f"{part.name}: {vector}"
        return self

    def keeps(self, values: Any) -> bool:
        """Return whether the accumulators of all of them can be kept as columns."""
        return all(
            isinstance(part.combine, VectorFold)
            and vector_of(part.combine, kind) is part.combine
            and part.combine.keeps(kind)
            for part, kind in zip(self.parts, self._kinds(values), strict=True)
        )

    def usable(self, values: pa.Array) -> Mask | None:
        """Return which tuples, the fields of a struct, all aggregates can fold."""
        usable = np.ones(len(values), dtype=bool)
        for part in self.parts:
            if part.source is None:
                continue
            taken = part.vector.usable(values.field(part.source))
            if taken is None:
                return None
            present = part.present(values)
            usable &= taken if present is None else taken | ~present
        return usable

    def accumulators(self, values: pa.Array, starts: Starts) -> list[Any] | None:
        """Return the accumulators of segments; None if one would be beyond what can be stored."""
        columns: list[list[Any]] = []
        for part in self.parts:
            column = pa.nulls(len(values)) if part.source is None else values.field(part.source)
            present = part.present(values)
            if present is None:
                accumulators = part.vector.accumulators(column, starts)
                if accumulators is None:
                    return None
                columns.append(accumulators)
                continue
            chosen, begins, segments = _those(present, starts)
            sparse: list[Any] = [None] * len(starts)
            if len(chosen):
                some = part.vector.accumulators(column.take(pa.array(chosen)), begins)
                if some is None:
                    return None
                for segment, accumulator in zip(segments.tolist(), some, strict=True):
                    sparse[segment] = accumulator
            columns.append(sparse)
        return list(zip(*columns, strict=True))

    # -- kept as columns ---------------------------------------------------------------------------

    def gather(self, values: Sequence[Any]) -> Iterator[tuple[Positions, Columns]]:
        """Yield what the tuples bring that all aggregates take: of each of them its columns.

        One with a filter has a column more: how many of the values counted, 1 or 0.
        """
        if isinstance(values, SideBySide):
            positions, fields = np.arange(len(values)), values.columns
        else:
            positions = of_type(values, tuple)
            fields = list(zip(*[values[n] for n in positions.tolist()], strict=True))
        if not len(positions):
            return
        usable = np.ones(len(positions), dtype=bool)
        sources: dict[int, tuple[Column, Mask]] = {}
        presents: dict[int, Mask] = {}
        for part in self.parts:
            if part.condition is not None and part.condition not in presents:
                presents[part.condition] = np.array(fields[part.condition], dtype=bool)
            if part.source is None:
                continue
            if part.source not in sources:
                sources[part.source] = plain_column(fields[part.source])
            column, good = sources[part.source]
            good = good & part.fold.takes(column)
            usable &= good if part.condition is None else good | ~presents[part.condition]
        if not usable.any():
            return
        kept = np.flatnonzero(usable)
        columns: list[Column] = []
        for part in self.parts:
            column = (
                np.zeros(len(kept), np.int64)
                if part.source is None
                else sources[part.source][0][kept]
            )
            if part.condition is None:
                columns += part.fold.of(column)
                continue
            present = presents[part.condition][kept]
            chosen = np.flatnonzero(present)
            columns += [_spread(each, chosen, len(kept)) for each in part.fold.of(column[chosen])]
            columns.append(present.astype(np.int64))
        yield positions[kept], tuple(columns)

    def reduce(self, columns: Columns, starts: Starts) -> Columns:
        """Return the accumulators of segments, of each aggregate those of the values that count."""
        reduced: list[Column] = []
        for part, its in self._shares(columns):
            if part.condition is None:
                reduced += part.fold.reduce(its, starts)
                continue
            *its_own, present = its
            counts: Mask = present != 0
            if counts.all():
                reduced += part.fold.reduce(tuple(its_own), starts)
                reduced.append(np.ones(len(starts), np.int64))
                continue
            chosen, begins, segments = _those(counts, starts)
            if len(chosen):
                folded = part.fold.reduce(tuple(column[chosen] for column in its_own), begins)
            else:
                folded = tuple(column[:0] for column in its_own)
            reduced += [_spread(column, segments, len(starts)) for column in folded]
            reduced.append(_spread(np.ones(len(segments), np.int64), segments, len(starts)))
        return tuple(reduced)

    def split(self, accumulator: Any) -> tuple[Any, ...]:
        """Return the numbers of the accumulators, and 1 or 0 after those that need it."""
        columns: list[Any] = []
        for part, part_accumulator in zip(self.parts, accumulator, strict=True):
            if part.condition is None:
                columns += part.fold.split(part_accumulator)
            elif part_accumulator is None:
                columns += [0] * (part.fold.width + 1)
            else:
                columns += [*part.fold.split(part_accumulator), 1]
        return tuple(columns)

    def results(self, columns: Columns) -> Sequence[Any]:
        """Return the results of the accumulators that columns hold the numbers of."""
        found: list[Sequence[Any]] = []
        for part, its in self._shares(columns):
            if part.condition is None:
                found.append(part.fold.results(its))
                continue
            chosen = np.flatnonzero(its[-1])
            some = part.fold.results(tuple(column[chosen] for column in its[:-1]))
            none = part.fold.extract(part.fold.create())
            sparse = [none] * len(its[-1])
            for n, result in zip(chosen.tolist(), some, strict=True):
                sparse[n] = result
            found.append(sparse)
        if self.make is None:
            return Results(self._record, found)
        return list(map(self._made, *found))

    def joined(self, columns: Columns) -> list[Any]:
        """Return the accumulators that columns hold the numbers of."""
        found: list[list[Any]] = []
        for part, its in self._shares(columns):
            if part.condition is None:
                found.append(part.fold.joined(its))
                continue
            there = its[-1].tolist()
            accumulators = part.fold.joined(its[:-1])
            found.append([a if n else None for a, n in zip(accumulators, there, strict=True)])
        return list(zip(*found, strict=True))

    def _shares(self, columns: Columns) -> Iterator[tuple[Part, Columns]]:
        """Yield each aggregate with its own columns."""
        first = 0
        for part in self.parts:
            stop = first + part.fold.width + (part.condition is not None)
            yield part, columns[first:stop]
            first = stop


def _those(present: Mask, starts: Starts) -> tuple[Positions, Starts, Positions]:
    """Return the elements that count, where their segments begin among them, and which those are.

    >>> _, begins, segments = _those(np.array([1, 1, 0, 0, 1], bool), np.array([0, 2, 4]))
    >>> begins.tolist(), segments.tolist()
    ([0, 2], [0, 2])
    """
    chosen = np.flatnonzero(present)
    segment = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(present)))[chosen]
    first = np.ones(len(chosen), dtype=bool)
    first[1:] = segment[1:] != segment[:-1]
    begins = np.flatnonzero(first)
    return chosen, begins, segment[begins]


def _spread(column: Column, positions: Positions, count: int) -> Column:
    """Return a column with values at some positions, and zeros elsewhere."""
    spread = np.zeros(count, column.dtype)
    spread[positions] = column
    return spread
