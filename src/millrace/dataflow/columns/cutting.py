"""Cutting chunks by hash: each column of a chunk has a number of 8 bytes for each of its rows."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from millrace.dataflow.columns import sessions, windows


def cut_chunk(chunk: bytes, start: int, end: int) -> bytes | None:
    """Return what a chunk has of the keys with hashes in ``[start, end)``; None if nothing.

    Args:
        chunk: Of windows that merge or of others, as its interval has it.
        start: The lowest hash.
        end: One past the highest.
    """
    kind = windows.Chunk if len(msgspec.msgpack.decode(chunk)) == _FIELDS else sessions.Chunk
    found: Any = msgspec.msgpack.decode(chunk, type=kind)
    hashes = np.frombuffer(found.hashes, "<u8")
    chosen = np.flatnonzero((hashes >= np.uint64(start)) & (hashes <= np.uint64(end - 1)))
    if len(chosen) == len(hashes):
        return chunk
    if not len(chosen):
        return None

    def taken(column: bytes) -> bytes:
        return np.frombuffer(column, "<u8")[chosen].tobytes()

    left = {
        name: taken(value) for name in kind.__struct_fields__
        if isinstance(value := getattr(found, name), bytes)
    }  # fmt: skip
    keys = [found.keys[n] for n in chosen.tolist()]
    columns = [taken(column) for column in found.columns]
    return msgspec.msgpack.encode(
        msgspec.structs.replace(found, **left, keys=keys, columns=columns)
    )


_FIELDS = len(windows.Chunk.__struct_fields__)
