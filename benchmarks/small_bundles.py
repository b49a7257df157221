"""What a bundle costs, however small: records a commit 1, 10, 100 and 1,000.

A worker runs bundles of one key interval, each with a commit of its own on disk (fsync'd) and in
the cache (LMDB). So what is paid by the bundle shows, and not only what is paid by the record. Two
computations:

    count    a running count, one ValueState
    windows  counts by window of ten seconds in a MapState, and a timer at the end of each, that
             produces it

Parts are CPU time of the process. They are measured in bundles of their own, since asking for the
time costs some; the total is of bundles in which nothing was measured.

    arrivals   records in columns to a bundle, in order and cut by key
    slot       looking whether somebody has committed already
    get data   the cache's position, and opening a view of it
    machine    user code, with the rows that it reads
    commit     encoding mutations, productions and report, and what else the commit writer does
    append     writing the segment and naming it; the kernel's part of fsync in it
    apply      the cache

``--src OTHER/src`` measures another tree of Millrace in the same go, taking turns case by case: two
figures of one go can be compared, also on a machine that has something else to do.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.trees import in_tree
from millrace.kernel.bundle import Attempt, Bundle, Position, ReceivedRecords
from millrace.kernel.columnar import machine_for
from millrace.kernel.execution import Execution
from millrace.kernel.router import Router
from millrace.model.keys import encode_key, hash_key
from millrace.runtime.commit_writer import PutWriter
from millrace.store import LmdbCaches, LocalHardState
from millrace.watermark.intervals import IntervalMap

SIZES = (1, 10, 100, 1_000)
KEYS = (1_000, 200_000)
PARTS = ("arrivals", "slot", "get data", "machine", "commit", "append", "apply")
WINDOW_US = 10 * mr.SECOND
#: Event time goes on by so much a bundle, so about one in ten ends a window.
STEP_US = mr.SECOND

_CALLS = {"cache_position": "get data", "view": "get data", "apply": "apply", "read": "slot",
          "append": "append"}  # fmt: skip


class Count(mr.Computation):
    """A running count."""

    inputs = {"events": mr.by(lambda value: value)}
    outputs = {}
    count = mr.ValueState(int)

    def process_record(self, record):
        """Count one."""
        self.count.set(self.count.get(0) + 1)


class Windows(mr.Computation):
    """Counts by window, produced when the low watermark passes its end."""

    inputs = {"events": mr.by(lambda value: value)}
    outputs = {"counts": int}
    counts = mr.MapState(int)

    def process_record(self, record):
        """Count one in its window."""
        end = record.timestamp // WINDOW_US * WINDOW_US + WINDOW_US
        self.counts[end] = self.counts.get(end, 0) + 1
        self.set_timer(end, at=end)

    def process_timer(self, timer):
        """Produce a window's count."""
        self.produce("counts", self.counts.pop(timer.tag))


CODE: dict[str, type[mr.Computation]] = {"count": Count, "windows": Windows}


@dataclass
class Clock:
    """CPU seconds by part, of bundles in which somebody asks."""

    spent_s: dict[str, float]

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that adds what it takes to a part."""

        def measured(*arguments: Any, **named: Any) -> Any:
            start_s = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                self.spent_s[part] += time.thread_time() - start_s

        return measured


class Watched:
    """Another object, some of whose calls are timed."""

    def __init__(self, of: Any, clock: Clock) -> None:
        self._of = of
        self._clock = clock
        self._opened: dict[tuple[str, int], Watched] = {}
        for name in ("read", "append", "apply", "view"):
            if hasattr(of, name):
                setattr(self, name, clock.timed(_CALLS[name], getattr(of, name)))

    @property
    def cache_position(self) -> Any:
        """A cache's."""
        return self._clock.timed("get data", lambda: self._of.cache_position)()

    @property
    def position(self) -> int:
        """A cache's."""
        return self.cache_position.position

    @cached_property
    def commits(self) -> Watched:
        """A hard state's."""
        return Watched(self._of.commits, self._clock)

    def open(self, computation: str, interval: int) -> Watched:
        """Return a cache, the same one each time."""
        if (computation, interval) not in self._opened:
            cache = self._of.open(computation, interval)
            self._opened[computation, interval] = Watched(cache, self._clock)
        return self._opened[computation, interval]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class Open:
    """The fence of nobody: an epoch's costs two system calls a task, and not a bundle."""

    def check(self) -> None:
        """Let everybody through."""


