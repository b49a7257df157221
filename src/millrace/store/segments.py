"""The segment: what one task committed in one epoch, as bytes.

.. code-block:: text

    header    magic "MRSG" | format u16 | format u16 with every bit inverted | xxh3_64 u64 of its
              name | attempt, 16 random bytes | xxh3_64 u64 of all before it
    frames    one for each group of commits that was committed at once:
              "MRFR" | head length u32 | blocks length u64 | head xxh3_64 u64, seeded | head
              | blocks
      head    msgpack array [note, shared, [length of a block, ...], [xxh3_64 of a block, ...]]
      blocks  if shared, first one with the mutations that all commits of the frame begin with; one
              msgpack array (a Commit) after another, no padding
    index     "MRIX" | length u32 | offset of the last frame u64 | xxh3_64 u64, seeded, and with
              that offset, too | msgpack array with an array for each frame
              [offset, offset of the blocks, shared, [[computation, interval, number], ...],
              lengths, checksums]
    trailer   offset of the index u64 | "MRSE"

A segment is put whole, with one frame, or grown: a frame is appended for each group, and the index
when the task passes its mark. A grown one ends where the seal of the next incarnation says; its
index is a hint, which may be lost or torn.

Integers outside msgpack are little-endian. A seed is the header's checksum plus the offset of what
is checked, modulo 2^64, and ``attempt`` is random: bytes of another segment, or of another place,
are never taken for a frame, wherever a file system may leave them; and a frame can be looked for
behind one that is damaged, which is how damage is told from an end that was torn. Every byte is
under a checksum or compared with a constant. To read one commit takes one block, whatever the size
of the segment, and the shared one of its frame if there is one.

The first eight bytes are the same in every future format: a reader can tell a newer segment
(refused, with what to do) from a damaged one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import msgspec
import xxhash
from msgspec.structs import replace

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.store.commit import Commit, Identity, identities, identity

MAGIC = b"MRSG"
FORMAT = 1
#: What commits begin with is written once from so many bytes on.
_SHARED_BYTES = 1 << 16

_FRAME_MARK = b"MRFR"
_INDEX_MARK = b"MRIX"
_END = b"MRSE"
_HEADER = struct.Struct("<4sHHQ16s")
_CHECKSUM = struct.Struct("<Q")
_FRAME = struct.Struct("<4sIQQ")
_INDEX = struct.Struct("<4sIQQ")
_TRAILER = struct.Struct("<Q4s")
_COMPLEMENT = 0xFFFF
_SEEDS = (1 << 64) - 1

#: Bytes before the first frame.
HEADER_BYTES = _HEADER.size + _CHECKSUM.size

# One read of this size usually returns trailer and index together, and all of a small segment: an
# interval has about 40 bytes in the index, so this is room for some 1,500.
_TAIL_BYTES = 64 * 1024

#: Returns bytes ``[start, stop)``; fewer where there are no more.
ReadRange = Callable[[int, int], bytes]

_hash = xxhash.xxh3_64_intdigest
_encode = msgspec.msgpack.Encoder().encode


class _Head(msgspec.Struct, array_like=True, gc=False):
    note: bytes
    shared: bool
    lengths: list[int]
    checksums: list[int]


class FrameIndex(msgspec.Struct, array_like=True, gc=False):
    """What the index says of one frame.

    Attributes:
        offset: Where it begins.
        blocks: Where its first block begins.
        shared: Whether that has the mutations that all its commits begin with.
        names: Of its commits, in order.
        lengths: Of its blocks.
        checksums: Of its blocks.
    """

    offset: int
    blocks: int
    shared: bool
    names: list[Identity]
    lengths: list[int]
    checksums: list[int]

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.blocks + sum(self.lengths)


class Block(NamedTuple):
    """Bytes ``[offset, offset + length)`` of a segment, with their checksum."""

    offset: int
    length: int
    checksum: int


class IndexEntry(NamedTuple):
    """Where one commit of a segment is.

    Attributes:
        identity: Its name.
        block: Where it is.
        shared: Where the mutations are that it begins with, None if it has all of its own.
    """

    identity: Identity
    block: Block
    shared: Block | None = None


class CommitGroup(NamedTuple):
    """What was committed at once.

    Attributes:
        commits: Of several computations and intervals; those of each interval in order.
        note: The task's own, opaque to the store.
    """

    commits: list[Commit]
    note: bytes


class Frame(NamedTuple):
    """A group as it lies in its segment: bytes ``[offset, end)``, which are what was written.

    Attributes:
        offset: Where it begins.
        end: Where it ends.
        blocks: Its blocks; the first one has mutations of all commits if ``shared``.
        shared: See :class:`FrameIndex`.
        note: Of the task.
    """

    offset: int
    end: int
    blocks: list[memoryview]
    shared: bool
    note: bytes

    def names(self) -> list[Identity]:
        """Return the names of the commits, in order, without the cost of the commits."""
        names = [_decode_name(block) for block in self.blocks[self.shared :]]
        return [(name.computation, name.interval, name.number) for name in names]

    def commit(self, ordinal: int) -> Commit:
        """Return one commit, by its place among them."""
        commit = _decode_commit(self.blocks[self.shared + ordinal])
        if self.shared:
            commit.mutations[:0] = _decode_mutations(self.blocks[0])
        return commit

    def group(self) -> CommitGroup:
        """Return the group."""
        commits = [_decode_commit(block) for block in self.blocks[self.shared :]]
        if self.shared:
            before = _decode_mutations(self.blocks[0])
            for commit in commits:
                commit.mutations[:0] = before
        return CommitGroup(commits, self.note)


class _Name(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a Commit; msgspec passes over the rest."""

    computation: str
    interval: int
    number: int


