"""Migration: rows that another pipeline wrote, as this one has them.

Rows of a key interval are brought to the last shape of its computation's state. That is part of
the interval's first bundle after the change, and of its commit. So it happens once, for all rows of
the interval together, whatever dies meanwhile; and who reads a row never has to ask which shape it
has.

Source: docs/design/2026-11-22-state-that-changes-shape.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec.structs import replace
from sortedcontainers import SortedDict

from millrace.compile.change.schemas import Reshape, schema_of
from millrace.compile.state_values import reader
from millrace.compile.topology import ComputationSpec
from millrace.kernel import families, row_codec
from millrace.kernel.bundle import Bundle
from millrace.kernel.user_errors import Failures
from millrace.model.errors import RAISED
from millrace.model.keys import decode_key
from millrace.model.record import DeadLetter
from millrace.store import OverView, View
from millrace.watermark.report import Report

#: Told of a value that cannot be migrated: the key's part of a row, the cell, the value, the error.
Refused = Callable[[bytes, str, Any, BaseException], None]

_NOTHING: Final = Reshape(0, (), (), frozenset(), {})
_NO_ROWS: Final[dict[bytes, bytes | None]] = {}


class Reshaping:
    """Makes the rows of a computation's intervals anew, where they have not its last shape.

    Args:
        spec: The computation.
        set_aside: Takes a dead letter, and the key that it is about.
        letters: Whether what user code raises becomes dead letters.
    """

    def __init__(
        self,
        spec: ComputationSpec,
        set_aside: Callable[[DeadLetter, Any], None],
        *,
        letters: bool,
    ) -> None:
        self._failures, self._set_aside = Failures(spec.title, letters=letters), set_aside
        self._reshape: Reshape = spec.reshape or _NOTHING
        self._makers = {n: _Maker(spec, *how) for n, how in self._reshape.migrated.items()}

    def run(self, bundle: Bundle, view: View) -> tuple[dict[bytes, bytes | None], View]:
        """Return the rows of an interval that change, and a view in which they have.

        Args:
            bundle: The interval's bundle.
            view: The interval, as its last commit left it.

        Raises:
            UserCodeError: A migration raised, and no stream takes dead letters.
        """
        if bundle.position.report.version >= self._reshape.version:
            return _NO_ROWS, view

        def refused(key_row: bytes, cell: str, value: Any, error: BaseException) -> None:
            encoded = row_codec.key_in(key_row)
            key = None if encoded is None else decode_key(encoded)
            self._set_aside(self._failures.of_migration(bundle, key, error, cell, value), key)

        mutations: dict[bytes, bytes | None] = {}
        if self._reshape.before:
            mutations.update(self._values(view, refused))
        if self._reshape.gone or self._makers:
            mutations.update(self._entries(view, refused))
            mutations.update(self._blocks(view, refused))
        return mutations, OverView(view, SortedDict(mutations), view.cache_position)

    def reported(self, report: Report) -> Report:
        """Return an interval's report with the shape that its rows have after its bundle."""
        version = self._reshape.version
        return replace(report, version=version) if version else report

    def _values(self, view: View, refused: Refused) -> Iterator[tuple[bytes, bytes | None]]:
        before, after = self._reshape.before, self._reshape.after
        for row, data in row_codec.scan(view, families.VALUES):
            parts = dict(zip(before, families.unpack_values(data, len(before)), strict=True))
            for number, make in self._makers.items():
                if (part := parts.get(number)) is not None:
                    parts[number] = make(row[1:], part, refused)
            packed = families.pack_values([parts.get(number) for number in after])
            if packed != data:
                yield row, packed

    def _entries(self, view: View, refused: Refused) -> Iterator[tuple[bytes, bytes | None]]:
        for row, data in row_codec.scan(view, families.MAP):
            entry = families.EntryRow.unpack(row, data)
            if entry.cell in self._reshape.gone:
                yield row, None
            elif entry.cell in self._makers:
                migrated = self._makers[entry.cell](entry.key_row, entry.data, refused)
                yield row, None if migrated is None else entry._replace(data=migrated).pack()[1]

    def _blocks(self, view: View, refused: Refused) -> Iterator[tuple[bytes, bytes | None]]:
        for row, data in row_codec.scan(view, families.BAG):
            block = families.BlockRow.unpack(row, data)
            if block.cell in self._reshape.gone:
                yield row, None
            elif block.cell in self._makers:
                make = self._makers[block.cell]
                migrated = [make(block.key_row, item, refused) for item in block.items]
                items = [item for item in migrated if item is not None]
                yield row, block._replace(items=items).pack()[1] if items else None


class _Maker:
    """Makes one cell's values anew."""

    def __init__(
        self,
        spec: ComputationSpec,
        cell: str,
        format: dict[str, Any],
        function: Callable[[Any], Any],
    ) -> None:
        coder = spec.cells[cell].coder
        self._cell, self._function, self._encode = cell, function, coder.encode
        same = schema_of(coder) == format
        self._decode: Callable[[bytes], Any] = coder.decode if same else reader(format)

    def __call__(self, key_row: bytes, data: bytes, refused: Refused) -> bytes | None:
        """Return a value's new bytes; None if there is none any more."""
        value = self._decode(data)
        try:
            result = self._function(value)
            return None if result is None else self._encode(result)
        except RAISED as error:  # the user's
            refused(key_row, self._cell, value, error)
            return None
