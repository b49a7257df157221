"""Combiner lifting on Spark: lifted and unlifted groupings of one run give the same panes."""

from __future__ import annotations

import functools
import random
from typing import Any

import msgspec

import millrace as mr

SECOND = mr.SECOND
WHAT = ("sums", "counts", "letters")


class Score(msgspec.Struct, frozen=True):
    team: str
    points: int | None


def pipeline(sources: dict[str, Any]) -> mr.Pipeline:
    """Sum and count by team, twice: lifted, and not. All panes are told on one stream."""
    p = mr.Pipeline("lifting")
    p.dead_letter("letters")
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": "1 h"}
    made = []
    for stream, source in sources.items():
        scores = p.inject(
            stream, source, timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Score
        )
        by_team = scores.key_by("team")
        for lift, prefix in ((None, f"{stream} lifted"), (False, f"{stream} plain")):
            fixed = by_team.window(mr.FixedWindows("10 s"), lift=lift, **how)
            made.append(fixed.sum("points").to(f"{prefix} sums"))
            fixed = by_team.window(mr.FixedWindows("10 s"), lift=lift, **how)
            made.append(fixed.sum(lambda score: len(score.team)).to(f"{prefix} letters"))
            sessions = by_team.window(mr.Sessions("400 ms"), lift=lift, **how)
            made.append(sessions.count().to(f"{prefix} counts"))
    told = [each.map(functools.partial(_told, each.name)) for each in made]
    told[0].flatten(*told[1:]).to("told", format=str)
    return p


def _told(name: str, value: int) -> str:
    return f"{name}: {value}"


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
    """A sink that keeps the panes of each grouping and window, in order."""

    def __init__(self) -> None:
        self.found: dict[str, dict[Any, list[Any]]] = {}

    def __call__(self, rows: Any, epoch: int) -> None:
        for row in rows.toArrow().to_pylist():
            del row["_id"]
            name, _, row["value"] = row["value"].partition(": ")
            window = row.pop("_key"), row.get("_window_start"), row.get("_window_end")
            self.found.setdefault(name, {}).setdefault(window, []).append(row)


def check(panes: Panes, counters: Any, stream: str, least: int) -> None:
    for what in WHAT:
        lifted, plain = counters[f"{stream} lifted {what}"], counters[f"{stream} plain {what}"]
        assert lifted.counted.pop("lifted") > least
        assert len(panes.found[f"{stream} plain {what}"]) > 20
        assert panes.found[f"{stream} lifted {what}"] == panes.found[f"{stream} plain {what}"]
        assert (lifted.records, lifted.late) == (plain.records, plain.late)
        assert (lifted.dead_letters, lifted.counted) == (plain.dead_letters, plain.counted)


def test_lifted_panes_on_spark_are_the_unlifted_ones(tools: Any) -> None:
    feed = tools.feed("team string, points long, at timestamp")
    for batch in batches():
        feed.add(*batch)
    p = pipeline({"native": feed.stream_one_by_one, "python": feed.stream_one_by_one})
    panes = Panes()
    p.sink("told", panes)
    p.sink("python", tools.Kept())  # which takes that source away from Spark

    status = tools.run(p)

    for stream in ("native", "python"):
        check(panes, status.counters, stream, least=1500)
        assert status.injected[stream] == 3300
        assert status.counters[f"{stream} plain sums"].late > 0
        assert status.counters[f"{stream} plain sums"].dead_letters > 0


def test_a_batch_is_lifted_too(tools: Any, spark: Any) -> None:
    feed = tools.feed("team string, points long, at timestamp")
    for batch in batches():
        feed.add(*batch)
    p = pipeline({"scores": feed.bounded})
    panes = Panes()
    p.sink("told", panes)

    status = p.run_batch(spark)

    check(panes, status.counters, "scores", least=2000)
