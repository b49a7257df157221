"""The live leaderboard without Spark and Kafka: its pipeline, its reader and what it shows."""

from __future__ import annotations

import io
import itertools
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

import millrace as mr
from millrace_examples.leaderboard.realtime import picture, screen
from millrace_examples.leaderboard.realtime.kill import Kill
from millrace_examples.leaderboard.realtime.pipeline import (
    STREAMS,
    WINDOW_US,
    Score,
    Streak,
    build,
)
from millrace_examples.leaderboard.realtime.player import Play
from millrace_examples.leaderboard.realtime.reports import Reports, signed

SECOND = mr.SECOND
BEGIN = 1_800_000_000 * SECOND


@pytest.fixture(scope="module")
def played() -> pd.DataFrame:
    return Play("", "", BEGIN, seconds=40, rate=20).scores()


class Game:
    """The pipeline in the Harness, through a game in steps of a tenth of a second.

    Attributes:
        outputs: By stream.
        messages: Stream, id and value of what a sink of Kafka's would send, and when that arrives.
    """

    def __init__(self, played: pd.DataFrame) -> None:
        self.messages: list[tuple[str, bytes, bytes, int]] = []
        self._now_us = BEGIN
        pipeline = build(sink=lambda stream: mr.sinks.Function(partial(self._send, stream)))
        with mr.testing.Harness(pipeline) as h:
            newest = 0
            for _, some in itertools.groupby(played.itertuples(), lambda r: r.arrived // 100_000):
                scores = [
                    Score(row.user, row.team, row.points, row.at, row.arrived) for row in some
                ]
                self._now_us = scores[-1].sent
                h.advance_clock(self._now_us)
                h.inject("scores", [(score, score.at) for score in scores])
                newest = max(newest, *(score.at for score in scores))
                h.advance_watermark("scores", newest - SECOND)
            h.advance_clock(BEGIN + 60 * SECOND)
            h.advance_watermark("scores", mr.MAX_TIMESTAMP)
            self.outputs = {stream: h.outputs(stream) for stream in STREAMS}

    def _send(self, stream: str, rows: Any) -> None:
        for row in rows.to_pylist():
            _, _, record_id = (row.pop(name) for name in ("_key", "_timestamp", "_id"))
            self.messages.append((stream, record_id, signed(row), self._now_us + 20_000))


@pytest.fixture(scope="module")
def game(played: pd.DataFrame) -> Game:
    return Game(played)


@pytest.fixture
def reports(game: Game) -> Reports:
    """What a reader has of it to whom each message came twice."""
    reports = Reports()
    for message in game.messages:
        for _ in range(2):
            reports.take(*message)
    return reports


def net(outputs: list[Any]) -> dict[Any, Any]:
    """Return (key, start of window) -> what is left when retractions are taken out."""
    left: Counter[Any] = Counter()
    for out in outputs:
        value = tuple(out.value) if isinstance(out.value, list) else out.value
        left[out.key, out.pane.window.start, value] += -1 if out.pane.retraction else 1
    assert set(left.values()) <= {0, 1}
    return {(key, start): value for (key, start, value), count in left.items() if count}


def test_totals_and_boards_come_to_what_plain_python_says(played: pd.DataFrame, game: Game) -> None:
    plain: Counter[tuple[str, int]] = Counter()
    for row in played.itertuples():
        plain[row.team, row.at // WINDOW_US * WINDOW_US] += row.points
    totals = net(game.outputs["team_totals"])
    assert {slot: total.points for slot, total in totals.items()} == plain
    assert {out.pane.timing for out in game.outputs["team_totals"]} == {mr.EARLY, mr.LATE}

    boards = net(game.outputs["leaderboard"])
    assert {start for _, start in boards} == {start for _, start in plain}
    for (_, start), board in boards.items():
        best = sorted(((n, team) for (team, of), n in plain.items() if of == start), reverse=True)
        assert [(total.points, total.team) for total in board] == best[:3]


def test_a_total_is_reported_at_each_score_and_says_when_that_was_sent(
    played: pd.DataFrame, game: Game
) -> None:
    kept = [out for out in game.outputs["team_totals"] if not out.pane.retraction]
    assert {out.value.sent for out in kept} == set(played["arrived"])


def test_a_streak_is_over_after_two_seconds_of_the_wall_clock() -> None:
    with mr.testing.Harness(build()) as h:
        for at_us, points in ((0, 3), (1_900_000, 4), (3_900_000, 5)):
            h.advance_clock(BEGIN + at_us)
            h.inject("scores", [(Score("ann", "Otters", points, BEGIN, BEGIN), BEGIN)])
        assert [out.value for out in h.outputs("streaks")] == [Streak("ann", 7, 2)]
        h.advance_clock(BEGIN + 5_900_000)
        assert h.outputs("streaks")[-1].value == Streak("ann", 5, 1)


def test_the_reader_drops_what_comes_again_and_finds_nothing_wrong(
    played: pd.DataFrame, game: Game, reports: Reports
) -> None:
    assert reports.wrong(played) == []
    assert reports.again == len(game.messages)
    assert reports.worker == os.getpid()


@pytest.mark.parametrize(
    ("stream", "said"),
    [("team_totals", "totals"), ("leaderboard", "leaderboards"), ("streaks", "streaks")],
)
def test_the_reader_finds_a_report_that_came_with_another_id(
    played: pd.DataFrame, game: Game, reports: Reports, stream: str, said: str
) -> None:
    _, _, value, _ = next(message for message in game.messages if message[0] == stream)
    reports.take(stream, b"another", value, BEGIN)
    (wrong,) = reports.wrong(played)
    assert said in wrong


def test_the_reader_finds_a_score_that_is_missing(played: pd.DataFrame, reports: Reports) -> None:
    # Of its team's total, of its player's streaks, and of the board, if its team is on it.
    assert len(reports.wrong(pd.concat([played, played.tail(1)]))) == 3


def report(reports: Reports, at_us: int) -> None:
    """Have a total arrive ten milliseconds after its score was sent."""
    columns = {
        "team": "Otters",
        "points": 1,
        "sent": at_us - 10_000,
        "_window_start": "2026-11-22T14:00:00Z",
        "_pane_timing": "EARLY",
        "_retraction": False,
    }
    reports.take("team_totals", str(at_us).encode(), signed(columns), at_us)


def test_the_kill_is_seen_with_the_time_that_it_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = list[tuple[int, int]]()
    monkeypatch.setattr(os, "kill", lambda *which: killed.append(which))
    reports = Reports()
    kill = Kill(reports, BEGIN + 2 * SECOND)
    kill.look(BEGIN + 2 * SECOND)
    assert killed == []  # nobody has sent anything

    for tenth in range(21):
        report(reports, BEGIN + tenth * SECOND // 10)
    kill.look(BEGIN + 2 * SECOND - 1)
    assert (killed, kill.words(BEGIN)) == ([], "")
    kill.look(BEGIN + 2 * SECOND)
    kill.look(BEGIN + 3 * SECOND)
    assert killed == [(os.getpid(), signal.SIGKILL)]

    report(reports, BEGIN + 2 * SECOND + 1000)  # from another worker
    assert kill.words(BEGIN + 4 * SECOND).endswith("no report for 2.0 s")
    for tenth in range(60, 90):
        report(reports, BEGIN + tenth * SECOND // 10)
    assert kill.words(BEGIN + 9 * SECOND).endswith("reports came again after 4.0 s")
    assert kill.resumed_us == BEGIN + 6 * SECOND


def test_what_is_shown(played: pd.DataFrame, reports: Reports, tmp_path: Path) -> None:
    sent_us, kill = played["arrived"].to_numpy(), Kill(Reports(), BEGIN)
    moment = screen.look(reports, sent_us, BEGIN, BEGIN + 5 * SECOND, "a note")
    scores = (sent_us < BEGIN + 5 * SECOND).sum() / 5
    assert (moment.second, moment.scores) == (5, scores)

    printed = io.StringIO()
    Console(file=printed, width=100).print(screen.view(moment))
    best = moment.board.columns["value"][0]  # type: ignore[union-attr]
    for text in (printed.getvalue(), screen.line(moment)):
        assert f"{best['team']}" in text
        assert f"{best['points']:,}" in text
        assert "latency p50" in text
        assert "a note" in text

    assert screen.summary(reports, played, kill)[0].startswith(f"{len(played):,} scores of")
    picture.draw(reports, BEGIN, kill, tmp_path)
    assert (tmp_path / picture.FILE).read_bytes().startswith(b"\x89PNG")
