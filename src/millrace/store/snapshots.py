"""Snapshots: all rows of one key interval after one commit, in one blob read front to back.

.. code-block:: text

    snapshots/<computation>/<interval>-<number>   hexadecimal

    header    magic "MRSS" | format u16 | format u16 with every bit inverted
    frames    kind u8 | payload length u32 | payload xxh3_64 u64, seeded with the frame's index
              | payload
      "H"     the first frame: msgpack array [computation, interval, number, chain]
      "R"     any number of frames: msgpack array of [row, value], rows ascending throughout
      "E"     the last frame: msgpack array [rows]

Integers outside msgpack are little-endian. The seed makes a frame that was moved, repeated or left
out as evident as an altered one, and the last frame tells a whole snapshot from a cut one. Frames
hold about a megabyte of rows, so neither writer nor reader needs memory for all of them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import xxhash

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.store.blobs import Blobs
from millrace.store.checkpoint_format import file_name

_NAME = re.compile(r".*/([0-9a-f]{8,})-([0-9a-f]{12,})")

MAGIC = b"MRSS"
FORMAT = 1

#: Rows of a frame, in bytes: large enough that frames do not count, small beside a worker's memory.
FRAME_BYTES = 1 << 20

Rows = Sequence[tuple[bytes, bytes]]
"""Some rows of an interval with their values, ascending."""

_Payload = TypeVar("_Payload")

_HEADER = struct.Struct("<4sHH")
_FRAME = struct.Struct("<cIQ")
_COMPLEMENT = 0xFFFF
_HEAD, _ROWS, _END = b"H", b"R", b"E"


class SnapshotHead(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a snapshot is of.

    Args:
        computation: Name of the computation.
        interval: Id of the key interval.
        number: The last commit whose mutations are in it.
        chain: That commit's.
    """

    computation: str
    interval: int
    number: int
    chain: int


