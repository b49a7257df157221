"""SegmentLog: the commit logs of a checkpoint, a segment for each task and epoch.

.. code-block:: text

    commits/<computation>/<epoch, 12 hexadecimal digits>-<task, 8>   a segment
    commits/<computation>/<epoch>-<task>.<session, 8>-<part, 8>      what is left of a part of a
                                                                     journal

A segment is put if its name is free, and the name is the same for every attempt, as a manifest says
how many tasks there are, and so which intervals each has: of all attempts at a task one counts,
whole. To read a commit by its number takes an index, which is made of the footers of the segments
that are there, when it is first wanted; a task at work never wants it.

A commit is not removed from a segment; it is forgotten here, and the segment goes with its last
one. Where few are left of an old one, it is put again with those alone: a name that was once taken
never becomes free for an attempt that was left behind, as long as anything of it is needed.

Who reads by number acts on commits that a completion names. Those are durable, so what a listing
finds is not made so; what a task finds of its own is.

Source: Rosenblum and Ousterhout, "The design and implementation of a log-structured file system"
(cleaning by how much of a segment is alive); docs/design/2026-11-27-one-commit-log.md.
"""

from __future__ import annotations

import re
import threading
import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from millrace.model.errors import DamagedStore
from millrace.store.blobs import Blobs
from millrace.store.commit import COMMIT_BYTES, Commit, Identity
from millrace.store.journal import JournalName
from millrace.store.names import file_name
from millrace.store.segment import (
    IndexEntry,
    Segment,
    SegmentIndex,
    decode_segment,
    encode_segment,
)

_FOLDER = "commits"
_NAME = re.compile(r"([0-9a-f]{12,})-[0-9a-f]{8,}(\.[0-9a-f]{8,}-[0-9a-f]{8,})?")

#: What a commit counts towards the next snapshot beside its bytes, where a request costs money: a
#: small interval has a snapshot every 1,024 commits.
_FAR_COMMIT_BYTES = 1 << 12
#: Ends of segments that are kept in memory, 64 KiB each at the most.
_ENDS = 256


