"""Several aggregates in one pass: some of them, each with what it comes to by definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from millrace.dataflow.aggregations import catalog
from simulation.definitions import Aggregate, Definition


class _One(NamedTuple):
    """An aggregate, what it is of the numbers, and how its parts add up, if they do."""

    aggregate: catalog.Aggregate
    of: Callable[[list[int]], Any]
    together: Callable[[list[Any]], Any] | None = None


def _odd(value: Any) -> bool:
    return bool(value["n"] % 2)


def _small(value: Any) -> bool:
    return bool(value["n"] < 5)


def _odds(numbers: list[int]) -> list[int]:
    return [n for n in numbers if n % 2]


def _smalls(numbers: list[int]) -> list[int]:
    return [n for n in numbers if n < 5]


def _mean(numbers: list[int]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _least(parts: list[Any]) -> Any:
    return min((part for part in parts if part is not None), default=None)


def _most(parts: list[Any]) -> Any:
    return max((part for part in parts if part is not None), default=None)


_ALL = {
    "n": _One(catalog.count(), len, sum),
    "odd": _One(catalog.count(where=_odd), lambda all: len(_odds(all)), sum),
    "total": _One(catalog.sum("n"), sum, sum),
    "little": _One(catalog.sum("n", where=_small), lambda all: sum(_smalls(all)), sum),
    "high": _One(catalog.max("n"), _most, _most),
    "low": _One(catalog.min("n", where=_odd), lambda all: _least(_odds(all)), _least),
    "mean": _One(catalog.mean("n", where=_small), lambda all: _mean(_smalls(all))),
    "best": _One(catalog.top(2, "n", where=_odd), lambda all: sorted(_odds(all), reverse=True)[:2]),
    "kinds": _One(catalog.distinct("n", where=_odd), lambda all: len({*_odds(all)})),
}


def drawn(
    random: Random, definition: Definition
) -> tuple[dict[str, catalog.Aggregate], Definition]:
    """Return some aggregates by name, and the definition of a grouping by them.

    Args:
        random: Chooses.
        definition: Of a grouping by one aggregation.
    """
    names = random.sample([*_ALL], random.randint(2, 5))
    chosen = {name: _ALL[name] for name in names}

    def of(numbers: list[int]) -> dict[str, Any]:
        return {name: one.of(numbers) for name, one in chosen.items()}

    def together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            name: one.together([part[name] for part in parts])
            for name, one in chosen.items()
            if one.together is not None
        }

    aggregate = Aggregate(of, together)
    made = {name: one.aggregate for name, one in chosen.items()}
    return made, replace(definition, aggregate=aggregate, ordered=True)