class Snapshots:
    """The snapshots of all key intervals, by ``(computation, interval, number)``.

    A snapshot holds the rows of an interval after commit ``number``. It is a shortcut, never the
    only copy before the commits that it stands for are collected.

    Args:
        blobs: Of the checkpoint.

    >>> from millrace.store import MemoryBlobs
    >>> snapshots = Snapshots(MemoryBlobs())
    >>> snapshots.put("count", 0, 7, [b"rows"]), snapshots.put("count", 0, 7, [b"others"])
    (True, False)
    >>> snapshots.numbers("count"), snapshots.read("count", 0, 8)
    ({0: [7]}, None)
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def put(self, computation: str, interval: int, number: int, pieces: Iterable[bytes]) -> bool:
        """Write a snapshot unless there is one; True when this call put it. Durable, or absent.

        Of two that put one at the same time both may be told that they did, where the checkpoint
        is in an object store: the later one replaces the other's, which holds the same rows.

        Args:
            computation: Name of the computation.
            interval: Id of the key interval.
            number: Of the last commit that it covers.
            pieces: Its bytes in order; taken one by one, so that all need not fit into memory. An
                exception that they raise leaves nothing behind.

        Raises:
            CheckpointUnwritable: nothing was written.
        """
        return self._blobs.put_pieces(_name(computation, interval, number), pieces)

    def read(self, computation: str, interval: int, number: int) -> Iterator[bytes] | None:
        """Return a snapshot's bytes in pieces of any size, or None when there is none.

        Raises:
            StoreError: also while iterating; a collected snapshot may vanish in mid-read.
        """
        return self._blobs.stream(_name(computation, interval, number))

    def numbers(self, computation: str) -> Mapping[int, Sequence[int]]:
        """Return interval id -> numbers of the snapshots that are there, ascending."""
        numbers: dict[int, list[int]] = {}
        for match in map(_NAME.fullmatch, self._blobs.names(_folder(computation))):
            if match is not None:
                numbers.setdefault(int(match[1], 16), []).append(int(match[2], 16))
        return {interval: sorted(numbers[interval]) for interval in sorted(numbers)}

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> None:
        """Remove snapshots, in the order given; pass over those that are not there."""
        self._blobs.remove(_name(computation, interval, number) for number in numbers)


def _folder(computation: str) -> str:
    return f"snapshots/{file_name(computation)}"


def _name(computation: str, interval: int, number: int) -> str:
    return f"{_folder(computation)}/{interval:08x}-{number:012x}"


class _End(msgspec.Struct, array_like=True, frozen=True, gc=False):
    rows: int


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(SnapshotHead).decode
_decode_rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode
_decode_end = msgspec.msgpack.Decoder(_End).decode


def encode_snapshot(head: SnapshotHead, rows: Iterable[Rows]) -> Iterator[bytes]:
    """Yield the bytes of a snapshot, a frame at a time.

    Args:
        head: What it is of.
        rows: All rows, ascending, in parts of about :data:`FRAME_BYTES`; a part becomes a frame.

    >>> pieces = encode_snapshot(SnapshotHead("count", 0, 7, 99), [[(b"Va", b"1")], [(b"Vb", b"")]])
    >>> head, rows = decode_snapshot(pieces, "snapshot 7")
    >>> head.number, [row for part in rows for row in part]
    (7, [(b'Va', b'1'), (b'Vb', b'')])
    """
    yield _HEADER.pack(MAGIC, FORMAT, FORMAT ^ _COMPLEMENT)
    yield _frame(_HEAD, 0, _encode(head))
    index = count = 0
    for index, part in enumerate(rows, 1):
        count += len(part)
        yield _frame(_ROWS, index, _encode(part))
    yield _frame(_END, index + 1, _encode(_End(count)))


def parts_of(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Rows]:
    """Yield rows in parts of about :data:`FRAME_BYTES`.

    >>> [len(part) for part in parts_of(iter([(b"V", b"x" * 600_000)] * 5))]
    [2, 2, 1]
    """
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row[0]) + len(row[1])
        if size >= FRAME_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def decode_snapshot(
    pieces: Iterable[bytes], where: str
) -> tuple[SnapshotHead, Iterator[list[tuple[bytes, bytes]]]]:
    """Return what a snapshot is of, and its rows in parts; nothing is whole before the last part.

    Args:
        pieces: Its bytes, in order, cut anywhere.
        where: Its name, for messages.

    Raises:
        DamagedStore: It is truncated or altered; also while the rows are iterated.
        CheckpointMismatch: It is whole but of a newer format.
    """
    source = _Source(pieces, where)
    magic, version, complement = _HEADER.unpack(source.take(_HEADER.size, "header"))
    if magic != MAGIC or version ^ _COMPLEMENT != complement:
        raise source.damaged("header", f"{MAGIC!r} and a format")
    if version != FORMAT:
        raise CheckpointMismatch(
            f"snapshot {where}: format {version} at offset 4, this Millrace reads format {FORMAT}. "
            f"The checkpoint was written by another version: start the run with that version or a "
            f"later one."
        )
    kind, payload = source.frame(0)
    if kind != _HEAD:
        raise source.damaged("head", "a frame of kind H")
    return source.decoded(_decode_head, payload), _rows(source)


def _rows(source: _Source) -> Iterator[list[tuple[bytes, bytes]]]:
    count, index, last = 0, 1, b""
    while True:
        kind, payload = source.frame(index)
        if kind == _END:
            break
        if kind != _ROWS:
            raise source.damaged("frame", "kind R or E")
        part = source.decoded(_decode_rows, payload)
        for row, _ in part:
            if row <= last:
                raise source.damaged("frame", "ascending rows")
            last = row
        count += len(part)
        yield part
        index += 1
    if source.decoded(_decode_end, payload).rows != count:
        raise source.damaged("end", f"{count} rows")
    if not source.exhausted():
        raise source.damaged("end", "nothing after it")


def _frame(kind: bytes, index: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, len(payload), xxhash.xxh3_64_intdigest(payload, index)) + payload


class _Source:
    """Chunks, taken by the number of bytes needed."""

    def __init__(self, pieces: Iterable[bytes], where: str) -> None:
        self._pieces = iter(pieces)
        self._where = where
        self._buffer = bytearray()
        self._offset = 0

    def take(self, size: int, what: str) -> bytes:
        while len(self._buffer) < size:
            piece = next(self._pieces, None)
            if piece is None:
                raise self.damaged(what, f"{size} bytes", f"{len(self._buffer)}, and no more")
            self._buffer += piece
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._offset += size
        return taken

    def frame(self, index: int) -> tuple[bytes, bytes]:
        kind, size, checksum = _FRAME.unpack(self.take(_FRAME.size, f"frame {index}"))
        payload = self.take(size, f"frame {index}")
        if xxhash.xxh3_64_intdigest(payload, index) != checksum:
            raise self.damaged(f"frame {index}", f"xxh3_64 {checksum:016x}")
        return kind, payload

    def decoded(self, decode: Callable[[bytes], _Payload], payload: bytes) -> _Payload:
        try:
            return decode(payload)
        except msgspec.DecodeError as error:
            raise self.damaged("frame", "msgpack of its kind", str(error)) from error

    def exhausted(self) -> bool:
        return not self._buffer and not any(self._pieces)

    def damaged(self, what: str, expected: str, found: str = "something else") -> DamagedStore:
        return DamagedStore(
            f"snapshot {self._where}: {what} damaged before offset {self._offset}: expected "
            f"{expected}, found {found}. The file was truncated or altered after it was written."
        )
