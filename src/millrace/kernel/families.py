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
    J commit-number expiry     LotRow       the ids that one commit added, that expire together
    X expiry commit-number     ExpiryRow    the same lot, the one that expires first in front
    C time commit-number n     ChunkRow     a chunk of all keys, wanted at that time
    Q sender                   ChannelRow   the last record of a sender that was consumed

A key is its hash and itself, length-prefixed, so no row of one key is inside the range of another.
Rows stay below LMDB's limit of 511 bytes: of a key, tag or entry that is too long, the row holds a
256-bit digest. Nobody else cuts rows into bytes. Who writes or reads a row for every record uses
the functions beside the tuples, and makes none.

A row of state says the number of its cell, and the checkpoint's registry says which cell that is.
Value and combining cells stand in the order of their numbers. A pending timer has a row in T, to be
found when it is due, and one in U, to be found by its tag. If it holds the low watermark, it has
one in H too, where the holds of keys are, which lie in G once more by key. Where two rows tell of
one thing, each can be made from the other. Ids of delivered records stand each by itself (I), and
in lots by commit (J) and expiry (X): a lot is what one commit added and what expires together,
packed in the value of its J row, as entries of 24 bytes: the key's hash, and the source's id.

What is the interval's, and no key's, has rows under a key that stands for all of them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.model.errors import DamagedStore
from millrace.model.keys import encode_key
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import View

#: Longest key, entry or tag that stands in a row as it is. Two of them and the fixed parts make a
#: row of at most 1 + 1 + 8 + 8 + 2 + 160 + 160 bytes.
WHOLE: Final = 159
#: Bytes of a key's hash.
HASH_BYTES: Final = 8
_DIGESTED: Final = 160
_DIGEST_BYTES: Final = 32
#: So many bytes of an entry its row has in order, however long it is.
HEAD: Final = _DIGESTED - _DIGEST_BYTES
#: Added to an instant, it makes it sort as bytes.
SIGN: Final = 1 << 63
_LENGTHS: Final = [length.to_bytes(2, "big") for length in range(WHOLE + 1)]
_TOO_LONG: Final = b"\xff\xff"
#: All numbers of one byte, as bytes.
BYTE: Final = [bytes([n]) for n in range(256)]


def key_row(hash8: bytes, key: bytes) -> bytes:
    """Return the part of a row that names a key: its hash and the key, length-prefixed.

    >>> key_row(bytes(8), b"sJFK").hex()
    '00000000000000000004734a464b'
    """
    if len(key) <= WHOLE:
        return hash8 + _LENGTHS[len(key)] + key
    return hash8 + _TOO_LONG + _digest(key)


def key_row_end(row: bytes, start: int) -> int:
    """Return where the part of a row ends that names a key and begins at ``start``.

    >>> key_row_end(b"V" + key_row(bytes(8), b"sJFK") + b"more", 1)
    15
    """
    length = int.from_bytes(row[start + 8 : start + 10], "big")
    return start + 10 + (length if length <= WHOLE else _DIGEST_BYTES)


def key_row_at(row: bytes, start: int) -> bytes:
    """Return the part of a row that names a key and begins at ``start``."""
    return row[start : key_row_end(row, start)]


def hash_in(key_row: bytes) -> int:
    """Return the hash of the key that a row names."""
    return int.from_bytes(key_row[:HASH_BYTES])


def key_in(key_row: bytes) -> bytes | None:
    """Return the encoded key that a row names; None if it is too long to stand in one.

    >>> key_in(key_row(bytes(8), b"sJFK")), key_in(key_row(bytes(8), b"s" * 160))
    (b'sJFK', None)
    """
    return None if key_row[8:10] == _TOO_LONG else key_row[10:]


def hashes_in(key_rows: Sequence[bytes]) -> bytes:
    """Return the hashes of the keys that rows name, 8 bytes each, one after another."""
    return b"".join([named[:HASH_BYTES] for named in key_rows])