class SegmentLog:
    """The commit logs in segments. Threads may share it.

    Args:
        blobs: Where they are.

    >>> from millrace.store import MemoryBlobs
    >>> log = SegmentLog(MemoryBlobs())
    >>> mine, other = log.of_task("count", 3, 0), log.of_task("count", 3, 0)
    >>> mine.put([Commit("count", i, 1, 3, 1, []) for i in (0, 1)]), other.put([])
    (True, False)
    >>> log.read("count", 1, 1).epoch, log.numbers("count")
    (3, {0: [1], 1: [1]})
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._lock = threading.Lock()
        self._segments: dict[str, ComputationSegments] = {}

    def of_task(self, computation: str, epoch: int, task: int) -> TaskCommits:
        """See :meth:`millrace.store.CommitLog.of_task`. Cost: a read, and a put."""
        return TaskCommits(self._blobs, computation, f"{epoch:012x}-{task:08x}")

    def of_part(self, computation: str, epoch: int, part: JournalName) -> TaskCommits:
        """See :meth:`millrace.store.CommitLog.of_part`."""
        name = f"{epoch:012x}-{part.task:08x}.{part.session:08x}-{part.part:08x}"
        return TaskCommits(self._blobs, computation, name)

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """See :meth:`millrace.store.CommitLog.read`. Cost: a read; the first time, an index."""
        return self._of(computation).read(interval, number)

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """See :meth:`millrace.store.CommitLog.exists`. Cost: a look at one segment, or for new."""
        return self._of(computation).exists(interval, number)

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """See :meth:`millrace.store.CommitLog.numbers`. Cost: a look for new segments."""
        segments = self._of(computation)
        segments.refresh()
        return segments.numbers()

    def damaged(self, computation: str) -> list[str]:
        """See :meth:`millrace.store.CommitLog.damaged`."""
        return self._of(computation).damaged()

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """See :meth:`millrace.store.CommitLog.remove`. Cost: a removal a segment."""
        old = list(numbers)
        if old:
            self._of(computation).remove_to(interval, max(old))
        return len(old)

    def thin(self, computation: str, kept: int, left: int) -> int:
        """See :meth:`millrace.store.CommitLog.thin`. Cost: a read a commit, a put a segment."""
        return self._of(computation).thin(kept, left)

    def _of(self, computation: str) -> ComputationSegments:
        with self._lock:
            if (found := self._segments.get(computation)) is None:
                found = self._segments[computation] = ComputationSegments(self._blobs, computation)
            return found


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
        data = encode_segment(commits, attempt=uuid.uuid4().bytes)
        won = self._blobs.put_if_absent(self._name, data)
        if not won:
            self._commits = None
        return won

    def _found(self) -> dict[tuple[int, int], Commit]:
        if self._commits is None:
            self._commits = {}
            data = self._blobs.read(self._name)
            where = f"{self._blobs.where}/{self._name}"
            for commit in () if data is None else decode_segment(data, where):
                _check_computation(where, commit.computation, self._computation)
                self._commits[commit.interval, commit.number] = commit
        return self._commits


def _folder(computation: str) -> str:
    return f"{_FOLDER}/{file_name(computation)}"


def _check_computation(where: str, found: str, expected: str) -> None:
    if found != expected:
        raise DamagedStore(
            f"segment {where}: it is of computation {found!r}, and its name promises "
            f"{expected!r}. Was it copied or renamed by hand, or do two computations differ only "
            "in case on a file system that ignores case? Restore the checkpoint from a copy."
        )


@dataclass
class _Known:
    """One segment: how many commits it was put with, and how many are needed."""

    name: str
    epoch: int
    size: int
    shared: IndexEntry | None
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
        at = bisect_left(self.numbers, entry.number)
        values = (entry.number, segment, entry.offset, entry.length, entry.checksum)
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
        kept = [at for at, segment in enumerate(self.segments) if segment not in segments]
        if len(kept) < len(self.numbers):
            for column in self._columns():
                column[:] = array("Q", (column[at] for at in kept))

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
                name: found for name, found in self._damaged.items() if sizes.get(name) == found[0]
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
            DamagedStore: It is not what was written; or it is not there, and a segment is damaged
                that may have it.
        """
        fresh = False
        while True:
            with self._lock:
                if (found := self._placed(interval, number)) is None and not fresh:
                    self.refresh()
                    fresh = True
                    found = self._placed(interval, number)
                if found is None:
                    for _, problem in self._damaged.values():
                        raise problem
                    return None
            segment, entry = found
            try:
                return self._opened(segment).commit(entry, segment.shared)
            except (DamagedStore, FileNotFoundError) as problem:
                if fresh and isinstance(problem, DamagedStore):
                    raise
            # It was put again with less in it, or has gone.
            with self._lock:
                self._forget({key for key, one in self._segments.items() if one is segment})
                self.refresh()
                fresh = True

    def exists(self, interval: int, number: int) -> bool:
        """Return whether a segment has a commit, and is there."""
        with self._lock:
            found = self._placed(interval, number)
        if found is not None and self._blobs.exists(found[0].name):
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
        """Return what is wrong with segments of which nobody knows what they hold."""
        with self._lock:
            return [str(problem) for _, problem in self._damaged.values()]

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
            for interval, line in self._lines.items():
                for number, key in zip(line.numbers, line.segments, strict=True):
                    if key in thin and (commit := self.read(interval, number)) is not None:
                        thin[key].append(commit)
            for key, commits in thin.items():
                if (segment := self._segments.get(key)) is None or len(commits) != segment.left:
                    continue  # it was found to be another while it was read
                data = encode_segment(commits, attempt=uuid.uuid4().bytes)
                self._blobs.replace(segment.name, data)
                whole = Segment(segment.name, len(data), lambda start, stop: data[start:stop])  # noqa: B023
                self._forget({key})
                self._add(segment.name, len(data), whole.index())
            return len(thin)

    # -- the index ---------------------------------------------------------------------------------

    def _placed(self, interval: int, number: int) -> tuple[_Known, IndexEntry] | None:
        line = self._lines.get(interval)
        at = -1 if line is None else line.place(number)
        if line is None or at < 0:
            return None
        name: Identity = self._computation, interval, number
        entry = IndexEntry(*name, line.offsets[at], line.lengths[at], line.checksums[at])
        return self._segments[line.segments[at]], entry

    def _add(self, name: str, size: int, index: SegmentIndex) -> None:
        match = _NAME.fullmatch(name.rpartition("/")[2])
        assert match is not None, "names are looked at before"
        key, self._next = self._next, self._next + 1
        segment = self._segments[key] = _Known(name, int(match[1], 16), size, index.shared)
        self._known[name] = key
        for entry in index.entries:
            segment.total += 1
            line = self._lines.setdefault(entry.interval, _Line())
            if (at := line.place(entry.number)) >= 0:
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

    def _index(self, sized: tuple[str, int]) -> SegmentIndex | DamagedStore | None:
        """Return what a segment holds, or what is wrong; None if it has gone since the listing."""
        name, size = sized
        try:
            index = self._open(name, size).index()
            for entry in index.entries:
                _check_computation(self._where(name), entry.computation, self._computation)
        except FileNotFoundError:
            return None
        except DamagedStore as problem:
            # Or it was put again, shorter, since; then the next look has it.
            return problem if self._blobs.sizes(self._folder).get(name) == size else None
        return index

    def _opened(self, segment: _Known) -> Segment:
        with self._ends_lock:
            if (found := self._ends.get(segment.name)) is not None:
                self._ends.move_to_end(segment.name)
                return found
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

        opened = Segment(self._where(name), size, read)
        with self._ends_lock:
            self._ends[name] = opened
            while len(self._ends) > _ENDS:
                self._ends.popitem(last=False)
        return opened

    def _where(self, name: str) -> str:
        return f"{self._blobs.where}/{name}"
