"""The segment: the commits of several key intervals in one blob, put whole.

.. code-block:: text

    header    magic "MRSG" | format u16 | format u16 with every bit inverted
    blocks    if all commits begin with the same mutations, and many, first one with those;
              one msgpack array (a Commit) after another, no padding
    footer    msgpack array of [computation, interval, number, offset, length, xxh3_64, attempt]
    trailer   footer length u32 | footer xxh3_64 u64 | magic "MRSG"

Integers outside msgpack are little-endian; checksums are XXH3 64 with seed 0. Every byte is under a
checksum or compared with a constant, and the blocks must tile the space between header and footer,
so a damaged one is refused and never read as something else. To read one commit takes one block,
whatever the size of the segment, and the one of all commits if there is one.

The header's layout is the same in every future format: a reader can tell a newer segment (refused,
with what to do) from a damaged one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import msgspec
import xxhash
from msgspec.structs import replace

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.store.commit import Commit, Identity, identities, identity

MAGIC = b"MRSG"
FORMAT = 1
#: The number in the index of a block that is of all commits. No commit has it.
_OF_ALL = 0
#: What commits begin with is written once from so many bytes on.
_SHARED_BYTES = 1 << 16

_HEADER = struct.Struct("<4sHH")
_TRAILER = struct.Struct("<IQ4s")
_COMPLEMENT = 0xFFFF

# One read of this size usually returns the trailer and the footer together, and all of a small
# segment: a footer entry is about 40 bytes, so this is room for some 1,500 intervals.
_TAIL_BYTES = 64 * 1024

_encode = msgspec.msgpack.Encoder().encode


class IndexEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where one commit lies in a segment: bytes ``[offset, offset + length)`` of it.

    ``attempt`` tells the segments of two writers apart that hold the same commits.
    """

    computation: str
    interval: int
    number: int
    offset: int
    length: int
    checksum: int
    attempt: bytes = b""

    @property
    def identity(self) -> Identity:
        """The name of the commit."""
        return self.computation, self.interval, self.number


_decode_index = msgspec.msgpack.Decoder(list[IndexEntry]).decode
_decode_commit = msgspec.msgpack.Decoder(Commit).decode


_decode_mutations = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode


class SegmentIndex(NamedTuple):
    """What a segment holds.

    Attributes:
        entries: Where each commit lies, in its order.
        shared: Where the mutations lie that all its commits begin with; None if there are none.
    """

    entries: list[IndexEntry]
    shared: IndexEntry | None


def encode_segment(commits: Sequence[Commit], *, attempt: bytes = b"") -> bytes:
    """Return one segment that holds ``commits``.

    Mutations that all of them begin with are written once, if they are many: the rows of side
    inputs, which are the same in every interval of a task.

    Args:
        commits: With distinct identities.
        attempt: Of the writer, where it may have to find out whether a segment is its own.

    Raises:
        InvariantViolation: two commits have the same identity, or one has an impossible number.

    >>> segment = encode_segment([Commit("count", 0, 1, epoch=1, generation=1, mutations=[])])
    >>> [commit.epoch for commit in decode_segment(segment)]
    [1]
    >>> list(decode_segment(segment[:-1]))
    Traceback (most recent call last):
    millrace.model.errors.DamagedStore: segment <memory>: trailer damaged at offset 48: ...
    """
    shared = _shared(commits)
    parts = [_HEADER.pack(MAGIC, FORMAT, FORMAT ^ _COMPLEMENT)]
    offset = _HEADER.size
    index: list[IndexEntry] = []

    def add(name: Identity, block: bytes) -> None:
        nonlocal offset
        checksum = xxhash.xxh3_64_intdigest(block)
        index.append(IndexEntry(*name, offset, len(block), checksum, attempt))
        parts.append(block)
        offset += len(block)

    if shared:
        add(("", 0, _OF_ALL), _encode(commits[0].mutations[:shared]))
    for name, commit in zip(identities(commits), commits, strict=True):
        rest = replace(commit, mutations=commit.mutations[shared:]) if shared else commit
        add(name, _encode(rest))
    footer = _encode(index)
    parts.append(footer)
    parts.append(_TRAILER.pack(len(footer), xxhash.xxh3_64_intdigest(footer), MAGIC))
    return b"".join(parts)


def _shared(commits: Sequence[Commit]) -> int:
    """Return with how many mutations all commits begin; 0 if that is too little."""
    if len(commits) < 2:
        return 0
    first = commits[0].mutations
    count = len(first)
    for other in commits[1:]:
        pairs = enumerate(zip(first[:count], other.mutations, strict=False))
        same = min(count, len(other.mutations))
        count = next((n for n, (one, another) in pairs if one != another), same)
    size = sum(map(len, filter(None, chain.from_iterable(first[:count]))))
    return count if size >= _SHARED_BYTES else 0


def decode_segment(data: bytes, name: str = "<memory>") -> Iterator[Commit]:
    """Yield the commits of a segment, in its order.

    Args:
        data: All of it.
        name: For messages.

    Raises: as :meth:`Segment.index` and :meth:`Segment.commit`.
    """
    segment = Segment(name, len(data), lambda start, stop: data[start:stop])
    entries, shared = segment.index()
    before = () if shared is None else segment.mutations(shared)
    for entry in entries:
        commit = segment.commit(entry)
        commit.mutations[:0] = before
        yield commit


#: Returns bytes ``[start, stop)``; fewer where there are no more.
ReadRange = Callable[[int, int], bytes]


