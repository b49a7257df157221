"""Scores Millrace on NAB: ``python -m millrace_examples.nab --nab FOLDER``."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import click
import pandas as pd
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import millrace as mr
from millrace_examples.local_spark import session
from millrace_examples.nab import scoring, streams
from millrace_examples.nab.novelty import Known, novelty
from millrace_examples.nab.pipeline import build, replay

FILES = 12
#: Of one level and two tasks, which are live at once with those that read, and one slot more.
REALTIME_SLOTS = 5

Scores = dict[str, list[float]]


@click.command()
@click.option("--nab", type=click.Path(path_type=Path), required=True, help="A clone of NAB.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-out/nab"))
@click.option("--plane", type=click.Choice(["epochs", "batch", "realtime"]), default="epochs")
@click.option("--plain", is_flag=True, help="Without Spark, by NumPy alone.")
@click.option("--check", is_flag=True, help="Score the results that NAB bundles, and stop.")
def main(nab: Path, out: Path, plane: str, plain: bool, check: bool) -> None:
    """Run the 58 streams through Millrace on Spark, and score what it reports."""
    console = Console()
    if check:
        check_rule(nab, console)
        return
    rows = readings(nab)
    scores = by_numpy(rows)
    if not plain:
        found = by_millrace(rows, out, plane)
        console.print(f"Millrace on Spark ({plane}) and plain NumPy agree: {found == scores}")
        scores = found
    labelled = [streams.labelled(nab, name, scores[name]) for name in streams.names(nab)]
    verdicts = [scoring.best(labelled, profile) for profile in scoring.PROFILES]
    standard = verdicts[0]
    windows = sum(len(each.windows) for each in labelled)
    console.print(
        f"standard: {standard.found} of {windows} windows found, {standard.false_alarms} "
        f"false alarms, threshold {standard.threshold:.4f}"
    )
    halves = held_out(labelled)
    console.print(f"standard, each half at the threshold of the other: {halves:.1f}")
    console.print(beside(streams.published(nab), [verdict.score for verdict in verdicts]))


def readings(nab: Path) -> pd.DataFrame:
    """Return the records of all streams in order of time, as the pipeline reads them.

    Where a stream's clock goes back, in autumn, the time is that of the record before.
    """
    frames = []
    for name in streams.names(nab):
        times, values = zip(*streams.read(nab, name), strict=True)
        at = pd.Series([datetime.fromisoformat(time).replace(tzinfo=UTC) for time in times])
        frames.append(
            pd.DataFrame(
                {"stream": name, "number": range(len(values)), "value": values, "at": at.cummax()}
            )
        )
    return pd.concat(frames).sort_values(["at", "stream", "number"], ignore_index=True)


def by_numpy(readings: pd.DataFrame) -> Scores:
    """Return the scores of each stream, without Millrace."""
    scores = {}
    for name, rows in readings.groupby("stream"):
        times = [at.timestamp() for at in rows["at"]]
        scores[str(name)] = novelty(Known(), times, rows["value"].tolist())
    return scores


def by_millrace(readings: pd.DataFrame, out: Path, plane: str) -> Scores:
    """Return the scores of each stream, by a run on Spark: the same pipeline on any plane."""
    for name in ("replay", "reports", "checkpoint"):
        shutil.rmtree(out / name, ignore_errors=True)
    write(readings, out / "replay")
    live = plane == "realtime"
    spark = session(
        "nab",
        out,
        slots=REALTIME_SLOTS if live else 2,
        settings=mr.spark.realtime_settings(tasks=2) if live else None,
    )
    pipeline = build(replay(out / "replay"), reports=mr.sinks.Parquet(out / "reports"))
    try:
        if plane == "batch":
            pipeline.run_batch(spark, progress=False)
        else:
            run = pipeline.start(
                spark, checkpoint=str(out / "checkpoint"), realtime=live, progress=False
            )
            run.process_available()
            run.drain()
    finally:
        spark.stop()
    return reported(readings, out / "reports")


def write(readings: pd.DataFrame, folder: Path, files: int = FILES) -> None:
    """Write readings, which are in order of time, as `replay` reads them."""
    folder.mkdir(parents=True)
    for number in range(files):
        first, last = (len(readings) * n // files for n in (number, number + 1))
        part = readings.iloc[first:last].astype({"at": "datetime64[us, UTC]"})
        part.to_parquet(folder / f"{int(part['at'].iloc[0].timestamp())}.parquet", index=False)


def reported(readings: pd.DataFrame, reports: Path) -> Scores:
    """Return the scores that the reports have, and 0 for what was not reported."""
    scores = {str(name): [0.0] * len(rows) for name, rows in readings.groupby("stream")}
    for file in sorted(reports.glob("epoch=*/*.parquet")):
        for row in pq.ParquetFile(file).read(["stream", "number", "score"]).to_pylist():
            scores[row["stream"]][row["number"]] = row["score"]
    return scores


def held_out(labelled: list[scoring.Stream]) -> float:
    """Return the score with each stream at the threshold that is best for the others.

    Every second stream makes one half; each half is weighted by its windows.
    """
    halves = [labelled[::2], labelled[1::2]]
    windows = [sum(len(stream.windows) for stream in half) for half in halves]
    scores = [
        scoring.best(half, threshold=scoring.best(other).threshold).score
        for half, other in zip(halves, reversed(halves), strict=True)
    ]
    return sum(n * score for n, score in zip(windows, scores, strict=True)) / sum(windows)


def beside(published: dict[str, dict[str, float]], ours: Iterable[float]) -> Table:
    """Return the table of all detectors, the best on the standard profile first."""
    names = [profile.name for profile in scoring.PROFILES]
    rows = {name: [scores[each] for each in names] for name, scores in published.items()}
    rows["Millrace, this example"] = list(ours)
    table = Table("detector", *names, box=None, header_style="dim")
    for name in sorted(rows, key=lambda name: -rows[name][0]):
        table.add_row(name, *(f"{score:.1f}" for score in rows[name]))
    return table


def check_rule(nab: Path, console: Console) -> None:
    """Print what the rule makes of NAB's bundled results, beside what NAB published of them.

    By NAB's threshold, and by the best: NAB's search for that climbs one hill, and may miss it.
    """
    names = ("detector", "profile", "published", "by NAB's threshold", "by the best", "")
    table = Table(*names, box=None, header_style="dim")
    for detector, published in streams.published(nab).items():
        results = list(streams.bundled(nab, detector))
        for profile in scoring.PROFILES:
            threshold = streams.published_threshold(nab, detector, profile.name)
            score = scoring.best(results, profile, threshold=threshold).score
            best = scoring.best(results, profile).score
            known = published[profile.name]
            equal = "equal" if abs(score - known) < 1e-6 else "differs"
            numbers = (f"{each:.4f}" for each in (known, score, best))
            table.add_row(detector, profile.name, *numbers, equal)
    console.print(table)


if __name__ == "__main__":
    main()
