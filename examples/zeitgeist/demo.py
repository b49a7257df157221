"""The demo: a year of flights replayed through the pipeline on a local Spark, or a live directory.

A run can be killed at any moment and started again with the same checkpoint and output directory:
it goes on, and finds exactly what it would have found undisturbed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from rich.console import Console

import millrace as mr
from millrace_examples.local_spark import session

from . import flights, report
from .pipeline import build
from .progress import Progress, shown
from .results import Epochs, strongest

FILES_PER_EPOCH = 6
"""Days of flights in an epoch: a year in about 60. Less than the week ahead that predictions are
made: the spike detector must have that of a bucket before its departures."""


def run_demo(
    out: Path,
    live: Path | None = None,
    checkpoint: Path | None = None,
    console: Console | None = None,
) -> pd.DataFrame:
    """Run the demo, and write ``anomalies.parquet`` and ``report.png``.

    Args:
        out: Directory for the results and what leads to them.
        live: Follow this directory of Parquet files with the columns of `flights.SCHEMA`, until
            Ctrl-C, instead of replaying the year.
        checkpoint: Directory of the run's checkpoint. If there is one, the run goes on from it,
            and must have the same ``out``. By default the demo starts anew.
        console: Where to show the progress.

    Returns:
        The anomalies.
    """
    console = console or Console()
    out.mkdir(parents=True, exist_ok=True)
    if checkpoint is None or not checkpoint.exists() or not any(checkpoint.iterdir()):
        _clear(out)
    found = Epochs.of_anomalies(out / "anomalies")
    traffic = Epochs.of_traffic(out / "traffic")
    directory, total = (live, None) if live is not None else _write_replay(out, console)
    directory.mkdir(parents=True, exist_ok=True)
    with console.status("starting Spark"):
        spark = session("zeitgeist", out)
    try:
        source = flights.read_stream(spark, directory, FILES_PER_EPOCH)
        pipeline = build(
            source,
            anomalies=mr.sinks.Parquet(found.directory),
            traffic=mr.sinks.Parquet(traffic.directory),
        )
        _run(pipeline, spark, checkpoint or out / "checkpoint", found, total, console)
    finally:
        spark.stop()
    return _write_results(out, found.read(), traffic.read(), console)


def _run(
    pipeline: mr.Pipeline,
    spark: SparkSession,
    checkpoint: Path,
    found: Epochs,
    total: int | None,
    console: Console,
) -> None:
    # Once this file is there, the run has no more to read; it is drained, or about to be.
    complete = found.directory.parent / "replayed"
    try:
        run = pipeline.start(spark, checkpoint=str(checkpoint), progress=False)
    except mr.MillraceError as refused:
        if not complete.exists():
            raise
        console.print(f"Here is what the run found. It cannot go on: {refused}", style="dim")
        return
    with shown(Progress(run, found, total), console):
        if total is None:
            run.wait()
        elif run.process_available():
            complete.touch()
            run.drain()


def _write_replay(out: Path, console: Console) -> tuple[Path, int]:
    """Write the replay; return its directory, and how many records it makes."""
    with console.status("reading the flights of 2013"):
        arrivals = flights.arrivals(flights.read_scheduled())
        directory = out / "replay"
        flights.write_replay(arrivals, directory)
    return directory, 2 * len(arrivals)  # one for the airport, one for the route


def _write_results(
    out: Path, anomalies: pd.DataFrame, traffic: pd.DataFrame, console: Console
) -> pd.DataFrame:
    anomalies.to_parquet(out / "anomalies.parquet", index=False)
    console.print()
    console.print("No anomalies so far." if anomalies.empty else strongest(anomalies))
    console.print(f"\n{out / 'anomalies.parquet'}")
    if not traffic.empty:
        report.draw(traffic, anomalies, out / "report.png")
        console.print(f"{out / 'report.png'}")
    return anomalies


def _clear(out: Path) -> None:
    """Remove what an earlier run left in the output directory, except the replay."""
    for name in ("anomalies", "traffic", "checkpoint"):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / "replayed").unlink(missing_ok=True)
