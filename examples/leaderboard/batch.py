"""The same questions to all scores at once, in plain Spark SQL: what the panes must come to."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row

import millrace as mr

_HOUR = "window(timestamp_micros(at), '1 hour')"

#: Stream -> query over the view ``scores``: key, start and end of the window, values.
QUERIES = {
    "user_scores": f"""
        SELECT user, {_HOUR} AS w, sum(points) FROM scores GROUP BY 1, 2
    """,
    "team_totals": f"""
        SELECT team, {_HOUR} AS w, team, sum(points) FROM scores GROUP BY 1, 2
    """,
    "leaderboard": f"""
        WITH totals AS (
            SELECT {_HOUR} AS w, team, sum(points) AS points FROM scores GROUP BY 1, 2
        ), ranked AS (
            SELECT *, row_number() OVER (PARTITION BY w ORDER BY points DESC, team DESC) AS place
            FROM totals
        )
        SELECT 'all teams', w, transform(
            array_sort(collect_list(struct(place, team, points))), t -> struct(t.team, t.points)
        ) FROM ranked WHERE place <= 3 GROUP BY w
    """,
    "sessions": """
        SELECT user, session_window(timestamp_micros(at), '5 minutes') AS w,
               user, min(at), max(at), count(*)
        FROM scores GROUP BY 1, 2
    """,
    "session_lengths": """
        WITH sessions AS (
            SELECT session_window(timestamp_micros(at), '5 minutes') AS s,
                   (max(at) - min(at)) DIV 1000000 AS seconds
            FROM scores GROUP BY user, 1
        )
        SELECT 'everybody', window(s.end - INTERVAL 1 MICROSECOND, '1 hour') AS w, avg(seconds)
        FROM sessions GROUP BY 2
    """,
    "robots": """
        SELECT user, session_window(timestamp_micros(at), '5 minutes') AS w,
               user, min(at), max(at), count(*)
        FROM scores GROUP BY 1, 2 HAVING max(at) - min(at) >= 7201000000
    """,
}


def answers(scores: DataFrame) -> dict[str, list[tuple]]:
    """Return for each stream what holds in the end, as `results.net` does.

    Args:
        scores: All of them, a bounded DataFrame with the columns of `game.SCHEMA`.
    """
    scores.createOrReplaceTempView("scores")
    return {
        stream: sorted(map(_flat, scores.sparkSession.sql(query).collect()))
        for stream, query in QUERIES.items()
    }


def _flat(row: Row) -> tuple:
    """Return the key, start and end of the window in microseconds, and the values."""
    key, window, *values = row
    return (key, *(round(at.timestamp() * mr.SECOND) for at in window), *map(_plain, values))


def _plain(value: object) -> object:
    if isinstance(value, Row):
        return tuple(value)
    return tuple(map(_plain, value)) if isinstance(value, list) else value
