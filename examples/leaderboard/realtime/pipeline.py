"""The pipeline: team totals and a board by short windows, and streaks by the wall clock.

It is the same on both planes and in the Harness: what makes it real time is ``realtime=True`` where
`demo.py` starts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

import millrace as mr

SCORES_SCHEMA = "user string, team string, points long, at long, sent long"
"""Columns of the scores in Kafka, which are JSON."""

WINDOW_US = 10 * mr.SECOND
STREAK_PAUSE_US = 2 * mr.SECOND


class Score(msgspec.Struct, frozen=True):
    """Points that a player made: when, and when the phone sent them, microseconds since 1970."""

    user: str
    team: str
    points: int
    at: int
    sent: int


class Total(msgspec.Struct, frozen=True):
    """What a team has made in a window; the last of its scores was sent at ``sent``."""

    team: str
    points: int
    sent: int


class Streak(msgspec.Struct, frozen=True):
    """Scores that a player made one after the other, without a pause."""

    user: str
    points: int
    scores: int


class TeamTotal(mr.CombineFn):
    """Adds points up, and keeps the team's name with them."""

    accumulator = Total

    def create(self):
        return Total("", 0, 0)

    def add(self, total, score):
        return self.merge(total, Total(score.team, score.points, score.sent))

    def merge(self, one, other):
        return Total(one.team or other.team, one.points + other.points, max(one.sent, other.sent))

    def extract(self, total):
        return total


def reported(early):
    """Return how windows report: early ones by a trigger, then on time, then each late score."""
    return {
        "trigger": mr.early(early),
        "mode": mr.ACCUMULATING_AND_RETRACTING,
        "allowed_lateness": "1 h",
    }


def team_totals(scores):
    """The total of each team and window, anew with each score."""
    return (
        scores.key_by("team")
        .window(mr.FixedWindows(WINDOW_US), **reported(mr.AfterCount(1)))
        .aggregate(TeamTotal())
        .to("team_totals", format=Total)
    )


def leaderboard(totals):
    """The three best teams of each window, four times a second while it lasts."""
    return (
        totals.key_by(lambda _: "all teams")
        .window(mr.FixedWindows(WINDOW_US), **reported(mr.AtPeriod("250 ms")))
        .top(3, key=lambda total: (total.points, total.team))
        .to("leaderboard", format=list[Total])
    )


class Streaks(mr.Computation):
    """Reports a player's streak when nothing has come for two seconds of the wall clock."""

    inputs = {"scores": mr.by("user")}
    outputs = {"streaks": Streak}
    points = mr.CombiningState(int)
    scores = mr.CombiningState(int)

    def process_record(self, record):
        self.points.add(record.value.points)
        self.scores.add(1)
        self.set_timer("over", at=self.wall_time + STREAK_PAUSE_US, domain=mr.WALL_TIME)

    def process_timer(self, timer):
        self.produce("streaks", Streak(self.key, self.points.get(), self.scores.get()))
        self.points.clear()
        self.scores.clear()


STREAMS = ("team_totals", "leaderboard", "streaks")


def build(source: Any = None, sink: Callable[[str], Any] | None = None) -> mr.Pipeline:
    """Return the pipeline.

    Args:
        source: Injector with the columns of `SCORES_SCHEMA`. None leaves the stream ``"scores"`` to
            be fed by a `millrace.testing.Harness`.
        sink: From the name of a stream of results to its sink; None for no sinks.
    """
    p = mr.Pipeline("live-leaderboard")
    scores = p.inject(
        "scores",
        source,
        timestamp="at",
        # Phones that are online report within milliseconds. The others are late.
        low_watermark=mr.BoundedDelay("1 s"),
        format=Score,
    )
    leaderboard(team_totals(scores))
    p.add(Streaks)
    if sink is not None:
        for stream in STREAMS:
            p.sink(stream, sink(stream))
    return p
