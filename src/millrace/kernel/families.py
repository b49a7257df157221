"""Families of rows: how the cells, timers, holds and ids of a key interval lie in one sorted map.

Each family has a letter of its own, and a named tuple that says what its rows say. The fields that
stand in the row come first, and rows sort as those do::

    V key                      ValuesRow    all value and combining cells of a key
    M key cell entry           EntryRow     one map entry
    B key cell commit-number   BlockRow     the items added to a bag by one commit
    T clock time key tag       TimerRow     a pending timer, in the order in which timers fire
    U key domain tag           TagRow       the same timer, by its tag: time, hold, percentile
    H time key                 HoldRow      a key's hold, oldest first
    H time key domain tag      HoldRow      a timer's hold, among the keys'
    G key                      KeyHoldRow   a key's hold, found by its key
    I hash source-id           IdRow        the id of a record that was delivered
    J commit-number expiry     IdBatchRow   the ids that one commit added, that expire together
    X expiry commit-number     ExpiryRow    the same batch, the one that expires first in front
    C time commit-number n     ChunkRow     a chunk of all keys, wanted at that time
    Q sender                   ChannelRow   the last record of a sender that was consumed

:mod:`~millrace.kernel.row_codec` says how keys and instants stand in a row, and
:mod:`~millrace.kernel.timer_families` has the families of timers and holds. Nobody else cuts rows
into bytes. Who writes or reads a row for every record uses the functions beside the tuples, and
makes none.

A row of state says the number of its cell, and the checkpoint's registry says which cell that is.
Value and combining cells stand in the order of their numbers. Ids of delivered records stand each
by itself (I), and in batches by commit (J) and expiry (X). A batch is what one commit added and
what expires together, packed in the value of its J row, as entries of 24 bytes: the key's hash, and
the source's id.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.kernel.row_codec import (
    ALL_KEYS_ROW,
    BYTE,
    HASH_BYTES,
    WHOLE,
    is_digested,
    key_row_end,
    last_part,
    time8,
    time_of,
)
from millrace.kernel.timer_families import (
    HOLD_BY_KEY,
    HOLDS,
    TIMER_BY_TAG,
    TIMERS,
    HoldRow,
    KeyHoldRow,
    TagRow,
    TimerRow,
)
from millrace.model.errors import DamagedStore

CHANNELS: Final = b"Q"
_SENDER: Final = struct.Struct(">HI")
_NUMBER: Final = struct.Struct(">QQ")


class ChannelRow(NamedTuple):
    """``Q sender``: the last record of a sender that was consumed.

    Attributes:
        who: Upper part of the sender: number of a computation, or of an injected stream.
        part: Lower part: an interval of it, or a process.
        origin: Lower 48 bits of the last record's origin.
        sequence: Lower 33 bits of its sequence.
    """

    who: int
    part: int
    origin: int
    sequence: int

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> ChannelRow:
        """Return what a row says."""
        return cls(*_SENDER.unpack(row[1:]), *_NUMBER.unpack(value))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value.

        >>> ChannelRow.unpack(*ChannelRow(3, 7, 12, 0).pack())
        ChannelRow(who=3, part=7, origin=12, sequence=0)
        """
        return CHANNELS + _SENDER.pack(self.who, self.part), _NUMBER.pack(
            self.origin, self.sequence
        )


CHUNKS: Final = b"C"


class ChunkRow(NamedTuple):
    """``C time commit-number n``: a chunk of all keys, wanted at that time.

    Attributes:
        at_us: When it is wanted.
        number: Of the commit that left it.
        n: Which of those that it left for that time.
        data: What it says, to the grouping.
    """

    at_us: int
    number: int
    n: int
    data: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> ChunkRow:
        """Return what a row says."""
        number, n = int.from_bytes(row[9:17], "big"), int.from_bytes(row[17:], "big")
        return cls(chunk_instant(row), number, n, value)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return chunk(self.at_us, self.number, self.n), self.data


def chunks(at_us: int) -> bytes:
    """Return what the rows of chunks for an instant begin with."""
    return CHUNKS + time8(at_us)


def chunk(at_us: int, number: int, n: int) -> bytes:
    """Return the row of the n-th chunk that a commit leaves for an instant."""
    return chunks(at_us) + number.to_bytes(8, "big") + n.to_bytes(2, "big")


def chunk_instant(row: bytes) -> int:
    """Return the instant at which a chunk is wanted, of its row."""
    return time_of(row[1:9])


IDS: Final = b"I"
IDS_BY_COMMIT: Final = b"J"
IDS_BY_EXPIRY: Final = b"X"

#: Bytes of a source id, and of an entry: a key's hash and an id.
ID_BYTES: Final = 16
ENTRY_BYTES: Final = HASH_BYTES + ID_BYTES