_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_name = msgspec.msgpack.Decoder(_Name).decode
_decode_commit = msgspec.msgpack.Decoder(Commit).decode
_decode_mutations = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode
_decode_index = msgspec.msgpack.Decoder(list[FrameIndex]).decode


# -- writing ---------------------------------------------------------------------------------------


def encode_header(name: str) -> bytes:
    """Return the header of a new segment, which is like no other's.

    Args:
        name: Of the segment, in its checkpoint.
    """
    name_hash: int = _hash(name.encode())
    head = _HEADER.pack(MAGIC, FORMAT, FORMAT ^ _COMPLEMENT, name_hash, os.urandom(16))
    return head + _CHECKSUM.pack(_hash(head))


def seed_of(header: bytes) -> int:
    """Return what the seeds of a segment are made from."""
    seed: int = _CHECKSUM.unpack_from(header, _HEADER.size)[0]
    return seed


def encode_frame(
    commits: Sequence[Commit], note: bytes, seed: int, offset: int
) -> tuple[bytes, FrameIndex]:
    """Return the frame of a group, as it lies at an offset, and what the index says of it.

    Mutations that all commits begin with are written once, if they are many: the rows of side
    inputs, which are the same in every interval of a task.
    """
    blocks = list(map(_encode, commits))
    lengths = list(map(len, blocks))
    shared = 0
    if len(blocks) > 1 and min(lengths) >= _SHARED_BYTES and (shared := _shared(commits)):
        own = [replace(commit, mutations=commit.mutations[shared:]) for commit in commits]
        blocks = [_encode(part) for part in (commits[0].mutations[:shared], *own)]
        lengths = list(map(len, blocks))
    checksums = list(map(_hash, blocks))
    head = _encode((note, shared > 0, lengths, checksums))
    checksum = _hash(head, (seed + offset) & _SEEDS)
    frame = b"".join((_FRAME.pack(_FRAME_MARK, len(head), sum(lengths), checksum), head, *blocks))
    names = [(commit.computation, commit.interval, commit.number) for commit in commits]
    start = offset + _FRAME.size + len(head)
    return frame, FrameIndex(offset, start, shared > 0, names, lengths, checksums)


def encode_index(frames: Sequence[FrameIndex], seed: int, offset: int) -> bytes:
    """Return the index and the trailer of a segment, as they lie at an offset."""
    body = _encode(frames)
    last = frames[-1].offset
    checksum = _hash(body, (seed + offset + last) & _SEEDS)
    begin = _INDEX.pack(_INDEX_MARK, len(body), last, checksum)
    return b"".join((begin, body, _TRAILER.pack(offset, _END)))


