"""Disk: the system calls that the store makes, so that the simulator can stand in for the kernel.

The real disk is the module :mod:`os` itself. The simulator has another one, which loses what was
not fsync'd, tears what was, fills up, and stops its caller between any two calls.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

#: Of a commit, strings: a :class:`~pathlib.Path` costs more than the system call that it is for.
AnyPath = Path | str


class Disk(Protocol):
    """Functions of :mod:`os`, with its arguments and its errors; paths are absolute."""

    def open(self, path: AnyPath, flags: int, mode: int = 0o777, /) -> int:
        """As :func:`os.open`."""
        ...

    def close(self, fd: int, /) -> None:
        """As :func:`os.close`."""
        ...

    def write(self, fd: int, data: memoryview, /) -> int:
        """As :func:`os.write`."""
        ...

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        """As :func:`os.pread`."""
        ...

    def fsync(self, fd: int, /) -> None:
        """As :func:`os.fsync`."""
        ...

    def fdatasync(self, fd: int, /) -> None:
        """As :func:`os.fdatasync`; macOS has none, see :func:`data_sync`."""
        ...

    def fstat(self, fd: int, /) -> os.stat_result:
        """As :func:`os.fstat`."""
        ...

    def stat(self, path: AnyPath, /) -> os.stat_result:
        """As :func:`os.stat`."""
        ...

    def link(self, source: AnyPath, target: AnyPath, /) -> None:
        """As :func:`os.link`."""
        ...

    def rename(self, source: AnyPath, target: AnyPath, /) -> None:
        """As :func:`os.rename`."""
        ...

    def unlink(self, path: AnyPath, /) -> None:
        """As :func:`os.unlink`."""
        ...

    def mkdir(self, path: AnyPath, /) -> None:
        """As :func:`os.mkdir`."""
        ...

    def listdir(self, path: AnyPath, /) -> list[str]:
        """As :func:`os.listdir`."""
        ...


def data_sync(disk: Disk) -> Callable[[int], None]:
    """Return what makes the data of a file durable, and of the rest what is needed to read it."""
    sync: Callable[[int], None] = getattr(disk, "fdatasync", disk.fsync)
    return sync


def read_file(path: AnyPath, disk: Disk) -> bytes:
    """Return the content of a file."""
    fd = disk.open(path, os.O_RDONLY)
    try:
        return read_range(fd, 0, disk.fstat(fd).st_size, disk)
    finally:
        disk.close(fd)


def read_range(fd: int, start: int, stop: int, disk: Disk) -> bytes:
    """Return bytes ``[start, stop)`` of an open file; fewer when it ends before."""
    parts: list[bytes] = []
    while start < stop:
        part = disk.pread(fd, stop - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def exists(path: AnyPath, disk: Disk) -> bool:
    """Return whether a name is there."""
    try:
        disk.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_directory(path: AnyPath, disk: Disk) -> bool:
    """Return whether a name is there and is a directory's."""
    try:
        return stat.S_ISDIR(disk.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def same_file(one: AnyPath, other: AnyPath, disk: Disk) -> bool:
    """Return whether two names, which must be there, are of one file."""
    return os.path.samestat(disk.stat(one), disk.stat(other))