class Stream:
    """Bundles of one interval, one after the other.

    Args:
        code: Name of the computation.
        directory: For checkpoint and caches.
        keys: How many keys there are.
        size: Records a bundle.
    """

    def __init__(self, code: str, directory: Path, *, keys: int, size: int) -> None:
        pipeline = mr.Pipeline("small-bundles")
        pipeline.inject("events")
        pipeline.add(CODE[code])
        for stream in CODE[code].outputs:
            pipeline.sink(stream, print)
        self.topology = pipeline.build()
        (self.spec,) = self.topology.computations
        self._state = LocalHardState.create_or_open(directory / "checkpoint", pipeline="small")
        self._caches = LmdbCaches(directory / "cache", self._state.uuid)
        self._execution = Execution(self.topology, self._state, self._caches)
        self._map = IntervalMap.uniform(1)
        (self._interval,) = self._map.intervals
        self._position = Position()
        self._encoded = [encode_key(n) for n in range(keys)]
        self._hashes = np.array([hash_key(key) for key in self._encoded], dtype=np.uint64)
        self._random = np.random.default_rng(1)
        self._keys, self._size, self._sent = keys, size, 0

    def fill(self) -> None:
        """Have a record of every key."""
        self.run(self.bundle(self._arrivals(np.arange(self._keys))))

    def received(self, bundles: int) -> list[ReceivedRecords]:
        """Return the records of the next bundles; event time goes on from one to the next."""
        return [
            self._arrivals(self._random.integers(0, self._keys, self._size)) for _ in range(bundles)
        ]

    def _arrivals(self, keys: np.ndarray) -> ReceivedRecords:
        count, positions = len(keys), keys.tolist()
        self._sent += 1
        return ReceivedRecords(
            self._hashes[keys],
            [self._encoded[n] for n in positions],
            positions,
            np.full(count, self._sent * STEP_US, np.int64),
            "events",
            np.full(count, self._sent, np.int64),
            np.arange(count, dtype=np.int64),
        )

    def bundle(self, arrivals: ReceivedRecords) -> Bundle:
        """Return records as the bundle that comes next; the low watermark is one bundle behind."""
        ((_, records),) = arrivals.by_interval(self._map)
        now_us = records.timestamps[0]
        attempt = Attempt(
            self._position.number, 1, now_us, now_us - STEP_US, {100: now_us - STEP_US}
        )
        return Bundle(self._interval, self._position, attempt, records)

    def run(self, bundle: Bundle, execution: Execution | None = None) -> None:
        """Run a bundle."""
        writer = PutWriter(execution or self._execution, Open(), 0)
        ((result, _),) = writer.commit(writer.run(self.spec, [bundle]))
        self._position = Position(result.number, result.chain, result.report)

    def watched(self, clock: Clock) -> Execution:
        """Return an execution whose calls on the store are timed, and its machine's runs."""
        execution = Execution(
            self.topology, Watched(self._state, clock), Watched(self._caches, clock)
        )
        machine = execution._machines[self.spec.name]
        machine.run = clock.timed("machine", machine.run)
        return execution

    def machine_us(self, bundles: int) -> float:
        """Return what the machine alone takes a record, over rows in LMDB, committing nothing."""
        machine = machine_for(self.topology, self.spec, Router(self.topology))
        first, *_ = made = [self.bundle(arrivals) for arrivals in self.received(bundles)]
        now_us = first.records.timestamps[0] - STEP_US
        attempt = Attempt(0, 1, now_us, now_us, {100: now_us}, now_us)
        made = [replace(bundle, attempt=attempt) for bundle in made]
        with self._caches.open(self.spec.name, 0).view() as view:
            start_s = time.process_time()
            for bundle in made:
                machine.run(bundle, view)
            return (time.process_time() - start_s) / bundles / self._size * 1e6


