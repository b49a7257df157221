"""Processes by what tells them from all others, so that none is ended for another.

A number alone does not: it is given again, and each container and host has its own. So whoever is
to end a process, and may see another one under its number, looks whether it is this one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

from millrace.store.cache_directories import boot_id

_log = logging.getLogger("millrace")


class ProcessId(NamedTuple):
    """One process of one boot of one host.

    Attributes:
        pid: Its number.
        boot: Of the host.
        namespace: In which its number counts.
        started: When it was started, as that host says it; "" if there is no such process.
    """

    pid: int
    boot: str
    namespace: str
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the process that has a number here and now."""
        namespace = ""
        with contextlib.suppress(OSError):  # macOS has none
            namespace = str(Path("/proc/self/ns/pid").readlink())
        return cls(pid, boot_id(), namespace, _started(pid))

    @classmethod
    def read(cls, text: str) -> ProcessId | None:
        """Return what ``str`` made of one; None if it is something else.

        >>> ProcessId.read(str(ProcessId.of(os.getpid()))) == ProcessId.of(os.getpid())
        True
        """
        pid, *others = text.split("/")
        return cls(int(pid), *others) if pid.isdigit() and len(others) == 3 else None

    def __str__(self) -> str:
        return "/".join(map(str, self))

    def kill(self) -> bool:
        """End it at once, if it is another process of this host; return whether it was there.

        A process that was stopped, or is in native code, ends; one that waits for a disk ends when
        that answers.
        """
        if self.pid == os.getpid() or not self.started or ProcessId.of(self.pid) != self:
            return False
        try:
            os.kill(self.pid, signal.SIGKILL)
        except OSError as error:
            _log.warning("process %d hangs, and cannot be ended: %s", self.pid, error)
            return False
        return True


def _started(pid: int) -> str:
    """Return when a process was started; "" if there is none."""
    with contextlib.suppress(OSError):
        # After the command's name, which may hold anything, the 22nd field of proc(5).
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[19] if fields[0] != "Z" else ""
    if Path("/proc/self/stat").exists():
        return ""
    command = ["ps", "-o", "lstart=", "-p", str(pid)]  # macOS
    with contextlib.suppress(OSError):
        said = subprocess.run(command, capture_output=True, check=False, text=True)
        return said.stdout.strip().replace("/", ".")
    return ""
