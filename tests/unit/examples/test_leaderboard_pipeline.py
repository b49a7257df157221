"""The leaderboard example in the Harness: its four steps, and a small evening as a whole."""

import inspect
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace_examples.leaderboard import game, pipeline, records
from millrace_examples.leaderboard.pipeline import build
from millrace_examples.leaderboard.records import Score, Session, Total

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial.md"
MINUTE = mr.MINUTE


def score(user: str, points: int, minute: int, team: str = "Otters") -> tuple[Score, int]:
    at = game.START + minute * MINUTE
    return Score(user, team, points, at), at


@pytest.fixture
def h() -> Any:
    with mr.testing.Harness(build()) as harness:
        harness.advance_clock(game.START)
        yield harness


def complete(h: mr.testing.Harness, minute: int) -> None:
    h.advance_watermark("scores", game.START + minute * MINUTE)


def test_step_1_replaces_a_users_score_when_a_late_one_comes(h: Any) -> None:
    h.inject("scores", [score("ann", 5, 50), score("ann", 3, 10), score("bob", 1, 61)])
    complete(h, 60)
    h.inject("scores", [score("ann", 2, 30)])

    panes = [(out.key, out.value, out.pane.timing) for out in h.outputs("user_scores")]
    assert panes == [("ann", 8, mr.ON_TIME), ("ann", 10, mr.LATE)]


def test_step_2_has_early_on_time_and_late_totals_each_taking_one_back(h: Any) -> None:
    h.inject("scores", [score("ann", 5, 1)])
    h.advance_clock(game.START + 15 * MINUTE)
    h.inject("scores", [score("bob", 3, 20)])
    complete(h, 60)
    h.inject("scores", [score("ann", 2, 30)])

    panes = [
        (out.value.points, out.pane.timing, out.pane.retraction) for out in h.outputs("team_totals")
    ]
    assert panes == [
        (5, mr.EARLY, False),
        (5, mr.EARLY, True),
        (8, mr.ON_TIME, False),
        (8, mr.ON_TIME, True),
        (10, mr.LATE, False),
    ]


def test_step_3_a_team_that_is_overtaken_late_leaves_the_board(h: Any) -> None:
    teams = ["Otters", "Ravens", "Lynxes", "Herons"]
    h.inject("scores", [score("x", 9 - n, n, team) for n, team in enumerate(teams)])
    complete(h, 60)
    h.inject("scores", [score("x", 4, 30, "Herons")])

    first, taken_back, last = h.outputs("leaderboard")
    assert [total.team for total in first.value] == ["Otters", "Ravens", "Lynxes"]
    assert (taken_back.value, taken_back.pane.retraction) == (first.value, True)
    assert last.value == [Total("Herons", 10), Total("Otters", 9), Total("Ravens", 8)]


def test_step_4_a_late_score_joins_two_sessions_and_the_mean_follows(h: Any) -> None:
    h.inject("scores", [score("ann", 1, minute) for minute in (0, 3, 9, 12)])
    complete(h, 60)
    assert [out.value.seconds for out in h.outputs("sessions")] == [180, 180]
    h.inject("scores", [score("ann", 1, 6)])

    *taken_back, joined = h.outputs("sessions")[2:]
    assert [(out.value.seconds, out.pane.retraction) for out in taken_back] == [(180, True)] * 2
    assert joined.value == Session("ann", game.START, game.START + 12 * MINUTE, 5)
    assert [out.value for out in h.outputs("session_lengths")] == [180, 180, 720]


def test_step_4_a_robot_is_noticed_while_it_plays(h: Any) -> None:
    h.inject("scores", [score("r2d2", 1, minute) for minute in range(0, 122, 2)])
    h.inject("scores", [score("ann", 1, minute) for minute in range(0, 120, 4)])
    h.advance_clock(game.START + 15 * MINUTE)
    assert h.outputs("robots") == []  # two hours are not more than two hours

    h.inject("scores", [score("r2d2", 1, 122)])
    h.advance_clock(game.START + 30 * MINUTE)
    assert [(out.key, out.pane.timing) for out in h.outputs("robots")] == [("r2d2", mr.EARLY)]


def net(outputs: list[Any]) -> list[Any]:
    """What is left when retractions are taken out."""
    left: Counter[Any] = Counter()
    for out in outputs:
        value = tuple(out.value) if isinstance(out.value, list) else out.value
        left[out.key, out.pane.window, value] += -1 if out.pane.retraction else 1
    assert set(left.values()) <= {0, 1}
    return [slot for slot, count in left.items() if count]


def test_a_whole_evening_comes_to_what_plain_python_says(h: Any) -> None:
    scores = [
        (Score(row.user, row.team, row.points, row.at), row.arrived)
        for row in game.play(game.Game(players=24, hours=1)).itertuples()
    ]
    newest = 0
    quarter = 15 * MINUTE
    for arrived, some in itertools.groupby(scores, key=lambda pair: pair[1] // quarter):
        values = [value for value, _ in some]
        newest = max(newest, *(value.at for value in values))
        h.advance_clock((arrived + 1) * quarter - MINUTE)
        h.inject("scores", [(value, value.at) for value in values])
        h.advance_watermark("scores", newest - 5 * MINUTE)
        h.advance_clock((arrived + 1) * quarter)
    h.advance_watermark("scores", mr.MAX_TIMESTAMP)

    plain: Counter[Any] = Counter()
    for value, _ in scores:
        hour = value.at // mr.HOUR * mr.HOUR
        plain[value.team, mr.Window(hour, hour + mr.HOUR)] += value.points
    found = {(team, window): total.points for team, window, total in net(h.outputs("team_totals"))}
    assert found == plain
    timings = {out.pane.timing for out in h.outputs("team_totals")}
    assert timings == {mr.EARLY, mr.ON_TIME, mr.LATE}

    boards = {window: board for _, window, board in net(h.outputs("leaderboard"))}
    for window, board in boards.items():
        of_hour = [(n, team) for (team, other), n in plain.items() if other == window]
        best = sorted(of_hour, reverse=True)[:3]
        assert [(total.points, total.team) for total in board] == best
    assert h.counters("team_totals").counted == {}  # nothing was dropped


def test_a_seed_is_a_game() -> None:
    small = game.Game(players=5, hours=1)
    assert game.play(small).equals(game.play(small))
    assert not game.play(small).equals(game.play(game.Game(players=5, hours=1, seed=8)))


@pytest.mark.parametrize(
    "shown",
    [
        records.Score,
        records.Total,
        records.Session,
        pipeline.user_scores,
        pipeline.TeamTotal,
        pipeline.team_totals,
        pipeline.ranking,
        pipeline.leaderboard,
        pipeline.Played,
        pipeline.sessions,
        pipeline.session_lengths,
        pipeline.robots,
    ],
    ids=lambda shown: shown.__name__,
)
def test_the_tutorial_shows_the_code_that_runs(shown: Any) -> None:
    assert inspect.getsource(shown) in TUTORIAL.read_text()


def test_the_tutorial_shows_the_trigger_that_runs() -> None:
    source = inspect.getsource(pipeline)
    begin, end = source.index("REFINED ="), source.index("class TeamTotal")
    assert source[begin:end].strip() in TUTORIAL.read_text()
