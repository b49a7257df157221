"""Many transcripts in one run: each sees its steps in order, and no other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.testing import Transcript, TranscriptMismatch, play, read_transcripts
from millrace.testing.timetable import Timetable
from tests.transcripts.asking import NAMES

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"


def read(folder: str) -> list[Transcript]:
    return read_transcripts(TRANSCRIPTS / folder, names=NAMES)


def transcript(*steps: dict[str, Any], **settings: Any) -> Transcript:
    return Transcript.of({"name": "t", **settings, "steps": list(steps)})


def run(timetable: Timetable) -> list[list[mr.testing.Output]]:
    """Run a timetable in a Harness, and return the panes of each epoch."""
    found = []
    with mr.testing.Harness(timetable.pipeline(), intervals=1) as h:
        for epoch in timetable.epochs:
            before = len(h.outputs("panes"))
            h.advance_clock(epoch.clock_us)
            for stream in timetable.streams:
                lines = [(line, at) for where, line, at in epoch.lines if where == stream]
                if lines:
                    h.inject(stream, lines)
            for stream, to in epoch.low_watermarks.items():
                h.advance_watermark(stream, to)
            for percentile, known in epoch.percentiles.items():
                for stream, to in known.items():
                    h.advance_watermark(stream, to, percentile=percentile)
            if epoch.crash:
                h.crash()
            found.append(h.outputs("panes")[before:])
    return found


def test_side_by_side_transcripts_do_what_they_do_alone() -> None:
    right, wrong = read(".") + read("figures"), read("wrong")
    timetable = Timetable(right + wrong)

    executors = timetable.played(run(timetable))

    for each, executor in zip(right, executors[: len(right)], strict=True):
        play(each, executor)
    for each, executor in zip(wrong, executors[len(right) :], strict=True):
        with pytest.raises(TranscriptMismatch):
            play(each, executor)


def test_an_epoch_costs_all_of_them_once() -> None:
    alone = [len(Timetable([each]).epochs) for each in read(".")]

    assert len(Timetable(read(".")).epochs) < sum(alone) / 3


def test_the_clock_waits_for_everybody() -> None:
    early = transcript({"clock": 5}, {"records": {"a": [1]}})
    late = transcript({"records": {"a": [1]}}, {"records": {"a": [2]}}, {"clock": 7})
    clocks = [(epoch.clock_us, len(epoch.lines)) for epoch in Timetable([early, late]).epochs]

    assert clocks == [(0, 0), (0, 1), (0, 1), (5, 0), (5, 1), (7, 0)]


def test_records_that_may_be_in_other_batches_come_with_the_clock_before_them() -> None:
    steps = [{"clock": 5}, {"records": {"a": [1]}}, {"records": {"a": [2]}}]
    together, apart = transcript(*steps, rebatch=True), transcript(*steps)

    for each, expected in ((together, [0, 1, 1]), (apart, [0, 0, 1, 1])):
        assert [len(epoch.lines) for epoch in Timetable([each]).epochs] == expected


def test_low_watermarks_move_when_all_that_share_them_wait() -> None:
    steps = [{"records": {"a": [1]}}, {"records": {"a": [2]}}, {"watermark": 10}]
    quick = transcript({"watermark": 9}, {"panes": []}, {"records": {"a": [3]}}, {"watermark": 11})
    timetable = Timetable([quick, transcript(*steps)])

    assert timetable.streams == ["elements-0"]
    assert [(epoch.low_watermarks, len(epoch.lines)) for epoch in timetable.epochs] == [
        ({}, 0),
        ({}, 1),
        ({}, 1),
        ({"elements-0": 9}, 0),
        ({}, 1),
        ({"elements-0": 10}, 0),
        ({"elements-0": 11}, 0),
    ]


def test_a_stream_is_shared_by_those_with_the_same_low_watermarks_at_the_same_clock() -> None:
    first = transcript({"clock": 5}, {"watermark": 10}, {"clock": 7})
    same = transcript({"clock": 4}, {"clock": 5}, {"watermark": 10})
    other = transcript({"clock": 4}, {"watermark": 10}, {"clock": 5})
    without = transcript({"clock": 4})
    timetable = Timetable([first, same, other, without])

    assert [lane.stream for lane in timetable._lanes] == [
        "elements-0", "elements-0", "elements-1", "elements-2",
    ]  # fmt: skip


def test_who_ends_with_records_does_not_see_what_comes_of_a_low_watermark_after_them() -> None:
    ends = transcript({"records": {"a": [1]}}, {"panes": []}, windows="FixedWindows(10)")
    goes_on = transcript({"watermark": 10}, {"panes": []})
    timetable = Timetable([ends, goes_on])

    for each, executor in zip([ends, goes_on], timetable.played(run(timetable)), strict=True):
        play(each, executor)


def test_variants_share_a_grouping_and_see_their_own_records() -> None:
    bridge = next(each for each in read(".") if each.name.startswith("a session of many"))
    variants = [changed for _, changed in bridge.variants(seeds=5)]
    timetable = Timetable(variants)

    assert list(timetable.pipeline().computations) == ["panes-0"]
    for changed, executor in zip(variants, timetable.played(run(timetable)), strict=True):
        play(changed, executor)


def test_a_low_watermark_is_in_the_rows_of_the_epoch_before() -> None:
    timetable = Timetable([transcript({"records": {"a": ["x@3"]}}, {"watermark": 10})])
    read = [
        [(row["key"], row["value"], row["at"], row["low_watermark"]) for row in timetable.rows(n)]
        for n in range(3)
    ]

    assert read == [[], [("a", '"x"', 3, None), ("", "", 0, 10)], []]


def test_a_crash_is_everybodys() -> None:
    steps = [{"records": {"a": [1]}}, {"crash": None}, {"watermark": 10}]
    pane = {"panes": [{"value": 1}]}
    timetable = Timetable(
        [transcript(*steps, pane, windows="FixedWindows(10)"), transcript({"records": {"a": [7]}})]
    )

    assert [epoch.crash for epoch in timetable.epochs] == [False, False, True, False]
    first, _ = timetable.played(run(timetable))
    play(timetable.transcripts[0], first)


def test_a_function_that_changes_keys_cannot_be_shared() -> None:
    def swapped(values: Any) -> Any:
        return values.key_by(str).window(mr.FixedWindows(10)).sum()

    steps = [{"records": {"a": [1, 2]}}, {"watermark": 10}]
    written = {"name": "t", "grouping": "swapped", "steps": steps}
    alone = Timetable([Transcript.of(written, names={"swapped": swapped})])
    twice = Timetable(alone.transcripts * 2)

    (played,) = alone.played(run(alone))
    assert {output.key for output in played.panes()} == {"1", "2"}
    with pytest.raises(mr.MillraceError, match="must not change keys"):
        twice.played(run(twice))