def last_part(data: bytes) -> bytes:
    """Return an entry or a tag as the last part of a row; see :func:`is_digested`."""
    if len(data) <= WHOLE:
        return data
    return data[:HEAD] + _digest(data)


def head(entry: bytes) -> bytes:
    """Return what rows of entries keep of them in order; entries with one head may be out of it."""
    return entry[:HEAD]


def is_digested(part: bytes) -> bool:
    """Return whether a last part stands for something longer, which its row's value then holds."""
    return len(part) == _DIGESTED


def time8(at_us: int) -> bytes:
    """Return an instant as 8 bytes that sort as instants do."""
    return (at_us + SIGN).to_bytes(8)


def time_of(data: bytes) -> int:
    """Return the instant that :func:`time8` made the bytes from."""
    return int.from_bytes(data) - SIGN


def instant_behind(prefix: bytes, row: bytes) -> int:
    """Return the instant that stands in a row right behind a prefix of it."""
    at = len(prefix)
    return time_of(row[at : at + 8])


def after(prefix: bytes) -> bytes:
    r"""Return the first row after all rows with a prefix.

    >>> after(b"V"), after(b"a\xff")
    (b'W', b'b')
    """
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


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


class LotRow(NamedTuple):
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
    def unpack(cls, row: bytes, value: bytes) -> LotRow:
        """Return what a row says."""
        return cls(time_of(row[1:9]), time_of(row[9:17]), value)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return lot_by_commit(self.number, self.expires_us), self.entries

    def expiry_row(self) -> ExpiryRow:
        """Return the row of the same lot by expiry."""
        return ExpiryRow(self.expires_us, self.number)


