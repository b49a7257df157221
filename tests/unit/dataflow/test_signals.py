"""Triggers that fire by a stream of signals."""

from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


def harness(trigger: Any, **window: Any) -> Any:
    """Return a Harness of sums by team, with a stream of signals ``now`` that carry the team."""
    p = mr.Pipeline("signals")
    p.inject("now", format=str)
    scores = p.inject("scores", format=tuple[str, int])
    windowed = scores.key_by(lambda score: score[0]).window(trigger=trigger, **window)
    windowed.sum(lambda score: score[1]).to("totals")
    return mr.testing.Harness(p)


def panes(h: Any) -> list[tuple[Any, ...]]:
    return [(o.key, o.value, o.pane.timing.name) for o in h.outputs("totals")]


ON_NOW = mr.OnSignal("now", key=lambda team: team)


def test_a_signal_fires_the_windows_of_its_key_once_and_is_forgotten() -> None:
    with harness(mr.Repeat(ON_NOW), window_fn=mr.FixedWindows(10)) as h:
        h.inject("now", [("red", 0)])
        h.inject("scores", [(("red", 1), 1), (("red", 2), 12), (("blue", 4), 1)])
        assert panes(h) == []

        h.inject("now", [("red", 10**6)])
        h.inject("now", [("red", 0)])
        assert panes(h) == [("red", 1, "EARLY"), ("red", 2, "EARLY")]

        h.inject("scores", [(("red", 8), 1)])
        h.crash()
        h.inject("now", [("red", 0)])
        assert panes(h)[2:] == [("red", 9, "EARLY")]


def test_signals_neither_hold_the_low_watermark_nor_are_late() -> None:
    early = mr.SequenceOf(mr.RepeatUntil(ON_NOW, mr.AtWatermark()), mr.Repeat(mr.AtWatermark()))
    with harness(early, window_fn=mr.FixedWindows(10)) as h:
        h.inject("scores", [(("red", 1), 1)])
        h.inject("now", [("red", 0)])
        h.inject("scores", [(("red", 2), 2)])
        h.advance_watermark("scores", 10)
        assert panes(h) == [("red", 1, "EARLY"), ("red", 3, "ON_TIME")]

        h.inject("now", [("red", 0)])
        assert h.counters("totals").late == 0
        assert "now" not in str(h.explain_watermark("totals"))


def test_sessions_that_merge_still_wait_for_a_signal() -> None:
    with harness(mr.Repeat(ON_NOW), window_fn=mr.Sessions(10)) as h:
        for at_us in (0, 16, 8):
            h.inject("scores", [(("red", 1), at_us)])
        h.inject("now", [("red", 3)])

        assert panes(h) == [("red", 3, "EARLY")]


def test_a_join_fires_by_a_signal() -> None:
    p = mr.Pipeline("join")
    left, right = (p.inject(name, format=int).key_by(lambda n: n) for name in ("l", "r"))
    p.inject("now", format=int).key_by(lambda n: n).to("asked")
    left.window(trigger=mr.Repeat(mr.OnSignal("asked"))).join(right).to("pairs")
    with mr.testing.Harness(p) as h:
        h.inject("l", [(1, 0)])
        h.inject("r", [(1, 0), (2, 0)])
        h.inject("now", [(1, 0), (2, 0)])

        assert [out.value for out in h.outputs("pairs")] == [(1, 1)]


EVERYBODY = mr.OnSignal("now", every_key=True)


def test_a_signal_for_every_key_fires_them_all_those_without_elements_in_the_bundle_too() -> None:
    teams = [f"team {n}" for n in range(20)]
    with harness(mr.Repeat(EVERYBODY), window_fn=mr.FixedWindows(10)) as h:
        h.inject("now", [("", 0)])
        h.inject("scores", [((team, 1), 1) for team in teams])
        assert panes(h) == []

        h.crash()
        h.inject("now", [("", 0), ("", 0)])
        assert sorted(panes(h)) == sorted((team, 1, "EARLY") for team in teams)
        assert h.counters("totals").records == 20 + 4 * 3  # a copy an interval, and no more

        h.inject("scores", [(("team 7", 5), 1)])
        h.inject("now", [("", 0)])
        assert panes(h)[20:] == [("team 7", 6, "EARLY")]


def test_a_key_too_long_to_be_told_is_counted() -> None:
    with harness(mr.Repeat(EVERYBODY), window_fn=mr.FixedWindows(10)) as h:
        h.inject("scores", [(("l" * 200, 1), 1), (("short", 2), 1)])
        h.inject("now", [("", 0)])

        assert panes(h) == [("short", 2, "EARLY")]
        assert h.counters("totals").counted == {"signals_untold": 1}


def test_calls_fire_the_keys_that_they_name_or_all_of_every_grouping_of_the_name() -> None:
    p = mr.Pipeline("calls")
    scores = p.inject("scores", format=tuple[str, int]).key_by(lambda score: score[0])
    for output, window in (("hourly", 60), ("daily", 1440)):
        windowed = scores.window(mr.FixedWindows(window), trigger=mr.Repeat(mr.OnCall("look")))
        windowed.sum(lambda score: score[1]).to(output)
    with mr.testing.Harness(p) as h:

        def fired() -> list[list[tuple[Any, Any]]]:
            return [[(o.key, o.value) for o in h.outputs(name)] for name in ("hourly", "daily")]

        h.inject("scores", [(("red", 1), 1), (("blue", 4), 1), (("green", 2), 1)])
        h.fire("look", "red", "nobody")
        assert fired() == [[("red", 1)], [("red", 1)]]

        h.crash_in_next_epoch(2)
        h.fire("look")
        assert [sorted(each) for each in fired()] == [[("blue", 4), ("green", 2), ("red", 1)]] * 2

        with pytest.raises(PipelineError, match=r"called so; those there are: \['look'\]"):
            h.fire("hourly")


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (lambda: mr.OnSignal(3), "expected the name of a stream"),
        (lambda: mr.OnSignal("now", key=mr.of_record(lambda r: r.key)), "goes by its value"),
        (lambda: mr.OnSignal("now", "team", every_key=True), "for one key, or for every"),
        (lambda: mr.OnCall(""), "expected a name by which it is called"),
        (lambda: ON_NOW, "would be lost. Repeat it"),
        (lambda: mr.Repeat(mr.OnSignal("nwo")), "'nwo', which nobody injects.*Did you mean 'now'"),
        (lambda: mr.Repeat(mr.OnSignal("scores")), "as an input, and beside its inputs"),
        (lambda: mr.Repeat(mr.OnSignal("now")), "takes stream 'now' by key, and.*have none"),
        (
            lambda: mr.Repeat(mr.FirstOf(ON_NOW, mr.OnSignal("now"))),
            "takes signals of stream 'now' by two keys",
        ),
    ],
)
def test_what_is_no_signal_is_refused(trigger: Any, words: str) -> None:
    with pytest.raises(PipelineError, match=f"(?s){words}"):
        harness(trigger())
