"""fanout=: parts of a key are combined by themselves, and the results are those of the key."""

from typing import Any

import pytest

import millrace as mr
from millrace.dataflow.aggregations import Group
from millrace.model.errors import PipelineError
from millrace.model.stream import Spread, by


class Longest(mr.CombineFn):
    accumulator = str

    def create(self) -> str:
        return ""

    def add(self, accumulator: str, value: str) -> str:
        return max(accumulator, value, key=len)

    def merge(self, accumulator: str, other: str) -> str:
        return self.add(accumulator, other)

    def extract(self, accumulator: str) -> str:
        return accumulator


def pipeline(fanout: int | None, window_fn: mr.WindowFn, **how: Any) -> mr.Pipeline:
    p = mr.Pipeline("hot")
    stream = p.inject("elements", format=dict).key_by("key")
    stream.window(window_fn, **how).sum("value", fanout=fanout).to("sums")
    return p


def hot(start: int, stop: int) -> list[Any]:
    return [({"key": "ab"[n % 10 == 0], "value": n}, n) for n in range(start, stop)]


def panes(p: mr.Pipeline) -> list[Any]:
    with mr.testing.Harness(p) as h:
        h.inject("elements", hot(0, 60))
        h.advance_watermark("elements", 30)
        h.crash()
        h.inject("elements", hot(10, 40))
        h.advance_clock(100)
        h.inject("elements", hot(25, 70))
        h.advance_watermark("elements", mr.MAX_TIMESTAMP)
        found = [(out.key, out.value, out.timestamp, out.pane) for out in h.outputs("sums")]
    return sorted(found, key=lambda each: (each[0], each[3].window.start or 0))


