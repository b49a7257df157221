"""The four steps, each a few lines, and the pipeline that they make together.

`docs/tutorial.md` shows these very lines: a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import millrace as mr

from .records import Score, Session, Total


def user_scores(scores):
    """Step 1: the points of each user and hour."""
    return (
        scores.key_by("user")
        .window(mr.FixedWindows("1 h"), allowed_lateness="1 d")
        .sum("points")
        .to("user_scores")
    )


REFINED = {
    "trigger": mr.early("15 min"),
    "mode": mr.ACCUMULATING_AND_RETRACTING,
    "allowed_lateness": "1 d",
}


class TeamTotal(mr.CombineFn):
    """Adds points up, and keeps the team's name with them."""

    accumulator = Total

    def create(self):
        return Total("", 0)

    def add(self, total, score):
        return self.merge(total, Total(score.team, score.points))

    def merge(self, one, other):
        return Total(one.team or other.team, one.points + other.points)

    def extract(self, total):
        return total


def team_totals(scores):
    """Step 2: the total of each team and hour, while the hour lasts and long after it."""
    return (
        scores.key_by("team")
        .window(mr.FixedWindows("1 h"), **REFINED)
        .aggregate(TeamTotal())
        .to("team_totals", format=Total)
    )


def ranking(total):
    return total.points, total.team


def leaderboard(totals):
    """Step 3: the three best teams of each hour, from the totals as they change."""
    return (
        totals.key_by(lambda _: "all teams")
        .top(3, key=ranking)
        .to("leaderboard", format=list[Total])
    )


class Played(mr.CombineFn):
    """From when to when somebody played, and how many scores it were."""

    accumulator = Session | None

    def create(self):
        return None

    def add(self, session, score):
        return self.merge(session, Session(score.user, score.at, score.at, 1))

    def merge(self, one, other):
        if one is None or other is None:
            return one or other
        first, last = min(one.first, other.first), max(one.last, other.last)
        return Session(one.user, first, last, one.scores + other.scores)

    def extract(self, session):
        return session


def sessions(scores):
    """Step 4: when each user played, by pauses of five minutes."""
    return (
        scores.key_by("user")
        .window(mr.Sessions("5 min"), **REFINED)
        .aggregate(Played())
        .to("sessions", format=Session)
    )


def session_lengths(played):
    """Step 4: how long people play, on average: of the sessions that end in an hour."""
    return (
        played.key_by(lambda _: "everybody")
        .window(mr.FixedWindows("1 h"), **REFINED)
        .mean("seconds")
        .to("session_lengths")
    )


def robots(played):
    """Step 4: nobody plays for two hours without a pause."""
    return played.filter(lambda session: session.seconds > 7200).to("robots")


STREAMS = ("user_scores", "team_totals", "leaderboard", "sessions", "session_lengths", "robots")


def build(source: Any = None, sink: Callable[[str], Any] | None = None) -> mr.Pipeline:
    """Return the pipeline of all four steps.

    Args:
        source: Spark DataFrame with the columns of `Score`. None leaves the stream ``"scores"`` to
            be fed by a `millrace.testing.Harness`.
        sink: From the name of a stream of results to its sink; None for no sinks.
    """
    p = mr.Pipeline("leaderboard")
    scores = p.inject(
        "scores",
        source,
        timestamp="at",
        # Phones report within seconds while they are online. The others are late records.
        low_watermark=mr.BoundedDelay("5 min"),
        format=Score,
    )
    user_scores(scores)
    leaderboard(team_totals(scores))
    played = sessions(scores)
    session_lengths(played)
    robots(played)
    if sink is not None:
        for stream in STREAMS:
            p.sink(stream, sink(stream))
    return p
