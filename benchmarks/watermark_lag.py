"""Low-watermark lag by stage: MillWheel's figure 15, on Spark.

Three computations in a row, each with a key of its own, so that each is a stage behind a shuffle.
The source makes records at a steady rate, with the wall clock as their timestamp; the injector's
low watermark is the newest of them. Each stage hands records on, and sets a low-watermark timer for
every quarter of a second of event time. When such a timer fires, the low watermark of its stage has
passed that time, and the machine's clock says how far behind real time that is: the stage's lag.
The difference between two stages is what the second one adds.

The run's status is polled besides, ten times a second, as anybody would. A low watermark crosses
all stages within an epoch, so polling sees them move together.

Run it with ``python -m benchmarks.watermark_lag``. It needs a JVM and takes about two minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.spark_session import build_session

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STAGES = 3
_EVERY_US = mr.SECOND // 4
_KEYS = 16


class Item(msgspec.Struct, frozen=True):
    """What travels: a number, from which every stage takes another key."""

    value: int


class Lag(msgspec.Struct, frozen=True):
    """A timer that fired.

    Attributes:
        stage: Of the computation, from 1.
        at: The time that its low watermark has passed, in microseconds.
        seen: The machine's clock then, in microseconds.
    """

    stage: int
    at: int
    seen: int


@dataclass(frozen=True)
class StageLag:
    """The lag of one stage behind real time.

    Attributes:
        stage: From 1.
        mean_ms: Over all quarters of a second after the warm-up.
        stdev_ms: Likewise.
        added_ms: Mean of what it adds to the stage before, or to none.
        polled_ms: Mean lag as polled.
        samples: How many quarters of a second.
    """

    stage: int
    mean_ms: float
    stdev_ms: float
    added_ms: float
    polled_ms: float
    samples: int


def _stage(number: int) -> type[mr.Computation]:
    source, target = f"level-{number}", f"level-{number + 1}"

    class Stage(mr.Computation):
        inputs = {source: mr.by(lambda item: item.value // _KEYS ** (number - 1) % _KEYS)}
        outputs = {target: Item, f"lag-{number}": Lag}

        def process_record(self, record: mr.Record) -> None:
            self.produce(target, record.value)
            quarter = record.timestamp // _EVERY_US + 1
            self.set_timer(quarter, at=quarter * _EVERY_US)

        def process_timer(self, timer: mr.Timer) -> None:
            seen = time.time_ns() // 1_000
            self.produce(f"lag-{number}", Lag(number, timer.at, seen))

    return Stage


def main() -> None:
    """Run the pipeline, print the table, write the results and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=int, default=30)
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path, help="draw it there, as PNG or SVG")
    arguments = parser.parse_args()
    machine = describe()
    fired, polled, since_us = _run(arguments)
    lags = _lags(fired, since_us)
    stages = _stages(lags, polled, since_us)
    Console().print(_table(stages))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"watermark-lag-{started:%Y-%m-%d-%H%M}.json"
    results = {
        "benchmark": "watermark_lag",
        "machine": machine,
        "rate": arguments.rate,
        "stages": [*map(asdict, stages)],
    }
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")
    if arguments.picture:
        _picture(lags, stages).savefig(arguments.picture, dpi=110)


def _run(arguments: argparse.Namespace) -> tuple[list[Lag], list[tuple[int, dict[str, int]]], int]:
    """Return the timers that fired, the low watermarks as polled, and when the warm-up ended."""
    spark = build_session("watermark lag", cores=2)
    source = spark.readStream.format("rate").option("rowsPerSecond", arguments.rate).load()
    fired: list[Lag] = []

    def keep(rows: Any, _: int) -> None:
        fired.extend(Lag(row.stage, row.at, row.seen) for row in rows.collect())

    p = mr.Pipeline("watermark lag")
    p.inject(
        "level-1",
        source.select(F.col("value"), F.col("timestamp").alias("time")),
        timestamp="time",
        low_watermark=mr.BoundedDelay(0),
        format=Item,
    )
    for number in range(1, _STAGES + 1):
        p.add(_stage(number), name=f"stage-{number}")
        p.stream(f"lag-{number}").to("lags", format=Lag)
    p.sink("lags", keep)
    polled: list[tuple[int, dict[str, int]]] = []
    done = threading.Event()
    with tempfile.TemporaryDirectory(prefix="millrace-lag-") as directory:
        run = p.start(spark, checkpoint=f"{directory}/checkpoint")

        def poll() -> None:
            while not done.wait(0.1):
                polled.append((time.time_ns() // 1_000, run.status().low_watermarks))

        poller = threading.Thread(target=poll, daemon=True)
        poller.start()
        run.wait(arguments.warm_up * mr.SECOND)
        since_us = time.time_ns() // 1_000
        run.wait(arguments.seconds * mr.SECOND)
        done.set()
        poller.join()
        run.stop()
    spark.stop()
    return fired, polled, since_us


def _lags(fired: list[Lag], since_us: int) -> dict[int, dict[int, int]]:
    """Return stage -> quarter of a second -> microseconds of lag when its first timer fired."""
    found: dict[int, dict[int, int]] = {stage: {} for stage in range(1, _STAGES + 1)}
    for lag in fired:
        if lag.at >= since_us:
            known = found[lag.stage]
            known[lag.at] = min(known.get(lag.at, mr.MAX_TIMESTAMP), lag.seen - lag.at)
    return found


def _stages(
    lags: dict[int, dict[int, int]], polled: list[tuple[int, dict[str, int]]], since_us: int
) -> list[StageLag]:
    common = sorted(set.intersection(*(set(known) for known in lags.values())))
    means = {stage: statistics.mean(known[at] for at in common) for stage, known in lags.items()}
    return [
        StageLag(
            stage,
            mean_us / 1_000,
            statistics.stdev(lags[stage][at] for at in common) / 1_000,
            (mean_us - means.get(stage - 1, 0)) / 1_000,
            statistics.mean(at - known[f"stage-{stage}"] for at, known in polled if at >= since_us)
            / 1_000,
            len(common),
        )
        for stage, mean_us in means.items()
    ]


def _table(stages: list[StageLag]) -> Table:
    table = Table(title="Low-watermark lag, milliseconds")
    for name in ("stage", "mean", "stdev", "added by the stage", "polled", "samples"):
        table.add_column(name, justify="right")
    for lag in stages:
        table.add_row(
            str(lag.stage),
            f"{lag.mean_ms:,.0f}",
            f"{lag.stdev_ms:,.0f}",
            f"{lag.added_ms:,.0f}" if lag.stage > 1 else "-",
            f"{lag.polled_ms:,.0f}",
            f"{lag.samples:,}",
        )
    return table


def _picture(lags: dict[int, dict[int, int]], stages: list[StageLag]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    first = min(min(known) for known in lags.values())
    for lag in stages:
        known = sorted(lags[lag.stage].items())
        axes.plot(
            [(at - first) / mr.SECOND for at, _ in known],
            [us / 1_000 for _, us in known],
            label=f"stage {lag.stage}: mean {lag.mean_ms:,.0f} ms, stdev {lag.stdev_ms:,.0f} ms",
            linewidth=1.2,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("event time (s)")
    axes.set_ylabel("behind real time (ms)")
    axes.set_title("Low-watermark lag of a three-stage pipeline")
    axes.grid(visible=True, color="0.92")
    axes.legend(loc="lower right")
    return figure


if __name__ == "__main__":
    main()
