"""``mr.early``: the commonest trigger in one word is the trigger of the long form."""

from typing import Any

import pytest

import millrace as mr
from millrace.dataflow.stream import WindowedStream
from millrace.dataflow.windowing import Windowing


def windows(trigger: Any, **more: Any) -> WindowedStream:
    p = mr.Pipeline("shop")
    return (
        p.inject("sales", format=int)
        .key_by(lambda _: "k")
        .window(mr.FixedWindows(100), trigger, **more)
    )


def how(trigger: Any, **more: Any) -> Windowing:
    return windows(trigger, **more).windowing


def long_form(early: mr.Trigger, late: mr.Trigger | None = None) -> mr.Trigger:
    return mr.SequenceOf(
        mr.RepeatUntil(early, mr.AtWatermark()), mr.Repeat(late or mr.AtWatermark())
    )


LATE: dict[str, Any] = {"allowed_lateness": "1 h"}


@pytest.mark.parametrize(
    ("word", "trigger", "mode", "more"),
    [
        (mr.early("5 s"), long_form(mr.AtPeriod("5 s")), mr.ACCUMULATING, {}),
        (mr.early("5 s"), long_form(mr.AtPeriod("5 s")), mr.ACCUMULATING, LATE),
        (mr.early(mr.AfterCount(3)), long_form(mr.AfterCount(3)), mr.ACCUMULATING, {}),
        (
            mr.early("5 s", accumulating=False),
            long_form(mr.AtPeriod("5 s")),
            mr.DISCARDING,
            {},
        ),
        (
            mr.early("5 s", late="1 min"),
            long_form(mr.AtPeriod("5 s"), mr.AtPeriod("1 min")),
            mr.ACCUMULATING,
            LATE,
        ),
        (
            mr.early("5 s", late=mr.AfterCount(10), accumulating=False),
            long_form(mr.AtPeriod("5 s"), mr.AfterCount(10)),
            mr.DISCARDING,
            LATE,
        ),
    ],
)
def test_one_word_is_the_long_form(
    word: Any, trigger: mr.Trigger, mode: Any, more: dict[str, Any]
) -> None:
    assert how(word, **more) == how(trigger, mode=mode, **more)
    assert repr(how(word, **more)) == repr(how(trigger, mode=mode, **more))


def test_retractions_are_the_mode_of_the_window() -> None:
    retracting = how(mr.early("5 s"), mode=mr.ACCUMULATING_AND_RETRACTING)
    assert retracting.mode is mr.ACCUMULATING_AND_RETRACTING


def test_a_plan_says_the_long_form() -> None:
    early = windows(mr.early("5 s")).count().to("counts")
    written = windows(long_form(mr.AtPeriod("5 s"))).count().to("counts")
    assert str(early.pipeline.explain()) == str(written.pipeline.explain())


def panes(trigger: Any, **more: Any) -> list[tuple[int, str]]:
    counts = windows(trigger, allowed_lateness=1_000, **more).sum().to("sums")
    with mr.testing.Harness(counts.pipeline) as h:
        for number, value in enumerate((1, 2, 4)):
            h.inject("sales", [(value, 50)])
            h.advance_clock((number + 1) * 5 * mr.SECOND)
        h.inject("sales", [(8, 60)])
        h.advance_watermark("sales", 100)
        h.inject("sales", [(16, 70), (32, 71)])
        h.inject("sales", [(64, 72)])
        h.advance_clock(60 * mr.SECOND)
        return [(output.value, str(output.pane.timing)) for output in h.outputs("sums")]


@pytest.mark.parametrize("accumulating", [True, False])
@pytest.mark.parametrize("late", [None, "1 min"])
def test_panes_are_those_of_the_long_form(accumulating: bool, late: str | None) -> None:
    word = panes(mr.early("5 s", late=late, accumulating=accumulating))
    again = None if late is None else mr.AtPeriod(late)
    mode = mr.ACCUMULATING if accumulating else mr.DISCARDING
    assert word == panes(long_form(mr.AtPeriod("5 s"), again), mode=mode)
    sums = [1, 3, 7, 15] if accumulating else [1, 2, 4, 8]
    assert word[:4] == [*[(each, "EARLY") for each in sums[:3]], (sums[3], "ON_TIME")]
    # Each bundle of late records, or all of a minute.
    behind = [timing for _, timing in word[4:]]
    assert behind == ["LATE", "LATE"] if late is None else ["LATE"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mr.early(0), "early(every): 0 is no time at all."),
        (lambda: mr.early("5 parsecs"), "early(every): '5 parsecs' is not a duration."),
        (lambda: mr.early("5 s", late=0), "early(late): 0 is no time at all."),
        (lambda: how(mr.early("5 s", late="1 min")), "early(late=...) says when late records"),
        (
            lambda: how(mr.early("5 s", accumulating=False), mode=mr.ACCUMULATING_AND_RETRACTING),
            "early(accumulating=False) and window(mode=ACCUMULATING_AND_RETRACTING)",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(call: Any, message: str) -> None:
    with pytest.raises(mr.MillraceError) as refused:
        call()
    assert str(refused.value).startswith(message)
