"""How long keys get nothing when the program that runs a pipeline is killed, and another waits.

Two programs are started by ``millrace run --standby``, each with a Spark of its own. Again and
again the one that runs the pipeline is ended by SIGKILL, and when the other has taken over another
is started. Shown is the time from there to the moment when each key has had a record that was
written after it. At the end every key must have counted every record once.

Run it with ``python -m benchmarks.driver_failover``; a kill takes about 40 s.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.failover import KEYS, Counting, Seeing, Steady, served
from benchmarks.result import write

_ROOT = "DRIVER_FAILOVER_ROOT"
_PATIENCE_S = 120.0
#: How long a program that waits has to make ready what it can.
_WARM_UP_S = 10.0


def pipeline() -> mr.Pipeline:
    """Return the pipeline; each program makes its own."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("millrace").setLevel(logging.INFO)
    root = Path(os.environ[_ROOT])
    p = mr.Pipeline("failover")
    source = Steady(root, int((root / "rate").read_text()))
    p.inject("rows", source, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Counting())
    p.add(Seeing(root / "seen"))
    return p


class Driver:
    """A program of those that may run the pipeline.

    Args:
        root: Where all of them meet.
        number: Of the program.
        arguments: What is measured.
        plane: ``epochs`` or ``realtime``.
    """

    def __init__(self, root: Path, number: int, arguments: argparse.Namespace, plane: str) -> None:
        command = [str(Path(sys.executable).with_name("millrace")), "run"]
        command += ["benchmarks.driver_failover:pipeline", "--standby", "--lease", arguments.lease]
        slots = 3 * arguments.tasks + 1
        command += ["--checkpoint", str(root / "checkpoint"), "--master", f"local[{slots}]"]
        command += ["--tasks", str(arguments.tasks)]
        command += ["--realtime"] if plane == "realtime" else []
        self.log = root / f"driver-{number}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | {_ROOT: str(root)}, stdout=log, stderr=log
            )

    def away(self) -> str:
        """Return what its log says of the time after it had the lease."""
        words = re.search("another incarnation has begun, after (.*)", self.log.read_text())
        return "" if words is None else words[1]

    def wait_for(self, words: str) -> None:
        """Wait until its log has some words."""
        until = time.monotonic() + _PATIENCE_S
        while words not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"not {words!r}:\n{self.log.read_text()}")
            time.sleep(0.1)


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=6, help="of each plane")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--rate", type=int, default=100, help="rows a second of each process")
    parser.add_argument("--lease", default="2 s", help="the term")
    parser.add_argument("--planes", default="realtime,epochs")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kills: dict[str, list[float]] = {}
    for plane in arguments.planes.split(","):
        with tempfile.TemporaryDirectory(prefix="driver-failover-") as root:
            kills[plane] = measured(Path(root), arguments, plane)
    rows = [summary(plane, seconds) for plane, seconds in kills.items()]
    Console(width=100).print(table(rows))
    asked = {"tasks": arguments.tasks, "rate": arguments.rate, "lease": arguments.lease}
    write("driver_failover", out=arguments.out, **asked, failovers=rows, kills=kills)


def measured(root: Path, arguments: argparse.Namespace, plane: str) -> list[float]:
    """Run it with so many kills; return the seconds of each until every key had a new record."""
    seen = root / "seen"
    seen.mkdir()
    (root / "rate").write_text(str(arguments.rate))
    (root / "began").write_text(repr(time.time()))
    holder = Driver(root, 0, arguments, plane)
    holder.wait_for("begins, or goes on")
    served(seen, time.time())
    seconds = []
    for number in range(1, arguments.kills + 1):
        other = Driver(root, number, arguments, plane)
        other.wait_for("waits for the lease of")
        other.wait_for("all tasks are started, and wait for the lease")
        time.sleep(_WARM_UP_S)
        killed_s = time.time()
        holder.process.send_signal(signal.SIGKILL)
        holder.process.wait()
        try:
            _, last_s = served(seen, killed_s)
        except AssertionError as late:
            other.process.kill()
            raise AssertionError(other.log.read_text()) from late
        seconds.append(last_s)
        print(f"{plane}: {last_s:.2f} s; {other.away()}", flush=True)
        holder = other
    rows = int((time.time() - float((root / "began").read_text())) * arguments.rate) // KEYS * KEYS
    rows += 10 * KEYS
    (root / "limit").write_text(str(rows))
    until = time.monotonic() + _PATIENCE_S
    while (counts := counted(root)) != [2 * rows // KEYS] * KEYS:
        assert time.monotonic() < until, f"exactly once: {counts}, expected {rows}"
        time.sleep(1.0)
    holder.process.send_signal(signal.SIGTERM)
    holder.process.wait()
    return seconds


def counted(root: Path) -> list[Any]:
    """Return how many records each key has counted."""
    state = mr.ops.open_checkpoint(str(root / "checkpoint"))["Counting"]
    return [(state.get(key) or {}).get("count") for key in range(KEYS)]


def summary(plane: str, seconds: list[float]) -> dict[str, Any]:
    """Return the figures of one plane."""
    return {
        "plane": plane,
        "kills": len(seconds),
        "p50_s": round(statistics.median(seconds), 2),
        "most_s": round(max(seconds), 2),
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the figures for people."""
    made = Table(title="seconds from SIGKILL of a driver to a new record of every key")
    for column in ("plane", "kills", "p50", "most"):
        made.add_column(column, justify="right")
    for row in rows:
        made.add_row(*map(str, row.values()))
    return made


if __name__ == "__main__":
    main()
