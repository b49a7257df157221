"""GroupByKeyAndWindow: windows get values, panes come out, late elements, collection."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.dataflow.grouping import window_state
from millrace.dataflow.grouping.window_state import (
    Active,
    ActiveCoder,
    ActiveWindows,
    Merging,
    PlaceCoder,
    SpreadHead,
)
from millrace.dataflow.partials.partial import Partial, PartialCoder
from millrace.model.time import LATEST_RECORD


def test_a_window_is_emitted_when_the_low_watermark_reaches_its_end(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10))

    assert g.add((1, 0), (2, 9), (4, 10)) == []
    assert g.watermark(9) == []
    assert g.watermark(10) == ["[0, 10) 3 ON_TIME"]
    assert g.watermark(mr.MAX_TIMESTAMP) == ["[10, 20) 4 ON_TIME"]
    assert [output.timestamp for output in g.outputs()] == [9, 19]


def test_keys_do_not_share_windows(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10))
    g.add((1, 0), key="a")
    g.add((2, 0), key="b")
    g.watermark(10)

    assert sorted((out.key, out.value) for out in g.outputs()) == [("a", 1), ("b", 2)]


def test_the_last_pane_of_a_window_says_so(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10))
    g.add((1, 0))
    g.watermark(10)
    (only,) = [output.pane for output in g.outputs()]

    assert (only.index, only.is_first, only.is_last, only.timing) == (0, True, True, mr.ON_TIME)
    assert (only.percentile, only.trigger, only.production_time) == (100, "AtWatermark()", 0)


def test_without_allowed_lateness_a_late_element_is_dropped_and_counted(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10))
    g.add((1, 0))
    g.watermark(10)

    assert g.add((5, 3), (6, 4)) == []
    assert g.watermark(mr.MAX_TIMESTAMP) == []
    assert g.counted() == {"dropped_late": 2}


def test_late_elements_refine_until_end_and_lateness_and_not_after(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10), allowed_lateness=5)
    g.add((1, 0))
    g.watermark(10)

    assert g.add((5, 3)) == ["[0, 10) 6 LATE"]
    g.watermark(14)
    assert g.add((5, 3)) == ["[0, 10) 11 LATE"]
    g.watermark(15)
    assert g.add((5, 3)) == []
    assert g.counted() == {"dropped_late": 1}
    assert [output.pane.is_last for output in g.outputs()] == [False, False, False]


@pytest.mark.parametrize("lateness", [0, 5], ids=["columns", "rows"])
@pytest.mark.parametrize("windows", [mr.FixedWindows("1 h"), mr.Sessions("1 h")], ids=repr)
def test_a_pane_has_a_time_that_a_record_may_have(
    grouping: Any, windows: Any, lateness: int
) -> None:
    g = grouping(windows, allowed_lateness=lateness)
    g.add((5, LATEST_RECORD))
    g.watermark(mr.MAX_TIMESTAMP)

    (output,) = g.outputs()
    assert (output.value, output.timestamp) == (5, LATEST_RECORD)
    assert output.pane.window.end > LATEST_RECORD


def test_a_window_that_begins_late_has_no_on_time_pane(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10), allowed_lateness=5)
    g.watermark(12)

    assert g.add((5, 3)) == ["[0, 10) 5 LATE"]
    assert g.outputs()[0].pane.percentile is None


def test_state_is_kept_to_end_and_lateness_and_collected_then(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10), allowed_lateness=5)
    g.add((1, 0))
    g.watermark(14)
    before = g.harness.counters("panes").timers
    assert rows(g) > 0

    g.watermark(15)
    assert g.harness.counters("panes").timers == before + 1
    assert rows(g) == 0


def rows(g: Any) -> int:
    """Return how many rows of state the grouping has in the store."""
    caches = g.harness._caches
    total = 0
    for interval in g.harness._last_manifest.interval_map("panes").intervals:
        cache = caches.open("panes", interval.id)
        with cache.view() as view:
            total += sum(1 for _ in view.scan(b"", b"\xff"))
    return total


@pytest.mark.parametrize(
    ("mode", "second"),
    [
        (mr.DISCARDING, ["[0, 10) 5 LATE"]),
        (mr.ACCUMULATING, ["[0, 10) 8 LATE"]),
        (mr.ACCUMULATING_AND_RETRACTING, ["[0, 10) -3 ON_TIME", "[0, 10) 8 LATE"]),
    ],
)
def test_modes(grouping: Any, mode: Any, second: list[str]) -> None:
    g = grouping(mr.FixedWindows(10), mode=mode, allowed_lateness=100)
    g.add((1, 0), (2, 5))
    assert g.watermark(10) == ["[0, 10) 3 ON_TIME"]
    assert g.add((5, 7)) == second


def test_a_retraction_has_value_index_and_timestamp_of_what_it_takes_back(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10), mode=mr.ACCUMULATING_AND_RETRACTING, allowed_lateness=100)
    g.add((1, 0))
    g.watermark(10)
    g.add((2, 5))
    first, back, second = g.outputs()

    assert (back.value, back.timestamp, back.pane.index) == (first.value, first.timestamp, 0)
    assert back.pane.retraction
    assert (second.pane.index, second.pane.is_first) == (1, False)


def test_an_element_of_several_windows_is_several(grouping: Any) -> None:
    g = grouping(mr.SlidingWindows(10, 5))
    g.add((1, 3), (2, 7))

    assert g.watermark(100) == ["[-5, 5) 1 ON_TIME", "[0, 10) 3 ON_TIME", "[5, 15) 2 ON_TIME"]


def test_sessions_grow_and_merge_out_of_order(grouping: Any) -> None:
    g = grouping(mr.Sessions(10))
    g.add((1, 0), (4, 15))
    g.add((2, 8))

    assert g.watermark(24) == []
    assert g.watermark(25) == ["[0, 25) 7 ON_TIME"]


def test_sessions_exactly_one_gap_apart_do_not_merge(grouping: Any) -> None:
    g = grouping(mr.Sessions(10))
    g.add((1, 0), (2, 10))

    assert g.watermark(20) == ["[0, 10) 1 ON_TIME", "[10, 20) 2 ON_TIME"]


def test_a_late_element_bridges_two_emitted_sessions(grouping: Any) -> None:
    g = grouping(
        mr.Sessions(10),
        lambda s: s.group(),
        mode=mr.ACCUMULATING_AND_RETRACTING,
        allowed_lateness=20,
    )
    g.add(("a", 1), ("b", 12))
    assert g.watermark(30) == ["[1, 11) ['a'] ON_TIME", "[12, 22) ['b'] ON_TIME"]
    assert g.add(("c", 6)) == [
        "[1, 11) -['a'] ON_TIME",
        "[12, 22) -['b'] ON_TIME",
        "[1, 22) ['a', 'b', 'c'] LATE",
    ]


@pytest.mark.parametrize("elements", [[(2, 4), (3, 12)], [(3, 12), (2, 4)]])
def test_a_session_that_late_elements_joined_is_on_time_if_it_goes_on(
    grouping: Any, elements: Any
) -> None:
    g = grouping(mr.Sessions(10), allowed_lateness=100)
    g.add((1, 3))
    assert g.watermark(20) == ["[3, 13) 1 ON_TIME"]
    assert g.add(*elements) == []

    assert g.watermark(22) == ["[3, 22) 6 ON_TIME"]


def test_an_expired_element_that_a_live_session_takes_in_is_not_dropped(grouping: Any) -> None:
    g = grouping(mr.Sessions(10), allowed_lateness=5)
    g.add((1, 10), (1, 19))
    g.watermark(25)

    assert g.add((1, 5)) == []
    assert g.add((1, 0)) == []  # now the session begins at 5
    assert g.add((9, 31)) == []
    assert g.watermark(29) == ["[0, 29) 4 ON_TIME"]
    assert g.counted() == {}


def test_windows_survive_a_crash(grouping: Any) -> None:
    g = grouping(mr.Sessions(10), mode=mr.ACCUMULATING_AND_RETRACTING, allowed_lateness=100)
    g.add((1, 0))
    g.harness.crash()
    g.add((2, 5))
    g.watermark(15)
    g.harness.crash()

    assert g.add((4, 14)) == []  # the session is [0, 24) now
    g.harness.crash()
    assert g.watermark(24) == ["[0, 15) -3 ON_TIME", "[0, 24) 7 ON_TIME"]


def test_the_global_window_ends_with_the_input(grouping: Any) -> None:
    g = grouping()
    g.add((1, 5), (2, 7))
    assert g.watermark(1000) == []
    assert g.watermark(mr.MAX_TIMESTAMP) == ["[) 3 ON_TIME"]


@pytest.mark.parametrize(
    ("output_time", "at"),
    [(mr.OutputTime.EARLIEST, 2), (mr.OutputTime.LATEST, 7), (mr.OutputTime.END_OF_WINDOW, 9)],
)
def test_output_time(grouping: Any, output_time: Any, at: int) -> None:
    g = grouping(mr.FixedWindows(10), output_time=output_time)
    g.add((1, 5), (2, 2), (3, 7))
    g.watermark(8)
    assert g.harness.output_low_watermark("panes") == min(at, 8)
    g.watermark(10)

    assert [output.timestamp for output in g.outputs()] == [at]
    assert g.harness.output_low_watermark("panes") == 10


def test_pending_elements_hold_the_low_watermark_after_the_end(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10), trigger=mr.Repeat(mr.AtPeriod(100)), allowed_lateness=1000)
    g.add((1, 5))
    g.watermark(50)
    assert g.harness.output_low_watermark("panes") == 9
    assert g.clock(100) == ["[0, 10) 1 ON_TIME"]
    assert g.outputs()[0].timestamp == 9
    assert g.harness.output_low_watermark("panes") == 50


def test_what_no_trigger_emitted_is_emitted_when_the_window_expires(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(10), trigger=mr.Repeat(mr.AfterCount(2)), mode=mr.DISCARDING)

    assert g.add((1, 1), (2, 2), (3, 3)) == ["[0, 10) 3 EARLY"]
    assert g.watermark(10) == ["[0, 10) 3 ON_TIME"]
    assert [output.pane.is_last for output in g.outputs()] == [False, True]


def test_a_user_defined_window_fn(grouping: Any) -> None:
    def assign(record: Any) -> list[mr.Window]:
        return [mr.Window(record.timestamp, record.timestamp + record.value)]

    def merge(windows: Any) -> list[mr.Window]:
        ends = [window.end for window in windows]
        return [mr.Window(windows[0].start, max(ends))]

    g = grouping(mr.WindowFn(assign, merge), lambda s: s.count())
    g.add((5, 0), (50, 2))
    g.add((1, 100))

    assert g.watermark(101) == ["[0, 101) 3 ON_TIME"]


@pytest.mark.parametrize(
    ("merge", "complaint"),
    [
        (lambda windows: [*windows, mr.Window(500, 600)], "invented Window\\(500, 600\\)"),
        (lambda windows: windows[:-1], "is in no window"),
        (lambda _: [mr.Window(0, 1000)], "invented"),
        (lambda windows: [*windows, mr.Window(0, 30)], "is in 2 windows"),
        (lambda _: [mr.Window()], "invented Window\\(\\)"),
        (lambda _: None, r"merge returned None\. Expected a list of windows"),
        (lambda _: [(10, 15)], r"merge returned \(10, 15\) \(tuple\)"),
        (lambda _: [mr.Window(30, 10)], "with start < end"),
        (lambda windows: [mr.Window(float(windows[0].start), 25)], "interval"),
    ],
)
def test_a_merge_function_that_invents_or_loses_is_refused(
    grouping: Any, merge: Any, complaint: str
) -> None:
    g = grouping(
        mr.WindowFn(lambda record: [mr.Window(record.timestamp, record.timestamp + 5)], merge)
    )
    with pytest.raises(mr.MillraceError, match=complaint):
        g.add((1, 10), (2, 20))


@pytest.mark.parametrize("returned", [None, 5, mr.Window(0, 5)])
def test_an_assign_function_that_returns_no_list_is_refused(grouping: Any, returned: Any) -> None:
    g = grouping(mr.WindowFn(lambda _: returned))
    with pytest.raises(mr.MillraceError, match=r"assign returned .* Expected a list of windows"):
        g.add((1, 10))


@pytest.mark.parametrize(
    "bad", [None, (1, 2), mr.Window(5, 5), mr.Window(5, None), mr.Window(0, 1 << 70)]
)
def test_an_assign_function_that_returns_no_windows_is_refused(grouping: Any, bad: Any) -> None:
    g = grouping(mr.WindowFn(lambda _: [bad]))
    with pytest.raises(mr.MillraceError, match="assign returned"):
        g.add((1, 10))


@pytest.mark.parametrize(
    ("aggregate", "values", "complaint"),
    [
        (lambda s: s.sum(), [1, float("nan")], "NaN"),
        (lambda s: s.sum(), [1, "two"], "Expected an int, a float or a Decimal"),
        (lambda s: s.mean(), [None], "Expected an int, a float or a Decimal"),
        (lambda s: s.max(), [1, "two"], "cannot compare"),
        (lambda s: s.min(), [float("nan")], "NaN"),
        (lambda s: s.min(), [1.5, float("nan")], "NaN"),
        (lambda s: s.top(2), [1, "two"], "cannot compare"),
        (lambda s: s.top(2), [float("nan")], "NaN"),
        (lambda s: s.top(2, key=lambda _: float("nan")), [1], "NaN"),
        (lambda s: s.max(), [(1, 2), (1, float("nan"))], "NaN"),
        (lambda s: s.min(lambda v: (1, (2, v))), [1, float("nan")], "NaN"),
        (lambda s: s.mean(), [float("nan")], "NaN"),
        (lambda s: s.mean(), [1, "two"], "Expected an int, a float or a Decimal"),
        (lambda s: s.sum(), [True], "count truths"),
        (lambda s: s.quantiles([0.5]), [float("nan")], "NaN"),
        (lambda s: s.quantiles([0.5]), [1, "two"], "Expected an int, a float or a Decimal"),
        (lambda s: s.quantiles([0.5], approximate=True), [float("nan")], "NaN"),
        (
            lambda s: s.quantiles([0.5], approximate=True),
            [1, None],
            "Expected an int, a float or a Decimal",
        ),
    ],
)
def test_values_that_an_aggregation_cannot_take(
    grouping: Any, aggregate: Any, values: list[Any], complaint: str
) -> None:
    g = grouping(mr.FixedWindows(10), aggregate)
    with pytest.raises(mr.MillraceError, match=complaint) as refused:
        g.add(*[(value, 1) for value in values])
    message = str(refused.value)
    assert "key 'k'" in message
    assert "in the grouping, which is Millrace's own, because of what it was given" in message


def test_aggregations(grouping: Any) -> None:
    results = {}
    for name, aggregate in {
        "sum": lambda s: s.sum(),
        "count": lambda s: s.count(),
        "mean": lambda s: s.mean(),
        "min": lambda s: s.min(),
        "max": lambda s: s.max(),
        "top": lambda s: s.top(2),
        "lowest": lambda s: s.top(2, key=lambda value: -value),
        "group": lambda s: s.group(),
        "chosen": lambda s: s.sum(lambda value: value * 10),
        "distinct": lambda s: s.distinct(lambda value: value > 1),
        "about distinct": lambda s: s.distinct(approximate=True),
        "quantiles": lambda s: s.quantiles([0, 0.5, 1]),
        "about quantiles": lambda s: s.quantiles([0, 0.5, 1], approximate=True),
    }.items():
        g = grouping(mr.FixedWindows(10), aggregate)
        g.add((3, 1), (1, 2))
        g.harness.crash()
        g.add((2, 3))
        g.watermark(10)
        (results[name],) = [output.value for output in g.outputs()]

    assert results == {
        "sum": 6, "count": 3, "mean": 2.0, "min": 1, "max": 3,
        "top": [3, 2], "lowest": [1, 2], "group": [3, 1, 2], "chosen": 60,
        "distinct": 2, "about distinct": 3,
        "quantiles": [1, 2, 3], "about quantiles": [1.0, 2.0, 3.0],
    }  # fmt: skip


def test_a_trigger_that_can_lose_data_is_refused_unless_meant(grouping: Any) -> None:
    with pytest.raises(mr.MillraceError, match="would be lost"):
        grouping(mr.FixedWindows(10), trigger=mr.AfterCount(2))
    with pytest.raises(mr.MillraceError, match="would be lost"):
        grouping(mr.FixedWindows(10), trigger=mr.AtWatermark(), allowed_lateness=5)

    grouping(mr.FixedWindows(10), trigger=mr.AtWatermark())
    g = grouping(mr.FixedWindows(10), trigger=mr.AfterCount(2), allow_data_loss=True)
    assert g.add((1, 1), (2, 2), (3, 3)) == ["[0, 10) 3 EARLY"]
    assert g.outputs()[0].pane.is_last
    assert g.counted() == {"dropped_after_finish": 1}
    assert g.watermark(mr.MAX_TIMESTAMP) == []


class Unbounded:
    isStreaming = True  # noqa: N815


class Ticker(mr.sources.Injector):
    schema = "k string, time timestamp"

    def processes(self) -> Any:
        return ["clock"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(offset)

    def read(self, process: str, start: Any, end: Any) -> Any:
        return []


def over(source: Any, window: mr.WindowFn, trigger: Any = None) -> mr.Pipeline:
    p = mr.Pipeline("endless")
    p.inject("elements", source, timestamp="time", format=str)
    p.stream("elements").key_by(str).window(window, trigger=trigger).count()
    return p


LATE = mr.Repeat(mr.AtWatermark())


@pytest.mark.parametrize("source", [Unbounded(), Ticker()], ids=["stream", "injector"])
@pytest.mark.parametrize(
    ("trigger", "fires"),
    [
        (None, False),
        (mr.Repeat(mr.AtWatermark(50)), False),
        (mr.Repeat(mr.AllOf(mr.AtWatermark(), mr.AfterCount(2))), False),
        (mr.SequenceOf(mr.AtWatermark(), mr.Repeat(mr.AfterCount(2))), False),
        (mr.Repeat(mr.AtPeriod("1 min")), True),
        (mr.Repeat(mr.FirstOf(mr.AtWatermark(), mr.AfterCount(2))), True),
        (mr.SequenceOf(mr.AfterCount(2), LATE), True),
        (mr.SequenceOf(mr.RepeatUntil(mr.AtPeriod("1 min"), mr.AtWatermark()), LATE), True),
    ],
    ids=repr,
)
def test_windows_without_end_need_another_trigger_over_a_stream(
    source: Any, trigger: Any, fires: bool
) -> None:
    p = over(source, mr.GlobalWindow(), trigger)
    if fires:
        p.build()
    else:
        with pytest.raises(mr.MillraceError, match="would never fire"):
            p.build()


def test_windows_without_end_of_a_users_own_are_refused_at_the_record() -> None:
    def day_or_ever(record: Any) -> list[mr.Window]:
        return [mr.Window()] if record.value == "ever" else [mr.Window(0, mr.DAY)]

    with mr.testing.Harness(over(Unbounded(), mr.WindowFn(day_or_ever))) as h:
        h.inject("elements", [("today", 1)])
        with pytest.raises(mr.MillraceError, match="returned the global window, over a stream"):
            h.inject("elements", [("ever", 2)])
    with mr.testing.Harness(over(None, mr.WindowFn(day_or_ever))) as h:
        h.inject("elements", [("ever", 2)])  # a Harness can end its input


def test_steps_keep_panes_and_computations_see_them() -> None:
    class Seen(mr.Computation):
        inputs = {"big": mr.by_key()}
        outputs = {"seen": str}

        def process_record(self, record: mr.Record) -> None:
            self.produce("seen", f"{self.key} {record.value} {record.pane.window.end}")

    p = mr.Pipeline("steps")
    p.inject("elements", format=int)
    totals = p.stream("elements").key_by(lambda v: v % 2).window(mr.FixedWindows(10)).sum()
    totals.filter(lambda v: v > 2).map(lambda v: v * 10).key_by(str).to("big")
    p.add(Seen)
    with mr.testing.Harness(p) as h:
        h.inject("elements", [(1, 1), (2, 2), (3, 3)])
        h.advance_watermark("elements", 10)

        assert [out.value for out in h.outputs("seen")] == ["40 40 10"]
        (big,) = h.outputs("big")
        assert (big.key, big.value, big.pane.window) == ("40", 40, mr.Window(0, 10))


def test_a_second_grouping_uncombines_retractions_under_keys_that_change() -> None:
    """How many teams have how many points: a team moves from one count to another."""
    p = mr.Pipeline("two stages")
    p.inject("scores", format=tuple[str, int])
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": 1000}
    totals = p.stream("scores").key_by(lambda s: s[0]).window(mr.FixedWindows(10), **how)
    totals.sum(lambda s: s[1]).key_by(lambda total: total).count().to("teams")
    with mr.testing.Harness(p) as h:
        h.inject("scores", [(("red", 3), 1), (("blue", 3), 2)])
        h.advance_watermark("scores", 10)
        h.inject("scores", [(("red", 2), 5)])

        signed = [(o.key, "-" * o.pane.retraction + str(o.value)) for o in h.outputs("teams")]
        assert [value for key, value in signed if key == 3] == ["2", "-2", "1"]
        assert [value for key, value in signed if key == 5] == ["1"]


@pytest.mark.parametrize(
    ("window_fn", "trigger", "output_time"),
    [
        (mr.FixedWindows(10), None, mr.OutputTime.EARLIEST),
        (mr.FixedWindows(10), mr.Repeat(mr.AfterCount(3)), mr.OutputTime.END_OF_WINDOW),
        (mr.FixedWindows(10), mr.Repeat(mr.AfterBytes(3)), mr.OutputTime.LATEST),
        (mr.Sessions(10), None, mr.OutputTime.END_OF_WINDOW),
    ],
)
def test_partials_are_as_good_as_their_elements(
    window_fn: Any, trigger: Any, output_time: Any
) -> None:
    def panes(elements: list[Any], format: Any) -> list[Any]:
        p = mr.Pipeline("partials")
        p.inject("elements", format=format)
        keyed = p.stream("elements").key_by(lambda _: "k")
        keyed.window(window_fn, trigger=trigger, output_time=output_time).sum().to("sums")
        with mr.testing.Harness(p) as h:
            h.inject("elements", elements)
            h.advance_watermark("elements", 50)
            return h.outputs("sums")

    partial = Partial(
        mr.Window(1, 14) if window_fn == mr.Sessions(10) else mr.Window(0, 10), 6, 3, 3, 1, 4
    )

    assert panes([(partial, 4)], PartialCoder(int)) == panes([(1, 4), (2, 1), (3, 2)], int)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=60))
@settings(max_examples=100)
def test_windows_that_count_are_those_of_a_list_walked_over_for_each(steps: Any) -> None:
    active, merging, plain = ActiveWindows(), Merging(mr.Sessions(4)), []
    for goes, at_us in steps:
        if goes and plain:
            gone = plain.pop(at_us % len(plain))
            active.discard(gone)
        else:
            window = mr.Window(at_us, at_us + 4)
            ((whole, old),) = merging.with_window(active, window)
            touched = [w for w in plain if w.start < window.end and window.start < w.end]
            assert old == touched
            address = max((w.address for w in plain), default=-1) + 1
            assert active.next_address() == address
            for each in touched:
                active.discard(each)
                plain.remove(each)
            grown = Active(whole.start, whole.end, touched[0].address if touched else address)
            active.add(grown)
            plain = sorted([*plain, grown])
        assert active == plain == ActiveCoder().decode(ActiveCoder().encode(active))


def sums_of_sessions(epochs: Sequence[Sequence[int]], *, lateness: int = 0) -> list[Any]:
    """Return what elements, one for each time, of one key come to; the process dies in between."""
    p = mr.Pipeline("sessions")
    keyed = p.inject("elements", format=int).key_by(lambda _: "k")
    keyed.window(
        mr.Sessions(4), trigger=mr.Repeat(mr.FirstOf(mr.AtWatermark(), mr.AfterCount(3))),
        allowed_lateness=lateness,
    ).sum().to("sums")  # fmt: skip
    with mr.testing.Harness(p) as h:
        for n, times in enumerate(epochs):
            h.inject("elements", [(1 << at_us % 30, at_us) for at_us in times])
            if n % 3 == 1:
                h.advance_watermark("elements", 12 * n)
            if n % 4 == 2:
                h.crash()
        h.advance_watermark("elements", mr.MAX_TIMESTAMP)
        return [(output.pane, output.value) for output in h.outputs("sums")]


@pytest.mark.parametrize("seed", range(4))
def test_sessions_are_the_same_however_many_a_list_has(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    spans = [0, 40, 200, 200, 60, 200, 30, 20, 8]
    epochs = [[random.randrange(span or 1) for _ in range(random.randrange(12))] for span in spans]
    listed = sums_of_sessions(epochs, lateness=50)
    monkeypatch.setattr(window_state, "LISTED_MOST", 3)
    monkeypatch.setattr(window_state, "SPREAD_LEAST", 2)
    spread = list[SpreadHead]()
    encode = ActiveCoder.encode

    def encoded(self: ActiveCoder, value: Any) -> bytes:
        if isinstance(value, SpreadHead):
            spread.append(value)
        return encode(self, value)

    monkeypatch.setattr(ActiveCoder, "encode", encoded)
    assert sums_of_sessions(epochs, lateness=50) == listed
    assert spread


def test_a_bundle_of_a_key_with_many_sessions_writes_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = list[int]()
    for coder in (ActiveCoder, PlaceCoder):
        encode = coder.encode

        def encoded(self: Any, value: Any, encode: Any = encode) -> bytes:
            data: bytes = encode(self, value)
            written.append(len(data))
            return data

        monkeypatch.setattr(coder, "encode", encoded)
    p = mr.Pipeline("sessions")
    keyed = p.inject("elements", format=int).key_by(lambda _: "k")
    keyed.window(mr.Sessions(4), trigger=mr.Repeat(mr.AfterCount(3))).sum().to("sums")
    with mr.testing.Harness(p) as h:
        h.inject("elements", [(1, 10 * n) for n in range(300)])
        written.clear()
        h.inject("elements", [(1, 1_005)])
        assert sum(written) <= 100
        h.inject("elements", [(1, 1_002), (1, 1_007)])
        assert sum(written) <= 200


@pytest.mark.parametrize("order", [1, -1])
def test_a_session_of_a_key_with_many_has_no_others_looked_at(
    order: int, grouping: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Active] = []

    def counted(self: Active, place: Any = 2) -> int:
        read.append(self)
        return tuple.__getitem__(self, place)

    monkeypatch.setattr(Active, "__getitem__", counted)
    monkeypatch.setattr(Active, "address", property(counted))
    g = grouping(mr.Sessions(10), trigger=mr.Repeat(mr.AfterCount(2)))
    g.add(*((1, n * 100) for n in range(300)[::order]))
    panes = g.watermark(mr.MAX_TIMESTAMP)

    assert len(panes) == 300
    assert len(read) < 300 * 10