class ExpiryRow(NamedTuple):
    """``X expiry commit-number``: the same lot, the one that expires first in front.

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
        return lot_by_expiry(self.expires_us, self.number), b""


def lots_since(number: int) -> bytes:
    """Return the first row of the lots that a commit and those after it have added."""
    return IDS_BY_COMMIT + time8(number)


def lot_by_commit(number: int, expires_us: int) -> bytes:
    """Return the row of a lot by commit."""
    return IDS_BY_COMMIT + time8(number) + time8(expires_us)


def lot_by_expiry(expires_us: int, number: int) -> bytes:
    """Return the row of a lot by expiry."""
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


def entries_of(lots: bytes) -> npt.NDArray[np.uint8]:
    """Return packed entries, one to a line."""
    return np.frombuffer(lots, np.uint8).reshape(-1, ENTRY_BYTES)


def id_rows(entries: bytes) -> list[bytes]:
    """Return the rows of the ids in packed entries, in their order."""
    letter = IDS
    return [letter + entries[n : n + ENTRY_BYTES] for n in range(0, len(entries), ENTRY_BYTES)]


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

TIMERS: Final = b"T"
TIMER_BY_TAG: Final = b"U"
HOLDS: Final = b"H"
HOLD_BY_KEY: Final = b"G"

#: A pending timer as the kernel orders it: (at, domain, encoded tag).
Due = tuple[int, int, bytes]

#: What was set under a name: (at, hold, percentile). The name is (domain, encoded tag).
Setting = tuple[int, int | None, int]


class _Timer(msgspec.Struct, array_like=True, frozen=True):
    """The value of a row of timers by time. Without a hold, it has only the first two."""

    key: bytes
    tag: bytes
    hold_us: int | None = None


#: Encoded keys, and so users' tags, begin with s, i, b or m. A record that waits comes before all
#: timers of its instant.
_EXPIRY: Final = b"x"
_WAITING: Final = b"A"
_CALL: Final = b"C"
_decode = msgspec.msgpack.Decoder(_Timer).decode
_CLOCKS: Final = [TIMERS + clock for clock in BYTE]


class TimerRow(NamedTuple):
    """``T clock time key tag``: a pending timer, in the order in which timers fire.

    Attributes:
        clock: What it waits for, see :func:`clock_of`.
        at_us: When it fires.
        key_row: The part that names its key.
        tag: Encoded.
        key: Encoded.
        hold_us: Where it holds the low watermark; None if at its own time or not at all.
    """

    clock: int
    at_us: int
    key_row: bytes
    tag: bytes
    key: bytes
    hold_us: int | None = None

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> TimerRow:
        """Return what a row says."""
        timer = _decode(value)
        named = key_row_at(row, 10)
        return cls(row[1], time_of(row[2:10]), named, timer.tag, timer.key, timer.hold_us)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        domain, percentile = domain_of(self.clock)
        named = timer_named(self.key_row, domain, self.tag)
        row, _ = timer_rows(named, self.key_row, domain, (self.at_us, None, percentile))
        return row, pack_timer(self.key, self.tag, self.hold_us)

    @property
    def domain(self) -> int:
        """0 for the low watermark, 1 for the wall clock."""
        return domain_of(self.clock)[0]

    @property
    def setting(self) -> Setting:
        """How it was set."""
        return self.at_us, self.hold_us, domain_of(self.clock)[1]

    def tag_row(self) -> TagRow:
        """Return the row that tells of it by tag."""
        return TagRow(self.key_row, self.domain, last_part(self.tag), self.setting)

    def hold_row(self) -> HoldRow | None:
        """Return the row of its hold; None if it has none."""
        if self.hold_us is None:
            return None
        return HoldRow(self.hold_us, self.key_row, self.domain, last_part(self.tag), self.key)


class TagRow(NamedTuple):
    """``U key domain tag``: a pending timer, found by its tag.

    Attributes:
        key_row: The part that names its key.
        domain: 0 for the low watermark, 1 for the wall clock.
        part: The tag, encoded, as the last part of a row.
        setting: How it was set.
    """

    key_row: bytes
    domain: int
    part: bytes
    setting: Setting

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> TagRow:
        """Return what a row says."""
        end = key_row_end(row, 1)
        return cls(row[1:end], row[end], row[end + 1 :], unpack_setting(value))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        row = TIMER_BY_TAG + self.key_row + BYTE[self.domain] + self.part
        return row, pack_setting(self.setting)

    def timer_row(self) -> bytes:
        """Return the row of the same timer by time."""
        return timer_rows(self.pack()[0], self.key_row, self.domain, self.setting)[0]


class HoldRow(NamedTuple):
    """``H time key``, or ``H time key domain tag``: a hold of a key, or of a timer.

    Attributes:
        at_us: Where it holds the low watermark.
        key_row: The part that names its key.
        domain: Of the timer; None for a hold of the key.
        part: The timer's tag, encoded, as the last part of a row; empty for a hold of the key.
        key: Encoded.
    """

    at_us: int
    key_row: bytes
    domain: int | None
    part: bytes
    key: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> HoldRow:
        """Return what a row says."""
        end = key_row_end(row, 9)
        domain = row[end] if len(row) > end else None
        return cls(time_of(row[1:9]), row[9:end], domain, row[end + 1 :], value)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        owner = b"" if self.domain is None else BYTE[self.domain] + self.part
        return HOLDS + time8(self.at_us) + self.key_row + owner, self.key

    def tag_row(self) -> bytes | None:
        """Return the row by tag of the timer that holds; None if the key does."""
        if self.domain is None:
            return None
        return TIMER_BY_TAG + self.key_row + BYTE[self.domain] + self.part


class KeyHoldRow(NamedTuple):
    """``G key``: a key's hold, found by its key.

    Attributes:
        key_row: The part that names the key.
        at_us: Where it holds the low watermark.
    """

    key_row: bytes
    at_us: int

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> KeyHoldRow:
        """Return what a row says."""
        return cls(row[1:], time_of(value))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return HOLD_BY_KEY + self.key_row, time8(self.at_us)

    def hold_row(self) -> bytes:
        """Return the row of the same hold by time."""
        return key_hold(self.at_us, self.key_row)


def timers(clock: int) -> bytes:
    """Return what the rows of timers begin with that wait for a clock."""
    return _CLOCKS[clock]


def timer_named(key_row: bytes, domain: int, tag: bytes) -> bytes:
    """Return the row by tag of a timer."""
    part = tag if len(tag) <= WHOLE else last_part(tag)
    return TIMER_BY_TAG + key_row + BYTE[domain] + part


def timer_rows(
    named: bytes, key_row: bytes, domain: int, setting: Setting
) -> tuple[bytes, bytes | None]:
    """Return the row by time of a timer, and that of its hold; None if it has none.

    Args:
        named: Its row by tag.
        key_row: The part of it that names its key.
        domain: Of the timer.
        setting: How it is set.
    """
    at_us, hold_us, percentile = setting
    clock = domain if percentile == 100 else clock_of(domain, percentile)
    # Without a call of time8: every timer that is set or has fired passes here.
    row = _CLOCKS[clock] + (at_us + SIGN).to_bytes(8) + key_row + named[len(key_row) + 2 :]
    return row, None if hold_us is None else HOLDS + time8(hold_us) + named[1:]


def pack_timer(key: bytes, tag: bytes, hold_us: int | None) -> bytes:
    """Return the value of a row of timers by time."""
    return _encode((key, tag) if hold_us is None else (key, tag, hold_us))


def due_timers(
    view: View, clock: int, clock_us: int
) -> Iterator[tuple[bytes, bytes, Due, tuple[int | None, int]]]:
    """Yield (key row, key, timer, (hold, percentile)) of what is due by a clock, earliest first."""
    prefix = _CLOCKS[clock]
    domain, percentile = domain_of(clock)
    stop = prefix + time8(min(clock_us, MAX_TIMESTAMP) + 1)
    for row, value in view.scan(prefix, stop):
        timer = _decode(value)
        key = timer.key
        end = 20 + len(key) if len(key) <= WHOLE else key_row_end(row, 10)
        due = (int.from_bytes(row[2:10]) - SIGN, domain, timer.tag)
        yield row[10:end], key, due, (timer.hold_us, percentile)


def pending_us(view: View) -> Iterator[int]:
    """Yield the timestamp that every timer and hold of an interval stands for as pending work."""
    for row, value in view.scan(TIMERS, after(TIMERS)):
        timer = TimerRow.unpack(row, value)
        if (at_us := work_us(timer.domain, timer.tag, timer.setting)) is not None:
            yield at_us
    for row, value in view.scan(HOLD_BY_KEY, after(HOLD_BY_KEY)):
        yield KeyHoldRow.unpack(row, value).at_us


def key_hold(at_us: int, key_row: bytes) -> bytes:
    """Return the row by time of a key's hold."""
    return HOLDS + time8(at_us) + key_row


