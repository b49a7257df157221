"""Incarnations: the lives of all tasks of the real-time plane, and the segments that each grew.

A task of an incarnation appends what it commits to a *grown segment*, a new one after each mark, of
which it is the one writer. So a group of commits costs one write and one fsync of data, and nobody
has to win a name. What tells a live writer from one that was left behind is the *seal*: an
incarnation begins by writing down where every segment before it ends, and what is appended behind
that does not exist.

.. code-block:: text

    incarnations/00000008.begun    incarnation 8 goes on; the next one removes it before it looks
    incarnations/00000008.seal     where the segments of those before it end
    incarnations/<incarnation>-<level>-<task>-<epoch>            a grown segment
    incarnations/<incarnation>-<level>-<task>-<epoch>.<offset>   more of it, if appends are pieces

    seal      magic "MRSL" | format u16 | format u16 with every bit inverted | attempt, 16 bytes
              | msgpack array [incarnation, lengths, notes, tails] | xxh3_64 u64 of all before it

**Order.** A task may go on after its incarnation is over, and append while ends are looked for.
What it appends sends productions on, and deeper tasks of its incarnation append what came of them.
So ends are looked for deepest level first: what made a commit that is inside was durable before,
and is looked at later. For the same reason the newest segment of a task comes before its older
ones, which are finished by then. Names are listed anew for each level, as a segment may have been
made meanwhile.

**The last group is kept in the seal.** All groups of a segment but the last are durable: their
appends returned before another began. Of the last one that is not known: its writer may have died
before the fsync, or that may have failed, and another one would say nothing about it. A segment
with an index has no such group, as its writer appends that when the last one has returned.

Source: docs/design/2026-11-22-where-a-journal-ends.md; docs/design/2026-11-27-one-commit-log.md;
MillWheel 6.2, sequencers.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import msgspec
import xxhash

from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    DamagedStore,
    ZombieWriter,
)
from millrace.store.blobs import Blobs, piece_name
from millrace.store.commit import Commit, Identity
from millrace.store.segments import (
    HEADER_BYTES,
    CommitGroup,
    Frame,
    FrameIndex,
    Segment,
    encode_frame,
    encode_header,
    encode_index,
    seed_of,
)

FOLDER = "incarnations"
_NAME = re.compile(r"(\d{8,})-(\d{2,})-(\d{4,})-(\d{8,})")
_BLOB = re.compile(rf"{FOLDER}/(\d{{8,}}-\d{{2,}}-\d{{4,}}-\d{{8,}})(?:\.([0-9a-f]{{12,}}))?")
_MARKER = re.compile(rf"{FOLDER}/(\d{{8,}})\.(begun|seal)")

_SEAL_MAGIC = b"MRSL"
_SEAL_FORMAT = 1
_SEAL_HEADER = struct.Struct("<4sHH16s")
_CHECKSUM = struct.Struct("<Q")
_COMPLEMENT = 0xFFFF

# Read at a time, so that calls do not count, requests overlap, and memory stays small.
_AHEAD_BYTES = 1 << 20
_AHEAD_PIECES = 64
# Of a file in which one frame is wanted.
_FRAME_BYTES = 1 << 16

_Item = TypeVar("_Item")

_encode_seal = msgspec.msgpack.Encoder().encode


class SegmentName(NamedTuple):
    """Whose grown segment it is; they sort as their writers' groups came.

    Attributes:
        incarnation: Its number, from 1.
        level: The task's level.
        task: Its number in the level.
        epoch: Of the mark that ends it.

    >>> str(SegmentName(7, 2, 3, 12))
    '00000007-02-0003-00000012'
    >>> SegmentName.parse("00000007-02-0003-00000012") == SegmentName(7, 2, 3, 12)
    True
    """

    incarnation: int
    level: int
    task: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.incarnation:08d}-{self.level:02d}-{self.task:04d}-{self.epoch:08d}"

    @classmethod
    def parse(cls, text: str) -> SegmentName | None:
        """Return the segment of that name; None if it is no segment's."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(*map(int, match.groups()))


