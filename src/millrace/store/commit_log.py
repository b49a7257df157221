"""CommitLog: finds, thins and removes commits, in the segments of both kinds.

.. code-block:: text

    commits/<computation>/<epoch, 12 hexadecimal digits>-<task, 8>   a segment that was put
    commits/<computation>/<epoch>-<task>.<incarnation, 8>            what is left of a grown one
    incarnations/...                                                 grown ones: see incarnations.py

A segment is put if its name is free, and the name is the same for every attempt, as a manifest says
how many tasks there are, and so which intervals each has: of all attempts at a task one counts,
whole. Which were put is known by a list of them, and which were grown, and how far they count, by
the last seal. So there are two indexes: of a computation's put segments, and of all grown ones,
which have commits of all computations of a level. Each is made of those of the segments, or of the
frames of a grown one that has none. Both are made when they are first wanted; a task at work never
wants them.

A commit is not removed from a segment; it is forgotten here, and a put segment goes with its last
one. Where few are left of an old one, it is put again with those alone: a name that was once taken
never becomes free for an attempt that was left behind, as long as anything of it is needed. Of a
grown one the few that are left are put, as a segment of their computation, and it goes: see
:class:`GrownThinner`.

Who reads by number acts on commits that a completion names. Those are durable, so what a listing
finds is not made so; what a task finds of its own is.

Source: Rosenblum and Ousterhout, "The design and implementation of a log-structured file system"
(cleaning by how much of a segment is alive); docs/design/2026-11-27-one-commit-log.md.
"""

from __future__ import annotations

import contextlib
import re
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

from millrace.model.errors import DamagedStore
from millrace.store.blobs import Blobs
from millrace.store.checkpoint_format import file_name
from millrace.store.commit import COMMIT_BYTES, Commit, Identity
from millrace.store.incarnations import Incarnations, SegmentName
from millrace.store.segments import (
    Block,
    FrameIndex,
    IndexEntry,
    ReadRange,
    Segment,
    decode_segment,
    encode_segment,
    entries_of,
)

_FOLDER = "commits"
_NAME = re.compile(r"([0-9a-f]{12,})-[0-9a-f]{8,}(\.[0-9a-f]{8,})?")

#: What a commit counts towards the next snapshot beside its bytes, where a request costs money: a
#: small interval has a snapshot every 1,024 commits.
_FAR_COMMIT_BYTES = 1 << 12
#: Ends of segments that are kept in memory, 64 KiB each at the most.
_ENDS = 256
_END_BYTES = 64 * 1024

#: Computation -> interval id -> number of a commit.
Covered = Mapping[str, Mapping[int, int]]
#: (computation, interval) -> the last commit that nobody needs.
Floors = Mapping[tuple[str, int], int]


