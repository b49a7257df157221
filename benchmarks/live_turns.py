"""What a turn of a live task costs, however little arrived: records a turn 1 to 10,000.

The real-time plane of one task a level, in this process: the injector task reads so many records,
level 1 keeps a running count and produces one record for each, level 2 counts what arrives and
produces nothing. Segments lie on disk, caches in LMDB. Each task's turns are timed by themselves,
CPU time of the process, and what fdatasync takes of it is counted apart: it is the disk's.

    native     the injector's rows travel as the source's columns
    encoded    a function takes the key, so that rows travel as bytes, as between all other levels

``--apart 3`` has the process sleep for 3 ms before each turn, as a live task does at a low rate:
the same turn then costs more, as its code and data are in no cache any more.

``--src OTHER/src`` measures another tree of Millrace in the same go, taking turns case by case: two
figures of one go can be compared, also on a machine that has something else to do. ``--profile``
runs one case under cProfile and says where its time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import datetime as dt
import gc
import json
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.trees import in_tree
from millrace.epochlog.run_log import RunLog
from millrace.injectors.follower import FetchedBatch
from millrace.kernel.execution import Execution
from millrace.runtime.realtime.coordinator import Coordinator
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.injector_task import InjectorTask
from millrace.runtime.realtime.messages import StartTask, TaskReady
from millrace.runtime.worker_process import SourceColumns, WorkerProcess
from millrace.store import LmdbCaches, LocalHardState

SIZES = (1, 10, 100, 1_000, 10_000)
KEYS = 1_000
STEP_US = 1_000


class Event(msgspec.Struct):
    """A record of 16 bytes."""

    key: int
    at: int


class Count(mr.Computation):
    """A running count that says so with each record."""

    inputs = {"events": mr.by("key")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record):
        """Count one."""
        count = self.count.get(0) + 1
        self.count.set(count)
        self.produce("counts", count)


class CountByFunction(Count):
    """The same with a key that a function takes."""

    inputs = {"events": mr.by(lambda event: event.key)}


class CountAgain(mr.Computation):
    """Counts what arrives, and produces nothing."""

    inputs = {"counts": mr.by_key()}
    outputs = {}
    count = mr.ValueState(int)

    def process_record(self, record):
        """Count one."""
        self.count.set(self.count.get(0) + 1)


class Rows(mr.sources.Injector):
    """Gives the rows that it is told to."""

    schema = "key long, at long"

    def __init__(self) -> None:
        self.ready: list[pa.RecordBatch] = []

    def processes(self):
        """Return the only one."""
        return ["all"]

    def advance(self, process, offset):
        """Return the offset: nobody asks."""
        return mr.sources.Advance(offset)

    def read(self, process, start, end):
        """Yield nothing: nobody reads."""
        yield from ()

    def follow(self, places, *, most=100_000):
        """Return what gives the rows."""
        return self

    def take(self, wait_s):
        """Return them, once."""
        ready, self.ready = self.ready, []
        return [FetchedBatch("all", rows, 0) for rows in ready]

    def hold(self, processes):
        """Do nothing: nobody asks."""

    def limit(self, most):
        """Do nothing: nobody asks."""

    def close(self):
        """Do nothing."""


class Synced:
    """CPU seconds in fdatasync."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._call = os.fdatasync
        os.fdatasync = self._timed

    def _timed(self, fd: int) -> None:
        start_s = time.process_time()
        self._call(fd)
        self.spent_s += time.process_time() - start_s


class Plane:
    """A session of three tasks, one a level.

    Args:
        source: ``native`` or ``encoded``.
        directory: For checkpoint and caches.
        intervals: Key intervals a computation.
    """

    def __init__(self, source: str, directory: Path, *, intervals: int) -> None:
        self.synced = Synced()
        self._rows = Rows()
        pipeline = mr.Pipeline("live-turns")
        pipeline.inject("events", self._rows, timestamp="at", low_watermark=mr.BoundedDelay("1 s"),
                        format=Event)  # fmt: skip
        pipeline.add(Count if source == "native" else CountByFunction)
        pipeline.add(CountAgain)
        state = LocalHardState.create_or_open(directory / "checkpoint", pipeline="live-turns")
        run_log = RunLog(pipeline.build(), state, intervals=intervals)
        topology = run_log.topology
        # Tasks of different processes share nothing but the files.
        runtimes = [
            WorkerProcess(
                topology,
                tasks=1,
                execution=Execution(topology, state, LmdbCaches(directory / "cache", state.uuid)),
                sources=[SourceColumns(0, "events", ("key", "at"), source == "native", False)],
                live=True,
            )
            for _ in range(3)
        ]
        self.tasks = [
            InjectorTask(runtimes[0], 0),
            IncarnationHost(runtimes[1], 1, 0),
            IncarnationHost(runtimes[2], 2, 0),
        ]
        self._clock_us = mr.HOUR
        self._random = np.random.default_rng(1)
        coordinator = Coordinator(run_log, tasks=1, sources=self, sinks={}, mark_every_us=mr.HOUR)
        for level in range(3):
            for (to, _), message in coordinator.receive(TaskReady(level, 0), self._clock_us):
                assert isinstance(message, StartTask)
                for _, packet in self.tasks[to].start(message, self._clock_us):
                    self.tasks[to + 1].receive([packet])

    def processes(self) -> dict[str, list[str]]:
        """Return the injector's, for the coordinator."""
        return {"events": self._rows.processes()}

    def prepare(self, size: int) -> None:
        """Have so many records wait."""
        self._clock_us += STEP_US
        keys = self._random.integers(0, KEYS, size)
        at = np.full(size, self._clock_us)
        self._rows.ready.append(pa.RecordBatch.from_pydict({"key": keys, "at": at}))

    def turn(self, level: int, packets: list[bytes]) -> list[bytes]:
        """Have one task take packets; return what it sends."""
        task = self.tasks[level]
        task.receive(packets)
        sent = [packet for _, packet in task.turn(self._clock_us, 0.0)]
        return sent + [packet for _, packet in task.after_turn()]

    def close(self) -> None:
        """Give files back."""
        for task in self.tasks:
            task.close()


