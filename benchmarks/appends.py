"""What a group commit costs: an append to a segment, beside a put of one.

A group is some commits of different intervals with ten rows each, and a note. Three appenders take
turns, so that figures can be compared also on a machine that has something else to do:

    grown        what a task of the real-time plane does in a turn: one write, one fsync of data
    put          what a task of an epoch does: a file, its names, fsync of data and of directories
    bare         write and fdatasync of as many bytes, by themselves: the floor

``beside the disk`` is the CPU of an append less that of the bare one. Then what the next
incarnation waits for: the seal, and the index of all commits in grown segments, which every process
of a session makes that has to read one.

Run it with ``python -m benchmarks.appends``; ``--where`` names a directory on the disk in question.
With ``--url s3://bucket/prefix`` (and what the store needs in the environment) a segment in that
object store takes turns with the others: a PUT a group.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from millrace.store import Commit, LocalHardState, open_location

#: Commits in a group, and the bytes of each, encoded.
CASES = ((1, 200), (1, 20_000), (10, 2_000), (100, 200))
ROWS = 10
NOTE = bytes(60)


class Clock:
    """Wall and CPU seconds of calls."""

    def __init__(self) -> None:
        self.walls_s: list[float] = []
        self.cpu_s = 0.0

    def time(self, call: Callable[[], Any]) -> None:
        """Make a call, and note what it took."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        call()
        self.walls_s.append(time.perf_counter() - wall_s)
        self.cpu_s += time.process_time() - cpu_s

    def figures(self) -> dict[str, float]:
        """Return medians and means."""
        return {
            "ms_p50": statistics.median(self.walls_s) * 1e3,
            "ms_p99": float(np.percentile(self.walls_s, 99)) * 1e3,
            "cpu_us": self.cpu_s / len(self.walls_s) * 1e6,
        }


