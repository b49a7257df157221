"""How long a run in real time takes no record when a changed pipeline takes over.

Rows come at a set rate, and each is counted by its key. In each round a level of tasks comes, and
goes again. It comes with all tasks of the changed pipeline started beside those that work, and goes
by a query that is stopped and another that is started; in every second round the other way round.
Shown is what the run says of its pause, by part; and the longest time in which no row was worked on
around it, by the clocks of user code. At the end each row must be counted once.

Run it with ``python -m benchmarks.update_pause``; six updates take about a minute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.rest_pause import Noting, Row, Steady, longest_gap
from benchmarks.result import write
from benchmarks.spark_session import build_session
from millrace.spark.engine import Engine
from millrace.spark.realtime_engine import RealtimeEngine

#: Between two updates.
_APART_S = 5.0
_HAND_OVER = RealtimeEngine.hand_over


class Odd(mr.Computation):
    """Comes and goes."""

    inputs = {"rows": mr.by(lambda row: row.key % 2)}
    outputs = {"odd": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count."""
        self.count.set(self.count.get(0) + 1)
        self.produce("odd", self.count.get())


class After(mr.Computation):
    """Comes and goes with the other, a level further."""

    inputs = {"odd": mr.by_key()}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count."""
        self.count.set(record.value)


@dataclass(frozen=True)
class Update:
    """One update.

    Attributes:
        how: How the other took over.
        said: How long the run says that no record was taken, in words.
        seconds: The same as a number.
        gap_s: The longest time without a row around it.
        usual_s: The same in the seconds before.
        took_s: How long the call took in all.
    """

    how: str
    said: str
    seconds: float
    gap_s: float
    usual_s: float
    took_s: float


def main() -> None:
    """Run all rounds, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=500, help="rows a second, of two processes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    slots = given.tasks * (2 + 3) + 1
    settings = mr.spark.realtime_settings(tasks=given.tasks)
    spark = build_session("update pause", slots, settings=settings)
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(prefix="millrace-update-") as folder:
        updates = _run(spark, Path(folder), given)
    spark.stop()
    table = Table("how", "gap, s", "before, s", "the call, s", "the run says")
    for one in updates:
        gaps = (f"{s:.2f}" for s in (one.gap_s, one.usual_s, one.took_s))
        table.add_row(one.how, *gaps, one.said)
    Console(width=200).print(table)
    hows = dict.fromkeys(one.how for one in updates)
    rows = [_summary(how, [one for one in updates if one.how == how]) for how in hows]
    print(*(f"{row['how']}: no row for {row['gap_s']:.2f} s, median" for row in rows), sep="\n")
    beside, anew = (row["gap_s"] for row in rows)
    print(f"ratio: {anew / beside:.1f}")
    write("update_pause", out=given.out, rate=given.rate, of=rows, updates=[*map(asdict, updates)])


def _summary(how: str, updates: list[Update]) -> dict[str, Any]:
    return {
        "how": how,
        "updates": len(updates),
        "gap_s": statistics.median(one.gap_s for one in updates),
        "most_s": max(one.gap_s for one in updates),
        "said_s": statistics.median(one.seconds for one in updates),
    }


def _run(spark: SparkSession, folder: Path, given: argparse.Namespace) -> list[Update]:
    times = folder / "times"
    times.mkdir()
    source = Steady(given.rate / 2, time.time())
    checkpoint = str(folder / "checkpoint")

    def pipeline(*, comes: str = "", goes: str = "") -> mr.Pipeline:
        p = mr.Pipeline("update pause")
        policy = mr.BoundedDelay("1 s")
        p.inject("rows", source, timestamp="at", low_watermark=policy, format=Row)
        p.add(Noting(times), name="Noting")
        if comes:
            p.add(Odd, name=f"Odd {comes}")
            p.add(After, name=f"After {comes}")
        if goes:
            p.remove(f"Odd {goes}")
            p.remove(f"After {goes}")
        return p

    options: dict[str, Any] = {"tasks": given.tasks, "intervals": 8, "progress": False}
    run = pipeline().start(spark, checkpoint=checkpoint, realtime=True, **options)
    time.sleep(2 * _APART_S)  # until all has begun, and caches are warm
    updates = []
    for n in range(2 * given.rounds):
        anew = (n + n // 2) % 2
        how = "anew" if anew else "beside"
        RealtimeEngine.hand_over = Engine.hand_over if anew else _HAND_OVER  # type: ignore[method-assign]
        time.sleep(_APART_S)
        began_s = time.time()
        run = run.update(pipeline(**{"goes" if n % 2 else "comes": str(n // 2)}))
        took_s = time.time() - began_s
        assert run.updated is not None, "it was updated"
        time.sleep(1.0)
        usual_s = longest_gap(times, began_s - _APART_S + 1, began_s)
        gap_s = longest_gap(times, began_s, time.time())
        updates.append(Update(how, *run.updated, gap_s, usual_s, took_s))
    run.stop()
    kept = mr.ops.open_checkpoint(checkpoint)
    counted = sum(one.cells["count"] for one in kept["Noting"].scan())
    assert counted == kept.overview.streams["rows"].injected > 0, "rows lost, or counted twice"
    return updates


if __name__ == "__main__":
    main()
