"""Bag cells: a row for what each commit added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millrace.model.state import BagState, StateDescriptor
from millrace.windmill import rows
from millrace.windmill.cells.bound import Bound
from millrace.windmill.timers import KeyRows


class BoundBag(Bound, BagState[Any]):
    """A BagState with a key under it: each commit adds one block of items, reading none."""

    def __init__(self, cell: StateDescriptor, index: int, key_rows: KeyRows) -> None:
        self.__dict__.update(cell.__dict__)
        self._rows = key_rows
        self._cell = rows.BYTE[index]
        self._added: list[bytes] = []
        self._cleared = False

    def begin(self) -> None:
        """Forget the last key's items."""
        self._added = []
        self._cleared = False

    def add(self, item: Any) -> None:
        self._added.append(self._encoded(item))

    def __iter__(self) -> Iterator[Any]:
        decode = self.coder.decode
        if not self._cleared:
            prefix = self._prefix()
            for _, block in rows.scan(self._rows.view, prefix):
                yield from map(decode, rows.unpack_items(block))
        yield from map(decode, list(self._added))

    def clear(self) -> None:
        self._added = []
        self._cleared = True

    def flush(self) -> None:
        """Write the block of this commit."""
        prefix = self._prefix()
        if self._cleared:
            for row, _ in rows.scan(self._rows.view, prefix):
                self._rows.mutations[row] = None
        if self._added:
            block = rows.block(prefix, self._rows.number)
            self._rows.mutations[block] = rows.pack_items(self._added)

    def _prefix(self) -> bytes:
        return rows.bag_prefix(self._rows.key_row, self._cell)
