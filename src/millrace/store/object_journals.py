"""ObjectJournals: the journals of a checkpoint in an object store, an object for each group.

.. code-block:: text

    journals/00000007-02-0003-00000012/000000000000   a header; there as long as the journal is
    journals/00000007-02-0003-00000012/000000000001   its first group, behind a header of its own

An object is there whole or not, and durable when it is there. So an end is never torn, and a seal
needs no tails: lengths are numbers of groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from millrace.model.errors import CheckpointUnwritable, DamagedStore, ZombieWriter
from millrace.store.commit import Commit
from millrace.store.journal import JournalName
from millrace.store.journal_bytes import (
    HEADER_BYTES,
    Frames,
    encode_body,
    encode_frame,
    encode_header,
    note_of,
    seed_of,
)
from millrace.store.journal_index import Placed
from millrace.store.object_blobs import ObjectBlobs
from millrace.store.sealing import End

_FOLDER = "journals"
_OBJECT = re.compile(r"journals/([^/]+)/(\d{12,})")

# Read at a time, so that requests overlap and memory stays small.
_READ_GROUPS = 64


class ObjectJournal:
    """One part of a task's journal, an object for each group."""

    def __init__(self, bucket: ObjectBlobs, name: JournalName) -> None:
        self.name = name
        self._bucket = bucket
        self._number = 0
        self._over = ""
        if not bucket.put_if_absent(_object(name, 0), encode_header(name)):
            raise self._taken(0)

    def append(self, commits: Sequence[Commit], note: bytes = b"") -> None:
        """See :meth:`millrace.store.Journal.append`. Cost: a PUT."""
        if self._over:
            raise CheckpointUnwritable(
                f"checkpoint {self._bucket.url}/{_object(self.name, self._number)}: {self._over}, "
                f"so nothing can be appended. What was committed before is safe; the next session "
                f"goes on from it."
            )
        number = self._number + 1
        header = encode_header(self.name, number)
        frame = encode_frame(encode_body(commits, note), seed_of(header), HEADER_BYTES)
        # The object may come to be there yet, and nothing may take its number meanwhile.
        self._over = "an append has failed"
        if not self._bucket.put_if_absent(_object(self.name, number), header + frame):
            raise self._taken(number)
        self._over = ""
        self._number = number

    def close(self) -> None:
        """See :meth:`millrace.store.Journal.close`."""
        self._over = self._over or "it is closed"

    def _taken(self, number: int) -> ZombieWriter:
        return ZombieWriter(
            f"zombie writer: {self._bucket.url}/{_object(self.name, number)} is there already: "
            f"another attempt at task {self.name.task} of level {self.name.level} writes that "
            f"journal. This attempt must stop. Nothing was lost."
        )


class ObjectJournals:
    """The :class:`~millrace.store.journal_store.JournalFiles` of a bucket."""

    def __init__(self, bucket: ObjectBlobs) -> None:
        self.where = f"{bucket.url}/{_FOLDER}"
        self._bucket = bucket

    def names(self) -> list[str]:
        """Return the names of what is in the folder. Cost: a LIST for each 1,000 groups."""
        return [name.split("/")[1] for name in self._bucket.names(_FOLDER)]

    def create(self, name: JournalName) -> ObjectJournal:
        """Make a journal. Cost: a PUT."""
        return ObjectJournal(self._bucket, name)

    def sizes(self) -> dict[JournalName, int]:
        """Return the journals that are there, with their groups. Cost: as :meth:`names`.

        Raises:
            DamagedStore: A group is missing before others.
        """
        found: dict[JournalName, int] = {}
        for name, numbers in self._listed().items():
            if 0 not in numbers:
                continue  # removed, or its removal has begun
            found[name] = size = len(numbers) - 1
            if numbers[-1] != size:
                missing = min(set(range(numbers[-1])).difference(numbers))
                raise DamagedStore(
                    f"journal {self.where}/{name}: group {missing} of {numbers[-1]} has gone. "
                    f"Restore it from a copy of the checkpoint; without it the commits in it, and "
                    f"what followed from them, are lost."
                )
        return found

    def end_of(self, name: JournalName, size: int, newest: bool) -> End | None:
        """Return where a journal ends. Cost: a GET."""
        data = self._bucket.read(_object(name, size))
        return None if data is None else End(size, note_of(self._body(name, size, data)))

    def groups(self, name: JournalName, length: int, tail: bytes) -> Iterator[Placed] | None:
        """Return the bodies of a journal's groups. Cost: a GET each, some at a time."""
        if not self._bucket.exists(_object(name, 0)):
            return None
        return self._groups(name, length)

    def group(self, name: JournalName, length: int, tail: bytes, place: int) -> bytes | None:
        """Return the body of one group. Cost: a GET."""
        data = self._bucket.read(_object(name, place))
        return None if data is None else self._body(name, place, data)

    def remove_journals(self, names: Iterable[JournalName]) -> None:
        """Remove journals, each from its header on. Cost: a DELETE a group, and a few LISTs."""
        wanted = list(names)
        there = self._listed() if wanted else {}
        for name in wanted:
            self._bucket.remove(_object(name, number) for number in there.get(name, ()))

    def _listed(self) -> dict[JournalName, list[int]]:
        """Return the numbers of the objects of each journal, ascending."""
        found: dict[JournalName, list[int]] = {}
        for path in self._bucket.names(_FOLDER):
            match = _OBJECT.fullmatch(path)
            name = match and JournalName.parse(match[1])
            if match and name:
                found.setdefault(name, []).append(int(match[2]))
        return found

    def _groups(self, name: JournalName, length: int) -> Iterator[Placed]:
        for start in range(1, length + 1, _READ_GROUPS):
            numbers = range(start, min(start + _READ_GROUPS, length + 1))
            found = self._bucket.read_all([_object(name, number) for number in numbers])
            for number, data in zip(numbers, found, strict=True):
                if data is None:
                    if not self._bucket.exists(_object(name, 0)):
                        return  # it was collected while it was read: nobody needs what is in it
                    raise DamagedStore(
                        f"journal {self.where}/{name}: group {number} has gone. If no run has "
                        f"collected it meanwhile, restore it from a copy of the checkpoint."
                    )
                yield number, self._body(name, number, data)

    def _body(self, name: JournalName, number: int, data: bytes) -> bytes:
        where = f"{self.where}/{name}/{number:012d}"
        frames = Frames(where, name, lambda start, stop: data[start:stop], len(data), number)
        (frame,) = frames.all()
        return frame.body


def _object(name: JournalName, number: int) -> str:
    return f"{_FOLDER}/{name}/{number:012d}"