def measure(
    source: str, intervals: int, size: int, turns: int, where: str, apart_ms: float
) -> dict[str, Any]:
    """Return CPU us a turn of each level at a size, fdatasync left out, and what that took.

    The lower quartile of the turns: what the machine does besides is above it.
    """
    with tempfile.TemporaryDirectory(dir=where, prefix=".live-") as directory:
        plane = Plane(source, Path(directory), intervals=intervals)
        for _ in range(max(5, turns // 10)):
            _round(plane, size, apart_ms, None)
        spent: list[list[float]] = [[], [], []]
        gc.collect()
        for _ in range(turns):
            _round(plane, size, apart_ms, spent)
        plane.close()
    return {"levels_us": [statistics.quantiles(level, n=4)[0] * 1e6 for level in spent],
            "sync_us": plane.synced.spent_s / turns / 2 * 1e6}  # fmt: skip


def _round(plane: Plane, size: int, apart_ms: float, spent: list[list[float]] | None) -> None:
    plane.prepare(size)
    packets: list[bytes] = []
    for level in range(3):
        time.sleep(apart_ms / 1e3)
        synced_s, start_s = plane.synced.spent_s, time.process_time()
        packets = plane.turn(level, packets)
        took_s = time.process_time() - start_s - (plane.synced.spent_s - synced_s)
        if spent is not None:
            spent[level].append(took_s)


def profile(source: str, intervals: int, size: int, turns: int, level: int, where: str) -> None:
    """Print where the time of one level's turns goes."""
    with tempfile.TemporaryDirectory(dir=where, prefix=".live-") as directory:
        plane = Plane(source, Path(directory), intervals=intervals)
        watch = cProfile.Profile(time.process_time)
        for n in range(turns + 20):
            plane.prepare(size)
            packets: list[bytes] = []
            for at in range(3):
                if n >= 20 and at == level:
                    watch.enable()
                packets = plane.turn(at, packets)
                watch.disable()
        plane.close()
        pstats.Stats(watch).sort_stats("tottime").print_stats(45)
        pstats.Stats(watch).sort_stats("cumulative").print_stats(60)


def main() -> None:
    """Measure every case in every tree, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--src", action="append", default=[], help="another tree to compare with")
    parser.add_argument("--sources", default="native,encoded")
    parser.add_argument("--intervals", default="1,8", help="key intervals a task")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--turns", type=int, default=400, help="so many of a size at most")
    parser.add_argument("--apart", type=float, default=0.0, help="ms between two turns")
    parser.add_argument("--where", default=str(Path.cwd()), help="in memory, fsync costs nothing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="does it run? Its figures are nothing")
    parser.add_argument("--profile", type=int, metavar="LEVEL")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(*json.loads(arguments.case))))
        return
    turns = 20 if arguments.quick else arguments.turns
    cases = [
        (source, int(intervals), int(size), max(20, min(turns, 100_000 // int(size))))
        for source in arguments.sources.split(",")
        for intervals in arguments.intervals.split(",")
        for size in arguments.sizes.split(",")
    ]
    if arguments.profile is not None:
        profile(*cases[0], arguments.profile, arguments.where)
        return
    machine = describe()
    trees = [
        str(Path(mr.__file__).parents[1]),
        *(str(Path(src).resolve()) for src in arguments.src),
    ]
    found = [
        {
            "source": case[0], "intervals": case[1], "size": case[2],
            "trees": [
                _median(runs)
                for runs in zip(
                    *([in_tree("live_turns", src, (*case, arguments.where, arguments.apart))
                       for src in trees]
                      for _ in range(1 if arguments.quick else arguments.rounds)),
                    strict=True,
                )
            ],
        }
        for case in cases
    ]  # fmt: skip
    Console(width=160).print(_table(found))
    named = f"live-turns-{dt.datetime.fromisoformat(machine['at']):%Y-%m-%d-%H%M}.json"
    results = {
        "benchmark": "live_turns",
        "machine": machine,
        "apart_ms": arguments.apart,
        "cases": found,
    }
    out = arguments.out or Path(__file__).parent / "results" / named
    if arguments.out or not arguments.quick:
        out.write_text(json.dumps(results, indent=1) + "\n")


def _median(runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the run of median cost at level 1, and all."""
    ordered = sorted(runs, key=lambda run: run["levels_us"][1])
    return {
        **ordered[len(ordered) // 2],
        "all_level_1_us": [run["levels_us"][1] for run in ordered],
    }


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(title="Turns of live tasks: CPU us a turn (the first tree, then others)")
    names = ("source", "intervals", "size", "injector", "level 1", "level 2", "fdatasync",
             "level 1 a record", "level 2 a record", "ratio")  # fmt: skip
    for name in names:
        table.add_column(name, justify="left" if name == "source" else "right")
    for case in found:
        for tree in case["trees"]:
            levels, size = tree["levels_us"], case["size"]
            table.add_row(
                case["source"],
                str(case["intervals"]),
                f"{size:,}",
                *(f"{us:,.0f}" for us in levels),
                f"{tree['sync_us']:,.0f}",
                *(f"{us / size:,.1f}" for us in levels[1:]),
                f"{levels[1] / case['trees'][0]['levels_us'][1]:.2f}",
            )
    return table


if __name__ == "__main__":
    main()