class CommitLog:
    """Commits by ``(computation, interval, number)``; written once, never changed.

    Threads may share it.

    Args:
        blobs: Where put segments are.
        incarnations: That have the grown ones.

    >>> from millrace.store import MemoryBlobs
    >>> blobs = MemoryBlobs()
    >>> log = CommitLog(blobs, Incarnations(blobs))
    >>> mine, other = log.of_task("count", 3, 0), log.of_task("count", 3, 0)
    >>> mine.put([Commit("count", i, 1, 3, 1, []) for i in (0, 1)]), other.put([])
    (True, False)
    >>> log.read("count", 1, 1).epoch, log.numbers("count")
    (3, {0: [1], 1: [1]})
    """

    def __init__(self, blobs: Blobs, incarnations: Incarnations) -> None:
        self._blobs = blobs
        self._incarnations = incarnations
        self._lock = threading.Lock()
        self._segments: dict[str, ComputationSegments] = {}
        # Computation -> what was in put segments when they were listed last.
        self._listed: dict[str, Mapping[int, Sequence[int]]] = {}
        self._grown_index: GrownIndex | None = None

    def of_task(self, computation: str, epoch: int, task: int) -> TaskCommits:
        """Return what one task of an epoch commits of a computation. Cost: a read, and a put.

        Args:
            computation: Its name.
            epoch: Number of the epoch.
            task: Which of those that its manifest says there are. All attempts at the epoch must
                have the same intervals in it.
        """
        return TaskCommits(self._blobs, computation, f"{epoch:012x}-{task:08x}")

    def of_grown(self, computation: str, segment: SegmentName) -> TaskCommits:
        """Return what is left of a computation in a grown segment, as a segment that is put."""
        name = f"{segment.epoch:012x}-{segment.task:08x}.{segment.incarnation:08x}"
        return TaskCommits(self._blobs, computation, name)

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """Return a commit, or None when there is none. Cost: a read; the first time, an index.

        Raises:
            DamagedStore: it fails its checksum; or it is not found, and may be in a damaged
                segment.
            CheckpointMismatch: it was written in a newer format.
        """
        commit = self._grown().read(computation, interval, number)
        return self._of(computation).read(interval, number) if commit is None else commit

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """Return whether a commit is there. Cost: a look at one segment, or for new ones."""
        return self._grown().read(computation, interval, number) is not None or self._of(
            computation
        ).exists(interval, number)

    def numbers(self, computation: str) -> Mapping[int, Sequence[int]]:
        """Return interval id -> numbers of the commits that are there, ascending.

        Called by collection and by tools, never by a task: it looks for new segments.
        """
        segments = self._of(computation)
        segments.refresh()
        put = self._listed[computation] = segments.numbers()
        grown = self._grown().numbers(computation)
        if not grown:
            return put
        return {
            interval: _together(put.get(interval, ()), chain(*grown.get(interval, ())))
            for interval in sorted({*put, *grown})
        }

    def damaged(self, computation: str) -> list[str]:
        """Return what is wrong with put segments beside their commits, for who verifies.

        Of some nobody knows what they hold. As of the last call of another method.
        """
        return self._of(computation).damaged()

    def covered(self) -> Mapping[SegmentName, Covered]:
        """Return what each sealed segment has: the last number of each interval with a commit.

        Cost: an index, once a seal.
        """
        covered = self._grown().covered
        return {name: covered[name] for name in covered.keys() - self._incarnations.removed}

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """Remove commits up to the highest of some; return how many it was asked to.

        One that is not there is passed over; one in a grown segment is, and does not count: those
        are removed as wholes. What lies beside others that are needed may be there again for who
        looks anew. A commit that was left of a grown segment is in both; who removes it has listed
        it. Cost: a removal a segment.

        Raises:
            StoreError: what could not be removed, and all after it, is still there.
        """
        grown = self._grown().numbers_of(computation, interval)
        listed = {*self._listed.get(computation, {}).get(interval, ())}
        old = [
            number
            for number in numbers
            if number in listed or not any(number in some for some in grown)
        ]
        if old:
            self._of(computation).remove_to(interval, max(old))
        return len(old)

    def thin(self, computation: str, kept: int, left: int) -> int:
        """Free the room of removed commits beside which few are left; return of how many segments.

        Of put ones; a :class:`GrownThinner` does that of grown ones. Cost: a read a commit, a put a
        segment.

        Args:
            computation: Whose.
            kept: What is not older than so many epochs is left alone: it will be freed as a whole.
            left: A segment is put again if at the most one of so many of its commits is needed.
        """
        return self._of(computation).thin(kept, left)

    def _of(self, computation: str) -> ComputationSegments:
        with self._lock:
            if (segments := self._segments.get(computation)) is None:
                segments = self._segments[computation] = ComputationSegments(
                    self._blobs, computation
                )
            return segments

    def _grown(self) -> GrownIndex:
        """Return the index of the segments that the last seal names."""
        seal, index = self._incarnations.sealed(), self._grown_index
        if index is None or index.incarnation != seal.incarnation:
            with self._incarnations.turns:
                index = self._grown_index
                if index is None or index.incarnation != seal.incarnation:
                    names = filter(None, map(SegmentName.parse, seal.lengths))
                    index = GrownIndex(self._incarnations, seal.incarnation, names)
                    self._grown_index = index
        return index


def _together(put: Sequence[int], grown: Iterable[int]) -> list[int]:
    """Return the numbers of an interval's commits, ascending.

    A grown segment may stay for another interval's sake. So where a number is missing, what grown
    ones have before it was collected in part, and nobody needs it.
    """
    there = {*put}
    numbers = sorted(there.union(grown))
    gaps = [after for before, after in pairwise(numbers) if after > before + 1]
    if not gaps:
        return numbers
    return [number for number in numbers if number >= gaps[-1] or number in there]


