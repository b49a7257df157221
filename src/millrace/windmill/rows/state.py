"""Rows of state cells: values (V), map entries (M), blocks of bags (B).

A row says the number of its cell, and the checkpoint's registry says which cell that is. Value and
combining cells stand in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from millrace.windmill.rows.parts import (
    BYTE,
    WHOLE,
    is_digested,
    key_row_end,
    last_part,
)

VALUES: Final = b"V"
MAP: Final = b"M"
BAG: Final = b"B"

_encode = msgspec.msgpack.Encoder().encode
_decode_values = msgspec.msgpack.Decoder(list[bytes | None]).decode
_decode_items = msgspec.msgpack.Decoder(list[bytes]).decode
_LENGTH_BYTES: Final = 4


class ValuesRow(NamedTuple):
    """``V key``: the value and combining cells of a key.

    Attributes:
        key_row: The part that names the key.
        data: What :func:`pack_values` made of the cells.
    """

    key_row: bytes
    data: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> ValuesRow:
        """Return what a row says."""
        return cls(row[1:], value)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return VALUES + self.key_row, self.data


class EntryRow(NamedTuple):
    """``M key cell entry``: one entry of a map.

    Attributes:
        key_row: The part that names the key.
        cell: Number of the cell.
        entry: The entry, encoded.
        data: Its value, encoded by the cell's coder.
    """

    key_row: bytes
    cell: int
    entry: bytes
    data: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> EntryRow:
        """Return what a row says."""
        end = key_row_end(row, 1)
        entry, data = unpack_entry(row[end + 1 :], value)
        return cls(row[1:end], row[end], entry, data)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        part = last_part(self.entry)
        row = map_prefix(self.key_row, BYTE[self.cell]) + part
        return row, pack_entry(self.entry, self.data)


class BlockRow(NamedTuple):
    """``B key cell commit-number``: the items that one commit added to a bag.

    Attributes:
        key_row: The part that names the key.
        cell: Number of the cell.
        number: Of the commit.
        items: Each encoded by the cell's coder, in the order in which they were added.
    """

    key_row: bytes
    cell: int
    number: int
    items: list[bytes]

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> BlockRow:
        """Return what a row says."""
        end = key_row_end(row, 1)
        number = int.from_bytes(row[end + 1 :], "big")
        return cls(row[1:end], row[end], number, unpack_items(value))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        prefix = bag_prefix(self.key_row, BYTE[self.cell])
        return block(prefix, self.number), pack_items(self.items)


def pack_values(cells: Sequence[bytes | None]) -> bytes | None:
    """Return the value of a key's row: its value and combining cells in the order of their names.

    Args:
        cells: Each encoded by its coder; None where it is empty. A computation with a single one
            has its bytes as they are.

    Returns:
        None if all are empty: then there is no row.

    >>> pack_values([b"7"]), unpack_values(pack_values([b"7", None]), 2), pack_values([None])
    (b'7', [b'7', None], None)
    """
    if len(cells) == 1:
        return cells[0]
    return None if all(cell is None for cell in cells) else _encode(cells)


def unpack_values(data: bytes | None, cells: int) -> list[bytes | None]:
    """Return what :func:`pack_values` was given for so many cells; ``data`` None if no row is."""
    if data is None:
        return [None] * cells
    if cells == 1:
        return [data]
    found = _decode_values(data)
    return [*found, *[None] * (cells - len(found))]


def map_prefix(key_row: bytes, cell: bytes) -> bytes:
    """Return what the rows of a map begin with; ``cell`` is its number in one byte."""
    return MAP + key_row + cell


def pack_entry(entry: bytes, data: bytes) -> bytes:
    """Return the value of an entry's row: it holds the entry too where the row has a digest."""
    if len(entry) <= WHOLE:
        return data
    return len(entry).to_bytes(_LENGTH_BYTES, "big") + entry + data


def unpack_entry(part: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return an entry and its data, of the last part of its row and the row's value."""
    if not is_digested(part):
        return part, value
    end = _LENGTH_BYTES + int.from_bytes(value[:_LENGTH_BYTES], "big")
    return value[_LENGTH_BYTES:end], value[end:]


def bag_prefix(key_row: bytes, cell: bytes) -> bytes:
    """Return what the rows of a bag begin with; ``cell`` is its number in one byte."""
    return BAG + key_row + cell


def block(prefix: bytes, number: int) -> bytes:
    """Return the row of what a commit adds to a bag."""
    return prefix + number.to_bytes(8, "big")


pack_items = _encode
unpack_items = _decode_items
