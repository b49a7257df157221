"""ObjectSegments: what the tasks of epochs committed, an object for each task and epoch.

.. code-block:: text

    segments/<computation>/<epoch, 12 hexadecimal digits>-<task, 8>   a segment

A segment is put if its name is free, and the name is the same for every attempt: so of all attempts
at a task one counts, whole. To read a commit by its number takes an index, which is made of the
footers of the segments that are there, when it is first wanted; a task at work never wants it.

A commit is not removed from a segment; it is forgotten here, and the segment goes with its last
one. Where few are left of an old one, it is put again with those alone: a name that was once taken
never becomes free for an attempt that was left behind, as long as anything of it is needed.

Source: Rosenblum and Ousterhout, "The design and implementation of a log-structured file system"
(cleaning by how much of a segment is alive); docs/design/2026-11-23-one-object-a-task.md.
"""

from __future__ import annotations

import re
import threading
import uuid
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from millrace.model.errors import DamagedStore
from millrace.store.commit import Commit
from millrace.store.names import file_name
from millrace.store.object_blobs import ObjectBlobs
from millrace.store.segment import IndexEntry, RangedSegment, encode_segment, read_index
from millrace.store.task_commits import SEGMENT_BYTES

_FOLDER = "segments"
_NAME = re.compile(r"([0-9a-f]{12,})-([0-9a-f]{8,})")

#: A segment is put again if at the most one of so many of its commits is left.
_LEFT = 8
#: Ends of segments that are kept in memory, 64 KiB each at the most.
_ENDS = 256


@dataclass
class _Segment:
    """One segment: how many commits it was put with, and how many are needed."""

    name: str
    epoch: int
    size: int
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


