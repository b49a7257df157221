"""What a result must say about the machine and the versions it was measured on."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("pyspark", "pyarrow", "lmdb", "msgspec", "xxhash", "bytewax", "millrace")


def describe() -> dict[str, Any]:
    """Return the machine, its load, the versions, the command and the time, as plain JSON.

    The load average is there because a figure taken beside another busy process is worth little:
    the reader of a result file can tell.
    """
    return {
        "command": _command(),
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "os": platform.platform(),
        "python": platform.python_version(),
        "java": _java_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def _command() -> str | None:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return None
    return " ".join(["python -m", spec.name.removesuffix(".__main__"), *sys.argv[1:]])


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if found:
            return found.group(1)
    return platform.processor() or platform.machine()


def _java_version() -> str | None:
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stderr.splitlines()[0]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
