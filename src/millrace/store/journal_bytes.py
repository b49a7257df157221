"""The bytes of a journal: a header that is like no other's, then a frame for each group.

.. code-block:: text

    header    magic "MRJL" | format u16 | format u16 with every bit inverted
              | session u32 | level u32 | task u32 | part u32 | object u32 | attempt, 16 bytes
              | xxh3_64 u64 of all before it
    frame     "MRGR" | body length u64 | body xxh3_64 u64, seeded: see below | body
      body    head length u32 | head: msgpack array [note, [length of a block, ...]]
              | blocks: msgpack arrays (a Commit each), no padding

Integers outside msgpack are little-endian. A frame's seed is the header's checksum plus the frame's
offset, modulo 2^64, and ``attempt`` is random. So bytes of another journal, or of another place,
are never taken for a group, wherever a file system may leave them; and a group can be looked for
behind one that is damaged, which is how damage is told from an end that was torn.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import xxhash

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.store.commit import Commit, Identity
from millrace.store.journal import Group, JournalName

MAGIC = b"MRJL"
FORMAT = 1

_MARK = b"MRGR"
_HEADER = struct.Struct("<4sHH5I16s")
_CHECKSUM = struct.Struct("<Q")
_FRAME = struct.Struct("<4sQQ")
_HEAD_LENGTH = struct.Struct("<I")
_COMPLEMENT = 0xFFFF
_SEEDS = (1 << 64) - 1

# Large enough that calls do not count, small beside the memory of a worker.
_AHEAD_BYTES = 1 << 20

#: Bytes before the first group.
HEADER_BYTES = _HEADER.size + _CHECKSUM.size

#: Returns bytes ``[start, stop)`` of a journal; fewer when it ends before.
Read = Callable[[int, int], bytes]


class _Head(msgspec.Struct, array_like=True, gc=False):
    note: bytes
    lengths: list[int]


class _Name(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a Commit; msgspec passes over the rest."""

    computation: str
    interval: int
    number: int


class Frame(NamedTuple):
    """A group as it lies in its journal: bytes ``[offset, end)``."""

    offset: int
    end: int
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_name = msgspec.msgpack.Decoder(_Name).decode
_decode_commit = msgspec.msgpack.Decoder(Commit).decode


def encode_header(name: JournalName, number: int = 0) -> bytes:
    """Return the header of a new journal; of object ``number`` of one, in an object store."""
    head = _HEADER.pack(MAGIC, FORMAT, FORMAT ^ _COMPLEMENT, *name, number, os.urandom(16))
    return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head))


def seed_of(header: bytes) -> int:
    """Return what the seeds of a journal's frames are made from."""
    seed: int = _CHECKSUM.unpack_from(header, _HEADER.size)[0]
    return seed


def encode_body(commits: Sequence[Commit], note: bytes) -> bytes:
    """Return the body of a group's frame.

    >>> body = encode_body([Commit("count", 4, 2, epoch=1, generation=1, mutations=[])], b"note")
    >>> names_of(body), commit_of(body, 0).epoch, group_of(body).note
    ([('count', 4, 2)], 1, b'note')
    """
    blocks = [_encode(commit) for commit in commits]
    head = _encode((note, [len(block) for block in blocks]))
    return b"".join((_HEAD_LENGTH.pack(len(head)), head, *blocks))


def encode_frame(body: bytes, seed: int, offset: int) -> bytes:
    """Return the frame of a group, as it lies at ``offset``."""
    checksum = xxhash.xxh3_64_intdigest(body, (seed + offset) & _SEEDS)
    return _FRAME.pack(_MARK, len(body), checksum) + body


def note_of(body: bytes) -> bytes:
    """Return a group's note."""
    return _head(body)[0].note


def names_of(body: bytes) -> list[Identity]:
    """Return the names of a group's commits, in order, without the cost of the commits."""
    names = [_decode_name(block) for block in _blocks(body)]
    return [(name.computation, name.interval, name.number) for name in names]


def group_of(body: bytes) -> Group:
    """Return a group."""
    return Group([_decode_commit(block) for block in _blocks(body)], note_of(body))


def commit_of(body: bytes, place: int) -> Commit:
    """Return one commit of a group, by its place in it."""
    head, start = _head(body)
    start += sum(head.lengths[:place])
    return _decode_commit(memoryview(body)[start : start + head.lengths[place]])


def _head(body: bytes) -> tuple[_Head, int]:
    """Return the head, and where the blocks begin."""
    start = _HEAD_LENGTH.size + _HEAD_LENGTH.unpack_from(body)[0]
    return _decode_head(memoryview(body)[_HEAD_LENGTH.size : start]), start