class ObjectSegments:
    """The segments of one computation. Threads may share it.

    Args:
        bucket: Where they are.
        computation: Its name.

    >>> from obstore.store import MemoryStore
    >>> from millrace.store import BucketOptions, BucketUrl
    >>> bucket = ObjectBlobs(BucketUrl.parse("s3://b/c"), BucketOptions(), store=MemoryStore())
    >>> segments = ObjectSegments(bucket, "count")
    >>> segments.of_task(epoch=3, task=0).append([Commit("count", i, 1, 3, 1, []) for i in (0, 1)])
    [True, True]
    >>> segments.refresh()
    >>> segments.read(1, 1).epoch, segments.numbers(), bucket.names("segments")
    (3, {0: [1], 1: [1]}, ['segments/count/000000000003-00000000'])
    """

    def __init__(self, bucket: ObjectBlobs, computation: str) -> None:
        self._bucket = bucket
        self._computation = computation
        self._folder = f"{_FOLDER}/{file_name(computation)}"
        self._lock = bucket.turns()
        self._segments: dict[int, _Segment] = {}
        self._known: dict[str, int] = {}
        self._next = 0
        self._looked = False
        self._lines: dict[int, _Line] = {}
        # Of segments that have none left, and are there.
        self._empty: set[int] = set()
        # Requests that are made at a time share it, while the lock above is held for all of them.
        self._ends_lock = threading.Lock()
        self._ends: OrderedDict[str, RangedSegment] = OrderedDict()

    def of_task(self, epoch: int, task: int) -> SegmentCommits:
        """Return what one task commits in one epoch."""
        return SegmentCommits(self._bucket, f"{self._folder}/{epoch:012x}-{task:08x}")

    def refresh(self) -> None:
        """Look which segments there are. Cost: a LIST for each 1,000, a GET for each new one."""
        with self._lock:
            sizes = {
                name: size
                for name, size in self._bucket.sizes(self._folder).items()
                if _NAME.fullmatch(name.rpartition("/")[2])
            }
            gone = {
                key
                for key, segment in self._segments.items()
                if sizes.get(segment.name) != segment.size
            }
            self._forget(gone)
            self._looked = True
            new = [(name, sizes[name]) for name in sorted(sizes.keys() - self._known.keys())]
            for (name, size), entries in zip(new, self._bucket.map(self._index, new), strict=True):
                if entries is not None:
                    self._add(name, size, entries)

    def read(self, interval: int, number: int) -> Commit | None:
        """Return a commit, None if no segment that is known has it. Cost: a GET, or none.

        Raises:
            DamagedStore: It is not what was written.
        """
        for again in (False, True):
            with self._lock:
                found = self._placed(interval, number)
            if found is None:
                return None
            segment, entry = found
            try:
                return self._ranged(segment).commit(entry)
            except (DamagedStore, FileNotFoundError) as problem:
                if again and isinstance(problem, DamagedStore):
                    raise
            # It was put again with less in it, or has gone.
            with self._lock:
                self._forget({key for key, one in self._segments.items() if one is segment})
                self.refresh()
        return None

    def exists(self, interval: int, number: int) -> bool:
        """Return whether a segment that is known has a commit."""
        with self._lock:
            return self._placed(interval, number) is not None

    def numbers(self) -> dict[int, list[int]]:
        """Return interval -> numbers of the commits in segments that are known, ascending.

        Of those that may go, some may be there for others' sake, and some not.
        """
        with self._lock:
            return {
                i: list(line.numbers) for i, line in sorted(self._lines.items()) if line.numbers
            }

    def remove_to(self, interval: int, number: int) -> None:
        """Remove an interval's commits up to a number, and segments of which none is needed.

        Cost: a DELETE a segment.
        """
        with self._lock:
            if not self._looked:
                self.refresh()
            line = self._lines.get(interval)
            for key in line.forget_to(number) if line is not None else ():
                self._less(key)
            self._bucket.remove(sorted(self._segments[key].name for key in self._empty))
            self._drop(self._empty)

    def thin(self, kept: int) -> int:
        """Put segments again without what is not needed, where that is most; return how many.

        Cost: a GET a commit, and a PUT a segment.

        Args:
            kept: Segments of the last so many epochs are left alone.
        """
        with self._lock:
            newest = max((segment.epoch for segment in self._segments.values()), default=0)
            thin = {
                key: list[Commit]()
                for key, segment in self._segments.items()
                if segment.left * _LEFT <= segment.total and segment.epoch < newest - kept
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
                self._bucket.upload(segment.name, [data])
                self._forget({key})
                self._add(segment.name, len(data), read_index(data))
            return len(thin)

    # -- the index ---------------------------------------------------------------------------------

    def _placed(self, interval: int, number: int) -> tuple[_Segment, IndexEntry] | None:
        line = self._lines.get(interval)
        at = -1 if line is None else line.place(number)
        if line is None or at < 0:
            return None
        entry = IndexEntry(
            self._computation,
            interval,
            number,
            line.offsets[at],
            line.lengths[at],
            line.checksums[at],
        )
        return self._segments[line.segments[at]], entry

    def _add(self, name: str, size: int, entries: Iterable[IndexEntry]) -> None:
        match = _NAME.fullmatch(name.rpartition("/")[2])
        assert match is not None, "names are looked at before"
        key, self._next = self._next, self._next + 1
        segment = self._segments[key] = _Segment(name, int(match[1], 16), size)
        self._known[name] = key
        for entry in entries:
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

    # -- the objects -------------------------------------------------------------------------------

    def _index(self, sized: tuple[str, int]) -> list[IndexEntry] | None:
        """Return what a segment holds, None if it has gone since it was listed."""
        name, size = sized
        try:
            return self._open(name, size).index()
        except FileNotFoundError:
            return None
        except DamagedStore:
            # Or it was put again, shorter, since; then the next look has it.
            if self._bucket.sizes(self._folder).get(name) == size:
                raise
            return None

    def _ranged(self, segment: _Segment) -> RangedSegment:
        with self._ends_lock:
            if (found := self._ends.get(segment.name)) is not None:
                self._ends.move_to_end(segment.name)
                return found
        return self._open(segment.name, segment.size)

    def _open(self, name: str, size: int) -> RangedSegment:
        def read(start: int, stop: int) -> bytes:
            data = self._bucket.read_range(name, start, stop)
            if data is None:
                raise FileNotFoundError(name)
            if len(data) < stop - start:
                raise DamagedStore(
                    f"segment {self._bucket.url}/{name}: it is shorter than the {size} bytes that "
                    f"were listed. Restore it from a copy of the checkpoint; without it the "
                    f"commits it holds are lost."
                )
            return data

        opened = RangedSegment(f"{self._bucket.url}/{name}", size, read)
        with self._ends_lock:
            self._ends[name] = opened
            while len(self._ends) > _ENDS:
                self._ends.popitem(last=False)
        return opened


class SegmentCommits:
    """The commits of a task in a segment.

    Args:
        bucket: Where it is.
        name: Of the object.
    """

    overhead = SEGMENT_BYTES

    def __init__(self, bucket: ObjectBlobs, name: str) -> None:
        self._bucket = bucket
        self._name = name
        self._commits: dict[tuple[int, int], Commit] | None = None

    @property
    def over(self) -> bool:
        """See :attr:`millrace.store.TaskCommits.over`."""
        return bool(self._found())

    def read(self, interval: int, number: int) -> Commit | None:
        """See :meth:`millrace.store.TaskCommits.read`. Cost: a GET at first."""
        return self._found().get((interval, number))

    def append(self, commits: Sequence[Commit]) -> list[bool]:
        """See :meth:`millrace.store.TaskCommits.append`. Cost: a PUT."""
        data = encode_segment(commits, attempt=uuid.uuid4().bytes)
        won = self._bucket.put_if_absent(self._name, data)
        if not won:
            self._commits = None
        return [won] * len(commits)

    def _found(self) -> dict[tuple[int, int], Commit]:
        if self._commits is None:
            data = self._bucket.read(self._name)
            self._commits = {} if data is None else dict(self._decoded(data))
        return self._commits

    def _decoded(self, data: bytes) -> Iterator[tuple[tuple[int, int], Commit]]:
        where = f"{self._bucket.url}/{self._name}"
        whole = RangedSegment(where, len(data), lambda start, stop: data[start:stop])
        for entry in whole.index():
            yield (entry.interval, entry.number), whole.commit(entry)
