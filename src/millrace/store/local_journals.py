"""LocalJournals: the journals of a checkpoint in a directory, each a file that is appended to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from millrace.model.errors import CheckpointUnwritable, DamagedStore, ZombieWriter
from millrace.store.commit import Commit
from millrace.store.disk import Disk, data_sync, read_range
from millrace.store.durable import (
    remove,
    sync_directory,
    translated,
    unreadable,
    unwritable,
)
from millrace.store.journal import JournalName
from millrace.store.journal_bytes import (
    HEADER_BYTES,
    Frame,
    Frames,
    Read,
    ReadAhead,
    encode_body,
    encode_frame,
    encode_header,
    is_torn_header,
    note_of,
    seed_of,
)
from millrace.store.journal_index import Placed
from millrace.store.sealing import End


class LocalJournal:
    """One part of a task's journal, in a file.

    Args:
        path: A name that is not taken, in an existing directory.
        name: Of the journal.
        disk: What it is on.
    """

    def __init__(self, path: str, name: JournalName, disk: Disk) -> None:
        self.name = name
        self._path = path
        self._disk = disk
        self._write = disk.write
        self._sync = data_sync(disk)
        header = encode_header(name)
        self._seed = seed_of(header)
        self._offset = 0
        self._over = ""
        self._fd = -1
        with translated(path):
            try:
                self._fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError as error:
                raise ZombieWriter(
                    f"zombie writer: journal {path} is there already: another attempt at task "
                    f"{name.task} of level {name.level} writes it. This attempt must stop. "
                    f"Nothing was lost."
                ) from error
            try:
                # Durable with the first group, and until then nobody misses it.
                self._put(header)
                sync_directory(os.path.dirname(path), disk)
            except OSError:
                self.close()
                raise

    def append(self, commits: Sequence[Commit], note: bytes = b"") -> None:
        """See :meth:`millrace.store.Journal.append`. Cost: one write, one fsync of data."""
        if self._over:
            raise CheckpointUnwritable(
                f"checkpoint {self._path}: {self._over}, so nothing can be appended. What was "
                f"committed before is safe; the next session goes on from it."
            )
        frame = encode_frame(encode_body(commits, note), self._seed, self._offset)
        # Whatever ends this early, nobody knows what is in the file, and a second fsync would not
        # say: after a failed one the pages may be gone, and count as written.
        self._over = "an append has failed"
        try:
            self._put(frame)
            self._sync(self._fd)
        except OSError as error:
            raise unwritable(self._path, error) from error
        self._over = ""

    def close(self) -> None:
        """See :meth:`millrace.store.Journal.close`."""
        self._over = self._over or "it is closed"
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._write(self._fd, rest) :]
        self._offset += len(data)


class LocalJournals:
    """The :class:`~millrace.store.journal_store.JournalFiles` of a directory."""

    def __init__(self, path: Path, disk: Disk = os) -> None:
        self.where = str(path / "journals")
        self._disk = disk

    def names(self) -> list[str]:
        """Return the names of journals, and of others that are in the folder."""
        with translated(self.where):
            try:
                return self._disk.listdir(self.where)
            except FileNotFoundError:
                return []

    def create(self, name: JournalName) -> LocalJournal:
        """Make a journal. Cost: one fsync, of the directory."""
        return LocalJournal(self._path(name), name, self._disk)

    def sizes(self) -> dict[JournalName, int]:
        """Return the journals that are there, with their bytes."""
        found: dict[JournalName, int] = {}
        for text in self.names():
            name = JournalName.parse(text)
            if name is None:
                continue
            with translated(self._path(text)):
                try:
                    size = self._disk.stat(self._path(text)).st_size
                except FileNotFoundError:
                    continue  # collected since it was listed
            found[name] = size if size > HEADER_BYTES else 0
        return found

    def end_of(self, name: JournalName, size: int, newest: bool) -> End | None:
        """Return where a journal ends.

        All groups but the last are durable: their appends returned before another began. Of the
        last that is not known. Its writer may have died before the fsync, or that may have failed,
        and another one would say nothing about it. So it goes into the seal.
        """
        fd = self._opened(name)
        if fd is None:
            return None
        try:
            return self._end_of(name, ReadAhead(self._reader(fd, size), size), size, newest)
        except OSError as error:
            raise unreadable(self._path(name), error) from error
        finally:
            self._disk.close(fd)

    def groups(self, name: JournalName, length: int, tail: bytes) -> Iterator[Placed] | None:
        """Return the bodies of a journal's groups."""
        fd = self._opened(name)
        return None if fd is None else self._groups(fd, name, length, tail)

    def group(self, name: JournalName, length: int, tail: bytes, place: int) -> bytes | None:
        """Return the body of one group."""
        fd = self._opened(name)
        if fd is None:
            return None
        read, size = self._reader(fd, length, tail), length + len(tail)
        try:
            return Frames(self._path(name), name, read, size).at(place).body
        except OSError as error:
            raise unreadable(self._path(name), error) from error
        finally:
            self._disk.close(fd)

    def remove_journals(self, names: Iterable[JournalName]) -> None:
        """Remove journals."""
        remove(map(self._path, names), self._disk)

    def _end_of(self, name: JournalName, read: Read, size: int, newest: bool) -> End | None:
        try:
            frames = Frames(self._path(name), name, read, size)
        except DamagedStore:
            if newest and is_torn_header(read):
                return None
            raise
        last: Frame | None = None
        for frame in frames if newest else frames.all():
            last = frame
        if newest:
            frames.check_torn(last.end if last else HEADER_BYTES)
        if last is None:
            return None
        if not newest:
            return End(size, note_of(last.body))
        start = 0 if last.offset == HEADER_BYTES else last.offset
        return End(start, note_of(last.body), read(start, last.end))

    def _groups(self, fd: int, name: JournalName, length: int, tail: bytes) -> Iterator[Placed]:
        size = length + len(tail)
        try:
            read = ReadAhead(self._reader(fd, length, tail), size)
            for frame in Frames(self._path(name), name, read, size).all():
                yield frame.offset, frame.body
        except OSError as error:
            raise unreadable(self._path(name), error) from error
        finally:
            self._disk.close(fd)

    def _opened(self, name: JournalName) -> int | None:
        try:
            return self._disk.open(self._path(name), os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(self._path(name), error) from error

    def _reader(self, fd: int, length: int, tail: bytes = b"") -> Read:
        """Return what reads so many bytes of a file, and after them a tail."""

        def read(start: int, stop: int) -> bytes:
            found = read_range(fd, start, min(stop, length), self._disk)
            if tail and stop > length:
                found += tail[max(0, start - length) : stop - length]
            return found

        return read

    def _path(self, name: object) -> str:
        return f"{self.where}/{name}"
