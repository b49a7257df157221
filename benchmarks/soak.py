"""What a run takes, sampled over a long time: memory by process, threads, files, bytes on disk."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Folders of a run, in one that it has for itself.
FOLDERS = ("checkpoint", "cache")


@dataclass(frozen=True)
class Sample:
    """What a run takes at one moment.

    Attributes:
        at_s: Since the beginning of the load.
        rss_mib: Process, by name and id -> resident memory.
        threads: Of all processes.
        open_files: Likewise.
        disk_mib: Folder -> bytes on disk, in MiB: ``checkpoint`` and ``cache``.
    """

    at_s: float
    rss_mib: dict[str, float]
    threads: int
    open_files: int
    disk_mib: dict[str, float]


def taken_by(pid: int, folder: Path, at_s: float) -> Sample:
    """Return what a process and its children take now.

    Args:
        pid: Of the process.
        folder: With checkpoint and cache.
        at_s: When that is.
    """
    rss_mib, threads, files = {}, 0, 0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        try:
            with process.oneshot():
                name = f"{process.name()} {process.pid}"
                rss_mib[name] = round(process.memory_info().rss / 2**20, 1)
                threads += process.num_threads()
                files += process.num_fds()
        except psutil.NoSuchProcess:
            continue
    disk_mib = {name: round(_bytes_in(folder / name) / 2**20, 2) for name in FOLDERS}
    return Sample(round(at_s, 1), rss_mib, threads, files, disk_mib)


def _bytes_in(folder: Path) -> int:
    """Return what a folder takes on disk; files may come and go meanwhile."""
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def flatness(lines: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield of each line the median of its last tenth over that of the second, in words.

    The first tenth is still warming up.

    >>> list(flatness({"memory": [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0]}))
    ['memory: 2.0 early, 3.0 late, 1.50 x']
    """
    for name, values in lines.items():
        tenth = max(1, len(values) // 10)
        early = statistics.median(values[tenth : 2 * tenth] or values)
        late = statistics.median(values[-tenth:])
        if early:
            yield f"{name}: {early:,.1f} early, {late:,.1f} late, {late / early:.2f} x"
