"""The tutorial's game on Spark: stream, batch and plain Spark SQL come to the same."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import millrace as mr
from millrace_examples.leaderboard import batch, demo, game, picture, report, results
from millrace_examples.leaderboard.pipeline import STREAMS, build

# An hour of a few players, in steps that leave something early, on time and late.
SMALL = game.Game(players=12, hours=1, seed=1)
STEP_US = 45 * mr.MINUTE


@pytest.mark.timeout(600)
def test_stream_batch_and_sql_agree(spark: SparkSession, tmp_path: Path) -> None:
    demo.replay(spark, tmp_path, SMALL, Console(quiet=True), STEP_US)
    scores = spark.read.schema(game.SCHEMA).parquet(str(tmp_path / "scores"))
    build(scores, sink=lambda stream: mr.sinks.Parquet(tmp_path / "batch" / stream)).run_batch(
        spark
    )

    answers = batch.answers(scores)
    streamed, batched = results.read(tmp_path), results.read(tmp_path / "batch")
    for stream in STREAMS:
        assert results.net(stream, streamed[stream]) == answers[stream], stream
        assert results.net(stream, batched[stream]) == answers[stream], stream
    assert len(answers["user_scores"]) > 12
    totals = streamed["team_totals"]
    assert set(totals["_pane_timing"]) == {"EARLY", "ON_TIME", "LATE"}
    assert totals["_retraction"].sum() > 5
    assert not batched["team_totals"]["_retraction"].any()

    printed = io.StringIO()
    report.show(streamed, answers, Console(file=printed, width=120))
    assert printed.getvalue().count("agrees") == len(STREAMS)
    picture.draw(totals, scores.toPandas(), tmp_path)
    assert (tmp_path / picture.FILE).read_bytes().startswith(b"\x89PNG")