def group(number: int, commits: int, size: int) -> list[Commit]:
    """Return the commits of a group."""
    value = bytes(max(0, size // ROWS - 20))
    mutations: list[tuple[bytes, bytes | None]] = [(b"V%08d" % n, value) for n in range(ROWS)]
    return [Commit("count", interval, number, 1, 1, mutations) for interval in range(commits)]


def appends(directory: Path, commits: int, size: int, rounds: int, url: str) -> dict[str, Any]:
    """Return what each appender takes for a group; with a URL, one in an object store, too."""
    state = LocalHardState.create_or_open(directory / "checkpoint", pipeline="appends")
    state.incarnations.seal(1)
    segment = state.incarnations.grow(1, 1, 0, 1)
    path = directory / "checkpoint" / "incarnations" / str(segment.name)
    fd = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT)
    segment.append(group(1, commits, size), NOTE)
    header = path.stat().st_size
    segment.append(group(2, commits, size), NOTE)
    data = bytes(path.stat().st_size - header)
    os.write(fd, data)
    os.fdatasync(fd)

    def bare() -> None:
        os.write(fd, data)
        os.fdatasync(fd)

    names = ["grown", "put", "bare"]
    if url:
        remote = open_location(f"{url}/{uuid.uuid4().hex}", pipeline="appends")
        remote.incarnations.seal(1)
        away = remote.incarnations.grow(1, 1, 0, 1)
        names.append("object store")
    clocks = {name: Clock() for name in names}
    for number in range(3, rounds + 3):
        made = group(number, commits, size)
        clocks["grown"].time(lambda: segment.append(made, NOTE))  # noqa: B023
        other = state.commits.of_task("count", number, 0)
        clocks["put"].time(lambda: other.put(made))  # noqa: B023
        clocks["bare"].time(bare)
        if url:
            clocks["object store"].time(lambda: away.append(made, NOTE))  # noqa: B023
    os.close(fd)
    segment.close()
    found = {name: clock.figures() for name, clock in clocks.items()}
    beside_us = found["grown"]["cpu_us"] - found["bare"]["cpu_us"]
    return {
        "commits": commits, "commit_bytes": size, "group_bytes": len(data),
        "beside_the_disk_us": beside_us, **found,
    }  # fmt: skip


def reading(directory: Path, groups: int, commits: int, size: int) -> dict[str, Any]:
    """Return what seal and index take after a session that left so many groups in one part."""
    state = LocalHardState.create_or_open(directory / "read", pipeline="appends")
    state.incarnations.seal(1)
    segment = state.incarnations.grow(1, 1, 0, 1)
    segment._blob._sync = lambda _fd: None  # type: ignore[attr-defined]
    for number in range(1, groups + 1):
        segment.append(group(number, commits, size), NOTE)
    segment.finish()
    total = sum(path.stat().st_size for path in (directory / "read" / "incarnations").iterdir())
    seal, index = Clock(), Clock()
    seal.time(lambda: state.incarnations.seal(2))
    index.time(lambda: state.commits.exists("count", 0, 1))
    return {
        "groups": groups, "commits": groups * commits, "megabytes": total / 1e6,
        "seal_s": seal.walls_s[0], "seal_cpu_s": seal.cpu_s,
        "index_s": index.walls_s[0], "index_cpu_s": index.cpu_s,
    }  # fmt: skip


def _away(one: dict[str, Any]) -> list[str]:
    found = one.get("object store")
    if found is None:
        return []
    return [f"{found['ms_p50']:.2f}", f"{found['ms_p99']:.2f}", f"{found['cpu_us']:.0f}"]


def main() -> None:
    """Measure, print the tables, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--where", default=str(Path.cwd()))
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--groups", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="does it run? Its figures are nothing")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--url", default="", help="of a prefix in an object store")
    arguments = parser.parse_args()
    machine = describe()
    rounds, groups = (20, 200) if arguments.quick else (arguments.rounds, arguments.groups)
    with tempfile.TemporaryDirectory(dir=arguments.where, prefix=".cache-") as home:
        found = []
        for commits, size in CASES:
            directory = Path(home) / f"{commits}-{size}"
            directory.mkdir()
            found.append(appends(directory, commits, size, rounds, arguments.url))
        read = reading(Path(home), groups, 10, 200)
    table = Table(
        "commits x bytes", "grown ms p50", "p99", "put ms p50", "p99", "bare ms p50",
        "grown CPU us", "beside the disk", "put CPU us",
        *(["object store ms p50", "p99", "CPU us"] if arguments.url else []),
    )  # fmt: skip
    for one in found:
        segment, log, bare = one["grown"], one["put"], one["bare"]
        table.add_row(
            f"{one['commits']} x {one['commit_bytes']:,}",
            f"{segment['ms_p50']:.2f}", f"{segment['ms_p99']:.2f}", f"{log['ms_p50']:.2f}",
            f"{log['ms_p99']:.2f}", f"{bare['ms_p50']:.2f}", f"{segment['cpu_us']:.0f}",
            f"{one['beside_the_disk_us']:.0f}", f"{log['cpu_us']:.0f}", *_away(one),
        )  # fmt: skip
    console = Console()
    console.print(table)
    console.print(
        f"{read['groups']:,} groups, {read['commits']:,} commits, {read['megabytes']:.0f} MB: "
        f"sealed in {read['seal_s']:.2f} s ({read['seal_cpu_s']:.2f} CPU), "
        f"index in {read['index_s']:.2f} s ({read['index_cpu_s']:.2f} CPU)"
    )
    if arguments.quick:
        return
    out = arguments.out or Path(__file__).parent / "results" / (
        f"appends-{dt.datetime.now(dt.UTC):%Y-%m-%d-%H%M}.json"
    )
    out.write_text(json.dumps({"machine": machine, "appends": found, "reading": read}, indent=2))
    console.print(f"[dim]{out}")


if __name__ == "__main__":
    main()
