"""ObjectCommitLog: the commit logs of a checkpoint in an object store.

What tasks of epochs commit is in segments (:mod:`millrace.store.object_segments`). A slot, an
object of one commit, is what is moved out of a journal.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Sequence

from millrace.store.commit import Commit, identities
from millrace.store.names import file_name, slot_name, slot_numbers
from millrace.store.object_blobs import ObjectBlobs
from millrace.store.object_segments import ObjectSegments
from millrace.store.segment import encode_segment, read_commit
from millrace.store.task_commits import TaskCommits


class ObjectCommitLog:
    """The commit logs of an :class:`~millrace.store.ObjectHardState`. Threads may share it.

    Args:
        bucket: Where they are.
    """

    def __init__(self, bucket: ObjectBlobs) -> None:
        self._bucket = bucket
        self._lock = threading.Lock()
        self._segments: dict[str, ObjectSegments] = {}
        # Computation -> interval -> what was in slots when they were listed last.
        self._listed: dict[str, dict[int, list[int]]] = {}

    def of_task(self, computation: str, epoch: int, task: int) -> TaskCommits:
        """See :meth:`millrace.store.CommitLog.of_task`. Cost: a GET, and a PUT."""
        return self._of(computation).of_task(epoch, task)

    def append(self, commits: Sequence[Commit]) -> list[bool]:
        """See :meth:`millrace.store.CommitLog.append`. Cost: a PUT a commit, some at a time."""
        attempt = uuid.uuid4().bytes
        return self._bucket.put_all_if_absent(
            [
                (_slot(*name), encode_segment([commit], attempt=attempt))
                for name, commit in zip(identities(commits), commits, strict=True)
            ]
        )

    def read(self, computation: str, interval: int, number: int) -> Commit | None:
        """See :meth:`millrace.store.CommitLog.read`. Cost: a GET; the first time, an index."""
        segments = self._of(computation)
        if (found := segments.read(interval, number)) is not None:
            return found
        data = self._bucket.read(_slot(computation, interval, number))
        if data is not None:
            return read_commit(data, computation, interval, number)
        segments.refresh()
        return segments.read(interval, number)

    def exists(self, computation: str, interval: int, number: int) -> bool:
        """See :meth:`millrace.store.CommitLog.exists`. Cost: a HEAD; the first time, an index."""
        if self._bucket.exists(_slot(computation, interval, number)):
            return True
        segments = self._of(computation)
        segments.refresh()
        return segments.exists(interval, number)

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """See :meth:`millrace.store.CommitLog.numbers`. Cost: two LISTs, and an index."""
        slots = numbers_in(self._bucket, "commits", computation)
        self._listed[computation] = slots
        segments = self._of(computation)
        segments.refresh()
        found = segments.numbers()
        return {
            interval: sorted({*slots.get(interval, ()), *found.get(interval, ())})
            for interval in sorted({*slots, *found})
        }

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """See :meth:`millrace.store.CommitLog.remove`. Cost: a DELETE an object."""
        old = list(numbers)
        if computation not in self._listed:
            self._listed[computation] = numbers_in(self._bucket, "commits", computation)
        listed = self._listed[computation].get(interval, ())
        self._bucket.remove(
            _slot(computation, interval, number) for number in old if number in listed
        )
        if old:
            self._of(computation).remove_to(interval, max(old))
        return len(old)

    def thin(self, computation: str, kept: int) -> int:
        """See :meth:`millrace.store.CommitLog.thin`."""
        return self._of(computation).thin(kept)

    def _of(self, computation: str) -> ObjectSegments:
        with self._lock:
            if (found := self._segments.get(computation)) is None:
                found = self._segments[computation] = ObjectSegments(self._bucket, computation)
            return found


def numbers_in(bucket: ObjectBlobs, folder: str, computation: str) -> dict[int, list[int]]:
    """Return interval -> numbers of a computation's slots in a folder, both ascending."""
    names = bucket.names(f"{folder}/{file_name(computation)}")
    return slot_numbers(name.rpartition("/")[2] for name in names)


def _slot(computation: str, interval: int, number: int) -> str:
    return f"commits/{file_name(computation)}/{slot_name(interval, number)}"
