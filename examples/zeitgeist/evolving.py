"""The year of `evolution` on Spark: each version takes over while the one before it is at work.

    python -m millrace_examples.zeitgeist.evolving out/year --cores 2

It can be killed at any moment. Started again, with other cores if you like, or with a copy of its
checkpoint that has other key intervals, it goes on with the newest version whose time has come and
that the checkpoint can take: what `plan` is for.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

import millrace as mr
from millrace_examples.local_spark import session

from . import flights
from .evolution import VERSIONS, Version

DAYS = 6
"""Of flights in an epoch; see `demo.FILES_PER_EPOCH`."""


def prepare(departed: pd.DataFrame, out: Path, days: int = DAYS) -> list[Path]:
    """Write the flights for a replay under a directory, an epoch a file; return the files."""
    return flights.write_replay(departed, out / "replay", days)


def run_year(spark: SparkSession, out: Path, checkpoint: Path, intervals: int | None) -> None:
    """Run through the versions, or the rest of them, to the end of the year.

    Args:
        spark: A session.
        out: Where `prepare` has written; what is found goes to ``found/`` of it, to a folder for
            each checkpoint and stream.
        checkpoint: Directory of the checkpoint; the run goes on from it if there is one.
        intervals: Key intervals a computation, of a checkpoint that is new.
    """
    versions = list(VERSIONS)
    if checkpoint.exists():
        versions = _to_come(checkpoint)
    (out / "departed").mkdir(exist_ok=True)
    source = flights.read_stream(spark, out / "departed", files_per_epoch=1)

    def made(version: Version) -> mr.Pipeline:
        if version.shown is None:
            return version.pipeline(source)
        sink = mr.sinks.Parquet(out / "found" / checkpoint.name / version.shown)
        return version.pipeline(source, sink)

    pipeline = made(versions[0])
    run = pipeline.start(spark, checkpoint=str(checkpoint), intervals=intervals, progress=False)
    for version, after in zip(versions, [*versions[1:], None], strict=True):
        print(f"{version.pipeline.__name__} runs", flush=True)
        _let_depart(out, after)
        if after is None:
            run.process_available()
            run.drain()
        else:
            while run.status().low_watermark < _us(after.since):
                run.wait("20 ms")
            run = run.update(made(after))


def _to_come(checkpoint: Path) -> list[Version]:
    """Return the newest version that can go on, and those after it."""
    stream = mr.ops.open_checkpoint(str(checkpoint)).overview.streams.get("departures")
    reached = [v for v in VERSIONS if stream is not None and _us(v.since) <= stream.low_watermark]
    for version in reversed(reached or VERSIONS[:1]):
        if not version.pipeline().plan(checkpoint).refused:
            return list(VERSIONS[VERSIONS.index(version) :])
    raise SystemExit(f"no version of the year can go on with {checkpoint}")


def _let_depart(out: Path, after: Version | None) -> None:
    """Show the source what departed up to a version's time, and a file more to be busy with."""
    more = 1
    for file in sorted((out / "replay").glob("departed-*")):
        if after is not None and _us(file.stem[len("departed-") :]) >= _us(after.since):
            if not more:
                return
            more -= 1
        shown = out / "departed" / file.name
        if not shown.exists():
            os.link(file, shown)


def _us(day: Any) -> int:
    return int(pd.Timestamp(day, tz="UTC").value) // 1000


def main() -> None:
    """Run from the command line."""
    arguments = argparse.ArgumentParser(description="a year of versions on one checkpoint")
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--checkpoint", type=Path)
    arguments.add_argument("--cores", type=int, default=2)
    arguments.add_argument("--intervals", type=int)
    chosen = arguments.parse_args()
    out = chosen.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "replay").exists():
        prepare(flights.arrivals(flights.read_scheduled()), out)
    spark = session("a year of versions", out, slots=chosen.cores)
    try:
        checkpoint = (chosen.checkpoint or out / "checkpoint").absolute()
        run_year(spark, out, checkpoint, chosen.intervals)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
