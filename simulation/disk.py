"""The simulated disk: what POSIX promises of a file system, and nothing more.

A file's bytes are durable once the file was fsync'd; a name is durable once its directory was. What
is not durable may be lost at a power cut, each name and each file on its own: names come and go in
any order, and of an unsynced file any beginning may be left. An fsync that failed has dropped the
pages for good, so that a second one would say "done" about nothing. Every call that another process
could notice is a step of the caller, before which it may be stopped, killed or refused.

Source: "All File Systems Are Not Created Equal" (OSDI 2014) for names and order; "Can Applications
Recover from fsync Failures?" (ATC 2020) for what follows a failed one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random

from millrace.store.durable_files import AnyPath

#: Asks for leave to do what the words say; returns an errno to fail with, 0 to go on.
Ask = Callable[[str, Path], int]

#: To fail with EEXIST after the link was made: an NFS server's lost reply.
LOST_REPLY = -1
#: To write half, and die.
TEAR = -2


class _File:
    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.data = b""
        self.durable: bytes | None = None
        self.pages_lost = False


class _Directory:
    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.names: dict[str, _File | _Directory] = {}
        self.durable: dict[str, _File | _Directory] = {}


class SimulatedDisk:
    """A :class:`millrace.store.durable_files.Disk` in memory.

    Args:
        random: Decides what a power cut leaves.
        ask: Called before each call.

    Attributes:
        removed: Path of a file that was removed -> what it held, the first time.

    >>> disk = SimulatedDisk(Random(0), lambda call, path: 0)
    >>> disk.mkdir(Path("/a"))
    >>> disk.listdir(Path("/"))
    ['a']
    """

    def __init__(self, random: Random, ask: Ask) -> None:
        self._random = random
        self._ask = ask
        self._inodes = 0
        self._fds: dict[int, tuple[_File | _Directory, Path]] = {}
        self._next_fd = 3
        self._root = _Directory(0)
        self.removed: dict[Path, bytes] = {}

    # -- the system calls --------------------------------------------------------------------------

    def open(self, path: AnyPath, flags: int, mode: int = 0o777, /) -> int:
        """As :func:`os.open`."""
        path = _path(path)
        if flags & os.O_CREAT:
            self._leave("create", path)
            directory, name = self._parent(path)
            if name in directory.names:
                raise _error(errno.EEXIST, path)
            node: _File | _Directory = _File(self._inode())
            directory.names[name] = node
        else:
            if not flags & os.O_DIRECTORY:
                self._leave("open", path)
            node = self._node(path)
        self._next_fd += 1
        self._fds[self._next_fd] = (node, path)
        return self._next_fd

    def close(self, fd: int, /) -> None:
        """As :func:`os.close`."""
        self._fds.pop(fd, None)

    def write(self, fd: int, data: memoryview, /) -> int:
        """As :func:`os.write`; it may take less than it is given."""
        file, path = self._opened(fd)
        refused = self._ask("write", path)
        assert isinstance(file, _File), f"{path} is a directory"
        if refused == TEAR:
            file.data += bytes(data[: len(data) // 2])
            self._ask("write", path)  # the caller is dead by now
        if refused > 0:
            raise _error(refused, path)
        taken = len(data) if len(data) < 2 or self._random.random() < 0.9 else len(data) // 2
        file.data += bytes(data[:taken])
        return taken

    def pread(self, fd: int, length: int, offset: int, /) -> bytes:
        """As :func:`os.pread`."""
        file, path = self._opened(fd)
        assert isinstance(file, _File), f"{path} is a directory"
        return file.data[offset : offset + length]

    def fsync(self, fd: int, /) -> None:
        """As :func:`os.fsync`."""
        node, path = self._opened(fd)
        refused = self._ask("fsync" if isinstance(node, _File) else "fsync names", path)
        if isinstance(node, _Directory):
            if refused > 0:
                raise _error(refused, path)
            node.durable = dict(node.names)
            return
        if refused > 0:
            node.pages_lost = True
            raise _error(refused, path)
        if not node.pages_lost:
            node.durable = node.data

    def fdatasync(self, fd: int, /) -> None:
        """As :func:`os.fdatasync`, which leaves out nothing that is kept here."""
        self.fsync(fd)

    def fstat(self, fd: int, /) -> os.stat_result:
        """As :func:`os.fstat`."""
        return _stat(self._opened(fd)[0])

    def stat(self, path: AnyPath, /) -> os.stat_result:
        """As :func:`os.stat`."""
        path = _path(path)
        self._leave("stat", path)
        return _stat(self._node(path))

    def link(self, source: AnyPath, target: AnyPath, /) -> None:
        """As :func:`os.link`; its reply may be lost, as over NFS."""
        source, target = _path(source), _path(target)
        refused = self._ask("link", target)
        if refused > 0:
            raise _error(refused, target)
        node = self._node(source)
        directory, name = self._parent(target)
        if name in directory.names:
            raise _error(errno.EEXIST, target)
        directory.names[name] = node
        if refused == LOST_REPLY:
            raise _error(errno.EEXIST, target)

    def rename(self, source: AnyPath, target: AnyPath, /) -> None:
        """As :func:`os.rename`: what had the name loses it at once."""
        source, target = _path(source), _path(target)
        self._leave("rename", target)
        node = self._node(source)
        directory, name = self._parent(target)
        directory.names[name] = node
        before, old = self._parent(source)
        del before.names[old]

    def unlink(self, path: AnyPath, /) -> None:
        """As :func:`os.unlink`."""
        path = _path(path)
        self._leave("unlink", path)
        directory, name = self._parent(path)
        if name not in directory.names:
            raise _error(errno.ENOENT, path)
        removed = directory.names.pop(name)
        if isinstance(removed, _File):
            self.removed.setdefault(path, removed.data)

    def mkdir(self, path: AnyPath, /) -> None:
        """As :func:`os.mkdir`."""
        path = _path(path)
        self._leave("mkdir", path)
        directory, name = self._parent(path)
        if name in directory.names:
            raise _error(errno.EEXIST, path)
        directory.names[name] = _Directory(self._inode())

    def listdir(self, path: AnyPath, /) -> list[str]:
        """As :func:`os.listdir`, newest first: no caller may rely on an order."""
        path = _path(path)
        self._leave("list", path)
        node = self._node(path)
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        return list(reversed(node.names))

    # -- power -------------------------------------------------------------------------------------

    def cut_power(self) -> int:
        """Lose what is not durable, or not all of it; return how many names and files were hit."""
        self._fds.clear()
        return self._cut(self._root)

    def _cut(self, directory: _Directory) -> int:
        lost = 0
        after: dict[str, _File | _Directory] = {}
        for name in {**directory.durable, **directory.names}:
            before, now = directory.durable.get(name), directory.names.get(name)
            kept = now
            if before is not now and self._random.random() < 0.5:
                kept = before
                lost += 1
            if kept is None:
                continue
            after[name] = kept
            if isinstance(kept, _Directory):
                lost += self._cut(kept)
            elif kept.durable != kept.data:
                lost += 1
                kept.data = kept.durable = self._torn(kept)
        directory.names = after
        directory.durable = dict(after)
        return lost

    def _torn(self, file: _File) -> bytes:
        """Return what is left of unsynced bytes: a beginning, or a beginning and zeros."""
        safe = len(file.durable or b"")
        left = self._random.randint(safe, len(file.data))
        zeros = len(file.data) - left if self._random.random() < 0.3 else 0
        return file.data[:left] + bytes(zeros)

    # -- names -------------------------------------------------------------------------------------

    def _leave(self, call: str, path: Path) -> None:
        refused = self._ask(call, path)
        if refused > 0:
            raise _error(refused, path)

    def _inode(self) -> int:
        self._inodes += 1
        return self._inodes

    def _opened(self, fd: int) -> tuple[_File | _Directory, Path]:
        opened = self._fds.get(fd)
        if opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return opened

    def _node(self, path: Path) -> _File | _Directory:
        return self._below_root(path, path.parts[1:])

    def _below_root(self, path: Path, names: tuple[str, ...]) -> _File | _Directory:
        node: _File | _Directory | None = self._root
        for name in names:
            if isinstance(node, _File):
                raise _error(errno.ENOTDIR, path)
            node = node.names.get(name) if node is not None else None
            if node is None:
                raise _error(errno.ENOENT, path)
        assert node is not None
        return node

    def _parent(self, path: Path) -> tuple[_Directory, str]:
        names = path.parts[1:]
        node = self._below_root(path, names[:-1])
        if isinstance(node, _File):
            raise _error(errno.ENOTDIR, path)
        return node, names[-1]


@lru_cache(1 << 14)
def _path(path: AnyPath) -> Path:
    """Return a path; those of a checkpoint are asked for again and again."""
    return Path(path)


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


def _stat(node: _File | _Directory) -> os.stat_result:
    size = len(node.data) if isinstance(node, _File) else 0
    kind = stat.S_IFREG if isinstance(node, _File) else stat.S_IFDIR
    return os.stat_result((kind | 0o644, node.inode, 1, 1, 0, 0, size, 0, 0, 0))
