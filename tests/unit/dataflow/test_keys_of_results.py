"""``keys=True``: a result has its key and window as fields, whatever engine makes it."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr


class Score(msgspec.Struct, frozen=True):
    team: str
    points: int


class Team(msgspec.Struct, frozen=True):
    team: str
    window_start: dt.datetime
    window_end: dt.datetime
    n: int
    best: int


def second(n: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, 0, 0, n, tzinfo=dt.UTC)


SCORES = [
    (Score("red", 5), 0),
    (Score("red", 7), 3),
    (Score("blue", 2), 4),
    (Score("red", 9), mr.SECOND + 4),
]


def results(declare: Callable[[Any], Any], key: Any = "team", **harness: Any) -> list[Any]:
    """Return the results of the scores, in an order of their own."""
    p = mr.Pipeline("game")
    declare(p.inject("scores", format=Score).key_by(key)).to("results")
    with mr.testing.Harness(p, **harness) as h:
        h.inject("scores", SCORES)
        h.advance_watermark("scores", mr.MAX_TIMESTAMP)
        values = [output.value for output in h.outputs("results")]
    return sorted(values, key=repr)


def row(team: str, start: int, **found: Any) -> dict[str, Any]:
    return {"team": team, "window_start": second(start), "window_end": second(start + 1), **found}


SECONDS = mr.FixedWindows("1 s")


def several(windows: Any) -> Any:
    return windows.aggregate(n=mr.agg.count(), best=mr.agg.max("points"), keys=True)


@pytest.mark.parametrize(
    "windowing",
    [
        pytest.param({}, id="as columns"),
        pytest.param({"allowed_lateness": "1 s"}, id="key by key"),
        pytest.param({"lift": False}, id="not lifted"),
    ],
)
@pytest.mark.parametrize("lift", [False, True])
def test_several_aggregates_have_key_and_window(windowing: Any, lift: bool) -> None:
    found = results(lambda scores: several(scores.window(SECONDS, **windowing)), lift=lift)
    assert found == sorted(
        [
            row("red", 0, n=2, best=7),
            row("blue", 0, n=1, best=2),
            row("red", 1, n=1, best=9),
        ],
        key=repr,
    )
    assert list(found[0]) == ["team", "window_start", "window_end", "n", "best"]


@pytest.mark.parametrize("windowing", [{}, {"allowed_lateness": "1 s"}])
def test_one_aggregate_is_called_value(windowing: Any) -> None:
    found = results(lambda scores: scores.window(SECONDS, **windowing).sum("points", keys=True))
    assert row("red", 0, value=12) in found
    assert len(found) == 3


@pytest.mark.parametrize("windowing", [{}, {"allowed_lateness": "1 s"}])
def test_a_result_that_is_called_value_is_one_of_several(windowing: Any) -> None:
    def named(scores: Any) -> Any:
        return scores.window(SECONDS, **windowing).aggregate(value=mr.agg.count(), keys=True)

    with pytest.raises(mr.MillraceError, match="is an argument of aggregate itself"):
        results(named)


@pytest.mark.parametrize("windowing", [{}, {"allowed_lateness": "1 s"}])
def test_sessions_have_their_own_windows(windowing: Any) -> None:
    found = results(
        lambda scores: scores.window(mr.Sessions("100 ms"), **windowing).count(keys=True)
    )
    (long,) = (each for each in found if each["value"] == 2)
    assert long["team"] == "red"
    assert long["window_end"] - long["window_start"] == dt.timedelta(microseconds=100_003)


def test_windows_without_end_are_no_fields() -> None:
    found = results(lambda scores: scores.window(mr.GlobalWindow()).count(keys=True))
    assert found == [{"team": "blue", "value": 1}, {"team": "red", "value": 3}]


def test_a_key_of_several_fields_is_several_fields() -> None:
    p = mr.Pipeline("game")
    scores = p.inject("scores", format=Score).key_by("team", "points").window(mr.GlobalWindow())
    scores.count(keys=True).to("results")
    with mr.testing.Harness(p) as h:
        h.inject("scores", SCORES[:1])
        h.advance_watermark("scores", mr.MAX_TIMESTAMP)
        assert [each.value for each in h.outputs("results")] == [
            {"team": "red", "points": 5, "value": 1}
        ]


def test_a_key_without_a_name_is_called_key() -> None:
    by_length = results(
        lambda scores: scores.window(mr.GlobalWindow()).count(keys=True),
        key=lambda score: len(score.team),
    )
    assert by_length == [{"key": 3, "value": 3}, {"key": 4, "value": 1}]


@pytest.mark.parametrize("windowing", [{}, {"allowed_lateness": "1 s"}])
def test_rows_are_of_a_class_with_these_fields(windowing: Any) -> None:
    p = mr.Pipeline("game")
    scores = p.inject("scores", format=Score).key_by("team").window(SECONDS, **windowing)
    several(scores).to("teams", format=Team)
    with mr.testing.Harness(p) as h:
        h.inject("scores", SCORES[:1])
        h.advance_watermark("scores", mr.SECOND)
        assert [each.value for each in h.outputs("teams")] == [
            Team("red", second(0), second(1), 1, 5)
        ]


def test_a_class_without_the_key_is_refused() -> None:
    class Best(msgspec.Struct):
        n: int
        best: int

    p = mr.Pipeline("game")
    several(p.inject("scores", format=Score).key_by("team").window(SECONDS)).to("t", format=Best)
    with pytest.raises(mr.MillraceError, match="team, window_start, window_end, n, best cannot"):
        p.build()


def test_a_retraction_takes_back_the_row() -> None:
    p = mr.Pipeline("game")
    scores = p.inject("scores", format=Score).key_by("team")
    rows = (
        scores.window(SECONDS, allowed_lateness="1 s", mode=mr.ACCUMULATING_AND_RETRACTING)
        .sum("points", keys=True)
        .to("results")
    )
    # What goes on with the rows chooses of them by name.
    rows.key_by("team").max("value").to("totals")
    with mr.testing.Harness(p) as h:
        h.inject("scores", SCORES[:1])
        h.advance_watermark("scores", mr.SECOND)
        h.inject("scores", SCORES[1:2])
        told = [(each.value["value"], each.pane.retraction) for each in h.outputs("results")]
        assert told == [(5, False), (5, True), (12, False)]
        assert h.outputs("totals")[-1].value == 12


def test_hot_keys_in_parts_have_their_key() -> None:
    found = results(lambda scores: scores.window(SECONDS).sum("points", fanout=4, keys=True))
    assert row("red", 0, value=12) in found


def types_of(stream: Any) -> dict[str, Any]:
    """Return the types that a sink of a stream would have its columns of."""
    coder: Any = stream.pipeline.build().streams[stream.name].coder
    return dict(coder.inner.fields)


def test_a_keys_type_is_that_of_the_sources_column(tmp_path: Path) -> None:
    p = mr.Pipeline("game")
    files = mr.sources.Files(
        tmp_path, schema="team string, points int, sizes array<int>, at timestamp"
    )
    rows = p.inject("scores", files, timestamp="at", low_watermark=mr.BoundedDelay(0))
    large = rows.filter(lambda row: row["points"] > 3).key_by("team", "points", "sizes")
    types = types_of(large.window(SECONDS).count(keys=True).to("counts"))
    assert list(types.values())[:3] == [str | None, int | None, Any]
    # What a function makes of a value has no columns that anybody knew.
    made = rows.map(lambda row: row).key_by("team").window(SECONDS).count(keys=True).to("made")
    assert types_of(made)["team"] is Any


@pytest.mark.parametrize("fanout", [None, 4])
def test_a_keys_type_is_that_of_the_format(fanout: int | None) -> None:
    p = mr.Pipeline("game")
    scores = p.inject("scores", format=Score).key_by("team", "points")
    types = types_of(scores.window(SECONDS).count(keys=True, fanout=fanout).to("counts"))
    assert types == {
        "team": str,
        "points": int,
        "window_start": dt.datetime,
        "window_end": dt.datetime,
        "value": int,
    }


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda w: w.aggregate(team=mr.agg.count(), keys=True), "would have 'team' twice"),
        (lambda w: w.aggregate(window_end=mr.agg.count(), keys=True), "'window_end' twice"),
    ],
)
def test_names_that_meet_are_refused(declare: Any, message: str) -> None:
    with pytest.raises(mr.MillraceError, match=message):
        results(lambda scores: declare(scores.window(SECONDS)))


def test_a_key_whose_field_is_no_name_is_refused() -> None:
    p = mr.Pipeline("game")
    windows = p.inject("scores", format=dict).key_by("my team").window(SECONDS)
    with pytest.raises(mr.MillraceError, match="the key's field 'my team' cannot be a field"):
        windows.count(keys=True)


def test_a_plan_says_what_a_row_has() -> None:
    p = mr.Pipeline("game")
    several(p.inject("scores", format=Score).key_by("team").window(SECONDS)).to("teams")
    assert "as rows of team, window_start, window_end, n, best" in str(p.explain())
