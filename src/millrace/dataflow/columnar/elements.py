"""What elements bring to a grouping that is kept as columns: the accumulator of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.dataflow.aggregations import VectorFold
from millrace.dataflow.aggregations.vector import Mask, Positions, fits
from millrace.dataflow.columnar.chunks import Accumulators, exact, too_large
from millrace.dataflow.element_types import Picks, SideBySide, itself
from millrace.dataflow.partials.partial import Partial
from millrace.model.errors import RAISED


class Brought(NamedTuple):
    """Elements of one kind.

    Attributes:
        positions: Where they lie among all.
        accumulators: What each brings.
    """

    positions: Positions
    accumulators: Accumulators


def weights(values: Sequence[Any]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return how many elements each value stands for, and the positions of the partials."""
    found = np.ones(len(values), np.int64)
    if Partial not in set(map(type, values)):
        return found, []
    partials = [n for n, value in enumerate(values) if type(value) is Partial]
    for n in partials:
        found[n] = values[n].elements
    return found, partials


def brought(
    fold: VectorFold, pick: Callable[[Any], Any], values: Sequence[Any], judged: Mask
) -> tuple[list[Brought], dict[int, BaseException]]:
    """Return what elements bring, by kinds, and why some bring nothing.

    Args:
        fold: Of the grouping.
        pick: Chooses the value to aggregate of an element.
        values: Elements and partials.
        judged: Of each, whether it is not dropped: of what is, the value does not matter.
    """
    picked, refused = _picked(pick, values)
    parts: dict[str, list[Brought]] = {}
    alone = np.ones(len(picked), dtype=bool)
    own = _no_partials(picked)
    plain = picked if len(own) == len(picked) else [picked[n] for n in own.tolist()]
    for positions, columns in fold.gather(plain):
        alone[own[positions]] = False
        _add(parts, own[positions], Accumulators(columns))
    _one_by_one(fold, picked, np.flatnonzero(alone & judged).tolist(), parts, refused)
    found = [
        Brought(
            np.concatenate([part.positions for part in those]),
            Accumulators.together([part.accumulators for part in those]),
        )
        for _, those in sorted(parts.items())
    ]
    return found, refused


def _picked(
    pick: Callable[[Any], Any], values: Sequence[Any]
) -> tuple[Sequence[Any], dict[int, BaseException]]:
    refused: dict[int, BaseException] = {}
    if pick is itself:
        return values, refused
    try:
        if isinstance(pick, Picks) and Partial not in set(map(type, values)):
            return pick.of_all(values), refused
    except RAISED:  # found again below, at its record
        pass
    picked = list[Any]()
    add, left = picked.append, iter(values)
    # What is picked is not picked again: a function may have changed the value.
    while len(picked) < len(values):
        try:
            for value in left:
                add(value if type(value) is Partial else pick(value))
        except RAISED as error:  # a user's function may raise anything
            refused[len(picked)] = error
            add(None)
    return picked, refused


def _no_partials(values: Sequence[Any]) -> Positions:
    """Return where the values lie that are no partials, which most often are all or none."""
    if isinstance(values, SideBySide) or Partial not in set(map(type, values)):
        return np.arange(len(values))
    own = (type(value) is not Partial for value in values)
    return np.flatnonzero(np.fromiter(own, bool, len(values)))


def _one_by_one(
    fold: VectorFold,
    picked: Sequence[Any],
    positions: list[int],
    parts: dict[str, list[Brought]],
    refused: dict[int, BaseException],
) -> None:
    """Add what partials bring, and values that the scalar form has to judge."""
    several: list[int] = []
    rows: list[tuple[Any, ...]] = []
    for n in positions:
        value = picked[n]
        if n in refused:
            continue
        try:
            accumulator = (
                value.accumulator if type(value) is Partial else fold.add(fold.create(), value)
            )
            row = fold.split(accumulator)
            if not all(map(fits, row)):
                raise exact() if any(type(part) is Decimal for part in row) else too_large()
        except RAISED as error:  # whatever the value is
            refused[n] = error
            continue
        several.append(n)
        rows.append(row)
    if not rows:
        return
    columns = tuple(np.array(column, dtype=object) for column in zip(*rows, strict=True))
    made, where = Accumulators(columns), np.array(several)
    for kinds, chosen in made.by_kinds()[0].items():
        encoded = made.take(chosen).encoded(kinds)
        _add(parts, where[chosen], Accumulators.decoded(kinds, encoded))


def _add(parts: dict[str, list[Brought]], positions: Positions, made: Accumulators) -> None:
    if len(positions):
        kinds = "".join(column.dtype.kind for column in made.columns)
        parts.setdefault(kinds, []).append(Brought(positions, made))