class Seal(msgspec.Struct, array_like=True):
    """Where every segment of an older incarnation ends, as an incarnation says that begins.

    A segment that is not named does not exist.

    Attributes:
        incarnation: The incarnation that begins with it.
        lengths: Name of a segment -> its bytes, up to its last group.
        notes: Name of a segment -> note of its last group, of the last segment with a group of each
            task and incarnation.
        tails: Name of a segment -> what comes after those bytes: its last group, where nobody
            knows whether that is durable in the segment itself.
    """

    incarnation: int
    lengths: dict[str, int] = {}
    notes: dict[str, bytes] = {}
    tails: dict[str, bytes] = {}


_decode_seal = msgspec.msgpack.Decoder(Seal).decode


class GrownSegment:
    """One task's grown segment, open for its one writer.

    Args:
        blobs: Where it is.
        name: Its name.
    """

    def __init__(self, blobs: Blobs, name: SegmentName) -> None:
        path = f"{FOLDER}/{name}"
        self.name = name
        self._where = f"{blobs.where}/{path}"
        self._blob = blobs.appender(path)
        self._header = encode_header(path)
        self._seed = seed_of(self._header)
        self._size = 0
        self._frames: list[FrameIndex] = []
        self._over = ""

    def append(self, commits: Sequence[Commit], note: bytes = b"") -> None:
        """Append a group; it is durable on return, whole, or the next seal drops it.

        Args:
            commits: In order; none for a note alone.
            note: The task's own.

        Raises:
            CheckpointUnwritable: Nobody knows whether it is durable. The task is over: this
                segment takes nothing more, and no other may follow it.
            ZombieWriter: Another attempt at the task writes it.
        """
        if self._over:
            raise CheckpointUnwritable(
                f"checkpoint {self._where}: {self._over}, so nothing can be appended. What was "
                f"committed before is safe; the next incarnation goes on from it."
            )
        frame, index = encode_frame(commits, note, self._seed, self._size or HEADER_BYTES)
        data = frame if self._size else self._header + frame
        # Whatever ends this early, nobody knows what is there; what was given up may come to be
        # there yet, and a second fsync would say nothing: after a failed one the pages may be gone,
        # and count as written.
        self._over = "an append has failed"
        if not self._blob.append(data):
            raise ZombieWriter(
                f"zombie writer: segment {self._where} is there already: another attempt at task "
                f"{self.name.task} of level {self.name.level} writes it. This attempt must stop. "
                f"Nothing was lost."
            )
        self._over = ""
        self._size += len(data)
        self._frames.append(index)

    def finish(self) -> None:
        """Append the index, which may be lost, and close: the task has passed its mark."""
        if not self._over and self._frames:
            index = encode_index(self._frames, self._seed, self._size)
            with contextlib.suppress(CheckpointUnwritable):
                self._blob.append(index, durable=False)
        self.close()

    def close(self) -> None:
        """Give back what it holds; nothing more can be appended."""
        self._over = self._over or "it is closed"
        self._blob.close()


class _End(NamedTuple):
    """Where a segment ends.

    Attributes:
        length: As in :class:`Seal`.
        last: Where its last frame begins.
        tail: As in :class:`Seal`; empty if there is none.
    """

    length: int
    last: int
    tail: bytes = b""


#: Offset -> bytes of each piece of a segment, ascending.
_Pieces = Mapping[int, int]


