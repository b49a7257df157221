"""What is buffered when one process of an injector runs ahead of another, and how skew limits it.

Two processes cover the same six hours of event time. ``fast`` offers ten times as many records an
epoch as ``slow``, so without a limit it is at its end when slow is at a tenth. A computation keeps
every record until the low watermark has passed its minute, as a join or a window would; what it
keeps is the difference between the records that went in and those that came out.

Each case runs in a process of its own. Memory is that of the Python workers, where state is
handled.

Run it with ``python -m benchmarks.skew``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.spark_session import build_session

_REPOSITORY = Path(__file__).parents[1]
_SPAN_US = 6 * mr.HOUR
_KEYS = 1_000
_PAYLOAD = "x" * 200


class TwoSpeeds(mr.sources.Injector):
    """Two processes over the same time, one with ten times the records of the other an epoch."""

    schema = "key long, at long, payload string"

    def __init__(self, records: int) -> None:
        self.records = records

    def processes(self) -> list[str]:
        """Return the two."""
        return ["fast", "slow"]

    def advance(self, process: str, offset: int | None) -> mr.sources.Advance:
        """Return the end of this epoch's share."""
        step = self.records // (10 if process == "fast" else 100)
        end = min((offset or 0) + step, self.records)
        ended = end == self.records
        return mr.sources.Advance(end, mr.MAX_TIMESTAMP if ended else self._time(end))

    def read(self, process: str, start: int | None, end: int) -> Iterator[tuple[Any, ...]]:
        """Yield records, evenly over the span."""
        for n in range(start or 0, end):
            yield (n * 7919) % _KEYS, self._time(n), _PAYLOAD

    def _time(self, n: int) -> int:
        return n * _SPAN_US // self.records


class Buffer(mr.Computation):
    """Keeps a minute's records until the minute is over."""

    inputs = {"records": mr.by("key")}
    outputs = {"counts": int}
    minutes = mr.MapState(list[str])

    def process_record(self, record: mr.Record) -> None:
        """Keep it."""
        minute = record.timestamp - record.timestamp % mr.MINUTE
        self.minutes[minute] = [*self.minutes.get(minute, []), record.value["payload"]]
        self.set_timer(minute, at=minute + mr.MINUTE)

    def process_timer(self, timer: mr.Timer) -> None:
        """Let a minute go."""
        self.produce("counts", len(self.minutes.pop(timer.tag)), timestamp=timer.at - 1)


@dataclass(frozen=True)
class Case:
    """One run to the end of the input."""

    skew: str | None
    records: int
    seconds: float
    epochs: int
    buffered_max: int
    cache_mb_max: float
    memory_mb_max: float


def main() -> None:
    """Run both cases, print the table, write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.skew",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=int, default=200_000, help="of each process")
    parser.add_argument("--skew", default="10 min", help="the limit of the second case")
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        case = _run(arguments.records, arguments.child or None)
        arguments.out.write_text(json.dumps(asdict(case)))
        return
    machine = describe()
    cases = [_measure(arguments.records, skew) for skew in ("", arguments.skew)]
    table = Table(title=f"Two processes of {arguments.records:,} records, one at a tenth the speed")
    for name in ("skew", "buffered at most", "cache, MB", "memory, MB", "epochs", "seconds"):
        table.add_column(name, justify="right")
    for case in cases:
        table.add_row(
            case.skew or "no limit",
            f"{case.buffered_max:,}",
            f"{case.cache_mb_max:.0f}",
            f"{case.memory_mb_max:.0f}",
            str(case.epochs),
            f"{case.seconds:.0f}",
        )
    Console().print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"skew-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "skew", "machine": machine, "cases": [*map(asdict, cases)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(records: int, skew: str) -> Case:
    scratch = Path(tempfile.mkdtemp(prefix="millrace-skew-"))
    paths = [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYSPARK_PYTHON": sys.executable,
    }
    try:
        subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.skew", "--records", str(records)),
                *("--child", skew, "--out", str(scratch / "case.json")),
            ],
            cwd=_REPOSITORY,
            env=environment,
            check=True,
        )
        return Case(**json.loads((scratch / "case.json").read_text()))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(records: int, skew: str | None) -> Case:
    spark = build_session("skew", cores=2)
    flushed = [0]

    def count(rows: Any, _epoch: int) -> None:
        flushed[0] += sum(row["value"] for row in rows.select("value").collect())

    p = mr.Pipeline("skew")
    p.inject("records", TwoSpeeds(records), timestamp="at", unit="us", skew=skew)
    p.add(Buffer)
    p.sink("counts", count)
    scratch = Path(tempfile.mkdtemp(prefix="millrace-skew-"))
    buffered = cache = memory = 0
    started = time.perf_counter()
    run = p.start(spark, checkpoint=str(scratch / "checkpoint"))
    try:
        while flushed[0] < 2 * records:
            out = flushed[0]
            buffered = max(buffered, run.status().injected.get("records", 0) - out)
            files = (scratch / "checkpoint" / "cache").rglob("data.mdb")
            cache = max(cache, sum(file.stat().st_blocks * 512 for file in files))
            memory = max(memory, _memory())
            if run.wait("0.3 s"):
                break
        seconds = time.perf_counter() - started
        epochs = run.status().epoch + 1
        run.stop()
        assert flushed[0] == 2 * records, f"{flushed[0]} of {2 * records} records came out"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        spark.stop()
    return Case(skew, records, seconds, epochs, buffered, cache / 1e6, memory / 1e6)


def _memory() -> int:
    """Return the proportional set size of this process's Python children: where state is."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            if "java" not in child.name():
                total += child.memory_full_info().pss
        except psutil.Error:  # it has ended meanwhile
            continue
    return total


if __name__ == "__main__":
    main()
