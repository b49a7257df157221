"""Files that are either absent or complete and durable, whatever dies in between.

One operation, :func:`put_if_absent`: write a temporary file, fsync it, give it its names with
``link(2)``, fsync the directories of those names, remove the temporary name. ``link`` fails when
the name exists, which makes it put-if-absent; the bytes are durable before the first name exists,
so no name ever leads to a torn file. However many names a file gets, its data is fsync'd once.

Alternatives considered: ``rename`` replaces what is there, so it cannot be put-if-absent;
``O_EXCL`` creates the name before the bytes, so a crash leaves a torn file that other attempts find
taken; ``renameat2(RENAME_NOREPLACE)`` gives one name a file, so one fsync an interval. File systems
without hard links (FAT, some FUSE mounts) are therefore refused, with an error that says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence

from millrace.model.errors import CheckpointUnwritable, DamagedStore, StoreError
from millrace.store.disk import AnyPath, Disk, exists, is_directory, same_file

TEMPORARY_SUFFIX = ".tmp"

# A new driver empties the scratch directory, perhaps under a live task of an older run. The task
# then writes its file again. Drivers that supersede one another do it many times; so many losses in
# a row are not a race any more.
_ATTEMPTS = 32

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

_REMEDIES = {
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
    data: bytes | Iterable[bytes], slots: Sequence[AnyPath], *, scratch: AnyPath, disk: Disk = os
) -> list[bool]:
    """Give ``data`` every free name in ``slots`` and return which ones it got.

    All names in ``slots`` are durable when it returns, taken or given.

    Args:
        data: Content of the file, or the parts of it, which are written as they come.
        slots: Distinct names, on the same file system as ``scratch``, in existing directories.
        scratch: Directory for the temporary name; leftovers there mean nothing.
        disk: What all of it is on.

    Raises:
        CheckpointUnwritable: an operating system error; names given before it stay given.
        DamagedStore: a directory has gone.
        StoreError: other drivers start, and removed what was being written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> here = Path(tempfile.mkdtemp())
    >>> put_if_absent(b"first", [here / "1"], scratch=here)
    [True]
    >>> put_if_absent(b"second", [here / "1", here / "2"], scratch=here)
    [False, True]
    """
    given: dict[AnyPath, bool] = {}
    # Parts that came one by one cannot be written again.
    attempts = _ATTEMPTS if isinstance(data, bytes) else 1
    for attempt in range(1, attempts + 1):
        temporary = f"{scratch}/{os.getpid()}-{os.urandom(16).hex()}{TEMPORARY_SUFFIX}"
        with translated(scratch):
            try:
                _write(temporary, [data] if isinstance(data, bytes) else data, disk)
                try:
                    for slot in slots:
                        if slot not in given:
                            given[slot] = _link(temporary, slot, disk)
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
                for directory in dict.fromkeys(map(os.path.dirname, slots)):
                    sync_directory(directory, disk)
            finally:
                with contextlib.suppress(OSError):
                    disk.unlink(temporary)
        break
    return [given[slot] for slot in slots]


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
    return kind(
        f"checkpoint {path}: cannot be read: {error.strerror}. Check the disk and the permissions "
        f"of the checkpoint, then start again with the same checkpoint."
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


def _link(temporary: AnyPath, slot: AnyPath, disk: Disk) -> bool:
    try:
        disk.link(temporary, slot)
    except FileExistsError:
        # NFS may carry a link out, lose the reply, and answer the repeated call with EEXIST.
        try:
            return same_file(temporary, slot, disk)
        except FileNotFoundError:
            if exists(slot, disk):
                raise  # the temporary name has gone
            return False  # the slot has been collected since, so it was taken by another
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            raise unwritable(
                slot,
                error,
                "The file system has no hard links, which Millrace needs to commit: put the "
                "checkpoint on ext4, xfs, btrfs, tmpfs, APFS or NFS",
            ) from error
        raise
    return True