def encode_segment(commits: Sequence[Commit], name: str = "") -> bytes:
    """Return a whole segment, of one frame, unlike that of any other writer.

    Args:
        commits: With distinct identities.
        name: Of the segment, in its checkpoint.

    Raises:
        InvariantViolation: two commits have the same identity, or one has an impossible number.

    >>> segment = encode_segment([Commit("count", 0, 1, epoch=1, generation=1, mutations=[])])
    >>> [commit.epoch for commit in decode_segment(segment)]
    [1]
    >>> list(decode_segment(segment[:-1]))
    Traceback (most recent call last):
    millrace.model.errors.DamagedStore: segment <memory>: damaged at offset ...
    """
    identities(commits)
    header = encode_header(name)
    seed = seed_of(header)
    frame, index = encode_frame(commits, b"", seed, HEADER_BYTES)
    return b"".join((header, frame, encode_index([index], seed, HEADER_BYTES + len(frame))))


def _shared(commits: Sequence[Commit]) -> int:
    """Return with how many mutations all commits begin; 0 if that is too little."""
    first = commits[0].mutations
    count = len(first)
    for other in commits[1:]:
        pairs = enumerate(zip(first[:count], other.mutations, strict=False))
        same = min(count, len(other.mutations))
        count = next((n for n, (group, another) in pairs if group != another), same)
    size = sum(map(len, filter(None, chain.from_iterable(first[:count]))))
    return count if size >= _SHARED_BYTES else 0


# -- reading ---------------------------------------------------------------------------------------


def decode_segment(data: bytes, where: str = "<memory>", name: str | None = None) -> list[Commit]:
    """Return the commits of a segment that was put whole, in its order.

    Args:
        data: All of it.
        where: For messages.
        name: What its header must say, if that is known.

    Raises: as :meth:`Segment.index` and :meth:`Segment.commit`.
    """
    segment = Segment(where, len(data), lambda start, stop: data[start:stop], name)
    commits: list[Commit] = []
    for entry in segment.index():
        frame = segment.at(entry.offset)
        if frame.names() != entry.names:
            raise segment.damaged(entry.offset, f"commits {entry.names}")
        commits += frame.group().commits
    return commits


def entries_of(frame: FrameIndex) -> list[IndexEntry]:
    """Return where the commits of a frame are, in order."""
    starts = accumulate(frame.lengths, initial=frame.blocks)
    blocks = [*map(Block, starts, frame.lengths, frame.checksums)]
    shared = blocks.pop(0) if frame.shared else None
    return [IndexEntry(*named, shared) for named in zip(frame.names, blocks, strict=True)]