def clock_of(domain: int, percentile: int) -> int:
    """Return the clock that a timer waits for: 0 low watermark, 1 wall, 128 + p a percentile."""
    return domain if percentile == 100 else 0x80 | percentile


def domain_of(clock: int) -> tuple[int, int]:
    """Return the domain and the percentile of a clock."""
    return (clock, 100) if clock < 0x80 else (0, clock & 0x7F)


def pack_setting(setting: Setting) -> bytes:
    """Return the value of a row of timers by tag: time, hold and percentile as far as there are.

    >>> unpack_setting(pack_setting((5, None, 99)))
    (5, None, 99)
    """
    at_us, hold_us, percentile = setting
    encoded = (at_us + SIGN).to_bytes(8)
    if hold_us is not None:
        encoded += time8(hold_us)
    return encoded if percentile == 100 else encoded + BYTE[percentile]


def unpack_setting(value: bytes) -> Setting:
    """Return how a timer was set, of the value of its row by tag."""
    if len(value) == 8:
        return int.from_bytes(value) - SIGN, None, 100
    hold_us = time_of(value[8:16]) if len(value) >= 16 else None
    return time_of(value[:8]), hold_us, value[-1] if len(value) % 8 else 100


def work_us(domain: int, tag: bytes, setting: Setting) -> int | None:
    """Return the timestamp that a timer stands for as pending work; None if for none.

    Of what only expires nothing comes.
    """
    at_us, hold_us, _ = setting
    if domain or tag[:1] == _EXPIRY:
        return hold_us
    return at_us if hold_us is None else min(at_us, hold_us)


