"""Records and rows as bytes: big-endian numbers, which SQL can read, or text for Flink."""

from __future__ import annotations

import struct

import numpy as np

#: A record: nanoseconds since 1970 at which it was sent, and its key.
RECORD = struct.Struct(">qq")
#: A row: when its record was sent (0: it stands for many), the last key, the last count.
ROW = struct.Struct(">qqq")


def pack_record(sent_ns: int, key: int) -> bytes:
    """Return a record as the load sends it.

    >>> unpack_record(pack_record(5, 7))
    (5, 7)
    """
    return RECORD.pack(sent_ns, key)


def unpack_record(value: bytes) -> tuple[int, int]:
    """Return send time and key of a record; a function, as what it uses cannot be pickled."""
    sent_ns, key = RECORD.unpack(value)
    return sent_ns, key


def text_record(sent_ns: int, key: int) -> bytes:
    """Return a record as Flink's CSV format reads it: its raw format has no pair of numbers.

    >>> text_record(5, 7)
    b'5,7'
    """
    return f"{sent_ns},{key}".encode()


def parse_rows(values: list[bytes]) -> np.ndarray:
    """Return rows, (n, 4): sent, key, count, and when the last stage made it (0: it did not say).

    A row is ``ROW``, or text: the same three numbers, and perhaps a time in UTC.

    >>> parse_rows([ROW.pack(1, 2, 3)]).tolist()
    [[1, 2, 3, 0]]
    >>> parse_rows([b'1,2,3,"1970-01-01 00:00:00.004Z"', b"1,2,4"]).tolist()
    [[1, 2, 3, 4000000], [1, 2, 4, 0]]
    """
    rows = np.zeros((len(values), 4), dtype=np.int64)
    if not values:
        return rows
    if all(len(value) == ROW.size for value in values) and not _is_text(values[0]):
        rows[:, :3] = np.frombuffer(b"".join(values), dtype=">i8").reshape(-1, 3)
        return rows
    for n, value in enumerate(values):
        sent, key, number, *made = value.decode().split(",")
        rows[n, :3] = int(sent), int(key), int(number)
        if made:
            at = np.datetime64(made[0].strip('"').removesuffix("Z"))
            rows[n, 3] = at.astype("datetime64[ns]").astype(np.int64)
    return rows


def _is_text(value: bytes) -> bool:
    return value[:1].isdigit()
