"""LocalBlobs: the blobs of a checkpoint in a directory, each a file; made by ``link`` and fsync."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from millrace.store.durable_files import (
    AnyPath,
    Disk,
    data_sync,
    exists,
    make_directory,
    put_if_absent,
    read_file,
    read_range,
    remove,
    replace,
    sync_directory,
    translated,
    unreadable,
    unwritable,
)

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_SCRATCH = "tmp"

# Large enough that calls do not count, small beside the memory of a worker.
_PIECE_BYTES = 1 << 20


class LocalBlobs:
    """The :class:`~millrace.store.Blobs` of a directory.

    Args:
        path: Of the directory, which is there.
        disk: What it is on.
        folders: That are there as long as the checkpoint is: without one, it has been removed. All
            others are made when something is put into them.

    >>> import tempfile
    >>> blobs = LocalBlobs(tempfile.mkdtemp())
    >>> blobs.put_if_absent("epochs/1", b"mine"), blobs.put_if_absent("epochs/1", b"theirs")
    (True, False)
    >>> blobs.read("epochs/1"), blobs.read("epochs/2"), blobs.names("epochs")
    (b'mine', None, ['epochs/1'])
    """

    far = False

    def __init__(self, path: AnyPath, disk: Disk = os, folders: Iterable[str] = ()) -> None:
        self.where = str(path)
        self._scratch = f"{path}/{_SCRATCH}"
        self._disk = disk
        self._folders = frozenset(folders)
        # Whose names are durable, as this process knows.
        self._durable = set(self._folders)
        #: See :meth:`millrace.store.Blobs.turns`; another one where a simulation's threads share.
        self.turns: Callable[[], AbstractContextManager[object]] = threading.RLock

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See :meth:`millrace.store.Blobs.put_if_absent`. Cost: two fsyncs."""
        return self._put(name, data)

    def put_pieces(self, name: str, pieces: Iterable[bytes]) -> bool:
        """See :meth:`millrace.store.Blobs.put_pieces`. Cost: two fsyncs.

        Of two that put it at the same time only one does.
        """
        path = self._path(name)
        with translated(path):
            if exists(path, self._disk):
                return False
        return self._put(name, pieces)

    def replace(self, name: str, data: bytes) -> None:
        """See :meth:`millrace.store.Blobs.replace`. Cost: two fsyncs."""
        self._settle(_SCRATCH)
        self._settle(os.path.dirname(name))
        replace(data, self._path(name), scratch=self._scratch, disk=self._disk)

    def appender(self, name: str) -> LocalAppender:
        """See :meth:`millrace.store.Blobs.appender`."""
        return LocalAppender(
            self._path(name), lambda: self._settle(os.path.dirname(name)), self._disk
        )

    def read(self, name: str) -> bytes | None:
        """See :meth:`millrace.store.Blobs.read`. Cost: an fsync, of the directory."""
        path = self._path(name)
        try:
            data = read_file(path, self._disk)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        with translated(path):  # what cannot be synced is not damaged
            sync_directory(os.path.dirname(path), self._disk)
        return data

    def read_range(self, name: str, start: int, stop: int) -> bytes | None:
        """See :meth:`millrace.store.Blobs.read_range`."""
        path = self._path(name)
        try:
            fd = self._disk.open(path, os.O_RDONLY)
            try:
                return read_range(fd, start, stop, self._disk)
            finally:
                self._disk.close(fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error

    def stream(self, name: str) -> Iterator[bytes] | None:
        """See :meth:`millrace.store.Blobs.stream`."""
        path = self._path(name)
        try:
            fd = self._disk.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        return self._pieces(path, fd)

    def exists(self, name: str) -> bool:
        """See :meth:`millrace.store.Blobs.exists`.

        It opens the file: an NFS client may answer ``stat`` from its cache.
        """
        path = self._path(name)
        try:
            self._disk.close(self._disk.open(path, os.O_RDONLY))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise unreadable(path, error) from error
        return True

    def names(self, folder: str) -> list[str]:
        """See :meth:`millrace.store.Blobs.names`."""
        path = self._path(folder)
        with translated(path):
            try:
                entries = self._disk.listdir(path)
            except FileNotFoundError:
                if folder in self._folders:
                    raise
                return []
        return sorted(f"{folder}/{name}" for name in entries)

    def sizes(self, folder: str) -> dict[str, int]:
        """See :meth:`millrace.store.Blobs.sizes`. Cost: a ``stat`` each."""
        sizes: dict[str, int] = {}
        for name in self.names(folder):
            with translated(name), contextlib.suppress(FileNotFoundError):  # removed since
                sizes[name] = self._disk.stat(self._path(name)).st_size
        return sizes

    def map(self, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
        """See :meth:`millrace.store.Blobs.map`: one after the other."""
        return [call(item) for item in items]

    def remove(self, names: Iterable[str], *, durable: bool = False) -> None:
        """See :meth:`millrace.store.Blobs.remove`. Cost: an fsync a folder, if durable."""
        paths = [self._path(name) for name in names]
        remove(paths, self._disk)
        if durable:
            for folder in dict.fromkeys(map(os.path.dirname, paths)):
                with translated(folder):
                    sync_directory(folder, self._disk)

    def _put(self, name: str, data: bytes | Iterable[bytes]) -> bool:
        self._settle(_SCRATCH)
        self._settle(os.path.dirname(name))
        path = self._path(name)
        return put_if_absent(data, path, scratch=self._scratch, disk=self._disk)

    def _settle(self, folder: str) -> None:
        """Make a folder, unless it is there, and its name durable, once in this process."""
        if folder in self._durable:
            return
        if parent := os.path.dirname(folder):
            self._settle(parent)
        make_directory(self._path(folder), self._disk)
        self._durable.add(folder)

    def _pieces(self, path: str, fd: int) -> Iterator[bytes]:
        offset = 0
        try:
            while piece := self._disk.pread(fd, _PIECE_BYTES, offset):
                yield piece
                offset += len(piece)
        except OSError as error:
            raise unreadable(path, error) from error
        finally:
            self._disk.close(fd)

    def _path(self, name: str) -> str:
        return f"{self.where}/{name}"


class LocalAppender:
    """The :class:`~millrace.store.Appender` of a file.

    Args:
        path: Its name.
        settle: Makes the directory, before the file is made.
        disk: What it is on.
    """

    def __init__(self, path: str, settle: Callable[[], None], disk: Disk) -> None:
        self._path = path
        self._settle = settle
        self._disk = disk
        self._sync = data_sync(disk)
        self._fd = -1

    def append(self, data: bytes, *, durable: bool = True) -> bool:
        """See :meth:`millrace.store.Appender.append`.

        Cost: one write, and one fsync of data; the first time one of the directory before them, so
        that no name is lost of a file in which something was found.
        """
        if self._fd < 0 and not self._made():
            return False
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._disk.write(self._fd, rest) :]
            if durable:
                self._sync(self._fd)
        except OSError as error:
            raise unwritable(self._path, error) from error
        return True

    def close(self) -> None:
        """See :meth:`millrace.store.Appender.close`."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def _made(self) -> bool:
        """Make the file; return whether that was possible."""
        self._settle()
        with translated(self._path):
            try:
                fd = self._disk.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                return False
            try:
                sync_directory(os.path.dirname(self._path), self._disk)
            except BaseException:
                self._disk.close(fd)
                raise
            self._fd = fd
        return True
