"""Where caches of one boot of this host lie: not fsync'd, they are of no use after the next.

The host's name is in the path too, since LMDB's locks hold on one host, or one container, only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import subprocess
from pathlib import Path

from millrace.store.names import file_name

#: Then nothing tells a torn file from a whole one, and LMDB has to fsync.
UNKNOWN = "unknown"


def home(directory: str | os.PathLike[str], uuid: str, form: int) -> Path:
    """Return where the caches of a checkpoint lie that this boot of this host may use."""
    host = file_name(socket.gethostname())
    return Path(os.path.abspath(directory)) / file_name(uuid) / f"{form}-{host}-{boot_id()}"


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


def unknown() -> bool:
    """Return whether boots of this host cannot be told apart."""
    return boot_id() == UNKNOWN
