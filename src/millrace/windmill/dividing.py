"""Ranges of rows: how each family of an interval's rows divides by hash, and comes together.

What is of one key goes with its hash. What stands for all keys of an interval goes with each part:
tables of side inputs, the timers of chunks, how far senders were consumed. What has many keys in
one row, a lot of ids or a chunk, is cut.

Source: MillWheel, "Architecture" (7.1): key intervals split and merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.windmill import rows
from millrace.windmill.all_keys import ALL_KEYS_ROW

#: A row and its value.
Pair = tuple[bytes, bytes]

#: Returns what a chunk has of the keys with hashes in [start, end); None if nothing.
Cut = Callable[[bytes, int, int], bytes | None]

#: Letter -> where in its rows the part begins that names a key.
_KEYED: Final = {
    rows.VALUES: 1,
    rows.MAP: 1,
    rows.BAG: 1,
    rows.TIMER_BY_TAG: 1,
    rows.HOLD_BY_KEY: 1,
    rows.IDS: 1,
    rows.HOLDS: 9,
    rows.TIMERS: 10,
}
_HASH: Final = rows.HASH_BYTES


def of_range(pairs: Iterable[Pair], start: int, end: int, cut: Cut) -> Iterator[Pair]:
    """Yield what the rows of an interval say of the keys with hashes in ``[start, end)``.

    Args:
        pairs: All rows of the interval.
        start: The lowest hash.
        end: One past the highest.
        cut: Cuts chunks.

    Raises:
        DamagedStore: A row is of no family.
    """
    for row, value in pairs:
        letter = row[:1]
        at = _KEYED.get(letter)
        if at is not None:
            hashed = int.from_bytes(row[at : at + _HASH])
            if start <= hashed < end or row.startswith(ALL_KEYS_ROW, at):
                yield row, value
        elif letter == rows.IDS_BY_COMMIT:
            yield from _lot(rows.LotRow.unpack(row, value), start, end)
        elif letter == rows.CHUNKS:
            if (left := cut(value, start, end)) is not None:
                yield row, left
        elif letter == rows.CHANNELS:
            yield row, value
        elif letter != rows.IDS_BY_EXPIRY:  # made of the lots that are left
            raise DamagedStore(f"row {row[:40]!r} is of no family that can be divided.")


def together(parts: Iterable[Iterable[Pair]]) -> list[Pair]:
    """Return the rows of several intervals, or parts of some, as those of one, ascending.

    Args:
        parts: The rows of each; no key is in two of them.

    Raises:
        CheckpointMismatch: What stands for all keys of an interval is not the same in two of them.
    """
    found: dict[bytes, bytes] = {}
    for part in parts:
        for row, value in part:
            named = _free(found, row, value) if row[:1] == rows.CHUNKS else row
            known = found.get(named, value)
            found[named] = value if known == value else _one_of(row, known, value)
    return sorted(found.items())


def _lot(lot: rows.LotRow, start: int, end: int) -> Iterator[Pair]:
    entries = rows.entries_of(lot.entries)
    hashes = np.ascontiguousarray(entries[:, :_HASH]).view(">u8").ravel().astype(np.uint64)
    chosen = (hashes >= np.uint64(start)) & (hashes <= np.uint64(end - 1))
    if chosen.any():
        left = lot._replace(entries=entries[chosen].tobytes())
        yield left.pack()
        yield left.expiry_row().pack()


def _free(found: dict[bytes, bytes], row: bytes, value: bytes) -> bytes:
    """Return a row for a chunk: commits of two intervals may have one number."""
    chunk = rows.ChunkRow.unpack(row, value)
    while row in found:
        chunk = chunk._replace(n=chunk.n + 1)
        row = chunk.pack()[0]
    return row


def _one_of(row: bytes, known: bytes, value: bytes) -> bytes:
    """Return the value of a row that two intervals have."""
    if row[:1] == rows.IDS_BY_COMMIT:  # two commits with one number
        return known + value
    if row[:1] == rows.CHANNELS:  # nothing is under way: what comes next is beyond both
        return max(known, value)
    raise CheckpointMismatch(
        f"two key intervals that are to be one differ in row {row[:40]!r}, which stands for all "
        "keys: a table of a side input, or when its entries expire. Expected the same in both. "
        "Keep the number of key intervals, or raise it: then none come together."
    )
