"""How long keys of a real-time run get nothing when a worker process is killed.

A pipeline of two levels counts by key, at a steady rate. Again and again the process of one task is
ended by SIGKILL. Shown is the time from there to the moment when each key has had a record that
was written after it, at the last level: until the first key has one, and until the last has; and
how the run says that it was spent. Without and with ``standby=True``, by turns, in one Spark
session. At the end every key must have counted every record once.

Run it with ``python -m benchmarks.failover --kills 20``.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.result import write
from benchmarks.spark_session import build_session

KEYS = 10
_PATIENCE_S = 60.0


class Row(msgspec.Struct):
    """A record."""

    number: int
    key: int
    written_s: float


class Steady(mr.sources.Injector):
    """Two processes that have so many rows a second, until a file says how many in all.

    Args:
        root: A folder, in which ``began`` says when the first was there.
        rate: Rows a second, of each process.
    """

    schema = "number long, key long, written_s double, at long"

    def __init__(self, root: Path, rate: int) -> None:
        self._root = root
        self._rate = rate

    def processes(self) -> list[str]:
        """Return the names of both."""
        return ["a", "b"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        """Return how many rows there are by now."""
        if (limit := self._root / "limit").exists():
            return mr.sources.Advance(int(limit.read_text()))
        return mr.sources.Advance(int((time.time() - self._began()) * self._rate))

    def read(self, process: str, start: Any, end: Any) -> Any:
        """Yield rows, each with the time at which it was there first."""
        began = self._began()
        for number in range(start or 0, end):
            written_s = began + number / self._rate
            yield number, number % KEYS, written_s, int(written_s * mr.SECOND)

    def _began(self) -> float:
        return float((self._root / "began").read_text())


class Counting(mr.Computation):
    """Counts by key, and sends the record on."""

    inputs = {"rows": mr.by("key")}
    outputs = {"counted": Row}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count it."""
        self.count.set(self.count.get(0) + 1)
        self.produce("counted", record.value)


class Seeing(mr.Computation):
    """Writes down when a record of a key is seen, for whoever measures it.

    Args:
        folder: For a file of each process.
    """

    inputs = {"counted": mr.by("key")}

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def process_record(self, record: mr.Record) -> None:
        """Append a line: key, when it was written, and now."""
        row = record.value
        with (self._folder / f"{os.getpid()}").open("a") as file:
            file.write(f"{row.key} {row.written_s!r} {time.time()!r}\n")