class Incarnations:
    """The incarnations of a checkpoint, and their segments. Threads may share it.

    What :meth:`groups`, :meth:`names` and the commit log say is by the last seal that this object
    knows: that of its last call of :meth:`seal` or :meth:`names`, or the one that was there when it
    was first asked.

    Args:
        blobs: Where they are.
        fixed: Taken for the last seal, whatever there is.

    Attributes:
        turns: The lock of the threads; another one where those of a simulation share it.
    """

    def __init__(self, blobs: Blobs, fixed: Seal | None = None) -> None:
        self.blobs = blobs
        self.turns: AbstractContextManager[object] = blobs.turns()
        self._where = f"{blobs.where}/{FOLDER}"
        self._fixed = fixed
        self._known = fixed
        self._pieces: dict[SegmentName, dict[int, int]] = {}
        self._seeds: dict[SegmentName, int] = {}
        #: Sealed segments that this object has removed since the last seal that it knows.
        self.removed: set[SegmentName] = set()

    @property
    def far(self) -> bool:
        """Whether an append is a request to another machine, of some 30 to 100 ms."""
        return self.blobs.far

    def seal(self, incarnation: int) -> Seal | None:
        """Begin an incarnation: fence all before it, and write down what their tasks have left.

        Once this has begun, :meth:`superseded` is true of every older incarnation; only then are
        ends looked for, deepest level first. So whatever was appended before its writer found
        itself not superseded is inside, and so is what it was made from.

        Cost: six fsyncs, or four PUTs; four lists, and one for each level down to the deepest.

        Args:
            incarnation: ``last() + 1`` as the caller knows it.

        Returns:
            What was sealed, now and before; None if this incarnation or a later one has begun, by
            another caller.

        Raises:
            CheckpointUnwritable: It has not begun; its number may be used up.
            DamagedStore: A segment is damaged before its end; says where.
        """
        blobs, begun = self.blobs, _begun(incarnation)
        if self.last() >= incarnation or not blobs.put_if_absent(begun, _unlike_others()):
            return None
        markers = blobs.names(FOLDER)
        if _last(markers) > incarnation:
            # It was free only because a later incarnation had removed it.
            blobs.remove([begun], durable=True)
            return None
        earlier = [_begun(number) for number in _numbers("begun", markers) if number < incarnation]
        blobs.remove(earlier, durable=True)
        # Listed anew: before it was fenced, another incarnation may have sealed those before it.
        seal = self._sealed_now(incarnation, *self._last_seal())
        if not blobs.put_if_absent(_seal(incarnation), encode_seal(seal)):
            return None
        if self.superseded(incarnation):
            return None
        self._know(seal)
        there = blobs.sizes(FOLDER)
        older = [_seal(number) for number in _numbers("seal", there) if number < incarnation]
        blobs.remove(older, durable=True)
        pieces = _pieces(there)
        unsealed = [
            name
            for name in sorted(pieces)
            if name.incarnation < incarnation and str(name) not in seal.lengths
        ]
        self._remove(unsealed, pieces)
        return seal

    def last(self) -> int:
        """Return the number of the last incarnation that has begun; 0 if none has. Cost: a list."""
        return _last(self.blobs.names(FOLDER))

    def superseded(self, incarnation: int) -> bool:
        """Return whether a later incarnation has begun. Cost: one open, or one HEAD.

        Who asks after its append has returned, and is told no, knows that the next seal has it.

        Raises:
            DamagedStore: There are no incarnations at all: what has them has gone.
        """
        if self.blobs.exists(_begun(incarnation)):
            return False
        if not self.last():
            raise DamagedStore(
                f"checkpoint {self._where}: it has gone, with all incarnations, of which "
                f"{incarnation} has begun. Was it removed under a running pipeline, or is its "
                "directory not mounted?"
            )
        return True

    def grow(self, incarnation: int, level: int, task: int, epoch: int) -> GrownSegment:
        """Return a new segment; it is there with its first group."""
        return GrownSegment(self.blobs, SegmentName(incarnation, level, task, epoch))

    # -- what is sealed ----------------------------------------------------------------------------

    def sealed(self) -> Seal:
        """Return the last seal that this object knows."""
        if (known := self._known) is not None:
            return known
        with self.turns:
            if self._known is None:
                self._known, _ = self._last_seal()
            return self._known

    def names(self) -> list[SegmentName]:
        """Return the sealed segments that are still there, ascending, by the last seal there is.

        Cost: a list, and reading the seal.
        """
        seal, there = self._last_seal()
        self._know(seal)
        return [name for name in sorted(self._sizes(there)) if str(name) in seal.lengths]

    def groups(self, name: SegmentName) -> Iterator[CommitGroup]:
        """Yield the sealed groups of a segment, in order.

        Raises:
            DamagedStore: It is damaged, or has gone, or is not sealed.
        """
        frames = self._frames(name, *self._ends(name))
        if frames is None:
            raise DamagedStore(
                f"segment {self._where}/{name}: it has gone. If no run has collected it "
                f"meanwhile, restore it from a copy of the checkpoint."
            )
        return (frame.group() for frame in frames)

    def finished(
        self, names: Iterable[SegmentName]
    ) -> Iterator[tuple[SegmentName, Iterator[Commit]]]:
        """Yield some segments with their commits, in order; pass over those that are not there.

        Cost: a list, and reading the seal and them.

        Args:
            names: Of segments that are sealed, or whose marks are passed.

        Raises:
            DamagedStore: One is damaged.
        """
        wanted = list(names)
        if not wanted:
            return
        seal, there = self._last_seal()
        sizes = self._sizes(there)
        for name in wanted:
            if not (size := sizes.get(name, 0)):
                continue
            if (length := seal.lengths.get(str(name))) is not None:
                frames = self._frames(name, length, seal.tails.get(str(name), b""))
            elif (end := self._end_of(name, size, newest=False)) is not None:
                frames = self._frames(name, end.length, b"")
            else:
                continue
            if frames is not None:
                yield name, (commit for frame in frames for commit in frame.group().commits)

    def under_way(self) -> Incarnations:
        """Return this as if all segments were sealed now; to be read.

        For who looks at a checkpoint and takes no part in it: what an incarnation goes on to write,
        the result does not have. Cost: lists, reading the ends of those that are not sealed.
        """
        seal, there = self._last_seal()
        return Incarnations(self.blobs, self._sealed_now(_last(there) + 1, seal, there))

    def remove(self, names: Iterable[SegmentName]) -> None:
        """Remove segments, in the order given; pass over those that are not there.

        Raises:
            StoreError: What could not be removed, and all after it, is still there.
        """
        wanted = list(names)
        if wanted:
            self._remove(wanted, self._listed())
            # Others no seal names: a run that lasts has one of them a mark and task.
            sealed = self.sealed().lengths
            self.removed.update(name for name in wanted if str(name) in sealed)

    # -- what the commit log reads -----------------------------------------------------------------

    def frame_at(self, name: SegmentName, offset: int) -> Frame | None:
        """Return one frame of a sealed segment, by where it is; None if the segment has gone."""
        ahead = _AHEAD_BYTES if self.blobs.far else _FRAME_BYTES
        segment = self._opened(name, *self._ends(name), pieces=1, ahead=ahead)
        if segment is None:
            return None
        with contextlib.suppress(_Gone):
            return segment.at(offset)
        return None

    def contents(self, names: Sequence[SegmentName]) -> list[list[tuple[int, list[Identity]]]]:
        """Return what sealed segments hold: of each frame, where it is, and names of commits.

        By the index, where there is one at the end of what counts: an index says what its writer
        knew, and the seal what counts of that. Otherwise by the frames.
        """
        if not names:
            return []
        self.sealed()  # before other threads ask for it
        self._sizes()
        indexes = self.blobs.map(self._index, names)
        return [
            self._frames_of(name)
            if index is None
            else [(frame.offset, frame.names) for frame in index]
            for name, index in zip(names, indexes, strict=True)
        ]

    def _index(self, name: SegmentName) -> list[FrameIndex] | None:
        """Return the index of a sealed segment, None if there is none where it ends."""
        length, tail = self._ends(name)
        segment = self._opened(name, length, tail, pieces=1, beyond=True)
        if segment is None:
            return []
        with contextlib.suppress(_Gone):
            return segment.index_at(length + len(tail))
        return []

    def _frames_of(self, name: SegmentName) -> list[tuple[int, list[Identity]]]:
        frames = self._frames(name, *self._ends(name))
        return [] if frames is None else [(frame.offset, frame.names()) for frame in frames]

    def _ends(self, name: SegmentName) -> tuple[int, bytes]:
        seal = self.sealed()
        if str(name) not in seal.lengths:
            raise DamagedStore(
                f"segment {self._where}/{name}: seal {seal.incarnation} does not name it, so "
                f"what is in it does not count. Expected one of names()."
            )
        return seal.lengths[str(name)], seal.tails.get(str(name), b"")

    def _frames(self, name: SegmentName, length: int, tail: bytes) -> Iterator[Frame] | None:
        segment = self._opened(name, length, tail)
        return None if segment is None else _until_gone(segment.all())

    def _opened(
        self,
        name: SegmentName,
        length: int,
        tail: bytes,
        *,
        pieces: int = _AHEAD_PIECES,
        ahead: int = _AHEAD_BYTES,
        beyond: bool = False,
    ) -> Segment | None:
        """Return what reads a segment, as :class:`_Bytes` does; None if it has gone."""
        there = self._pieces.get(name)
        if there is None:
            self._sizes()
            if (there := self._pieces.get(name)) is None:
                return None
        path = f"{FOLDER}/{name}"
        read = _Bytes(
            self.blobs, path, there, length, tail, pieces=pieces, ahead=ahead, beyond=beyond
        )
        seed = self._seeds.get(name) if pieces == 1 else None
        segment = Segment(f"{self.blobs.where}/{path}", read.size, read, path, seed)
        if seed is not None:
            return segment
        try:
            self._seeds[name] = segment.seed
        except _Gone:
            return None
        return segment

    # -- where segments end ------------------------------------------------------------------------

    def _sealed_now(self, incarnation: int, previous: Seal, listed: Mapping[str, int]) -> Seal:
        """Return what the seal of an incarnation has to say.

        Args:
            incarnation: Its number. Every older one is fenced.
            previous: The last seal; what that one says stands.
            listed: What there was when it was read, with sizes; older incarnations were fenced.
        """
        there = self._sizes(listed)
        names = {str(name) for name in there}
        seal = Seal(
            incarnation,
            _of(names, previous.lengths),
            _of(names, previous.notes),
            _of(names, previous.tails),
        )
        deepest = max((name.level for name in there), default=-1)
        for level in range(deepest, -1, -1):
            later = self._sizes()
            older: list[tuple[SegmentName, int]] = []
            for segments in _tasks(there, level, range(previous.incarnation, incarnation)):
                # The sizes of finished segments are those of a listing that began after the newest
                # was there; that of the newest is the earlier one, which is what the level above is
                # looked at after.
                sizes = {**later, segments[0]: there[segments[0]]}
                older += self._add_newest(seal, [(name, sizes.get(name, 0)) for name in segments])
            ends = self.blobs.map(lambda item: self._end_of(*item, newest=False), older)
            for (name, _), end in zip(older, ends, strict=True):
                if end is not None:
                    seal.lengths[str(name)] = end.length
            there = later
        return seal

    def _add_newest(
        self, seal: Seal, segments: list[tuple[SegmentName, int]]
    ) -> list[tuple[SegmentName, int]]:
        """Add the newest segment of a task that has a group; return those before it.

        Args:
            seal: Of which.
            segments: With their sizes, newest first.
        """
        for at, (name, size) in enumerate(segments):
            if (end := self._end_of(name, size, newest=at == 0)) is None:
                continue
            segment = self._opened(name, end.length, end.tail, pieces=1)
            if segment is None:
                continue
            with contextlib.suppress(_Gone):
                seal.notes[str(name)] = segment.at(end.last).note
                seal.lengths[str(name)] = end.length
                if end.tail:
                    seal.tails[str(name)] = end.tail
                return segments[at + 1 :]
        return []

    def _end_of(self, name: SegmentName, size: int, *, newest: bool) -> _End | None:
        """Return where a segment ends, None if it has no group, or is collected meanwhile.

        Args:
            name: Of the segment.
            size: What to look at.
            newest: Whether it is its task's last. Only that one may have a torn end.
        """
        with contextlib.suppress(_Gone):
            return self._end_there(name, size, newest=newest) if size else None
        return None

    def _end_there(self, name: SegmentName, size: int, *, newest: bool) -> _End | None:
        try:
            segment = self._opened(name, size, b"", pieces=1)
        except DamagedStore:
            if newest and self._is_torn(name, size):
                return None
            raise
        if segment is None:
            return None
        # Where appends are pieces, each is there whole or not, and came after those before it.
        start = max(offset for offset in self._pieces[name] if offset < size)
        if (indexed := segment.indexed_end(start)) is not None:
            # Its writer has passed the mark: all that is before the index is durable.
            return _End(*indexed)
        start = start or HEADER_BYTES
        last: Frame | None = None
        for frame in segment.frames(start):
            last = frame
        segment.check_end(last.end if last else start, torn=newest)
        if last is None:
            return None
        if not newest:
            return _End(last.end, last.offset)
        first = 0 if last.offset == HEADER_BYTES else last.offset
        return _End(first, last.offset, segment.read(first, last.end))

    def _is_torn(self, name: SegmentName, size: int) -> bool:
        path = f"{FOLDER}/{name}"
        read = _Bytes(self.blobs, path, self._pieces[name], size, b"")
        return Segment(path, size, read).is_torn()

    # -- the blobs ---------------------------------------------------------------------------------

    def _listed(self) -> dict[SegmentName, dict[int, int]]:
        """Return the pieces of all segments of which something is left. Cost: a list."""
        return _pieces(self.blobs.sizes(FOLDER))

    def _sizes(self, listed: Mapping[str, int] | None = None) -> dict[SegmentName, int]:
        """Return the segments that are there -> their bytes; 0 where there is no group for sure.

        Args:
            listed: What there is, with sizes; by default that is listed now.

        Raises:
            DamagedStore: A piece is missing before others.
        """
        sizes: dict[SegmentName, int] = {}
        there = self._listed() if listed is None else _pieces(listed)
        for name, pieces in there.items():
            if 0 not in pieces:
                continue  # removed, or its removal has begun
            end = 0
            for offset in sorted(pieces):
                if offset != end:
                    if not self.blobs.exists(f"{FOLDER}/{name}"):
                        break  # it was removed between two pages of the listing
                    raise DamagedStore(
                        f"segment {self._where}/{name}: what was appended at {end} has gone, and "
                        f"there is more at {offset}. Restore it from a copy of the checkpoint; "
                        "without it the commits in it, and what followed from them, are lost."
                    )
                end += pieces[offset]
            else:
                sizes[name] = end if end > HEADER_BYTES else 0
        self._pieces = {name: there[name] for name in sizes}
        return sizes

    def _remove(self, names: Iterable[SegmentName], there: Mapping[SegmentName, _Pieces]) -> None:
        """Remove segments, each from its beginning on.

        Args:
            names: Which.
            there: The pieces of each.
        """
        for name in names:
            path = f"{FOLDER}/{name}"
            self.blobs.remove(piece_name(path, offset) for offset in sorted(there.get(name, ())))
            self._pieces.pop(name, None)
            self._seeds.pop(name, None)

    # -- markers and seals -------------------------------------------------------------------------

    def _know(self, seal: Seal) -> None:
        with self.turns:
            if self._known is None or self._known.incarnation != seal.incarnation:
                self._known = seal
                self.removed.clear()

    def _last_seal(self) -> tuple[Seal, dict[str, int]]:
        """Return the last seal, and what there was when it was looked for, with sizes.

        What a seal names was there before it, and so is in the list, or has been collected.
        """
        while True:
            listed = self.blobs.sizes(FOLDER)
            if self._fixed is not None:
                return self._fixed, listed
            number = max(_numbers("seal", listed), default=0)
            if not number:
                return Seal(0), listed
            name = _seal(number)
            data = self.blobs.read(name)
            if data is not None:  # or a later incarnation has removed it
                return decode_seal(data, number, f"{self.blobs.where}/{name}"), listed


