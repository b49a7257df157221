"""The demo: an evening of the game, replayed in a minute or two through a stream on a local Spark.

It goes by the clock of the game, a quarter of an hour at a time: the scores that arrived in it are
put where the stream reads, and the run gets the time to do what is due. So it finds the same on
every machine.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import millrace as mr
from millrace_examples.local_spark import session

from . import batch, game, picture, report, results
from .pipeline import STREAMS, build

_MADE = ("scores", "checkpoint", *STREAMS)


@dataclass
class GameClock:
    """The wall clock of a replay: it stands where it is put, in microseconds."""

    now_us: int

    def __call__(self) -> int:
        """Return the time."""
        return self.now_us


def run_demo(
    out: Path, evening: game.Game | None = None, console: Console | None = None
) -> dict[str, pd.DataFrame]:
    """Run the demo; print what came of it, and write Parquet files and ``leaderboard.png``.

    Args:
        out: Directory for the results; what an earlier run left there is removed.
        evening: The game; by default three hours of 150 players.
        console: Where to print.

    Returns:
        The panes of every stream.

    Raises:
        SystemExit: The panes do not come to what a batch gives.
    """
    console = console or Console()
    # The first late record of each computation is logged. Here they are what it is all about.
    logging.getLogger("millrace").setLevel(logging.ERROR)
    out.mkdir(parents=True, exist_ok=True)
    for name in _MADE:
        shutil.rmtree(out / name, ignore_errors=True)
    with console.status("starting Spark"):
        spark = session("leaderboard", out)
    try:
        replay(spark, out, evening or game.Game(), console)
        scores = spark.read.schema(game.SCHEMA).parquet(str(out / "scores"))
        answers = batch.answers(scores)
        arrived = scores.toPandas()
    finally:
        spark.stop()
    panes = results.read(out)
    report.show(panes, answers, console)
    picture.draw(panes["team_totals"], arrived, out)
    console.print(f"\n{out / picture.FILE}")
    wrong = [stream for stream in STREAMS if results.net(stream, panes[stream]) != answers[stream]]
    if wrong:
        raise SystemExit(f"panes and batch disagree on {', '.join(wrong)}")
    return panes


def replay(
    spark: SparkSession,
    out: Path,
    evening: game.Game,
    console: Console,
    step_us: int = 15 * mr.MINUTE,
) -> None:
    """Play a game and stream its scores through the pipeline, to their end.

    Args:
        spark: A session.
        out: Directory for what the sinks write, the scores and the checkpoint.
        evening: The game.
        console: Where to show how far it is.
        step_us: The clock goes forward by so much at a time.
    """
    scores = game.play(evening)
    arriving = out / "scores"
    arriving.mkdir(parents=True)
    source = spark.readStream.schema(game.SCHEMA).parquet(str(arriving))
    pipeline = build(source, sink=lambda stream: mr.sinks.Parquet(out / stream))
    clock = GameClock(game.START)
    run = pipeline.start(spark, checkpoint=str(out / "checkpoint"), clock=clock, progress=False)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        until_us, last_us = game.START, int(scores["arrived"].max())
        shown = progress.add_task("", total=last_us - until_us)
        while until_us <= last_us:
            from_us, until_us = until_us, until_us + step_us
            arrived = scores[scores["arrived"].between(from_us, until_us, inclusive="left")]
            game.write(arrived, arriving, until_us)
            # The scores are in before what is due at the full quarter.
            for now_us in (until_us - mr.MINUTE, until_us):
                clock.now_us = now_us
                if not run.process_available():
                    raise SystemExit("stopped")
            late = run.status().counters["user_scores"].late
            progress.update(
                shown,
                completed=until_us - game.START,
                description=f"{report.clock(until_us)}  {len(arrived):,} scores arrived, "
                f"{late:,} of all were late so far",
            )
        run.drain()
