"""Combiner lifting on Spark: lifted and unlifted groupings of one run give the same panes."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

import millrace as mr

SECOND = mr.SECOND
WHAT = ("sums", "counts", "letters")


class Score(msgspec.Struct, frozen=True):
    team: str
    points: int | None


def pipeline(scores: Any) -> mr.Pipeline:
    """Sum and count by team, twice: lifted, and not."""
    p = mr.Pipeline("lifting")
    p.inject("scores", scores, timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Score)
    p.dead_letter("letters")
    by_team = p.stream("scores").key_by("team")
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": "1 h"}
    for lift, prefix in ((None, "lifted"), (False, "plain")):
        by_team.window(mr.FixedWindows("10 s"), lift=lift, **how).sum("points").to(f"{prefix} sums")
        how_many = by_team.window(mr.FixedWindows("10 s"), lift=lift, **how)
        how_many.sum(lambda score: len(score.team)).to(f"{prefix} letters")
        by_team.window(mr.Sessions("400 ms"), lift=lift, **how).count().to(f"{prefix} counts")
    return p


def batches() -> list[list[Any]]:
    """Scores of five teams, mostly in order, some late, some without points."""
    dice = random.Random(7)
    made = []
    for n in range(3):
        rows = [
            (
                f"team {dice.choice('aaabcde')}",
                None if dice.random() < 0.01 else dice.randint(-5, 90),
                max(0, n * 20 * SECOND + dice.randint(-8 * SECOND, 20 * SECOND)),
            )
            for _ in range(1100)
        ]
        made.append(rows)
    return made


class Panes:
    """A sink that keeps the panes of each window, in order."""

    def __init__(self) -> None:
        self.by_window: dict[Any, list[Any]] = {}

    def __call__(self, rows: Any, epoch: int) -> None:
        for row in rows.toArrow().to_pylist():
            del row["_id"]
            window = row.pop("_key"), row.get("_window_start"), row.get("_window_end")
            self.by_window.setdefault(window, []).append(row)


def keep(p: mr.Pipeline) -> dict[str, Panes]:
    kept = {f"{how} {what}": Panes() for how in ("lifted", "plain") for what in WHAT}
    for stream, sink in kept.items():
        p.sink(stream, sink)
    return kept


def check(kept: dict[str, Panes], counters: Any, least: int) -> None:
    for what in WHAT:
        lifted, plain = counters[f"lifted {what}"], counters[f"plain {what}"]
        assert lifted.counted.pop("lifted") > least
        assert len(kept[f"plain {what}"].by_window) > 20
        assert kept[f"lifted {what}"].by_window == kept[f"plain {what}"].by_window
        assert (lifted.records, lifted.late) == (plain.records, plain.late)
        assert (lifted.dead_letters, lifted.counted) == (plain.dead_letters, plain.counted)


@pytest.mark.parametrize("native", [True, False], ids=["rows by Spark", "rows by Python"])
def test_lifted_panes_on_spark_are_the_unlifted_ones(tools: Any, native: bool) -> None:
    feed = tools.feed("team string, points long, at timestamp")
    for batch in batches():
        feed.add(*batch)
    p = pipeline(feed.stream_one_by_one)
    kept = keep(p)
    if not native:
        p.sink("scores", Panes())  # which takes the source away from Spark

    status = tools.run(p)

    check(kept, status.counters, least=1500)
    assert status.injected["scores"] == 3300
    assert status.counters["plain sums"].late > 0
    assert status.counters["plain sums"].dead_letters > 0


def test_a_batch_is_lifted_too(tools: Any, spark: Any) -> None:
    feed = tools.feed("team string, points long, at timestamp")
    for batch in batches():
        feed.add(*batch)
    p = pipeline(feed.bounded)
    kept = keep(p)

    status = p.run_batch(spark)

    check(kept, status.counters, least=2000)