def _numbers(kind: str, listed: Iterable[str]) -> list[int]:
    """Return the numbers of incarnations of which there is a marker, or a seal."""
    matches = map(_MARKER.fullmatch, listed)
    return [int(match[1]) for match in matches if match and match[2] == kind]


def _last(listed: Collection[str]) -> int:
    """Return the number of the last incarnation that has begun; 0 if none has."""
    return max((*_numbers("begun", listed), *_numbers("seal", listed)), default=0)


def _pieces(listed: Mapping[str, int]) -> dict[SegmentName, dict[int, int]]:
    """Return the pieces of the segments in a listing, ascending: offset -> bytes."""
    pieces: dict[SegmentName, dict[int, int]] = {}
    for path, size in sorted(listed.items()):
        match = _BLOB.fullmatch(path)
        name = match and SegmentName.parse(match[1])
        if match and name:
            pieces.setdefault(name, {})[int(match[2] or "0", 16)] = size
    return pieces


class _Gone(Exception):
    """A blob was removed while it was read."""


def _until_gone(frames: Iterator[Frame]) -> Iterator[Frame]:
    """Yield frames until their segment is collected: then nobody needs what is left."""
    with contextlib.suppress(_Gone):
        yield from frames


class _Bytes:
    """Reads a grown segment from its pieces: mostly front to back, in few calls.

    Args:
        blobs: Where they are.
        path: Of the segment.
        there: What was listed of it.
        length: How much of that counts.
        tail: What comes after it.
        pieces: How many are read at a time; with 1, no requests are made at a time either.
        ahead: How many bytes are read at a time, if that is not more pieces.
        beyond: Whether what is there behind is read, too.
    """

    def __init__(
        self,
        blobs: Blobs,
        path: str,
        there: _Pieces,
        length: int,
        tail: bytes,
        *,
        pieces: int = _AHEAD_PIECES,
        ahead: int = _AHEAD_BYTES,
        beyond: bool = False,
    ) -> None:
        self._blobs = blobs
        self._path = path
        self._offsets = sorted(there)
        self._length = length
        self._tail = tail
        self._pieces = pieces
        self._ahead = ahead
        self._start = 0
        self._data = b""
        last = self._offsets[-1]
        #: How many bytes there are.
        self.size = max(length + len(tail), last + there[last] if beyond else 0)

    def __call__(self, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)``; fewer when it ends before."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        if start < self._start or stop > self._start + len(self._data):
            self._data, self._start = self._read(start, self._end(start, stop)), start
        return self._data[start - self._start : stop - self._start]

    def _end(self, start: int, stop: int) -> int:
        """Return up to where it is best read."""
        at = bisect_right(self._offsets, start) - 1 + self._pieces
        border = self._offsets[at] if at < len(self._offsets) else self.size
        return min(self.size, max(stop, min(start + self._ahead, border)))

    def _read(self, start: int, stop: int) -> bytes:
        length, end = self._length, self._length + len(self._tail)
        data = self._stored(start, min(stop, length))
        if len(data) < min(stop, length) - start:
            return data  # it was cut since
        data += self._tail[max(0, start - length) : max(0, stop - length)]
        return data + self._stored(max(start, end), stop)

    def _stored(self, start: int, stop: int) -> bytes:
        """Return bytes that are in pieces."""
        if start >= stop:
            return b""
        first = bisect_right(self._offsets, start) - 1
        last = bisect_right(self._offsets, stop - 1)
        offsets = self._offsets[first:last]
        ends = [*offsets[1:], stop]
        ranges = [
            (offset, max(start, offset), min(stop, end))
            for offset, end in zip(offsets, ends, strict=True)
        ]
        read = map if self._pieces == 1 else self._blobs.map
        return b"".join(read(self._range, ranges))

    def _range(self, asked: tuple[int, int, int]) -> bytes:
        offset, start, stop = asked
        name = piece_name(self._path, offset)
        data = self._blobs.read_range(name, start - offset, stop - offset)
        if data is None:
            if offset and self._blobs.exists(self._path):
                raise DamagedStore(
                    f"segment {self._blobs.where}/{self._path}: what was appended at {offset} has "
                    "gone. If no run has collected it meanwhile, restore it from a copy of the "
                    "checkpoint."
                )
            raise _Gone
        return data