class IdRow(NamedTuple):
    """``I hash source-id``: a record that was delivered.

    Attributes:
        hash8: Of its key.
        id: Its source's.
    """

    hash8: bytes
    id: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> IdRow:  # noqa: ARG003  as of all families
        """Return what a row says."""
        return cls(row[1 : 1 + HASH_BYTES], row[1 + HASH_BYTES :])

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return IDS + self.hash8 + self.id, b""


class IdBatchRow(NamedTuple):
    """``J commit-number expiry``: ids that one commit added, and that expire together.

    Attributes:
        number: Of the commit.
        expires_us: The low watermark at which they expire.
        entries: The ids, packed.
    """

    number: int
    expires_us: int
    entries: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> IdBatchRow:
        """Return what a row says."""
        return cls(time_of(row[1:9]), time_of(row[9:17]), value)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return id_batch_by_commit(self.number, self.expires_us), self.entries

    def expiry_row(self) -> ExpiryRow:
        """Return the row of the same batch by expiry."""
        return ExpiryRow(self.expires_us, self.number)


class ExpiryRow(NamedTuple):
    """``X expiry commit-number``: the same batch, the one that expires first in front.

    Attributes:
        expires_us: The low watermark at which it expires.
        number: Of the commit that added it.
    """

    expires_us: int
    number: int

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> ExpiryRow:  # noqa: ARG003  as of all families
        """Return what a row says."""
        return cls(time_of(row[1:9]), time_of(row[9:17]))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return id_batch_by_expiry(self.expires_us, self.number), b""


def id_batches_since(number: int) -> bytes:
    """Return the first row of the batches that a commit and those after it have added."""
    return IDS_BY_COMMIT + time8(number)


def id_batch_by_commit(number: int, expires_us: int) -> bytes:
    """Return the row of a batch by commit."""
    return IDS_BY_COMMIT + time8(number) + time8(expires_us)


def id_batch_by_expiry(expires_us: int, number: int) -> bytes:
    """Return the row of a batch by expiry."""
    return IDS_BY_EXPIRY + time8(expires_us) + time8(number)


def id_entries(
    hashes: bytes, counts: npt.NDArray[np.int64], halves: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint8]:
    """Return the entries of many ids, one to a line.

    Args:
        hashes: Of the keys, 8 bytes each.
        counts: How many ids each key has.
        halves: The ids of all keys, key after key; two to a line.
    """
    entries = np.empty((len(halves), ENTRY_BYTES), dtype=np.uint8)
    by_key = np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)
    entries[:, :HASH_BYTES] = np.repeat(by_key, counts, axis=0)
    big = halves.astype(">u8")
    entries[:, HASH_BYTES:] = big.view(np.uint8).reshape(-1, ID_BYTES)
    return entries


def entries_of(batches: bytes) -> npt.NDArray[np.uint8]:
    """Return packed entries, one to a line."""
    return np.frombuffer(batches, np.uint8).reshape(-1, ENTRY_BYTES)


def id_rows(entries: bytes) -> list[bytes]:
    """Return the rows of the ids in packed entries, in their order."""
    family = IDS
    return [family + entries[n : n + ENTRY_BYTES] for n in range(0, len(entries), ENTRY_BYTES)]


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
    values = _decode_values(data)
    return [*values, *[None] * (cells - len(values))]


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

#: A row of any family.
Row = (
    ValuesRow | EntryRow | BlockRow | TimerRow | TagRow | HoldRow | KeyHoldRow | IdRow | IdBatchRow
    | ExpiryRow | ChunkRow | ChannelRow
)  # fmt: skip

#: Letter -> what the rows of its family say.
FAMILIES: Final[dict[bytes, type[Row]]] = {
    VALUES: ValuesRow,
    MAP: EntryRow,
    BAG: BlockRow,
    TIMERS: TimerRow,
    TIMER_BY_TAG: TagRow,
    HOLDS: HoldRow,
    HOLD_BY_KEY: KeyHoldRow,
    IDS: IdRow,
    IDS_BY_COMMIT: IdBatchRow,
    IDS_BY_EXPIRY: ExpiryRow,
    CHUNKS: ChunkRow,
    CHANNELS: ChannelRow,
}


def unpack(row: bytes, value: bytes) -> Row:
    """Return what a row of any family says.

    Raises:
        DamagedStore: It is of none.

    >>> from millrace.kernel.row_codec import key_row
    >>> unpack(*KeyHoldRow(key_row(bytes(8), b"sJFK"), 5).pack()).at_us
    5
    """
    family = FAMILIES.get(row[:1])
    if family is None:
        raise DamagedStore(
            f"row {row[:40]!r} begins with none of {b''.join(sorted(FAMILIES)).decode()}. Was it "
            "written by a later version of Millrace? Read it with that."
        )
    return family.unpack(row, value)


def tables_in(mutations: Mapping[bytes, bytes | None]) -> dict[bytes, bytes]:
    """Return the entries of maps that are the interval's, among what a bundle has written."""
    prefix = MAP + ALL_KEYS_ROW
    return {row: value for row, value in mutations.items() if value and row.startswith(prefix)}