class Told(logging.Handler):
    """Keeps what the run says of the time that it was away."""

    def __init__(self) -> None:
        super().__init__()
        self.away: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a message."""
        found = re.search(r"another incarnation has begun, after (.*)", record.getMessage())
        if found is not None:
            self.away.append(found[1])


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--rate", type=int, default=200, help="rows a second of each process")
    parser.add_argument("--turns", type=int, default=2, help="runs of each kind, by turns")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    slots = 2 * arguments.tasks * 3 + 1
    settings = mr.spark.realtime_settings(tasks=arguments.tasks)
    spark = build_session("failover", slots, settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(arguments.turns):
        for standby in found:
            with tempfile.TemporaryDirectory(prefix="failover-") as root:
                found[standby] += measured(spark, Path(root), arguments, standby=standby)
    spark.stop()
    Console(width=100).print(table(found))
    rows = [summary(standby, kills) for standby, kills in found.items()]
    kinds = {"with" if standby else "without": kills for standby, kills in found.items()}
    asked = {"tasks": arguments.tasks, "rate": arguments.rate}
    write("failover", out=arguments.out, **asked, failovers=rows, kills=kinds)


def measured(
    spark: SparkSession, root: Path, arguments: argparse.Namespace, *, standby: bool
) -> list[dict[str, Any]]:
    """Run once, with so many kills; return what each took."""
    seen = root / "seen"
    seen.mkdir()
    (root / "began").write_text(repr(time.time()))
    p = mr.Pipeline("failover")
    policy = mr.BoundedDelay("1 s")
    source = Steady(root, arguments.rate)
    p.inject("rows", source, timestamp="at", low_watermark=policy, format=Row)
    p.add(Counting())
    p.add(Seeing(seen))
    told = Told()
    logging.getLogger("millrace").addHandler(told)
    logging.getLogger("millrace").setLevel(logging.INFO)
    run = p.start(
        spark,
        checkpoint=str(root / "checkpoint"),
        realtime=True,
        tasks=arguments.tasks,
        standby=standby,
        attempts=1000,
        progress=False,
    )
    kills = []
    for number in range(arguments.kills // arguments.turns):
        settle(run, seen, standby=standby)
        level = 1 + number % 2
        killed_s = time.time()
        os.kill(run.hosts[level, 0].pid, signal.SIGKILL)
        first_s, last_s = served(seen, killed_s)
        away = told.away[-1] if told.away else ""
        kills.append({"level": level, "first_s": first_s, "last_s": last_s, "away": away})
        print(f"standby={standby} level {level}: {first_s:.2f} {last_s:.2f} s; {away}", flush=True)
    rows = int((time.time() - float((root / "began").read_text())) * arguments.rate) // KEYS * KEYS
    rows += 10 * KEYS
    (root / "limit").write_text(str(rows))
    assert run.process_available("120 s"), "it ends"
    run.stop()
    logging.getLogger("millrace").removeHandler(told)
    state = mr.ops.open_checkpoint(str(root / "checkpoint"))["Counting"]
    counts = [state.get(key)["count"] for key in range(KEYS)]
    assert counts == [2 * rows // KEYS] * KEYS, f"exactly once: {counts}, expected {rows}"
    return kills


def settle(run: Any, seen: Path, *, standby: bool) -> None:
    """Wait until all keys have what is new, and the standby, if there is one, is ready."""
    until = time.monotonic() + _PATIENCE_S
    engine = run._run.engine
    while time.monotonic() < until:
        since_s = time.time()
        served(seen, since_s)
        late = time.time() - since_s > 1.0
        waiting = engine._standby
        if not late and len(run.hosts) and (not standby or (waiting and waiting.ready)):
            time.sleep(1.0)
            return
    raise AssertionError("the run has not recovered in a minute")


def served(seen: Path, since_s: float) -> tuple[float, float]:
    """Return how long after a moment one key, and all, had a record that was written after it."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        firsts: dict[str, float] = {}
        for file in seen.iterdir():
            with file.open("rb") as lines:
                lines.seek(max(0, file.stat().st_size - (1 << 18)))
                for line in lines.read().decode().splitlines()[1:]:
                    key, written, now = line.split() if line.count(" ") == 2 else ("", "0", "0")
                    if key and float(written) > since_s and now.count(".") == 1:
                        firsts[key] = min(firsts.get(key, float(now)), float(now))
        if len(firsts) == KEYS:
            return min(firsts.values()) - since_s, max(firsts.values()) - since_s
        time.sleep(0.02)
    raise AssertionError(f"not all keys had a new record within {_PATIENCE_S:.0f} s")


def summary(standby: bool, kills: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one kind."""
    last = sorted(kill["last_s"] for kill in kills)
    return {
        "standby": "yes" if standby else "no",
        "kills": len(kills),
        "first_p50_s": round(statistics.median(kill["first_s"] for kill in kills), 3),
        "last_p50_s": round(statistics.median(last), 3),
        "last_p99_s": round(last[min(len(last) - 1, int(0.99 * len(last)))], 3),
    }


def table(found: dict[bool, list[dict[str, Any]]]) -> Table:
    """Return the figures for people."""
    made = Table(title="seconds from SIGKILL of a worker to a new record")
    for column in ("standby", "kills", "first key p50", "last key p50", "last key p99"):
        made.add_column(column, justify="right")
    for standby, kills in found.items():
        made.add_row(*map(str, summary(standby, kills).values()))
    return made


if __name__ == "__main__":
    main()