def _of(names: Collection[str], said: Mapping[str, _Item]) -> dict[str, _Item]:
    return {name: value for name, value in said.items() if name in names}


def _tasks(
    there: Mapping[SegmentName, int], level: int, incarnations: range
) -> list[list[SegmentName]]:
    """Return the segments of each task of a level, newest first."""
    tasks: dict[tuple[int, int], list[SegmentName]] = {}
    for name in sorted(there, reverse=True):
        if name.level == level and name.incarnation in incarnations:
            tasks.setdefault((name.incarnation, name.task), []).append(name)
    return list(tasks.values())


def encode_seal(seal: Seal) -> bytes:
    """Return the content of a seal, unlike that of any other."""
    complement = _SEAL_FORMAT ^ _COMPLEMENT
    head = _SEAL_HEADER.pack(_SEAL_MAGIC, _SEAL_FORMAT, complement, os.urandom(16))
    data = head + _encode_seal(seal)
    return data + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(data))


def decode_seal(data: bytes, incarnation: int, where: str) -> Seal:
    """Return what a seal says, checked.

    Args:
        data: Its content.
        incarnation: The number that its name promises.
        where: Its name, for messages.

    Raises:
        DamagedStore: It fails its checksum.
        CheckpointMismatch: It is of a newer format.

    >>> decode_seal(encode_seal(Seal(3)), 3, "seal 3").incarnation
    3
    """
    if len(data) >= _SEAL_HEADER.size + _CHECKSUM.size:
        magic, version, complement, _ = _SEAL_HEADER.unpack_from(data)
        if magic == _SEAL_MAGIC and version ^ _COMPLEMENT == complement:
            if version != _SEAL_FORMAT:
                raise CheckpointMismatch(
                    f"{where}: format {version} at offset 4, this Millrace reads format "
                    f"{_SEAL_FORMAT}. The checkpoint was written by another version: start the run "
                    f"with that version or a later one."
                )
            body, checksum = data[: -_CHECKSUM.size], _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]
            if xxhash.xxh3_64_intdigest(body) == checksum:
                seal = _decode_seal(body[_SEAL_HEADER.size :])
                if seal.incarnation == incarnation:
                    return seal
    raise DamagedStore(
        f"{where}: it is not what was written: its {len(data)} bytes were truncated or altered. "
        f"Restore it from a copy of the checkpoint; without it nobody knows where segments end."
    )


def _unlike_others() -> bytes:
    return os.urandom(16).hex().encode() + b"\n"


def _begun(incarnation: int) -> str:
    return f"{FOLDER}/{incarnation:08d}.begun"


def _seal(incarnation: int) -> str:
    return f"{FOLDER}/{incarnation:08d}.seal"
