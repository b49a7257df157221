"""Low-watermark lag by stage: MillWheel's figure 15, on Spark.

Three computations in a row, each with a key of its own, so that each is a stage behind a shuffle.
The source makes records at a steady rate, with the wall clock as their timestamp; the injector's
low watermark is the newest of them. Each stage hands records on, and sets a low-watermark timer for
every quarter of a second of event time. When such a timer fires, the low watermark of its stage has
passed that time, and the machine's clock says how far behind real time that is: the stage's lag.
The difference between two stages is what the second one adds.

With ``--realtime`` it runs on the real-time plane, and an injector of Millrace's own makes the
records (``latency/synthetic.py``); else in epochs, with Spark's rate source.

The run's status is polled besides, ten times a second, as anybody would. In epochs a low watermark
crosses all stages within one, so polling sees them move together.

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
import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.contest import ContenderFailed
from benchmarks.latency.probe import Probe, read
from benchmarks.latency.synthetic import Synthetic
from benchmarks.machine import describe
from benchmarks.realtime import realtime_session
from benchmarks.spark_session import build_session

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STAGES = 3
_EVERY_US = mr.SECOND // 4
_KEYS = 16
_TASKS = 2
#: Of each stage, and for how long they are waited for beyond the time asked for.
_LEAST_SAMPLES, _PATIENCE_S = 8, 180


class Item(msgspec.Struct, frozen=True):
    """What travels: a number, from which every stage takes another key."""

    key: int


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


def _stage(number: int, probe: Probe) -> type[mr.Computation]:
    source, target = f"level-{number}", f"level-{number + 1}"

    class Stage(mr.Computation):
        inputs = {source: mr.by(lambda item: item.key // _KEYS ** (number - 1) % _KEYS)}
        outputs = {target: Item}

        def process_record(self, record: mr.Record) -> None:
            self.produce(target, record.value)
            quarter = record.timestamp // _EVERY_US + 1
            self.set_timer(quarter, at=quarter * _EVERY_US)

        def process_timer(self, timer: mr.Timer) -> None:
            probe.saw(timer.at * 1_000)

    return Stage


def main() -> None:
    """Run the pipeline, print the table, write the results and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=int, default=30)
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--realtime", action="store_true", help="on the real-time plane")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path, help="draw it there, as PNG or SVG")
    arguments = parser.parse_args()
    machine = describe()
    fired, polled, since_us = _run(arguments)
    lags = _lags(fired, since_us)
    stages = _stages(lags, polled, since_us)
    Console().print(_table(stages))
    started = dt.datetime.fromisoformat(machine["at"])
    plane = "-realtime" if arguments.realtime else ""
    name = f"watermark-lag-{started:%Y-%m-%d-%H%M}{plane}.json"
    results = {
        "benchmark": "watermark_lag",
        "machine": machine,
        "rate": arguments.rate,
        "realtime": arguments.realtime,
        "stages": [*map(asdict, stages)],
    }
    (arguments.out or Path(__file__).parent / "results" / name).write_text(
        json.dumps(results, indent=1) + "\n"
    )
    if arguments.picture:
        _picture(lags, stages).savefig(arguments.picture, dpi=110)


def _run(
    arguments: argparse.Namespace,
) -> tuple[dict[int, np.ndarray], list[tuple[int, dict[str, int]]], int]:
    """Return the timers that fired, the low watermarks as polled, and when the warm-up ended.

    Timers are pairs by stage: the time that its low watermark has passed, and the machine's clock
    then, in nanoseconds.
    """
    polled: list[tuple[int, dict[str, int]]] = []
    done = threading.Event()
    with tempfile.TemporaryDirectory(prefix="millrace-lag-") as name:
        directory = Path(name)
        spark, source, options = _plane(arguments, directory)
        p = mr.Pipeline("watermark lag")
        p.inject("level-1", source, low_watermark=mr.BoundedDelay(0), format=Item, **options)
        for number in range(1, _STAGES + 1):
            p.add(_stage(number, Probe(directory / f"probe-{number}")), name=f"stage-{number}")
        realtime = {"realtime": True, "tasks": _TASKS} if arguments.realtime else {}
        run = p.start(spark, checkpoint=f"{directory}/checkpoint", **realtime)

        def poll() -> None:
            while not done.wait(0.1):
                polled.append((time.time_ns() // 1_000, run.status().low_watermarks))

        poller = threading.Thread(target=poll, daemon=True)
        poller.start()
        while run.status().epoch < 0 and not run.wait(mr.SECOND):
            pass  # Spark and Python are starting, which on a busy machine takes long
        run.wait(arguments.warm_up * mr.SECOND)
        since_us = time.time_ns() // 1_000
        run.wait(arguments.seconds * mr.SECOND)
        # On a busy machine an epoch may take as long as that.
        until_s = time.monotonic() + _PATIENCE_S
        while len(_common(_lags(_fired(directory), since_us))) < _LEAST_SAMPLES:
            if time.monotonic() > until_s or run.wait(mr.SECOND):
                raise ContenderFailed(f"too few timers fired: {run.status().low_watermarks}")
        done.set()
        poller.join()
        run.stop()
        spark.stop()
        fired = _fired(directory)
    return fired, polled, since_us


def _fired(directory: Path) -> dict[int, np.ndarray]:
    return {n: read(directory / f"probe-{n}") for n in range(1, _STAGES + 1)}


def _plane(arguments: argparse.Namespace, directory: Path) -> tuple[SparkSession, Any, Any]:
    """Return a session, the source of the records there, and how it is injected."""
    if not arguments.realtime:
        spark = build_session("watermark lag", cores=_TASKS)
        rate = spark.readStream.format("rate").option("rowsPerSecond", arguments.rate).load()
        rows = rate.select(F.col("value").alias("key"), F.col("timestamp").alias("time"))
        return spark, rows, {"timestamp": "time"}
    begin_path = directory / "begin"
    begin_path.write_text(str(time.time_ns()))
    source = Synthetic(
        begin_path, rate=arguments.rate, records=1 << 40, keys=_KEYS**_STAGES, processes=_TASKS
    )
    spark = realtime_session("watermark lag", tasks=_TASKS, levels=_STAGES)
    return spark, source, {"timestamp": "sent", "unit": "ns"}


def _lags(fired: dict[int, np.ndarray], since_us: int) -> dict[int, dict[int, int]]:
    """Return stage -> quarter of a second -> microseconds of lag when its first timer fired."""
    found: dict[int, dict[int, int]] = {stage: {} for stage in fired}
    for stage, pairs in fired.items():
        known = found[stage]
        for at, seen in (pairs // 1_000).tolist():
            if at >= since_us:
                known[at] = min(known.get(at, mr.MAX_TIMESTAMP), seen - at)
    return found


def _common(lags: dict[int, dict[int, int]]) -> list[int]:
    """Return the quarters of a second that every stage has seen passed."""
    return sorted(set.intersection(*(set(known) for known in lags.values())))


def _stages(
    lags: dict[int, dict[int, int]], polled: list[tuple[int, dict[str, int]]], since_us: int
) -> list[StageLag]:
    common = _common(lags)
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