def _blocks(body: bytes) -> Iterator[memoryview]:
    head, start = _head(body)
    view = memoryview(body)
    for length in head.lengths:
        yield view[start : start + length]
        start += length


class Frames:
    """The groups of a journal, from its bytes.

    Args:
        where: Its name, for messages.
        name: What its header must say.
        read: Returns its bytes.
        size: How many there are.
        number: Of the object, in an object store.

    Raises:
        DamagedStore: The header is not one of that journal.
        CheckpointMismatch: The journal is of a newer format.
    """

    def __init__(
        self, where: str, name: JournalName, read: Read, size: int, number: int = 0
    ) -> None:
        self._where = where
        self._read = read
        self._size = size
        self._seed = self._checked((*name, number))

    def __iter__(self) -> Iterator[Frame]:
        """Yield whole groups up to the first that is not."""
        offset = HEADER_BYTES
        while (frame := self._frame(offset)) is not None:
            yield frame
            offset = frame.end

    def all(self) -> Iterator[Frame]:
        """Yield the groups; they must reach to the end.

        Raises:
            DamagedStore: One of them is not whole.
        """
        end = HEADER_BYTES
        for frame in self:
            yield frame
            end = frame.end
        if end != self._size:
            raise self._damaged(end, "a whole group")

    def at(self, offset: int) -> Frame:
        """Return the group at an offset.

        Raises:
            DamagedStore: It is not whole.
        """
        frame = self._frame(offset)
        if frame is None:
            raise self._damaged(offset, "a whole group")
        return frame

    def check_torn(self, end: int) -> None:
        """Raise DamagedStore if a whole group comes after ``end``, where none begins."""
        rest = self._read(end, self._size)
        at = rest.find(_MARK, 1)
        while at >= 0:
            if self._frame(end + at) is not None:
                raise self._damaged(end, f"a whole group, as there is one at {end + at}")
            at = rest.find(_MARK, at + 1)

    def _frame(self, offset: int) -> Frame | None:
        found = self._read(offset, offset + _FRAME.size)
        if len(found) < _FRAME.size:
            return None
        mark, length, checksum = _FRAME.unpack(found)
        start = offset + _FRAME.size
        if mark != _MARK or length > self._size - start:
            return None
        body = self._read(start, start + length)
        if xxhash.xxh3_64_intdigest(body, (self._seed + offset) & _SEEDS) != checksum:
            return None
        return Frame(offset, start + length, body)

    def _checked(self, name: tuple[int, ...]) -> int:
        header = self._read(0, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise self._damaged(0, f"a header of {HEADER_BYTES} bytes")
        magic, version, complement, *found = _HEADER.unpack_from(header)
        if magic != MAGIC or version ^ _COMPLEMENT != complement:
            raise self._damaged(0, f"magic {MAGIC!r} and a format")
        if version != FORMAT:
            raise CheckpointMismatch(
                f"journal {self._where}: format {version} at offset 4, this Millrace reads format "
                f"{FORMAT}. The checkpoint was written by another version: start the run with that "
                f"version or a later one."
            )
        seed = seed_of(header)
        if xxhash.xxh3_64_intdigest(header[: _HEADER.size]) != seed:
            raise self._damaged(0, f"a header with xxh3_64 {seed:016x}")
        if tuple(found[:5]) != name:
            raise self._damaged(8, f"the header of {name}, and not of {tuple(found[:5])}")
        return seed

    def _damaged(self, offset: int, expected: str) -> DamagedStore:
        return DamagedStore(
            f"journal {self._where}: damaged at offset {offset}: expected {expected}. The file was "
            f"truncated or altered after it was written. Restore it from a copy of the checkpoint; "
            f"without it the commits in it, and what followed from them, are lost."
        )


class ReadAhead:
    """Reads a journal front to back in few calls.

    Args:
        read: Reads it.
        size: How many bytes there are.
    """

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size
        self._start = 0
        self._data = b""

    def __call__(self, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)``."""
        stop = min(stop, self._size)
        if start < self._start or stop > self._start + len(self._data):
            self._data = self._read(start, min(self._size, max(stop, start + _AHEAD_BYTES)))
            self._start = start
        return self._data[start - self._start : stop - self._start]


def is_torn_header(read: Read) -> bool:
    """Return whether a journal without a header never had a group that was durable."""
    return read(HEADER_BYTES, HEADER_BYTES + len(_MARK)) != _MARK
