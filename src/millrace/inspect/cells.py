"""Cells of a computation: what the checkpoint says that it keeps a key, and how that is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from millrace.compile.schemas import Schema
from millrace.compile.shapes import SCALARS, Shape
from millrace.inspect.windows import cell_reader
from millrace.model.keys import decode_key
from millrace.model.state import BagState, MapState, SideInput
from millrace.windmill import rows


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell as a computation declares it.

    Attributes:
        name: Its name.
        kind: ``ValueState``, ``MapState``, ``BagState`` or ``CombiningState``; ``SideInput``: its
            rows are under the key ``"all keys"``, once in each key interval.
        format: Schema of its values, as :mod:`millrace.compile.schemas` describes them.
    """

    name: str
    kind: str
    format: Schema


class Cells:
    """The cells of one computation, and what reads their rows.

    Args:
        declared: Name -> what the checkpoint says of the cell.
        numbers: Name -> its number, which rows carry.
        older: The shape of the state, where rows have the one before it.

    Attributes:
        by_name: Name -> cell.
    """

    def __init__(
        self,
        declared: Mapping[str, Schema],
        numbers: Mapping[str, int],
        older: Shape | None = None,
    ) -> None:
        migrated = {} if older is None else older.migrated
        formats = {
            name: migrated[numbers[name]].format if numbers[name] in migrated else said["format"]
            for name, said in declared.items()
        }
        self.by_name = {
            name: Cell(name=name, kind=said["cell"], format=formats[name])
            for name, said in sorted(declared.items())
        }
        self._names = {numbers[name]: name for name in declared}
        # Value and combining cells share a row, in this order.
        self._scalars = (
            [n for n in sorted(self._names) if self.by_name[self._names[n]].kind in SCALARS]
            if older is None
            else older.before
        )
        self._readers = {name: cell_reader(cell.format) for name, cell in self.by_name.items()}

    def empty(self) -> dict[str, Any]:
        """Return what a key has of which nothing is kept."""
        made: dict[str, Any] = {
            MapState.__name__: dict, SideInput.__name__: dict, BagState.__name__: list
        }  # fmt: skip
        return {
            name: made[cell.kind]() if cell.kind in made else None
            for name, cell in self.by_name.items()
        }

    def read(self, stored: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
        """Return what a key has, by name of the cell.

        Args:
            stored: The rows of values, entries and blocks of one key, each family in its order.

        Returns:
            A value or None; a dict of the entries of a map; a list of the items of a bag.
        """
        found = self.empty()
        for row in (rows.unpack(*one) for one in stored):
            if isinstance(row, rows.ValuesRow):
                parts = rows.unpack_values(row.data, len(self._scalars))
                for number, part in zip(self._scalars, parts, strict=True):
                    if part is not None and (name := self._names.get(number)) is not None:
                        found[name] = self._readers[name](part)
            # Of cells that were dropped, rows are left until their interval has the last shape.
            elif isinstance(row, rows.EntryRow):
                if (name := self._names.get(row.cell)) is not None:
                    found[name][decode_key(row.entry)] = self._readers[name](row.data)
            elif isinstance(row, rows.BlockRow) and (name := self._names.get(row.cell)) is not None:
                found[name] += map(self._readers[name], row.items)
        return found
