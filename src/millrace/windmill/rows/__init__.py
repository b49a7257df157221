"""Rows: how the cells, timers, holds and ids of a key interval lie in one sorted map.

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

A key is its hash and itself, length-prefixed (``parts.py``). Nobody else cuts rows into bytes. Who
writes or reads a row for every record uses the functions beside the tuples, and makes none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millrace.model.errors import DamagedStore
from millrace.store import View
from millrace.windmill.rows.channels import CHANNELS, ChannelRow
from millrace.windmill.rows.chunks import CHUNKS, ChunkRow, chunk, chunk_instant, chunks
from millrace.windmill.rows.ids import (
    ENTRY_BYTES,
    ID_BYTES,
    IDS,
    IDS_BY_COMMIT,
    IDS_BY_EXPIRY,
    ExpiryRow,
    IdRow,
    LotRow,
    entries_of,
    id_entries,
    id_rows,
    lot_by_commit,
    lot_by_expiry,
    lots_since,
)
from millrace.windmill.rows.parts import (
    BYTE,
    HASH_BYTES,
    HEAD,
    WHOLE,
    after,
    hash_in,
    hashes_in,
    head,
    instant_behind,
    is_digested,
    key_in,
    key_row,
    key_row_at,
    key_row_end,
    last_part,
    time8,
    time_of,
)
from millrace.windmill.rows.state import (
    BAG,
    MAP,
    VALUES,
    BlockRow,
    EntryRow,
    ValuesRow,
    bag_prefix,
    block,
    map_prefix,
    pack_entry,
    pack_items,
    pack_values,
    unpack_entry,
    unpack_items,
    unpack_values,
)
from millrace.windmill.rows.timers import (
    HOLD_BY_KEY,
    HOLDS,
    TIMER_BY_TAG,
    TIMERS,
    Due,
    HoldRow,
    KeyHoldRow,
    Setting,
    TagRow,
    TimerRow,
    clock_of,
    domain_of,
    due_timers,
    expiry_of,
    expiry_tag,
    key_hold,
    pack_setting,
    pack_timer,
    pending_us,
    timer_named,
    timer_rows,
    timers,
    unpack_setting,
    waiting_in,
    waiting_tag,
    work_us,
)

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


__all__ = [
    "BAG",
    "BYTE",
    "CHANNELS",
    "CHUNKS",
    "ENTRY_BYTES",
    "FAMILIES",
    "HASH_BYTES",
    "HOLDS",
    "HOLD_BY_KEY",
    "IDS",
    "IDS_BY_COMMIT",
    "IDS_BY_EXPIRY",
    "ID_BYTES",
    "MAP",
    "TIMERS",
    "TIMER_BY_TAG",
    "VALUES",
    "HEAD",
    "WHOLE",
    "BlockRow",
    "ChannelRow",
    "ChunkRow",
    "Due",
    "EntryRow",
    "ExpiryRow",
    "HoldRow",
    "IdRow",
    "KeyHoldRow",
    "LotRow",
    "Row",
    "Setting",
    "TagRow",
    "TimerRow",
    "ValuesRow",
    "after",
    "bag_prefix",
    "block",
    "chunk",
    "chunk_instant",
    "chunks",
    "clock_of",
    "domain_of",
    "due_timers",
    "entries_of",
    "expiry_of",
    "expiry_tag",
    "everything",
    "hash_in",
    "hashes_in",
    "head",
    "id_entries",
    "id_rows",
    "instant_behind",
    "is_digested",
    "key_hold",
    "key_in",
    "key_row",
    "key_row_at",
    "key_row_end",
    "last_part",
    "lot_by_commit",
    "lot_by_expiry",
    "lots_since",
    "map_prefix",
    "pack_entry",
    "pack_items",
    "pack_setting",
    "pack_timer",
    "pack_values",
    "pending_us",
    "scan",
    "time8",
    "time_of",
    "timer_named",
    "timer_rows",
    "timers",
    "unpack",
    "unpack_entry",
    "unpack_items",
    "unpack_setting",
    "unpack_values",
    "work_us",
    "waiting_in",
    "waiting_tag",
]