class Segment:
    """A segment wherever it is, read by ranges: its end once, then single blocks; or its frames.

    Args:
        where: For messages.
        size: In bytes.
        read: Reads a range of it.
        name: What its header must say, if that is known.
        seed: Of its header, if that was checked before.
    """

    def __init__(
        self,
        where: str,
        size: int,
        read: ReadRange,
        name: str | None = None,
        seed: int | None = None,
    ) -> None:
        self.where = where
        self.size = size
        #: Returns a range of it.
        self.read = read
        self._name = name
        self._seed = seed

    @property
    def seed(self) -> int:
        """What seeds are made from, of a header that is checked.

        Raises:
            DamagedStore: It is not the header of that segment.
            CheckpointMismatch: The segment is of a newer format.
        """
        # No cached_property: with Python 3.11 all segments would wait for one that is being read.
        if self._seed is None:
            self._seed = self._read_seed()
        return self._seed

    def _read_seed(self) -> int:
        header = self.read(0, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise self.damaged(0, f"a header of {HEADER_BYTES} bytes")
        magic, version, complement, name_hash, _ = _HEADER.unpack_from(header)
        if magic != MAGIC or version ^ _COMPLEMENT != complement:
            raise self.damaged(0, f"magic {MAGIC!r} and a format")
        if version != FORMAT:
            raise CheckpointMismatch(
                f"segment {self.where}: format {version} at offset 4, this Millrace reads format "
                f"{FORMAT}. The checkpoint was written by another version: start the run with that "
                f"version or a later one."
            )
        seed = seed_of(header)
        if _hash(header[: _HEADER.size]) != seed:
            raise self.damaged(0, f"a header with xxh3_64 {seed:016x}")
        if self._name is not None and _hash(self._name.encode()) != name_hash:
            raise DamagedStore(
                f"segment {self.where}: its header is that of another segment. Was it copied or "
                "renamed, or do two computations differ only in case on a file system that "
                "ignores case? Restore the checkpoint from a copy."
            )
        return seed

    # -- by the index ------------------------------------------------------------------------------

    def index(self) -> list[FrameIndex]:
        """Return what it holds, by the index at its end, after all checks that need no block.

        Raises:
            DamagedStore: It is truncated or altered.
            CheckpointMismatch: It is whole but of a newer format.
        """
        _ = self.seed  # first: a newer format is not damage
        by_trailer = self._by_trailer(max(HEADER_BYTES, self.size - _TAIL_BYTES))
        frames = None if by_trailer is None else self._indexed(*by_trailer)
        if frames is None:
            raise self.damaged(self.size, "an index of all that is before it")
        return frames

    def indexed_end(self, start: int = 0) -> tuple[int, int] | None:
        """Return where its last frame ends and begins, by the index; None without a whole one.

        Args:
            start: Read from here, where the index is not before it.
        """
        trailer = self._by_trailer(start or max(HEADER_BYTES, self.size - _TAIL_BYTES))
        if trailer is None or not self._is_whole(*trailer):
            return None
        data, offset = trailer
        return offset, _INDEX.unpack_from(data)[2]

    def _by_trailer(self, start: int) -> tuple[bytes, int] | None:
        """Return the index that the trailer leads to, and where that is; None if it does not."""
        tail = self.read(start, self.size)
        at = self.size - _TRAILER.size
        if at < start or len(tail) < self.size - start:
            return None
        offset, end = _TRAILER.unpack_from(tail, at - start)
        if end != _END or not HEADER_BYTES <= offset <= at - _INDEX.size:
            return None
        data = tail[offset - start : at - start] if offset >= start else self.read(offset, at)
        return data, offset

    def index_at(self, offset: int) -> list[FrameIndex] | None:
        """Return what the index at an offset says of all that is before it; None if there is none.

        For a segment that ends there, with or without one.
        """
        data = self.read(offset, min(offset + _TAIL_BYTES, self.size))
        if len(data) < _INDEX.size:
            return None
        end = _INDEX.size + _INDEX.unpack_from(data)[1]
        if len(data) < end <= self.size - offset:
            data = self.read(offset, offset + end)
        return self._indexed(data[:end], offset)

    def _is_whole(self, data: bytes, offset: int) -> bool:
        """Return whether bytes are an index that was written at an offset."""
        mark, length, last, checksum = _INDEX.unpack_from(data)
        body = memoryview(data)[_INDEX.size :]
        if mark != _INDEX_MARK or len(body) != length:
            return False
        whole: bool = _hash(body, (self.seed + offset + last) & _SEEDS) == checksum
        return whole

    def _indexed(self, data: bytes, offset: int) -> list[FrameIndex] | None:
        """Return an index that is whole, and of frames that tile the space before it."""
        if not self._is_whole(data, offset):
            return None
        frames = _decode_index(memoryview(data)[_INDEX.size :])
        end = HEADER_BYTES
        for frame in frames:
            if frame.offset != end:
                return None
            end = frame.end
        return frames if end == offset else None

    def commit(self, entry: IndexEntry) -> Commit:
        """Return one commit.

        Raises:
            DamagedStore: It fails its checksum.
        """
        try:
            commit = _decode_commit(self._checked(entry.block))
            if entry.shared is not None:
                commit.mutations[:0] = _decode_mutations(self._checked(entry.shared))
        except msgspec.DecodeError as error:
            raise self.damaged(entry.block.offset, f"a commit: {error}") from error
        if identity(commit) != entry.identity:
            raise self.damaged(entry.block.offset, f"commit {entry.identity}")
        return commit

    def check_heads(self) -> None:
        """Check what of the frames is not needed to read commits by the index.

        Raises:
            DamagedStore: It fails its checksum.
        """
        for frame in self.index():
            head = self.read(frame.offset, frame.blocks)
            if len(head) < _FRAME.size:
                raise self.damaged(frame.offset, "a frame")
            mark, head_length, blocks_length, checksum = _FRAME.unpack_from(head)
            lengths = head_length, blocks_length
            if mark != _FRAME_MARK or lengths != (len(head) - _FRAME.size, sum(frame.lengths)):
                raise self.damaged(frame.offset, "a frame")
            if _hash(head[_FRAME.size :], (self.seed + frame.offset) & _SEEDS) != checksum:
                raise self.damaged(frame.offset, f"a head with xxh3_64 {checksum:016x}")

    def _checked(self, block: Block) -> bytes:
        data = self.read(block.offset, block.offset + block.length)
        if _hash(data) != block.checksum:
            raise self.damaged(block.offset, f"a block with xxh3_64 {block.checksum:016x}")
        return data

    # -- by frames ---------------------------------------------------------------------------------

    def frames(self, offset: int = HEADER_BYTES) -> Iterator[Frame]:
        """Yield whole frames from an offset on, up to the first that is not."""
        while (frame := self._frame(offset)) is not None:
            yield frame
            offset = frame.end

    def all(self) -> Iterator[Frame]:
        """Yield the frames; they must reach to the end.

        Raises:
            DamagedStore: One of them is not whole.
        """
        end = HEADER_BYTES
        for frame in self.frames():
            yield frame
            end = frame.end
        if end != self.size:
            raise self.damaged(end, "a whole frame")

    def at(self, offset: int) -> Frame:
        """Return the frame at an offset.

        Raises:
            DamagedStore: It is not whole.
        """
        frame = self._frame(offset)
        if frame is None:
            raise self.damaged(offset, "a whole frame")
        return frame

    def check_end(self, end: int, *, torn: bool) -> None:
        """Raise DamagedStore if what comes after the last whole frame is not an end.

        Args:
            end: Of that frame.
            torn: Whether the next one may have been cut off while it was written.
        """
        rest = self.read(end, self.size)
        if not torn and rest[: len(_FRAME_MARK)] == _FRAME_MARK:
            raise self.damaged(end, "a whole frame")
        at = rest.find(_FRAME_MARK, 1)
        while at >= 0:
            if self._frame(end + at) is not None:
                raise self.damaged(end, f"a whole frame, as there is one at {end + at}")
            at = rest.find(_FRAME_MARK, at + 1)

    def is_torn(self) -> bool:
        """Return whether a segment without a header never had a frame that was durable."""
        return self.read(HEADER_BYTES, HEADER_BYTES + len(_FRAME_MARK)) != _FRAME_MARK

    def _frame(self, offset: int) -> Frame | None:
        begin = self.read(offset, offset + _FRAME.size)
        if len(begin) < _FRAME.size:
            return None
        mark, head_length, blocks_length, checksum = _FRAME.unpack(begin)
        start = offset + _FRAME.size
        end = start + head_length + blocks_length
        if mark != _FRAME_MARK or end > self.size:
            return None
        data = memoryview(self.read(start, end))
        if _hash(data[:head_length], (self.seed + offset) & _SEEDS) != checksum:
            return None
        head = _decode_head(data[:head_length])
        stops = [*accumulate(head.lengths, initial=head_length)]
        if stops[-1] != len(data):
            return None
        blocks = [data[at:stop] for at, stop in pairwise(stops)]
        if [*map(_hash, blocks)] != head.checksums:
            return None
        return Frame(offset, end, blocks, head.shared, head.note)

    def damaged(self, offset: int, expected: str) -> DamagedStore:
        """Return the error for one failed check."""
        return DamagedStore(
            f"segment {self.where}: damaged at offset {offset}: expected {expected}. It was "
            "truncated or altered after it was written. Restore it from a copy of the checkpoint; "
            "without it the commits in it, and what followed from them, are lost."
        )