class TaskCommits:
    """What one task of an epoch commits of one computation. For one attempt at it.

    Args:
        blobs: Where it is.
        computation: The computation.
        name: Of the segment, in the computation's folder.

    Attributes:
        overhead: What reading one of them again will cost beside its bytes, in bytes that could be
            read in that time.
    """

    def __init__(self, blobs: Blobs, computation: str, name: str) -> None:
        self.overhead = _FAR_COMMIT_BYTES if blobs.far else COMMIT_BYTES
        self._blobs = blobs
        self._computation = computation
        self._name = f"{_folder(computation)}/{name}"
        self._commits: dict[tuple[int, int], Commit] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing can be put, as another attempt has put all that the task commits."""
        return bool(self._found())

    def read(self, interval: int, number: int) -> Commit | None:
        """Return what was committed, which is durable by then; as of the first call, or later.

        Raises: as :meth:`millrace.store.CommitLog.read`.
        """
        return self._found().get((interval, number))

    def put(self, commits: Sequence[Commit]) -> bool:
        """Put all that the task commits; return whether this call did.

        If not, another attempt's stands for all of this one's, and is durable: then :meth:`read`
        has None for a commit that it did not make.

        Raises:
            CheckpointUnwritable: nothing more can be written; commits made before are safe.
            InvariantViolation: two commits of the call have the same identity.
        """
        won = self._blobs.put_if_absent(self._name, encode_segment(commits, self._name))
        if not won:
            self._commits = None
        return won

    def _found(self) -> dict[tuple[int, int], Commit]:
        if self._commits is None:
            self._commits = {}
            data = self._blobs.read(self._name)
            where = f"{self._blobs.where}/{self._name}"
            for commit in () if data is None else decode_segment(data, where, self._name):
                self._commits[commit.interval, commit.number] = commit
        return self._commits


def _folder(computation: str) -> str:
    return f"{_FOLDER}/{file_name(computation)}"


@dataclass
class _Known:
    """One segment: how many commits it was put with, and how many are needed."""

    name: str
    epoch: int
    size: int
    shared: Block | None
    total: int = 0
    left: int = 0


@dataclass
class _Line:
    """The commits of one interval in segments, by ascending number, as columns."""

    numbers: array[int] = field(default_factory=lambda: array("Q"))
    segments: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("Q"))
    checksums: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, segment: int, entry: IndexEntry) -> None:
        """Add a commit, of whose number there is none."""
        at = bisect_left(self.numbers, entry.identity[2])
        values = (entry.identity[2], segment, *entry.block)
        for column, value in zip(self._columns(), values, strict=True):
            column.insert(at, value)

    def place(self, number: int) -> int:
        """Return where a number is, -1 if it is not."""
        at = bisect_left(self.numbers, number)
        return at if at < len(self.numbers) and self.numbers[at] == number else -1

    def forget(self, at: int) -> None:
        """Forget what is at a place."""
        for column in self._columns():
            del column[at]

    def forget_to(self, number: int) -> array[int]:
        """Forget all up to a number; return the segments that they were in."""
        end = bisect_right(self.numbers, number)
        gone = self.segments[:end]
        for column in self._columns():
            del column[:end]
        return gone

    def forget_in(self, segments: Collection[int]) -> None:
        """Forget what was in some segments."""
        remaining = [at for at, segment in enumerate(self.segments) if segment not in segments]
        if len(remaining) < len(self.numbers):
            for column in self._columns():
                column[:] = array("Q", (column[at] for at in remaining))

    def _columns(self) -> tuple[array[int], ...]:
        return self.numbers, self.segments, self.offsets, self.lengths, self.checksums


class ComputationSegments:
    """The segments of one computation. Threads may share it.

    Args:
        blobs: Where they are.
        computation: Its name.
    """

    def __init__(self, blobs: Blobs, computation: str) -> None:
        self._blobs = blobs
        self._computation = computation
        self._folder = _folder(computation)
        self._lock = blobs.turns()
        self._segments: dict[int, _Known] = {}
        self._known: dict[str, int] = {}
        self._next = 0
        self._looked = False
        self._lines: dict[int, _Line] = {}
        # Of segments that have none left, and are there.
        self._empty: set[int] = set()
        # Name -> size, and what is wrong: nobody knows what they hold.
        self._damaged: dict[str, tuple[int, DamagedStore]] = {}
        # Requests that are made at a time share it, while the lock above is held for all of them.
        self._ends_lock = threading.Lock()
        self._ends: OrderedDict[str, Segment] = OrderedDict()

    def refresh(self) -> None:
        """Look which segments there are. Cost: a list of them, a read of each new one."""
        with self._lock:
            sizes = {
                name: size
                for name, size in self._blobs.sizes(self._folder).items()
                if _NAME.fullmatch(name.rpartition("/")[2])
            }
            self._forget(
                {
                    key
                    for key, segment in self._segments.items()
                    if sizes.get(segment.name) != segment.size
                }
            )
            self._damaged = {
                name: damaged
                for name, damaged in self._damaged.items()
                if sizes.get(name) == damaged[0]
            }
            self._looked = True
            names = sorted(sizes.keys() - self._known.keys() - self._damaged.keys())
            new = [(name, sizes[name]) for name in names]
            for (name, size), index in zip(new, self._blobs.map(self._index, new), strict=True):
                if isinstance(index, DamagedStore):
                    self._damaged[name] = size, index
                elif index is not None:
                    self._add(name, size, index)

    def read(self, interval: int, number: int) -> Commit | None:
        """Return a commit, None if no segment has it.

        Raises:
            DamagedStore: It fails its checksum; or it is not there, and a segment is damaged
                that may have it.
        """
        fresh = False
        while True:
            with self._lock:
                if (position := self._placed(interval, number)) is None and not fresh:
                    self.refresh()
                    fresh = True
                    position = self._placed(interval, number)
                if position is None:
                    for _, problem in self._damaged.values():
                        raise problem
                    return None
            segment, entry = position
            try:
                return self._opened(segment).commit(entry)
            except (DamagedStore, FileNotFoundError) as problem:
                if fresh and isinstance(problem, DamagedStore):
                    raise
            # It was put again with less in it, or has gone.
            with self._lock:
                self._forget(
                    {
                        key
                        for key, opened_segment in self._segments.items()
                        if opened_segment is segment
                    }
                )
                self.refresh()
                fresh = True

    def exists(self, interval: int, number: int) -> bool:
        """Return whether a segment has a commit, and is there."""
        with self._lock:
            position = self._placed(interval, number)
        if position is not None and self._blobs.exists(position[0].name):
            return True
        with self._lock:
            self.refresh()
            return self._placed(interval, number) is not None

    def numbers(self) -> dict[int, list[int]]:
        """Return interval -> numbers of the commits in segments that are known, ascending.

        Of those that may go, some may be there for others' sake, and some not.
        """
        with self._lock:
            return {
                i: list(line.numbers) for i, line in sorted(self._lines.items()) if line.numbers
            }

    def damaged(self) -> list[str]:
        """Return what is wrong with segments beside their commits. Cost: a read each."""
        with self._lock:
            problems = [problem for _, problem in self._damaged.values()]
            for segment in self._segments.values():
                with contextlib.suppress(FileNotFoundError):
                    try:
                        self._opened(segment).check_heads()
                    except DamagedStore as problem:
                        problems.append(problem)
            return [*map(str, problems)]

    def remove_to(self, interval: int, number: int) -> None:
        """Remove an interval's commits up to a number, and segments of which none is needed.

        Cost: a removal a segment.
        """
        with self._lock:
            if not self._looked:
                self.refresh()
            line = self._lines.get(interval)
            for key in line.forget_to(number) if line is not None else ():
                self._less(key)
            self._blobs.remove(sorted(self._segments[key].name for key in self._empty))
            self._drop(self._empty)

    def thin(self, kept: int, left: int) -> int:
        """Put segments again without what is not needed, where that is most; return how many."""
        with self._lock:
            newest = max((segment.epoch for segment in self._segments.values()), default=0)
            thin = {
                key: list[Commit]()
                for key, segment in self._segments.items()
                if segment.left * left <= segment.total and segment.epoch < newest - kept
            }
            if not thin:
                return 0
            # A copy: a read that finds a segment gone looks anew, and changes the index.
            needed = [
                (interval, number, key)
                for interval, line in self._lines.items()
                for number, key in zip(line.numbers, line.segments, strict=True)
                if key in thin
            ]
            for interval, number, key in needed:
                if (commit := self.read(interval, number)) is not None:
                    thin[key].append(commit)
            count = 0
            for key, commits in thin.items():
                if (segment := self._segments.get(key)) is None or len(commits) != segment.left:
                    continue  # it was found to be another while it was read
                data = encode_segment(commits, segment.name)
                self._blobs.replace(segment.name, data)
                whole = Segment(segment.name, len(data), lambda start, stop: data[start:stop])  # noqa: B023
                self._forget({key})
                self._add(segment.name, len(data), whole.index())
                count += 1
            return count

    # -- the index ---------------------------------------------------------------------------------

    def _placed(self, interval: int, number: int) -> tuple[_Known, IndexEntry] | None:
        line = self._lines.get(interval)
        at = -1 if line is None else line.place(number)
        if line is None or at < 0:
            return None
        name: Identity = self._computation, interval, number
        segment = self._segments[line.segments[at]]
        block = Block(line.offsets[at], line.lengths[at], line.checksums[at])
        return segment, IndexEntry(name, block, segment.shared)

    def _add(self, name: str, size: int, index: list[FrameIndex]) -> None:
        match = _NAME.fullmatch(name.rpartition("/")[2])
        assert match is not None, "names are looked at before"
        key, self._next = self._next, self._next + 1
        entries = [*chain(*map(entries_of, index))]
        shared = entries[0].shared if entries else None
        segment = self._segments[key] = _Known(name, int(match[1], 16), size, shared)
        self._known[name] = key
        for entry in entries:
            segment.total += 1
            _, interval, number = entry.identity
            line = self._lines.setdefault(interval, _Line())
            if (at := line.place(number)) >= 0:
                # An attempt that was left behind had work for an interval of a task that had none
                # in its epoch. What counts is of a later one.
                if self._segments[line.segments[at]].epoch >= segment.epoch:
                    continue
                self._less(line.segments[at])
                line.forget(at)
            line.add(key, entry)
            segment.left += 1
        if not segment.left:
            self._empty.add(key)

    def _less(self, key: int) -> None:
        """Take it that one commit less of a segment is needed."""
        self._segments[key].left -= 1
        if not self._segments[key].left:
            self._empty.add(key)

    def _forget(self, keys: Collection[int]) -> None:
        if keys:
            for line in self._lines.values():
                line.forget_in(keys)
            self._drop(keys)

    def _drop(self, keys: Collection[int]) -> None:
        """Forget segments of which no commit is known."""
        for key in [*keys]:
            segment = self._segments.pop(key)
            del self._known[segment.name]
            self._empty.discard(key)
            with self._ends_lock:
                self._ends.pop(segment.name, None)

    # -- the blobs ---------------------------------------------------------------------------------

    def _index(self, sized: tuple[str, int]) -> list[FrameIndex] | DamagedStore | None:
        """Return what a segment holds, or what is wrong; None if it has gone since the listing."""
        name, size = sized
        try:
            return self._open(name, size).index()
        except FileNotFoundError:
            return None
        except DamagedStore as problem:
            # Or it was put again, shorter, since; then the next look has it.
            return problem if self._blobs.sizes(self._folder).get(name) == size else None

    def _opened(self, segment: _Known) -> Segment:
        with self._ends_lock:
            if (opened := self._ends.get(segment.name)) is not None:
                self._ends.move_to_end(segment.name)
                return opened
        return self._open(segment.name, segment.size)

    def _open(self, name: str, size: int) -> Segment:
        def read(start: int, stop: int) -> bytes:
            data = self._blobs.read_range(name, start, stop)
            if data is None:
                raise FileNotFoundError(name)
            if len(data) < stop - start:
                raise DamagedStore(
                    f"segment {self._where(name)}: it is shorter than the {size} bytes that were "
                    f"listed. Restore it from a copy of the checkpoint; without it the commits it "
                    f"holds are lost."
                )
            return data

        opened = Segment(self._where(name), size, _end_first(size, read), name)
        with self._ends_lock:
            self._ends[name] = opened
            while len(self._ends) > _ENDS:
                self._ends.popitem(last=False)
        return opened

    def _where(self, name: str) -> str:
        return f"{self._blobs.where}/{name}"


def _end_first(size: int, read: ReadRange) -> ReadRange:
    """Return what reads a segment's end once, and keeps it: that has the index, or is all of it."""
    start, end = max(0, size - _END_BYTES), b""

    def from_end(first: int, stop: int) -> bytes:
        nonlocal end
        if first < start and stop <= start:
            return read(first, stop)
        if not end:
            end = read(start, size)
        before = read(first, start) if first < start else b""
        return before + end[max(0, first - start) : max(0, stop - start)]

    return from_end


