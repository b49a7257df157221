"""What calls add to the latency of other keys of a real-time task: 200 in flight, or none.

One task, in this process, on the real-time plane, with its segments on disk. Each millisecond a
record comes that needs no call: its latency is from then to when what it produces leaves the task.
A turn begins when the one before has ended, with what has come meanwhile, or when a call returns.

    alone    nothing else comes
    calls    besides, ``--rate`` records a second of other keys come, each with a call of 200 ms

They take turns. What calls add is the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import benchmarks.result as result
import millrace as mr
from benchmarks.live_turns import Rows
from millrace.epochlog.run_log import RunLog
from millrace.kernel.execution import Execution
from millrace.runtime.realtime.coordinator import Coordinator
from millrace.runtime.realtime.host import IncarnationHost
from millrace.runtime.realtime.injector_task import InjectorTask
from millrace.runtime.realtime.messages import StartTask, TaskReady
from millrace.runtime.worker_process import SourceColumns, WorkerProcess
from millrace.store import LmdbCaches, LocalHardState

SECONDS = 0.2
EVERY_S = 0.001
KEYS = 1_000


class Event(msgspec.Struct):
    """A record; those of keys from 0 on need a call."""

    key: int
    at: int


class Ask(mr.AsyncComputation):
    """Asks for some of its records, and produces one for each."""

    inputs = {"events": mr.by("key")}
    outputs = {"answers": int}
    calls = mr.CallPolicy(concurrency=200)

    def request(self, record: mr.Record) -> Any:
        """Ask for keys from 0 on."""
        return None if record.key < 0 else record.key

    async def call(self, request: Any) -> Any:
        """Answer after a while."""
        await asyncio.sleep(SECONDS)
        return request

    def process_response(self, record: mr.Record, response: Any) -> None:
        """Produce when the record came."""
        self.produce("answers", record.value.at if response is None else -1)


class Pass(mr.Computation):
    """Takes the answers, at the next level."""

    inputs = {"answers": mr.by_key()}
    outputs = {}

    def process_record(self, record: mr.Record) -> None:
        """Do nothing."""


class Plane:
    """An injector task and a level task of one incarnation.

    Args:
        directory: For checkpoint and caches.
    """

    def __init__(self, directory: Path) -> None:
        self.rows = Rows()
        p = mr.Pipeline("call-latency")
        p.inject("events", self.rows, timestamp="at", low_watermark=mr.BoundedDelay("1 s"),
                 format=Event)  # fmt: skip
        p.add(Ask)
        p.add(Pass)
        state = LocalHardState.create_or_open(directory / "checkpoint", pipeline="call-latency")
        run_log = RunLog(p.build(), state, intervals=8)
        topology = run_log.topology
        self.runtimes = [
            WorkerProcess(
                topology,
                tasks=1,
                execution=Execution(topology, state, LmdbCaches(directory / "cache", state.uuid)),
                sources=[SourceColumns(0, "events", ("key", "at"), True, False)],
                live=True,
            )
            for _ in range(2)
        ]
        self.injector = InjectorTask(self.runtimes[0], 0)
        self.level = IncarnationHost(self.runtimes[1], 1, 0)
        self.rung = threading.Event()
        coordinator = Coordinator(run_log, tasks=1, sources=self, sinks={}, mark_every_us=mr.HOUR)
        for level in range(3):
            for (to, _), message in coordinator.receive(TaskReady(level, 0), mr.HOUR):
                if to < 2 and isinstance(message, StartTask):
                    for _ in (self.injector, self.level)[to].start(message, mr.HOUR):
                        pass
        self.level.ring = self.rung.set
        for calls in self.level._calls.values():
            calls.pool.wake(self.rung.set)

    def processes(self) -> dict[str, list[str]]:
        """Return the injector's, for the coordinator."""
        return {"events": self.rows.processes()}

    def packets(self, keys: list[int], at_us: int) -> list[bytes]:
        """Return what the injector task sends of records."""
        rows = pa.RecordBatch.from_pydict(
            {"key": np.array(keys), "at": np.full(len(keys), at_us, np.int64)}
        )
        self.rows.ready.append(rows)
        sent = [packet for _, packet in self.injector.turn(at_us, 0.0)]
        return sent + [packet for _, packet in self.injector.after_turn()]

    def close(self) -> None:
        """Give files back."""
        self.level.close()
        self.injector.close()
        for runtime in self.runtimes:
            runtime.call_pools.close()


def latencies(seconds: float, rate: int, where: str) -> list[float]:
    """Return the latency of each record without a call, in milliseconds.

    Args:
        seconds: For how long records come.
        rate: Records with a call, a second.
        where: For the checkpoint.
    """
    with tempfile.TemporaryDirectory(dir=where, prefix=".call-latency-") as directory:
        plane = Plane(Path(directory))
        # Made before: what an injector costs is another task's.
        each = round(rate * EVERY_S)
        ticks = [
            plane.packets([-1 - n % KEYS, *((n * each + k) % KEYS for k in range(each))],
                          mr.HOUR + round(n * EVERY_S * mr.SECOND))
            for n in range(round(seconds / EVERY_S))
        ]  # fmt: skip
        found, level = list[float](), plane.level
        began = time.monotonic()
        n = 0
        while n < len(ticks):
            now = time.monotonic() - began
            first = n
            while n < len(ticks) and n * EVERY_S <= now:
                level.receive(ticks[n])
                n += 1
            if n == first and not plane.rung.wait(max(0.0, n * EVERY_S - now)):
                continue
            plane.rung.clear()
            for _ in level.turn(mr.HOUR + round(now * mr.SECOND), 0.0):
                pass
            left = time.monotonic() - began
            for _ in level.after_turn():
                pass
            found += [(left - tick * EVERY_S) * 1e3 for tick in range(first, n)]
        plane.close()
    return found[len(found) // 10 :]


def main() -> None:
    """Measure both in turns, show, and write a result if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=int, default=1_000, help="calls a second")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--where", default=str(Path.cwd()), help="in memory, fsync costs nothing")
    parser.add_argument("--write", action="store_true", help="leave a result")
    arguments = parser.parse_args()
    rates = {"alone": 0, "calls": arguments.rate}
    rounds: dict[str, list[list[float]]] = {name: [] for name in rates}
    for _ in range(arguments.rounds):
        for name, rate in rates.items():
            found = latencies(arguments.seconds, rate, arguments.where)
            cuts = statistics.quantiles(found, n=100)
            rounds[name].append([round(cuts[49], 3), round(cuts[98], 3)])
    costs = [
        {"case": name, "p50_ms": statistics.median(p50 for p50, _ in of),
         "p99_ms": statistics.median(p99 for _, p99 in of)}
        for name, of in rounds.items()
    ]  # fmt: skip
    table = Table("", "p50 ms", "p99 ms")
    for cost in costs:
        table.add_row(str(cost["case"]), f"{cost['p50_ms']:.2f}", f"{cost['p99_ms']:.2f}")
    Console().print(table)
    if arguments.write:
        figures = {"rate": arguments.rate, "rounds": rounds, "costs": costs}
        Console().print(result.write("call_latency", command=sys.argv[1:], **figures))


if __name__ == "__main__":
    main()