class Segment:
    """A segment wherever it is, read by ranges: its end once, then single blocks.

    Args:
        name: For messages.
        size: In bytes.
        read: Reads a range of it.
    """

    def __init__(self, name: str, size: int, read: ReadRange) -> None:
        self.name = name
        self.size = size
        self._read = read
        self._tail_offset = max(0, size - _TAIL_BYTES)

    @cached_property
    def _tail(self) -> bytes:
        return self._read(self._tail_offset, self.size)

    def index(self) -> SegmentIndex:
        """Return what it holds, after every check that does not need a block.

        Raises:
            DamagedStore: It is truncated or altered.
            CheckpointMismatch: It is whole but of a newer format.
        """
        entries = _index(self)
        shared = entries.pop(0) if entries and entries[0].number == _OF_ALL else None
        return SegmentIndex(entries, shared)

    def commit(self, entry: IndexEntry, shared: IndexEntry | None = None) -> Commit:
        """Return one commit, behind the mutations that all of them begin with, if told where.

        Raises:
            DamagedStore: It is not what was written.
        """
        block = self._checked(f"commit {entry.identity}", entry)
        try:
            commit = _decode_commit(block)
        except msgspec.DecodeError as error:
            raise self.damaged("commit", entry.offset, "a Commit", str(error)) from error
        if identity(commit) != entry.identity:
            raise self.damaged("commit", entry.offset, entry.identity, identity(commit))
        if shared is not None:
            commit.mutations[:0] = self.mutations(shared)
        return commit

    def mutations(self, shared: IndexEntry) -> list[tuple[bytes, bytes | None]]:
        """Return the mutations that all its commits begin with.

        Raises:
            DamagedStore: They are not what was written.
        """
        block = self._checked("mutations of all commits", shared)
        try:
            return _decode_mutations(block)
        except msgspec.DecodeError as error:
            raise self.damaged("mutations", shared.offset, "a list of them", str(error)) from error

    def _checked(self, what: str, entry: IndexEntry) -> bytes:
        block = self.read(entry.offset, entry.offset + entry.length)
        _check_sum(self, what, entry.offset, block, entry.checksum)
        return block

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)``; fewer when it ends before (a checksum tells)."""
        if start >= self._tail_offset:
            return self._tail[start - self._tail_offset : stop - self._tail_offset]
        return self._read(start, stop)

    def damaged(self, what: str, offset: int, expected: object, found: object) -> DamagedStore:
        """Return the error for one failed check."""
        return DamagedStore(
            f"segment {self.name}: {what} damaged at offset {offset}: expected {expected}, found "
            f"{found}. It was truncated or altered after it was written. Restore it from a "
            f"copy of the checkpoint; without it the commits it holds are lost."
        )


def _index(segment: Segment) -> list[IndexEntry]:
    if segment.size < _HEADER.size + _TRAILER.size:
        raise segment.damaged(
            "size", 0, f"{_HEADER.size + _TRAILER.size} bytes or more", f"{segment.size} bytes"
        )
    _check_header(segment)
    trailer_offset = segment.size - _TRAILER.size
    length, checksum, magic = _TRAILER.unpack(segment.read(trailer_offset, segment.size))
    if magic != MAGIC:
        raise segment.damaged("trailer", trailer_offset, f"magic {MAGIC!r}", repr(magic))
    footer_offset = trailer_offset - length
    if footer_offset < _HEADER.size:
        raise segment.damaged(
            "trailer", trailer_offset, f"a footer of {trailer_offset - _HEADER.size} bytes at most",
            f"a length of {length}",
        )  # fmt: skip
    footer = segment.read(footer_offset, trailer_offset)
    _check_sum(segment, "footer", footer_offset, footer, checksum)
    try:
        entries = _decode_index(footer)
    except msgspec.DecodeError as error:
        raise segment.damaged("footer", footer_offset, "an index", str(error)) from error
    expected_offset = _HEADER.size
    for entry in entries:
        if entry.offset != expected_offset or entry.length < 0:
            raise segment.damaged("footer", footer_offset, f"a block at {expected_offset}", entry)
        expected_offset += entry.length
    if expected_offset != footer_offset:
        raise segment.damaged(
            "footer", footer_offset, f"blocks up to {footer_offset}", f"up to {expected_offset}"
        )
    if any(entry.number == _OF_ALL for entry in entries[1:]):
        raise segment.damaged("footer", footer_offset, "one block of all commits", "several")
    return entries


def _check_header(segment: Segment) -> None:
    magic, version, complement = _HEADER.unpack(segment.read(0, _HEADER.size))
    if magic != MAGIC:
        raise segment.damaged("header", 0, f"magic {MAGIC!r}", repr(magic))
    if version ^ _COMPLEMENT != complement:
        raise segment.damaged(
            "header", 4, f"format {FORMAT} and its complement", f"{version} and {complement:#06x}"
        )
    if version != FORMAT:
        raise CheckpointMismatch(
            f"segment {segment.name}: format {version} at offset 4, this Millrace reads format "
            f"{FORMAT}. The checkpoint was written by another version: start the run with that "
            f"version or a later one."
        )


def _check_sum(segment: Segment, what: str, offset: int, data: bytes, expected: int) -> None:
    found = xxhash.xxh3_64_intdigest(data)
    if found != expected:
        raise segment.damaged(what, offset, f"xxh3_64 {expected:016x}", f"{found:016x}")
