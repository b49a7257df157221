"""What it takes to begin: Spark's Python workers, forked with everything imported, and without.

A run of two keyed stages is started with a session of its own, alternately from the process that
``mr.spark.realtime_settings`` names and from Spark's own, on both planes. Told are the seconds from
``start`` until user code of the second stage sees the first record, and the CPU seconds that
Spark's Python processes have used by then. Then all workers are killed, again and again, and told
are the seconds until that code sees a record that was made after the kill. Records are made by the
injector itself, fifty a second.

The JVM is cold in each run and as busy as ever, so differences are what counts, and CPU seconds say
more than seconds on a machine that does other work.

Run it with ``python -m benchmarks.start_up``. It needs a JVM and takes half an hour.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.latency.probe import Probe, read
from benchmarks.latency.synthetic import Synthetic
from benchmarks.machine import describe
from benchmarks.spark_session import build_session
from benchmarks.trees import in_tree
from millrace.spark import realtime_settings

_TASKS, _LEVELS, _RATE = 2, 2, 50
_PLANES = ("epochs", "real time")
#: What Spark's Python workers are forked from.
_FROM = {"with imports": realtime_settings()["spark.python.daemon.module"], "plain": ""}
_SPARKS_OWN = "pyspark.daemon"
_LOOK_S = 0.01
_PATIENCE_S = 180.0
#: Between two kills, so that each is of a run that goes on well.
_WELL_S = 5


class Item(msgspec.Struct, frozen=True):
    """What travels, and when it was made."""

    key: int
    sent: int


class First(mr.Computation):
    """Hands on under another key."""

    inputs = {"items": mr.by("key")}
    outputs = {"handed": Item}

    def process_record(self, record: mr.Record) -> None:
        """Hand it on."""
        self.produce("handed", record.value)


class Second(mr.Computation):
    """Says what it sees."""

    inputs = {"handed": mr.by(lambda item: item.key // 10)}

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def process_record(self, record: mr.Record) -> None:
        """Note when it came."""
        self.probe.saw(record.value.sent)


def main() -> None:
    """Measure in turns, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=3, help="in each run")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(_run(*json.loads(arguments.case))))
        return
    machine = describe()
    src = str(Path(mr.__file__).parents[1])
    runs = []
    for number in range(arguments.rounds):
        for plane in _PLANES:
            for how in list(_FROM)[:: 1 if number % 2 else -1]:
                found = in_tree("start_up", src, (plane, how, arguments.kills))
                runs.append({"plane": plane, "workers": how, **found})
                print(runs[-1], flush=True)
    results = {"benchmark": "start_up", "machine": machine, "runs": runs}
    Console(width=100).print(_table(runs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"start-up-{started:%Y-%m-%d-%H%M}.json"
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _run(plane: str, how: str, kills: int) -> dict[str, Any]:
    settings = realtime_settings(tasks=_TASKS)
    settings["spark.python.daemon.module"] = _FROM[how] or _SPARKS_OWN
    slots = _TASKS * (_LEVELS + 1) + 1
    spark = build_session("start-up", slots, heap="1g", settings=settings)
    with tempfile.TemporaryDirectory(prefix="millrace-start-") as name:
        folder = Path(name)
        (folder / "begin").write_text(str(time.time_ns()))
        source = Synthetic(
            folder / "begin", rate=_RATE, records=1 << 40, keys=100, processes=_TASKS
        )
        p = mr.Pipeline("start-up")
        p.inject("items", source, timestamp="sent", unit="ns", format=Item)
        p.add(First)
        p.add(Second(Probe(folder / "seen")), name="Second")
        began = time.time()
        run = p.start(
            spark,
            checkpoint=f"{folder}/checkpoint",
            progress=False,
            tasks=_TASKS,
            realtime=plane == "real time",
        )
        found = {"first": _until_seen(folder, began, 0, {}), "back": []}
        for _ in range(kills):
            run.wait(_WELL_S * mr.SECOND)
            workers, before = _workers(), _cpu_s()
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            killed = time.time()
            kept = {pid: spent for pid, spent in before.items() if pid not in workers}
            found["back"].append(_until_seen(folder, killed, int(killed * 1e9), kept))
        run.stop()
        spark.stop()
    return found


def _until_seen(
    folder: Path, since: float, made_ns: int, before: dict[int, float]
) -> dict[str, float]:
    """Wait for a record that was made from an instant on; return seconds, and CPU seconds."""
    deadline = time.monotonic() + _PATIENCE_S
    while not len(seen := _seen_of(folder, made_ns)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no record was seen within {_PATIENCE_S:.0f} s")
        time.sleep(_LOOK_S)
    spent = sum(now - before.get(pid, 0.0) for pid, now in _cpu_s().items())
    return {"s": round(seen.min() / 1e9 - since, 3), "python_cpu_s": round(spent, 2)}


def _seen_of(folder: Path, made_ns: int) -> np.ndarray:
    pairs = read(folder / "seen")
    return pairs[pairs[:, 0] >= made_ns, 1]


def _pythons() -> list[psutil.Process]:
    """Return Spark's Python processes: the one they are forked from, and the workers."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            if one.name().startswith("python"):
                found.append(one)
    return found


def _workers() -> list[int]:
    pythons = _pythons()
    pids, found = {one.pid for one in pythons}, []
    for one in pythons:
        with suppress(psutil.NoSuchProcess):
            if one.ppid() in pids:
                found.append(one.pid)
    return found


def _cpu_s() -> dict[int, float]:
    found = {}
    for one in _pythons():
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            found[one.pid] = times.user + times.system
    return found


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table(title="Median, least and most of the runs")
    for column in ("", "workers", "s", "CPU s of Python", "n"):
        table.add_column(column, justify="left" if column in ("", "workers") else "right")
    for plane in _PLANES:
        for what in ("first", "back"):
            for how in _FROM:
                of = [one for one in runs if (one["plane"], one["workers"]) == (plane, how)]
                each = [one["first"] for one in of]
                if what == "back":
                    each = [back for one in of for back in one["back"]]
                words = {"first": "to the first record", "back": "from a kill"}[what]
                cells = (_spread([one[unit] for one in each]) for unit in ("s", "python_cpu_s"))
                table.add_row(f"{plane}, {words}", how, *cells, str(len(each)))
    return table


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