# -- grown segments --------------------------------------------------------------------------------

_ORDINAL_BITS = 24


class _Run(NamedTuple):
    """Commits of an interval, from number ``first`` on: frame and place in it, in one number."""

    first: int
    places: array[int]


class GrownIndex:
    """Where commits are that lie in sealed segments.

    Commits of an interval are numbered without gaps, and segments keep their order. So for each
    interval it takes a first number and an array of places: eight bytes a commit, as there may be
    millions; and as many of those as there are gaps, where commits are in put segments.

    Args:
        incarnations: Reads the segments.
        incarnation: Whose seal it is of.
        names: Of those that are sealed.

    Raises:
        DamagedStore: A segment cannot be read, or a commit is in two places.
    """

    def __init__(
        self, incarnations: Incarnations, incarnation: int, names: Iterable[SegmentName]
    ) -> None:
        self.incarnation = incarnation
        self._incarnations = incarnations
        self._names = sorted(names)
        # In order of their numbers; mostly there is one.
        self._runs: dict[tuple[str, int], list[_Run]] = {}
        # Of each frame: which segment, and where in it.
        self._segment = array("I")
        self._place = array("Q")
        contents = incarnations.contents(self._names)
        for at, (name, frames) in enumerate(zip(self._names, contents, strict=True)):
            self._add(at, name, frames)

    def _add(self, at: int, name: SegmentName, frames: list[tuple[int, list[Identity]]]) -> None:
        for place, names in frames:
            frame = len(self._place) << _ORDINAL_BITS
            self._segment.append(at)
            self._place.append(place)
            for ordinal, (computation, interval, number) in enumerate(names):
                runs = self._runs.setdefault((computation, interval), [])
                following = runs[-1].first + len(runs[-1].places) if runs else number
                if number < following:
                    raise DamagedStore(
                        f"commit {number} of interval {interval} of computation {computation!r} is "
                        f"in grown segment {name}, and was in one before it. Restore the "
                        "checkpoint from a copy."
                    )
                if not runs or number > following:
                    runs.append(_Run(number, array("Q")))
                runs[-1].places.append(frame | ordinal)

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """Return a commit, None if it is in no sealed segment, or was removed with it."""
        place = self._placed(computation, interval, number)
        if place is None:
            return None
        at, ordinal = place >> _ORDINAL_BITS, place & ((1 << _ORDINAL_BITS) - 1)
        name = self._names[self._segment[at]]
        frame = self._incarnations.frame_at(name, self._place[at])
        return None if frame is None else frame.commit(ordinal)

    def _placed(self, computation: str, interval: int, number: int) -> int | None:
        for run in reversed(self._runs.get((computation, interval), ())):
            if run.first <= number < run.first + len(run.places):
                return run.places[number - run.first]
        return None

    def numbers(self, computation: str) -> dict[int, list[range]]:
        """Return interval id -> numbers of the commits in sealed segments."""
        return {
            interval: self.numbers_of(name, interval)
            for name, interval in self._runs
            if name == computation
        }

    def numbers_of(self, computation: str, interval: int) -> list[range]:
        """Return the numbers of an interval's commits in sealed segments."""
        runs = self._runs.get((computation, interval), ())
        return [range(run.first, run.first + len(run.places)) for run in runs]

    @cached_property
    def covered(self) -> Mapping[SegmentName, Covered]:
        """Return what each segment has: the last number of each interval."""
        covered: dict[SegmentName, dict[str, dict[int, int]]] = {name: {} for name in self._names}
        for (computation, interval), runs in self._runs.items():
            for run in runs:
                for number, place in enumerate(run.places, run.first):
                    name = self._names[self._segment[place >> _ORDINAL_BITS]]
                    covered[name].setdefault(computation, {})[interval] = number
        return covered


