"""Files that are either absent or complete and durable, whatever dies in between.

:func:`put_if_absent` writes a temporary file, fsyncs it, gives it its name with ``link(2)``, fsyncs
the directory of that name, and removes the temporary one. ``link`` fails when the name exists,
which makes it put-if-absent; the bytes are durable before the name exists, so no name ever leads to
a torn file. :func:`replace` does so with ``rename(2)``, which takes the name from what has it.

Alternatives considered: ``O_EXCL`` creates the name before the bytes, so a crash leaves a torn file
that other attempts find taken; ``renameat2(RENAME_NOREPLACE)`` is of Linux, and not of NFS. File
systems without hard links (FAT, some FUSE mounts) are therefore refused, with an error that says
so.

The system calls for it are those of a :class:`Disk`. The real one is the module :mod:`os` itself.
The simulator has another one, which loses what was not fsync'd, tears what was, fills up, and stops
its caller between any two calls.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from millrace.model.errors import CheckpointUnwritable, DamagedStore, StoreError

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


TEMPORARY_SUFFIX = ".tmp"

_Answer = TypeVar("_Answer")

# A new driver empties the scratch directory, perhaps under a live task of an older run. The task
# then writes its file again. Drivers that supersede one another do it many times; so many losses in
# a row are not a race any more.
_ATTEMPTS = 32

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

#: What to do where files cannot be opened, whether to be read or to be written.
TOO_MANY_FILES = "Too many files are open: raise the limit, see `ulimit -n`"
_OF_BOTH = {
    errno.EMFILE: TOO_MANY_FILES,
    errno.ENFILE: TOO_MANY_FILES,
    errno.ESTALE: "The file server has forgotten the file: mount its file system again",
}
_REMEDIES = {
    **_OF_BOTH,
    errno.ENOSPC: "The disk is full: free room, or extend the volume",
    errno.EDQUOT: "The disk quota is used up: free room, or raise the quota",
    errno.EROFS: "The file system is mounted read-only: mount it for writing",
    errno.EACCES: "Give the user that runs Spark's tasks write permission there",
    errno.EPERM: "Give the user that runs Spark's tasks write permission there",
    errno.EIO: "The disk reports an error: check it, and copy the checkpoint elsewhere if it fails",
    errno.ENOTDIR: "A part of the path is a file: choose another checkpoint path",
    errno.EEXIST: "The path is taken by a file: choose another checkpoint path",
}


def put_if_absent(
    data: bytes | Iterable[bytes], path: AnyPath, *, scratch: AnyPath, disk: Disk = os
) -> bool:
    """Give ``data`` a name unless it is taken; return whether it was free.

    The name is durable on return, taken or given.

    Args:
        data: Content of the file, or the parts of it, which are written as they come.
        path: The name, on the same file system as ``scratch``, in an existing directory.
        scratch: Directory for the temporary name; leftovers there mean nothing.
        disk: What all of it is on.

    Raises:
        CheckpointUnwritable: an operating system error.
        DamagedStore: a directory has gone.
        StoreError: other drivers start, and removed what was being written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> here = Path(tempfile.mkdtemp())
    >>> put_if_absent(b"first", here / "1", scratch=here)
    True
    >>> put_if_absent(b"second", here / "1", scratch=here)
    False
    """
    return _named(data, path, lambda temporary: _link(temporary, path, disk), scratch, disk)


def replace(data: bytes, path: AnyPath, *, scratch: AnyPath, disk: Disk = os) -> None:
    """Give ``data`` a name, and take it from the file that has it; durable on return.

    Args:
        data: Content of the file.
        path: See :func:`put_if_absent`, as for the others and for errors.
        scratch: Directory for the temporary name.
        disk: What all of it is on.
    """
    _named(data, path, lambda temporary: disk.rename(temporary, path), scratch, disk)


def _named(
    data: bytes | Iterable[bytes],
    path: AnyPath,
    name: Callable[[str], _Answer],
    scratch: AnyPath,
    disk: Disk,
) -> _Answer:
    """Write a temporary file and have it named; return what that returned."""
    # Parts that came one by one cannot be written again.
    attempts = _ATTEMPTS if isinstance(data, bytes) else 1
    for attempt in range(1, attempts + 1):
        temporary = f"{scratch}/{os.getpid()}-{os.urandom(16).hex()}{TEMPORARY_SUFFIX}"
        with translated(scratch):
            try:
                _write(temporary, [data] if isinstance(data, bytes) else data, disk)
                try:
                    answer = name(temporary)
                except FileNotFoundError:
                    lost = is_directory(scratch, disk) and not exists(temporary, disk)
                    if not lost:
                        raise
                    if attempt < attempts:
                        continue
                    raise StoreError(
                        f"checkpoint {temporary}: somebody removed it while it was written, as a "
                        "run does with leftovers when it starts. The newer run goes on; end this "
                        "one, or start it again if there is no other."
                    ) from None
                sync_directory(os.path.dirname(path), disk)
            finally:
                with contextlib.suppress(OSError):
                    disk.unlink(temporary)
        return answer
    raise AssertionError("the last attempt returns or raises")


def remove(paths: Iterable[AnyPath], disk: Disk = os) -> None:
    """Remove names, in order; one that has gone is passed over.

    Raises:
        CheckpointUnwritable: an operating system error; that name and all after it are still there.
    """
    for path in paths:
        with translated(path), contextlib.suppress(FileNotFoundError):
            disk.unlink(path)


def make_directory(path: AnyPath, disk: Disk = os) -> None:
    """Make ``path`` unless it is there, and make its name durable either way.

    Raises:
        CheckpointUnwritable: an operating system error, or the name is taken by a file.
        DamagedStore: the parent has gone.
    """
    with translated(path):
        try:
            disk.mkdir(path)
        except FileExistsError:
            if not is_directory(path, disk):
                raise
        sync_directory(os.path.dirname(path), disk)


def sync_directory(path: AnyPath, disk: Disk = os) -> None:
    """Make the names in a directory durable; an untouched directory costs tens of microseconds.

    A file system that cannot (EINVAL, on some network mounts) is taken to order names itself.
    """
    fd = disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        disk.close(fd)


def remove_leftovers(scratch: AnyPath, disk: Disk = os) -> int:
    """Remove temporary names that dead processes left, and return how many there were."""
    removed = 0
    for name in temporaries(disk.listdir(scratch)):
        with contextlib.suppress(OSError):
            disk.unlink(f"{scratch}/{name}")
            removed += 1
    return removed


def temporaries(names: Iterable[str]) -> list[str]:
    """Return the names that :func:`put_if_absent` makes up, out of ``names``."""
    return [name for name in names if name.endswith(TEMPORARY_SUFFIX)]


@contextlib.contextmanager
def translated(path: AnyPath) -> Iterator[None]:
    """Turn the OSErrors of a write into CheckpointUnwritable or DamagedStore, with what to do."""
    try:
        yield
    except CheckpointUnwritable:
        raise
    except FileNotFoundError as error:
        raise DamagedStore(
            f"checkpoint {error.filename or path}: it has gone, or was never there on this host. "
            f"Was it removed under a running pipeline, or is a local directory used as the "
            f"checkpoint of a cluster whose hosts do not share it?"
        ) from error
    except OSError as error:
        raise unwritable(path, error) from error


def unreadable(path: AnyPath, error: OSError) -> StoreError:
    """Return the error for a file that is there and cannot be read."""
    kind = DamagedStore if error.errno == errno.EIO else StoreError
    check = "Check the disk and the permissions of the checkpoint"
    remedy = _OF_BOTH.get(error.errno or 0, check)
    return kind(
        f"checkpoint {path}: cannot be read: {error.strerror}. {remedy}, then start again with the "
        "same checkpoint."
    )


def unwritable(path: AnyPath, error: OSError, remedy: str | None = None) -> CheckpointUnwritable:
    """Return the error for a write that the operating system refused, with what to do."""
    where = error.filename2 or error.filename or path
    remedy = remedy or _REMEDIES.get(error.errno or 0, "Make the location writable")
    made = CheckpointUnwritable(
        f"checkpoint {where}: {error.strerror or error}. What was committed before is safe. "
        f"{remedy}, and start again with the same checkpoint."
    )
    made.errno = error.errno
    return made


def _write(path: AnyPath, parts: Iterable[bytes], disk: Disk) -> None:
    """Write and fsync a new file. A failed fsync is never repeated: the pages may be gone."""
    fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[disk.write(fd, rest) :]
        disk.fsync(fd)
    finally:
        disk.close(fd)


def _link(temporary: AnyPath, path: AnyPath, disk: Disk) -> bool:
    try:
        disk.link(temporary, path)
    except FileExistsError:
        # NFS may carry a link out, lose the reply, and answer the repeated call with EEXIST.
        try:
            return same_file(temporary, path, disk)
        except FileNotFoundError:
            if exists(path, disk):
                raise  # the temporary name has gone
            return False  # it has been collected since, so it was taken by another
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            raise unwritable(
                path,
                error,
                "The file system has no hard links, which Millrace needs to commit: put the "
                "checkpoint on ext4, xfs, btrfs, tmpfs, APFS or NFS",
            ) from error
        raise
    return True
