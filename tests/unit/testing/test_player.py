"""Transcripts by users: groupings of their own, and what is said when one does not hold."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

import millrace as mr
from millrace.testing import (
    Transcript,
    TranscriptMismatch,
    play,
    play_on_spark,
    read_transcripts,
    run_on_spark,
)
from millrace.testing.timetable import Timetable


class Score(msgspec.Struct, frozen=True):
    points: int


def totals(scores: Any) -> Any:
    scores = scores.map(lambda value: Score(**value))
    return scores.window(mr.FixedWindows(10)).sum("points").to("totals").map(Score)


class OnRise(mr.Trigger):
    def should_emit(self, element: Any, state: Any) -> tuple[bool, Any]:
        return state is not None and element > state, element


class Double(mr.Computation):
    inputs = {"values": mr.by_key()}
    outputs = {"doubled": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("doubled", 2 * record.value)


def double(values: Any) -> Any:
    values.to("values").pipeline.add(Double)
    return values.pipeline.stream("doubled")


MINUTE = {
    "name": "a minute",
    "grouping": "totals",
    "steps": [
        {
            "records": {
                "red": [{"value": {"points": 5}, "at": 1}, {"value": {"points": 7}, "at": 2}]
            }
        },
        {"watermark": 10},
        {"panes": [{"key": "red", "value": {"points": 12}, "window": [0, 10]}]},
    ],
}
NAMES = {"totals": totals}


def test_a_grouping_of_ones_own_is_played() -> None:
    play(Transcript.of(MINUTE, names=NAMES))


def test_its_variants_run_side_by_side() -> None:
    variants = [each for _, each in Transcript.of(MINUTE, names=NAMES).variants(seeds=3)]

    assert list(Timetable(variants).pipeline().computations) == ["totals"]


def test_a_trigger_of_ones_own_is_named() -> None:
    written = {
        "name": "rises",
        "trigger": "Repeat(OnRise())",
        "steps": [{"records": {"a": ["1@1", "3@2"]}}, {"panes": [{"value": 4}]}],
    }
    play(Transcript.of(written, names={"OnRise": OnRise}))

    with pytest.raises(
        mr.MillraceError, match=r"'OnRise' is not defined.*names={'OnRise': OnRise}"
    ):
        play(Transcript.of(written))


def test_what_comes_outside_of_windows_has_a_value_and_a_timestamp() -> None:
    written = {
        "name": "doubled",
        "grouping": "double",
        "steps": [{"records": {7: ["1@1"]}}, {"panes": [{"value": 2, "timestamp": 1}]}],
    }
    transcript = Transcript.of(written, names={"double": double})
    play(transcript)

    transcript.steps[-1][1][0]["timing"] = "ON_TIME"
    with pytest.raises(mr.MillraceError, match=r"has no 'timing'; it has \['key', 'timestamp'"):
        play(transcript)


@pytest.mark.parametrize(
    ("written", "names", "complaint"),
    [
        ({"grouping": "totals", "windows": "Sessions(10)"}, NAMES, r"Leave out \['windows'\]"),
        ({"grouping": "totals"}, {"totals": lambda _: 5}, "takes a stream and returns one"),
        ({"triggers": "AtWatermark()"}, {}, "has a name, steps, and any of"),
    ],
)
def test_what_is_no_transcript_is_refused(written: Any, names: Any, complaint: str) -> None:
    with pytest.raises(mr.MillraceError, match=complaint):
        play(Transcript.of({"name": "wrong", "steps": [], **written}, names=names))


@pytest.mark.parametrize(
    "step",
    [
        {"records": {"k": ["x@y"]}},
        {"records": {"k": [{"value": 1}]}},
        {"records": {"k": [None]}},
        {"records": [1]},
        {"watermark": "soon"},
        {"watermark": {"x": 1}},
        {"panes": ["x"]},
        {"panes": {"value": 1}},
        {"clock": 5, "crash": None},
        "crash",
    ],
    ids=str,
)
def test_a_step_that_is_none_is_refused_with_its_number(step: Any) -> None:
    with pytest.raises(mr.MillraceError, match=r"'wrong', step 2: .* is not one .*'watermark': ti"):
        Transcript.of({"name": "wrong", "steps": [{"clock": 1}, step]})


@pytest.mark.parametrize("setting", [{"windows": "FixedWindows("}, {"aggregate": "most()"}])
def test_a_setting_that_is_no_expression_is_refused(setting: Any) -> None:
    with pytest.raises(mr.MillraceError, match=r"transcript 'wrong', '.*(FixedW|most)"):
        play(Transcript.of({"name": "wrong", "steps": [], "windows": "FixedWindows(1)", **setting}))


@pytest.mark.parametrize(
    "values", [[{"a": 2}, {"a": 1}], ["x", 1], [None, 1], [[2], [1, 2], {"b": None}]], ids=str
)
def test_grouped_values_have_no_order_whatever_they_are(values: Any) -> None:
    steps: list[Any] = [
        {"records": {"k": [{"value": value, "at": at} for at, value in enumerate(values)]}},
        {"watermark": 10},
    ]
    written = {"name": "grouped", "windows": "FixedWindows(10)", "aggregate": "group()"}
    play(Transcript.of({**written, "steps": [*steps, {"panes": [{"value": values[::-1]}]}]}))
    for wanted in (values[1:], 3, None):
        with pytest.raises(TranscriptMismatch, match="pane 1 of key 'k': value is"):
            play(Transcript.of({**written, "steps": [*steps, {"panes": [{"value": wanted}]}]}))


def test_a_time_in_yaml_needs_no_quotes(tmp_path: Path) -> None:
    file = tmp_path / "times.yaml"
    file.write_text(
        "name: times\nsteps:\n- clock: 12:05:30\n- watermark: 1:00:00\n- watermark: 01:00:00\n"
        "- clock: '12:05:30.5'\n- watermark: {50: 1:00:00.5}\n- records: {a: [5@00:10:00]}\n"
    )
    (times,) = read_transcripts(file)

    noon = 12 * mr.HOUR + 5 * mr.MINUTE + 30 * mr.SECOND
    assert [what for kind, what in times.steps[:-1]] == [
        noon, mr.HOUR, mr.HOUR, noon + mr.SECOND // 2, (50, mr.HOUR + mr.SECOND // 2),
    ]  # fmt: skip
    assert times.steps[-1][1][0].timestamp_us == 10 * mr.MINUTE


def test_a_name_that_two_groupings_would_share_is_refused() -> None:
    by_clock = {**MINUTE, "name": "by the clock", "steps": [{"clock": 5}, *MINUTE["steps"]]}
    both = [Transcript.of(each, names=NAMES) for each in (MINUTE, by_clock)]

    with pytest.raises(mr.MillraceError, match=r"names \['totals'\], and those are named already"):
        Timetable(both).pipeline()


def wrong(*panes: Any) -> Transcript:
    steps = [{"records": {"a": [1, 12], "b": [3]}}, {"watermark": 20}, {"panes": [*panes]}]
    return Transcript.of({"name": "wrong", "windows": "FixedWindows(10)", "steps": steps})


A, LATER, B = {"key": "a", "value": 1}, {"key": "a", "value": 12}, {"key": "b", "value": 3}


@pytest.mark.parametrize(
    ("panes", "difference"),
    [
        ([A, B], "pane 2 of key 'a': found, and not expected"),
        ([A, LATER, LATER, B], "pane 3 of key 'a': expected, and not found"),
        (
            [A, {**LATER, "window": [0, 10]}, B],
            r"pane 2 of key 'a': window is \[10, 20\], expected",
        ),
        ([A, LATER, {**B, "retraction": True}], "pane 1 of key 'b': retraction is False, expected"),
        ([A, LATER], "pane 1 of key 'b': found, and not expected"),
    ],
)
def test_the_first_difference_is_told(panes: Any, difference: str) -> None:
    with pytest.raises(TranscriptMismatch, match=f"(?s)'wrong', step 3:.*{difference}"):
        play(wrong(*panes))


def test_what_was_found_is_told_with_what_was_asked_for() -> None:
    with pytest.raises(TranscriptMismatch) as mismatch:
        play(wrong(A, LATER, {**B, "is_last": False}))

    assert str(mismatch.value).splitlines()[5:] == [
        "  found",
        "    {'key': 'a', 'window': [0, 10], 'value': 1, 'timing': 'ON_TIME', 'is_last': True}",
        "    {'key': 'a', 'window': [10, 20], 'value': 12, 'timing': 'ON_TIME', 'is_last': True}",
        "    {'key': 'b', 'window': [0, 10], 'value': 3, 'timing': 'ON_TIME', 'is_last': True}",
        "  pane 1 of key 'b': is_last is True, expected False",
    ]


def test_what_has_several_looks_is_refused_as_a_batch() -> None:
    with pytest.raises(mr.MillraceError, match=r"\['a minute'\] cannot be played as a batch"):
        play_on_spark(None, Transcript.of(MINUTE, names=NAMES), batch=True)


def test_none_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mr.MillraceError, match="no transcripts"):
        read_transcripts(tmp_path)
    with pytest.raises(mr.MillraceError, match="no transcripts"):
        run_on_spark(None, [])


def test_a_lambda_has_a_module_that_is_none() -> None:
    """Without one, cloudpickle asks all that are imported for it, each time a run starts."""
    made = Transcript.of(MINUTE, names=NAMES)._evaluate("lambda value: value > 3")

    assert made.__module__ == "a transcript"
    assert made.__module__ not in sys.modules
    assert cloudpickle.loads(cloudpickle.dumps(made))(4)
