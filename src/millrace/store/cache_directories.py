"""Directories of caches on a host: where they lie, whose they are, and which are of no use.

A directory for caches has one directory for each checkpoint, named by its uuid. It belongs to the
user of the process and to nobody else (mode 0700): caches are state, and whoever can write them, or
leads them elsewhere by a symbolic link, has the process write what it may. In it are

.. code-block:: text

    CHECKPOINT    the path of the checkpoint
    IN-USE        locked, shared, by every process that uses the caches, for as long as it lives

One is removed if its checkpoint is gone from that path, or replaced by another, and nobody has the
lock. Where the path is not known (an object store's) it stays. A mistake, say about a share that is
not mounted just now, costs a rebuild and nothing else.

Caches are not fsync'd, so those of one boot of this host are of no use after the next: the boot is
in their path. The host's name is in it too, since LMDB's locks hold on one host, or one container,
only.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import shutil
import socket
import stat
import subprocess
from pathlib import Path

from millrace.model.errors import PipelineError, StoreError
from millrace.store.checkpoint_format import decode_format, file_name

_log = logging.getLogger(__name__)

_CHECKPOINT, _IN_USE = "CHECKPOINT", "IN-USE"

# Open until the process ends: the kernel lets go of the locks then, however it ends.
_held: dict[Path, int] = {}


def own(path: Path) -> Path:
    """Make a directory that is this user's alone, unless it is there; return it.

    Raises:
        PipelineError: Another user owns it, or it is a symbolic link or no directory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "no directory"
        problem = f"it is {kind}"
    elif status.st_uid != os.geteuid():
        problem = f"user {status.st_uid} owns it, and this process runs as user {os.geteuid()}"
    else:
        if stat.S_IMODE(status.st_mode) != 0o700:
            path.chmod(0o700)
        return path
    raise PipelineError(
        f"caches cannot be in {path} on host {socket.gethostname()}: {problem}. Whoever owns it "
        "could read and alter state. Remove it, or name a directory of your own with "
        "start(cache=...); no state is lost, as caches are built again from the checkpoint."
    )


def enter(directory: str | os.PathLike[str], uuid: str, checkpoint: Path) -> None:
    """Say that this process uses the caches of a checkpoint, until it ends.

    Args:
        directory: For caches.
        uuid: Of the checkpoint.
        checkpoint: Its path.

    Raises:
        PipelineError: See :func:`own`.
    """
    home = Path(directory) / file_name(uuid)
    if home in _held:
        if _leads_to(home / _IN_USE, _held[home]):
            return
        # Somebody has removed the caches since, which anybody may. The lock went with them.
        os.close(_held.pop(home))
    own(home)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(home / _CHECKPOINT, flags, 0o600), "w") as file:
        file.write(f"{checkpoint}\n")
    fd = os.open(home / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    fcntl.flock(fd, fcntl.LOCK_SH)
    _held[home] = fd


def remove_dead(directory: str | os.PathLike[str]) -> list[str]:
    """Remove the caches of checkpoints that are gone and that nobody uses; return their names.

    What cannot be removed stays, silently: it may be another user's.
    """
    removed = []
    for home in sorted(Path(directory).glob("*")):
        with contextlib.suppress(OSError):
            fd = os.open(home / _IN_USE, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_dead(home):
                    shutil.rmtree(home)
                    _log.info("removed the caches %s: their checkpoint is gone", home)
                    removed.append(home.name)
            finally:
                os.close(fd)
    return removed


def _leads_to(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except OSError:
        return False


def _is_dead(home: Path) -> bool:
    checkpoint = Path((home / _CHECKPOINT).read_text().rstrip("\n"))
    if not checkpoint.is_absolute():
        return False
    try:
        written = decode_format((checkpoint / "FORMAT").read_bytes(), str(checkpoint))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except StoreError:
        return False  # Damaged, or of another version: it may be repaired yet.
    return file_name(written.uuid) != home.name


#: Then nothing tells a torn file from a whole one, and LMDB has to fsync.
UNKNOWN = "unknown"


def home_of_boot(directory: str | os.PathLike[str], uuid: str, format_number: int) -> Path:
    """Return where the caches of a checkpoint lie that this boot of this host may use."""
    host = file_name(socket.gethostname())
    return (
        Path(os.path.abspath(directory)) / file_name(uuid) / f"{format_number}-{host}-{boot_id()}"
    )


@functools.cache
def boot_id() -> str:
    """Return what tells one boot of this host from another."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with contextlib.suppress(OSError, subprocess.CalledProcessError):  # macOS
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    return UNKNOWN


@functools.cache
def remove_earlier(here: Path) -> None:
    """Remove what this host cached before it was started again; no process can have it open."""
    host = here.name[: -len(boot_id())]
    with contextlib.suppress(OSError):
        for name in os.listdir(here.parent):
            if name.startswith(host) and len(name) == len(here.name) and name != here.name:
                shutil.rmtree(here.parent / name, ignore_errors=True)


def boot_unknown() -> bool:
    """Return whether boots of this host cannot be told apart."""
    return boot_id() == UNKNOWN