def expiry_tag(cell: bytes, entry: bytes) -> bytes:
    r"""Return the tag of the timer by which a cell, or an entry of a map, expires; no user's is so.

    >>> expiry_tag(b"\0", b"sJFK"), expiry_of(expiry_tag(b"\0", b"sJFK")), expiry_of(b"sJFK")
    (b'x\x00sJFK', (0, b'sJFK'), None)
    """
    return _EXPIRY + cell + entry


def expiry_of(tag: bytes) -> tuple[int, bytes] | None:
    """Return the cell's number, and the entry, that expires by a timer; None if nothing does."""
    return (tag[1], tag[2:]) if tag[:1] == _EXPIRY else None


def waiting_tag(entry: bytes) -> bytes:
    """Return the tag of the timer that a record waits for, by its entry; no user's is so.

    >>> waiting_tag(b"sJFK"), waiting_in(waiting_tag(b"sJFK")), waiting_in(b"sJFK")
    (b'AsJFK', b'sJFK', None)
    """
    return _WAITING + entry


def waiting_in(tag: bytes) -> bytes | None:
    """Return the entry of the record that waits for a timer; None if none does."""
    return tag[1:] if tag[:1] == _WAITING else None


def call_tag(entry: bytes) -> bytes:
    """Return the tag of the timer of a pending call, by the entry of its record; no user's is so.

    >>> call_tag(b"sJFK"), is_call(call_tag(b"sJFK")), is_call(b"sJFK")
    (b'CsJFK', True, False)
    """
    return _CALL + entry


def is_call(tag: bytes) -> bool:
    """Return whether a tag is that of a pending call."""
    return tag[:1] == _CALL


def pending_calls(view: View) -> Iterator[TimerRow]:
    """Yield the timers of an interval's pending calls: by key, in order of arrival."""
    for row, value in scan(view, _CLOCKS[1] + time8(MAX_TIMESTAMP)):
        timer = TimerRow.unpack(row, value)
        if is_call(timer.tag):
            yield timer


#: A row of any family.
Row = (
    ValuesRow | EntryRow | BlockRow | TimerRow | TagRow | HoldRow | KeyHoldRow | IdRow | LotRow
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
    IDS_BY_COMMIT: LotRow,
    IDS_BY_EXPIRY: ExpiryRow,
    CHUNKS: ChunkRow,
    CHANNELS: ChannelRow,
}


def unpack(row: bytes, value: bytes) -> Row:
    """Return what a row of any family says.

    Raises:
        DamagedStore: It is of none.

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


def everything(view: View) -> Iterator[tuple[bytes, bytes]]:
    """Yield all rows of an interval and their values, ascending."""
    return view.scan(b"A", b"[")


def scan(view: View, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows with a prefix and their values, ascending."""
    return view.scan(prefix, after(prefix))


#: The key that stands for all keys of an interval.
ALL_KEYS: Final = encode_key("all keys")
#: No user's key has it: theirs hash to it once in 2**64.
ALL_KEYS_ROW: Final = key_row(bytes(HASH_BYTES), ALL_KEYS)


def tables_in(mutations: Mapping[bytes, bytes | None]) -> dict[bytes, bytes]:
    """Return the entries of maps that are the interval's, among what a bundle has written."""
    prefix = MAP + ALL_KEYS_ROW
    return {row: value for row, value in mutations.items() if value and row.startswith(prefix)}
