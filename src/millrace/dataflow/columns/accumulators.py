"""Accumulators as columns: those of many keys and windows, a column for each part of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.dataflow.aggregations import VectorFold
from millrace.dataflow.aggregations.vector import Columns, Starts, within
from millrace.model.errors import CoderError

#: What the numbers of a column are in a chunk: integers or floats, little-endian.
DTYPES = {"i": np.dtype("<i8"), "f": np.dtype("<f8")}


@dataclass(frozen=True)
class Accumulators:
    """Accumulators, one a row.

    Their *kinds* say of each column whether its numbers are integers, ``i``, or floats, ``f``. In
    memory a column may have both, as Python's objects.
    """

    columns: Columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def take(self, chosen: Starts) -> Accumulators:
        """Return those at some positions."""
        return Accumulators(tuple(column[chosen] for column in self.columns))

    def reduced(self, fold: VectorFold, starts: Starts) -> Accumulators:
        """Return those of segments."""
        return Accumulators(fold.reduce(self.columns, starts))

    @classmethod
    def together(cls, several: Sequence[Accumulators]) -> Accumulators:
        """Return several, one after another."""
        if len(several) == 1:
            return several[0]
        columns = []
        for parts in zip(*(each.columns for each in several), strict=True):
            if len({part.dtype.kind for part in parts}) > 1:
                parts = tuple(part.astype(object) for part in parts)
            columns.append(np.concatenate(parts))
        return cls(tuple(columns))

    # -- in a chunk --------------------------------------------------------------------------------

    def by_kinds(self) -> tuple[dict[str, Starts], Starts]:
        """Return the positions of those of the same kinds, and of those that no column can hold."""
        if all(column.dtype != object for column in self.columns):
            kinds = "".join(column.dtype.kind for column in self.columns)
            return {kinds: np.arange(len(self))}, np.array([], np.intp)
        good = np.logical_and.reduce([within(column) for column in self.columns])
        rows = [["if"[type(n) is float] for n in column.tolist()] for column in self.columns]
        kinds_of = np.array(["".join(row) for row in zip(*rows, strict=True)])
        found = {
            str(one): np.flatnonzero(good & (kinds_of == one)) for one in np.unique(kinds_of[good])
        }
        return found, np.flatnonzero(~good)

    def encoded(self, kinds: str) -> list[bytes]:
        """Return the columns as bytes; all rows are of these kinds."""
        return [
            column.astype(DTYPES[kind]).tobytes()
            for kind, column in zip(kinds, self.columns, strict=True)
        ]

    @classmethod
    def decoded(cls, kinds: str, columns: Iterable[bytes]) -> Accumulators:
        """Return what :meth:`encoded` made the columns of."""
        pairs = zip(kinds, columns, strict=True)
        return cls(tuple(np.frombuffer(column, DTYPES[kind]) for kind, column in pairs))


def too_large() -> CoderError:
    """Return what to say of a number that a column cannot hold."""
    return CoderError("the accumulator cannot be stored: a number in it is beyond 64 bits.")


def exact() -> CoderError:
    """Return what to say of a Decimal, which a column of 64 bits cannot hold exactly."""
    return CoderError(
        "a Decimal came where the type of the values is not known, and they are kept as columns of "
        "int or float. Choose the value by the name of a field that is declared as Decimal, as in "
        "sum('amount'), or give the stream format=Decimal."
    )