def measure(code: str, keys: int, size: int, bundles: int, where: str) -> dict[str, Any]:
    """Return what a record costs in bundles of a size: CPU us in all and by part, wall ms."""
    with tempfile.TemporaryDirectory(dir=where, prefix=".cache-") as directory:
        stream = Stream(code, Path(directory), keys=keys, size=size)
        if keys > KEYS[0]:
            stream.fill()
        for arrivals in stream.received(bundles // 4):
            stream.run(stream.bundle(arrivals))
        walls_s = []
        arrived = stream.received(bundles)
        start_s = time.process_time()
        for arrivals in arrived:
            began_s = time.perf_counter()
            stream.run(stream.bundle(arrivals))
            walls_s.append(time.perf_counter() - began_s)
        cpu_s = time.process_time() - start_s
        clock = Clock(dict.fromkeys(PARTS, 0.0))
        execution = stream.watched(clock)
        bundle = clock.timed("arrivals", stream.bundle)
        whole = Clock({"run": 0.0})
        run = whole.timed("run", stream.run)
        for arrivals in stream.received(bundles):
            run(bundle(arrivals), execution)
        spent = clock.spent_s
        spent["commit"] = whole.spent_s["run"] - sum(spent.values()) + spent["arrivals"]
        machine_us = stream.machine_us(bundles)
    records = bundles * size
    return {
        "cpu_us": cpu_s / records * 1e6,
        "parts_us": {part: spent[part] / records * 1e6 for part in PARTS},
        "machine_alone_us": machine_us,
        "bundle_ms_p50": statistics.median(walls_s) * 1e3,
        "bundle_ms_p99": float(np.percentile(walls_s, 99)) * 1e3,
    }


def main() -> None:
    """Measure every case in every tree, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--src", action="append", default=[], help="another tree to compare with")
    parser.add_argument("--code", default="count,windows")
    parser.add_argument("--keys", default=",".join(map(str, KEYS)))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--bundles", type=int, default=200, help="so many of a size at most")
    parser.add_argument("--where", default=str(Path.cwd()), help="in memory, fsync costs nothing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="does it run? Its figures are nothing")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(*json.loads(arguments.case))))
        return
    machine = describe()
    trees = [
        str(Path(mr.__file__).parents[1]),
        *(str(Path(src).resolve()) for src in arguments.src),
    ]
    cases = [
        (
            code,
            int(keys),
            int(size),
            20 if arguments.quick else max(20, min(arguments.bundles, 40_000 // int(size))),
        )
        for code in arguments.code.split(",")
        for keys in arguments.keys.split(",")
        for size in arguments.sizes.split(",")
    ]
    found = [
        {
            "code": code, "keys": keys, "size": size,
            "trees": [
                _median(runs)
                for runs in zip(
                    *([in_tree("small_bundles", src, (code, keys, size, bundles, arguments.where))
                       for src in trees]
                      for _ in range(1 if arguments.quick else arguments.rounds)),
                    strict=True,
                )
            ],
        }
        for code, keys, size, bundles in cases
    ]  # fmt: skip
    Console(width=200).print(_table(found))
    named = f"small-bundles-{dt.datetime.fromisoformat(machine['at']):%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "small_bundles", "machine": machine, "cases": found}
    out = arguments.out or Path(__file__).parent / "results" / named
    if arguments.out or not arguments.quick:
        out.write_text(json.dumps(results, indent=1) + "\n")


def _median(runs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the run of median CPU time, and that of all."""
    ordered = sorted(runs, key=lambda run: run["cpu_us"])
    return {
        **ordered[len(ordered) // 2],
        "all_cpu_us": [run["cpu_us"] for run in ordered],
    }


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(title="Small bundles: CPU us a record (the first tree, then others)")
    names = ("code", "keys", "size", "CPU us", *PARTS, "machine alone", "p50 ms", "p99 ms", "ratio")
    for name in names:
        table.add_column(name, justify="left" if name == "code" else "right")
    for case in found:
        for tree in case["trees"]:
            table.add_row(
                case["code"],
                f"{case['keys']:,}",
                f"{case['size']:,}",
                f"{tree['cpu_us']:.1f}",
                *(f"{tree['parts_us'][part]:.1f}" for part in PARTS),
                f"{tree['machine_alone_us']:.1f}",
                f"{tree['bundle_ms_p50']:.2f}",
                f"{tree['bundle_ms_p99']:.2f}",
                f"{tree['cpu_us'] / case['trees'][0]['cpu_us']:.2f}",
            )
    return table


if __name__ == "__main__":
    main()