#: Finished segments of a task that are not looked at: what is hot is covered by then.
KEPT_SEGMENTS = 64
#: What is old is put again if at the most one of so many of its commits is left.
LEFT = 8
#: A round ends after so many commits: the rest of the run waits for it.
_COMMITS_A_ROUND = 5_000


class GrownThinner:
    """Puts the few commits that keep an old grown segment into put ones. For one thread.

    A grown segment holds what all intervals of a task committed between two marks. Snapshots cover
    what is committed often within some marks; one commit of an interval that is seldom met would
    keep all that is beside it for as long as the interval is left alone. So of a task with many
    finished segments, the old ones are read, and where few of one's commits are left, those of each
    computation are put as one segment. Where many are, it is no waste, and is looked at again when
    it is twice as old.

    Nothing else changes by it: a commit log finds a commit in either, and a crash in between leaves
    it in both. The incarnation is in the name, as two may have a segment of one epoch and task.

    Args:
        incarnations: Of the checkpoint.
        commits: Its commit log.
        kept: How many finished segments of a task are left alone.
        left: One is emptied if at the most one of so many of its commits is left.
    """

    def __init__(
        self,
        incarnations: Incarnations,
        commits: CommitLog,
        kept: int = KEPT_SEGMENTS,
        left: int = LEFT,
    ) -> None:
        self._incarnations = incarnations
        self._commits = commits
        self._kept = kept
        self._left = left
        # Segment -> how many of its task's must have followed before it is looked at again.
        self._later: dict[SegmentName, int] = {}

    def emptied(
        self, there: Collection[SegmentName], floors: Floors
    ) -> Iterator[tuple[SegmentName, int]]:
        """Yield segments whose commits, as far as they are needed, are in put ones now; how many.

        Args:
            there: Finished segments that cannot be removed; their marks are complete, or they are
                sealed. So every commit in them exists, whichever incarnation has begun since.
            floors: What of them nobody needs.

        Raises:
            CheckpointUnwritable: A commit was not put. It is, next time.
            DamagedStore: A segment is damaged, or the one that was put has other commits.
        """
        self._later = {name: age for name, age in self._later.items() if name in there}
        put = 0
        for name, commits in self._incarnations.finished(self._old(there)):
            left, count = list[Commit](), 0
            for commit in commits:
                count += 1
                if commit.number > floors.get((commit.computation, commit.interval), 0):
                    left.append(commit)
            if len(left) * self._left > count:
                self._later[name] *= 2
                continue
            self._put(name, left)
            yield name, len(left)
            put += len(left)
            if put >= _COMMITS_A_ROUND:
                return

    def _old(self, there: Collection[SegmentName]) -> list[SegmentName]:
        """Return the segments that are to be looked at now, oldest first."""
        tasks: dict[tuple[int, int], list[SegmentName]] = defaultdict(list)
        for name in sorted(there, reverse=True):
            tasks[name.level, name.task].append(name)
        return sorted(
            name
            for names in tasks.values()
            for age, name in enumerate(names)
            if age >= self._later.setdefault(name, self._kept)
        )

    def _put(self, grown: SegmentName, commits: Sequence[Commit]) -> None:
        left: dict[str, list[Commit]] = defaultdict(list)
        for commit in commits:
            left[commit.computation].append(commit)
        for computation, some in left.items():
            segment = self._commits.of_grown(computation, grown)
            if not segment.put(some):
                # By a round that was cut off, if all is well.
                for commit in some:
                    _check_same(grown, commit, segment.read(commit.interval, commit.number))


def _check_same(grown: SegmentName, commit: Commit, other: Commit | None) -> None:
    if other is None or other.chain != commit.chain:
        raise DamagedStore(
            f"commit {commit.number} of interval {commit.interval} of {commit.computation!r} is in "
            f"grown segment {grown} with chain {commit.chain}, and the segment that was put of it "
            f"has {'none' if other is None else other.chain}: two histories. The grown one stays. "
            "Was the checkpoint copied or restored while a run went on? Restore it as a whole from "
            "a copy that was made of a run that had stopped."
        )
