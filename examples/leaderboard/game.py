"""The game: who played when, and when we heard of it. Made up, the same for the same seed.

Phones report a score some seconds after it was made. One session in ten is played offline, on a
train or a plane; its scores arrive together, up to an hour and a half after its end. Two players
are robots, which score every half minute all evening.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

import millrace as mr

SCHEMA = "user STRING, team STRING, points BIGINT, at BIGINT, arrived BIGINT"
"""Columns of the files, as Spark writes them; ``at`` and ``arrived`` are microseconds."""

START = round(dt.datetime(2026, 11, 20, 18, tzinfo=dt.UTC).timestamp()) * mr.SECOND
"""A Friday evening."""

TEAMS = ("Badgers", "Falcons", "Herons", "Lynxes", "Otters", "Ravens")

PAUSE_S, DELAY_S, SESSION_S = 20.0, 6.0, 600.0
"""Medians: between two scores, of a report's delay, of a session's length, in seconds."""

OFFLINE_SHARE = 0.1
UPLOAD_S = (600, 5400)
"""How long after its end an offline session is uploaded, from and to."""

ROBOTS = {"r2d2": "Otters", "hal9000": "Ravens"}
ROBOT_PAUSE_S = 30.0
OVERTIME_S = 900
"""For how long the robots go on when no new sessions begin, in seconds."""


@dataclass(frozen=True)
class Game:
    """How large the game is.

    Attributes:
        players: How many people play, robots apart.
        hours: For how long new sessions begin; the last of them go on.
        seed: The same seed makes the same game.
    """

    players: int = 240
    hours: float = 3
    seed: int = 7


def play(game: Game) -> pd.DataFrame:
    """Return the scores in order of arrival, with the columns of `SCHEMA`."""
    draw = np.random.default_rng(game.seed)
    end_s = game.hours * 3600
    parts = [
        _session(draw, f"player{number:03}", TEAMS[number % len(TEAMS)], end_s)
        for number in range(game.players)
        for _ in range(draw.integers(1, 4))
    ]
    for robot, team in ROBOTS.items():
        at = np.arange(draw.uniform(0, ROBOT_PAUSE_S), end_s + OVERTIME_S, ROBOT_PAUSE_S)
        parts.append(_scores(draw, robot, team, at, at + 1))
    scores = pd.concat(parts).astype({"points": "int64", "at": "int64", "arrived": "int64"})
    return scores.sort_values(["arrived", "user", "at"], ignore_index=True)


def _session(draw: np.random.Generator, user: str, team: str, end_s: int) -> pd.DataFrame:
    start = draw.uniform(0, end_s)
    length = SESSION_S * draw.lognormal(0, 0.6)
    at = start + np.cumsum(draw.exponential(PAUSE_S, int(length / PAUSE_S) + 1))
    if draw.random() < OFFLINE_SHARE:
        uploaded = at.max() + draw.uniform(*UPLOAD_S)
        return _scores(draw, user, team, at, np.full(len(at), uploaded))
    return _scores(draw, user, team, at, at + DELAY_S * draw.lognormal(0, 1, len(at)))


def _scores(
    draw: np.random.Generator, user: str, team: str, at_s: np.ndarray, arrived_s: np.ndarray
) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "user": user,
            "team": team,
            "points": draw.geometric(0.1, len(at_s)),
            "at": START + (at_s * mr.SECOND).astype("int64"),
            "arrived": START + (arrived_s * mr.SECOND).astype("int64"),
        }
    )


def write(scores: pd.DataFrame, directory: Path, until_us: int) -> None:
    """Write scores as one Parquet file of what arrived until then; it appears whole.

    Args:
        scores: Rows of `play`. Without any, no file is written.
        directory: Where to.
        until_us: When the last of them arrived, at the latest; it names the file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if scores.empty:
        return
    unfinished = directory / f"_{until_us}"  # Spark skips names with an underscore
    scores.to_parquet(unfinished, index=False)
    unfinished.rename(directory / f"{until_us}.parquet")