@pytest.mark.parametrize(
    "window_fn",
    [
        mr.FixedWindows(20),
        mr.FixedWindows(20, phase_shift=True),
        mr.SlidingWindows(20, 10),
        mr.Sessions(3),
        mr.GlobalWindow(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("mode", [mr.DISCARDING, mr.ACCUMULATING_AND_RETRACTING], ids=repr)
def test_the_panes_are_those_of_the_whole_key(window_fn: mr.WindowFn, mode: Any) -> None:
    trigger = mr.SequenceOf(
        mr.RepeatUntil(mr.AtPeriod(50), mr.AtWatermark()), mr.Repeat(mr.AtWatermark())
    )
    how = {"mode": mode, "trigger": trigger, "allowed_lateness": 1000}

    assert panes(pipeline(8, window_fn, **how)) == panes(pipeline(None, window_fn, **how))


def test_a_hot_key_goes_to_several_places() -> None:
    with mr.testing.Harness(pipeline(8, mr.FixedWindows(100))) as h:
        h.inject("elements", [({"key": "hot", "value": 1}, n) for n in range(100)])
        parts, sums = h.counters("sums.parts"), h.counters("sums")

    assert parts.keys == 8
    assert parts.records == sums.counted["lifted"] == 100
    assert sums.keys == 1


def test_a_part_sends_what_overlaps_of_a_session_as_one() -> None:
    with mr.testing.Harness(pipeline(4, mr.Sessions(3))) as h:
        h.inject("elements", [({"key": "hot", "value": 1}, n) for n in range(100)])
        sums = h.counters("sums")

        # Each part has every fourth element or so, and some of these overlap.
        assert sums.counted["lifted"] == 100
        assert sums.records < 70
        h.advance_watermark("elements", mr.MAX_TIMESTAMP)
        assert [(out.value, out.pane.window) for out in h.outputs("sums")] == [
            (100, mr.Window(0, 102))
        ]


def test_what_cannot_be_merged_in_a_part_is_refused_where_the_parts_meet() -> None:
    p = pipeline(2, mr.Sessions(30))
    p.dead_letter("letters")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("elements", [({"key": "hot", "value": 2**63}, n) for n in range(16)])
        h.inject("elements", [({"key": "hot", "value": 1}, n) for n in range(16, 20)])
        h.advance_watermark("elements", mr.MAX_TIMESTAMP)

        assert [out.value for out in h.outputs("sums")] == [2**63 + 4]
        assert {letter.value.computation for letter in h.outputs("letters")} == {"sums"}


def test_retractions_are_taken_out_whatever_part_they_come_to() -> None:
    p = mr.Pipeline("net")
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": 100}
    teams = p.inject("scores", format=dict).key_by("team").window(mr.FixedWindows(10), **how)
    totals = teams.sum("points").to("totals")
    totals.key_by(lambda _: "all").window(mr.FixedWindows(10), **how).count(fanout=4).to("n")
    with mr.testing.Harness(p) as h:
        h.inject("scores", [({"team": n % 7, "points": 1}, n % 10) for n in range(50)])
        h.advance_watermark("scores", 10)
        h.inject("scores", [({"team": n, "points": 1}, 5) for n in range(9)])
        h.advance_watermark("scores", mr.MAX_TIMESTAMP)
        found = [(out.value, out.pane.retraction) for out in h.outputs("n")]

    assert found == [(7, False), (7, True), (9, False)]


def test_a_users_own_combine_fn_can_be_split() -> None:
    p = mr.Pipeline("words")
    words = p.inject("words", format=str).key_by(lambda word: word[0])
    words.window(mr.FixedWindows(10)).aggregate(Longest(), fanout=3).to("longest")
    with mr.testing.Harness(p) as h:
        h.inject("words", [("m" * n, n % 10) for n in range(1, 30)])
        h.advance_watermark("words", 10)

        assert [(out.key, len(out.value)) for out in h.outputs("longest")] == [("m", 29)]


def test_nothing_stays_with_the_parts() -> None:
    with mr.testing.Harness(pipeline(4, mr.FixedWindows(20))) as h:
        h.inject("elements", hot(0, 60))

        assert h.output_low_watermark("sums.parts") == h.low_watermark("sums.parts")
        manifest = h._last_manifest
        assert manifest is not None
        rows = [
            row
            for entry in manifest.interval_map("sums.parts").intervals
            for row, _ in h._caches.open("sums.parts", entry.id).view().__enter__().scan(b"", b"~")
        ]
        assert rows == []


def test_a_part_depends_on_the_record_alone() -> None:
    spread = Spread(by("key"), 16)

    assert spread.part_of(b"a", 1) == spread.part_of(b"a", 1)
    assert len({spread.part_of(b"a", at) for at in range(200)}) == 16


@pytest.mark.parametrize("fanout", [1, 0, True, 2.0, 5000])
def test_a_fanout_that_is_none_is_refused(fanout: Any) -> None:
    with pytest.raises(PipelineError, match=r"an int from 2 to 1000"):
        pipeline(fanout, mr.FixedWindows(10))


def test_triggers_that_must_see_every_element_are_refused() -> None:
    trigger = mr.Repeat(mr.Punctuation(lambda value: value == 0))
    with pytest.raises(PipelineError, match=r"Punctuation.* must see every element"):
        pipeline(4, mr.FixedWindows(10), trigger=trigger)


def test_lists_of_all_values_are_refused() -> None:
    stream = mr.Pipeline("lists").inject("elements").key_by("key").window(mr.FixedWindows(10))

    with pytest.raises(PipelineError, match="order of arrival would be lost"):
        stream.aggregate(Group(), fanout=4)


def test_retractions_that_a_part_could_not_take_out_are_refused() -> None:
    p = mr.Pipeline("max")
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING}
    totals = p.inject("scores").key_by("team").window(mr.FixedWindows(10), **how).sum("points")
    totals.key_by(lambda _: 0).window(mr.FixedWindows(10)).max(fanout=4).to("max")
    with pytest.raises(PipelineError, match="another part of its key"):
        mr.testing.Harness(p)
