"""The segment: one immutable object that holds the commits of several key intervals.

.. code-block:: text

    header    magic "MRSG" | format u16 | format u16 with every bit inverted
    blocks    if all commits begin with the same mutations, and many, first one with those;
              one msgpack array (a Commit) after another, no padding
    footer    msgpack array of [computation, interval, number, offset, length, xxh3_64, attempt]
    trailer   footer length u32 | footer xxh3_64 u64 | magic "MRSG"

Integers outside msgpack are little-endian; checksums are XXH3 64 with seed 0. Every byte is under a
checksum or compared with a constant, and the blocks must tile the space between header and footer,
so a damaged file is refused and never read as something else. To read one commit takes the header,
the footer and one block, whatever the size of the file.

The header's layout is the same in every future format: a reader can tell a newer file (refused,
with what to do) from a damaged one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Self

import msgspec
import xxhash
from msgspec.structs import replace

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.store.commit import Commit, Identity, identities, identity
from millrace.store.disk import Disk, read_range
from millrace.store.durable import unreadable

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
    """Where one commit lies in a segment: bytes ``[offset, offset + length)`` of the file.

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
        """The slot of the commit log that the commit is made for."""
        return self.computation, self.interval, self.number


_decode_index = msgspec.msgpack.Decoder(list[IndexEntry]).decode
_decode_commit = msgspec.msgpack.Decoder(Commit).decode


_decode_mutations = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode


def encode_segment(
    commits: Sequence[Commit], *, attempt: bytes = b"", sharing: bool = False
) -> bytes:
    """Return one segment that holds ``commits``, each found again by its identity.

    Args:
        commits: With distinct identities.
        attempt: Of the writer, where it may have to find out whether a segment is its own.
        sharing: Whether mutations that all commits begin with may be written once: the rows of
            side inputs, which are the same in every interval of a task. :class:`RangedSegment`
            refuses that: with one block of a segment it would not have a commit.

    Raises:
        InvariantViolation: two commits have the same identity, or one has an impossible number.

    >>> segment = encode_segment([Commit("count", 0, 1, epoch=1, generation=1, mutations=[])])
    >>> read_commit(segment, "count", 0, 1).epoch
    1
    >>> read_commit(segment[:-1], "count", 0, 1)
    Traceback (most recent call last):
    millrace.model.errors.DamagedStore: segment <memory>: trailer damaged at offset 48: ...
    """
    shared = _shared(commits) if sharing else 0
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


def read_commit(
    source: bytes | str | os.PathLike[str],
    computation: str,
    interval: int,
    number: int,
    *,
    disk: Disk = os,
) -> Commit:
    """Return one commit of a segment, from its bytes or from a file.

    Raises:
        FileNotFoundError: ``source`` names no file.
        DamagedStore: the file is truncated or altered, or does not hold this commit.
        CheckpointMismatch: the file is whole but of a newer format.
    """
    with _opened(source, disk) as segment:
        wanted = (computation, interval, number)
        entries = _index(segment)
        for entry in entries:
            if entry.identity == wanted:
                commit = _block(segment, entry)
                if entries[0].number == _OF_ALL:
                    commit.mutations = _of_all(segment, entries[0]) + commit.mutations
                return commit
        raise DamagedStore(
            f"segment {segment.name}: it does not hold commit {number} of interval {interval} of "
            f"computation {computation!r}, which its name promises. Was the file copied or renamed "
            f"by hand, or do two computations differ only in case on a file system that ignores "
            f"case? Restore the checkpoint from a copy."
        )


def read_index(source: bytes | str | os.PathLike[str], *, disk: Disk = os) -> list[IndexEntry]:
    """Return what a segment holds, in file order, for tools that look into a checkpoint.

    Raises: as :func:`read_commit`.

    >>> segment = encode_segment([Commit("count", 4, 2, epoch=1, generation=1, mutations=[])])
    >>> [entry.identity for entry in read_index(segment)]
    [('count', 4, 2)]
    """
    with _opened(source, disk) as segment:
        return [e for e in _index(segment) if e.number != _OF_ALL]


#: Returns bytes ``[start, stop)``; fewer where there are no more.
ReadRange = Callable[[int, int], bytes]


class RangedSegment:
    """A segment that is somewhere else, and read by ranges: its end once, then single blocks.

    Args:
        name: For messages.
        size: In bytes.
        read: Reads a range of it.
    """

    def __init__(self, name: str, size: int, read: ReadRange) -> None:
        self._segment = _Segment(name, size, read)

    def index(self) -> list[IndexEntry]:
        """Return what it holds, in its order.

        Raises: as :func:`read_commit`.
        """
        entries = _index(self._segment)
        if entries and entries[0].number == _OF_ALL:
            raise self._segment.damaged("footer", entries[0].offset, "commits alone", entries[0])
        return entries

    def commit(self, entry: IndexEntry) -> Commit:
        """Return one commit of it.

        Raises:
            DamagedStore: It is not what was written.
        """
        return _block(self._segment, entry)


class _Segment:
    """Ranged reads of one segment, in a file or in memory; the tail is read once and kept.

    It is closed by the end of a ``with`` block, out of which no OSError comes as it is.
    """

    def __init__(
        self, name: str, size: int, read: ReadRange, close: Callable[[], object] = bool
    ) -> None:
        self.name = name
        self.size = size
        self._read = read
        self._close = close
        self._tail_offset = max(0, size - _TAIL_BYTES)

    @cached_property
    def _tail(self) -> bytes:
        return self._read(self._tail_offset, self.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close()
        if isinstance(error, OSError):
            raise unreadable(self.name, error) from error

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)``; fewer when the file ends before (a checksum tells)."""
        if start >= self._tail_offset:
            return self._tail[start - self._tail_offset : stop - self._tail_offset]
        return self._read(start, stop)

    def damaged(self, what: str, offset: int, expected: object, found: object) -> DamagedStore:
        """Return the error for one failed check."""
        return DamagedStore(
            f"segment {self.name}: {what} damaged at offset {offset}: expected {expected}, found "
            f"{found}. The file was truncated or altered after it was written. Restore it from a "
            f"copy of the checkpoint; without it the commits it holds are lost."
        )


def _opened(source: bytes | str | os.PathLike[str], disk: Disk) -> _Segment:
    if isinstance(source, bytes):
        return _Segment("<memory>", len(source), lambda start, stop: source[start:stop])
    name, fd = os.fspath(source), -1
    try:
        fd = disk.open(name, os.O_RDONLY)
        return _Segment(
            name,
            disk.fstat(fd).st_size,
            lambda start, stop: read_range(fd, start, stop, disk),
            lambda: disk.close(fd),
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        if fd >= 0:
            disk.close(fd)
        raise unreadable(name, error) from error


def _index(segment: _Segment) -> list[IndexEntry]:
    """Return the footer, after every check that does not need a block."""
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


def _check_header(segment: _Segment) -> None:
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


def _check_sum(segment: _Segment, what: str, offset: int, data: bytes, expected: int) -> None:
    found = xxhash.xxh3_64_intdigest(data)
    if found != expected:
        raise segment.damaged(what, offset, f"xxh3_64 {expected:016x}", f"{found:016x}")


def _of_all(segment: _Segment, entry: IndexEntry) -> list[tuple[bytes, bytes | None]]:
    block = segment.read(entry.offset, entry.offset + entry.length)
    _check_sum(segment, "mutations of all commits", entry.offset, block, entry.checksum)
    try:
        return _decode_mutations(block)
    except msgspec.DecodeError as error:
        raise segment.damaged("mutations", entry.offset, "a list of them", str(error)) from error


def _block(segment: _Segment, entry: IndexEntry) -> Commit:
    block = segment.read(entry.offset, entry.offset + entry.length)
    _check_sum(segment, f"commit {entry.identity}", entry.offset, block, entry.checksum)
    try:
        commit = _decode_commit(block)
    except msgspec.DecodeError as error:
        raise segment.damaged("commit", entry.offset, "a Commit", str(error)) from error
    if identity(commit) != entry.identity:
        raise segment.damaged("commit", entry.offset, entry.identity, identity(commit))
    return commit
