"""Windows assigned before the grouping: data that travels with the element."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.dataflow.windows.assignment import AssignedWindows


def keyed(p: mr.Pipeline) -> Any:
    return p.inject("elements", format=tuple[str, int]).key_by(lambda element: element[0])


def panes(p: mr.Pipeline, *elements: Any, end: int = mr.MAX_TIMESTAMP) -> list[Any]:
    with mr.testing.Harness(p) as h:
        h.inject("elements", elements)
        h.advance_watermark("elements", end)
        return [
            (o.key, o.value, (o.pane.window.start, o.pane.window.end)) for o in h.outputs("out")
        ]


def test_the_window_is_that_of_the_time_of_the_assignment() -> None:
    p = mr.Pipeline("p")
    moved = keyed(p).window(mr.FixedWindows(10)).assign().with_timestamps(lambda e: e[1])
    moved.map(lambda e: e[1]).sum().to("out")

    assert panes(p, (("a", 25), 3), (("a", 31), 8)) == [("a", 56, (0, 10))]


def test_without_assignment_the_window_is_that_of_the_grouping() -> None:
    p = mr.Pipeline("p")
    moved = keyed(p).window(mr.FixedWindows(10)).with_timestamps(lambda e: e[1])
    moved.map(lambda e: e[1]).sum().to("out")

    assert panes(p, (("a", 25), 3), (("a", 31), 8)) == [("a", 25, (20, 30)), ("a", 31, (30, 40))]


def test_a_user_defined_assignment_sees_the_value_that_is_there() -> None:
    """A map afterwards takes away what the window depends on."""
    days = mr.WindowFn(lambda r: [mr.Window(0, 10 if r.value[1] < 100 else 70)])
    p = mr.Pipeline("p")
    keyed(p).window(days).assign().map(lambda e: e[0]).count().to("out")

    found = panes(p, (("a", 50), 1), (("a", 500), 2), (("a", 60), 3))
    assert found == [("a", 2, (0, 10)), ("a", 1, (0, 70))]


def test_an_element_in_several_windows_is_several_elements() -> None:
    p = mr.Pipeline("p")
    each = keyed(p).window(mr.SlidingWindows(10, 5)).assign()
    each.map(lambda e: e[1]).sum().to("out")

    assert panes(p, (("a", 1), 3), (("a", 2), 7)) == [
        ("a", 1, (-5, 5)),
        ("a", 3, (0, 10)),
        ("a", 2, (5, 15)),
    ]


def test_an_element_without_windows_is_none() -> None:
    p = mr.Pipeline("p")
    some = keyed(p).window(mr.WindowFn(lambda r: [mr.Window(0, 9)] if r.value[1] else []))
    some.assign().count().to("out")

    assert panes(p, (("a", 0), 1), (("a", 7), 1)) == [("a", 1, (0, 9))]


def test_keys_may_change_and_sessions_merge_where_they_are_grouped() -> None:
    p = mr.Pipeline("p")
    sessions = keyed(p).window(mr.Sessions(10)).assign()
    sessions.key_by(lambda e: e[1] % 2).map(lambda e: e[1]).group().to("out")

    found = panes(p, (("a", 1), 0), (("b", 3), 8), (("b", 2), 5), (("c", 5), 30))
    assert sorted(found) == [(0, [2], (5, 15)), (1, [1, 3], (0, 18)), (1, [5], (30, 40))]


def test_the_window_reaches_a_computation_between() -> None:
    class Window(mr.Computation):
        inputs = {"assigned": mr.by_key()}
        outputs = {"seen": tuple[int, int]}

        def process_record(self, record: mr.Record) -> None:
            self.produce("seen", (record.value[1], record.pane.window.end))

    p = mr.Pipeline("p")
    keyed(p).window(mr.SlidingWindows(10, 5)).assign().to("assigned")
    p.add(Window)
    with mr.testing.Harness(p) as h:
        h.inject("elements", [(("a", 1), 3)])
        assert [output.value for output in h.outputs("seen")] == [(1, 5), (1, 10)]


def test_what_is_late_for_its_window_is_late_although_its_time_is_not() -> None:
    p = mr.Pipeline("p")
    moved = keyed(p).window(mr.FixedWindows(10)).assign().with_timestamps(lambda e: e[1])
    moved.count().to("out")
    with mr.testing.Harness(p) as h:
        h.advance_watermark("elements", 10)
        h.inject("elements", [(("a", 25), 3)])
        assert h.counters("out").counted == {"dropped_late": 1}


def test_results_can_be_given_other_windows_retractions_included() -> None:
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": 1_000}
    p = mr.Pipeline("p")
    totals = keyed(p).map(lambda e: e[1]).window(mr.FixedWindows(10), **how).sum()
    wide = totals.window(mr.FixedWindows(100), **how).assign()
    wide.key_by(lambda total: total > 1_000).sum().to("out")
    with mr.testing.Harness(p) as h:
        h.inject("elements", [(("a", 1), 3), (("b", 2), 15)])
        h.advance_watermark("elements", 100)
        h.inject("elements", [(("a", 4), 5)])  # late: a's first total is taken back
        found = [(-o.value if o.pane.retraction else o.value) for o in h.outputs("out")]
        assert found == [3, -3, 7]
        assert {o.pane.window.end for o in h.outputs("out")} == {100}


def test_it_is_explained() -> None:
    p = mr.Pipeline("p")
    keyed(p).window(mr.FixedWindows(10)).assign().count().to("out")
    p.inject("more", format=int).window(mr.Sessions(10)).assign().key_by(abs).count().to("counts")
    explained = str(p.explain())

    assert "assign(FixedWindows(10))" in explained
    assert "windows are assigned to 'more'" in explained


def test_to_assign_twice_changes_nothing() -> None:
    p = mr.Pipeline("p")
    once = keyed(p).window(mr.FixedWindows(10)).assign()

    assert once.assign() is once
    assert once.windowing.window_fn == AssignedWindows(mr.FixedWindows(10))


def test_an_assignment_that_returns_no_windows_is_an_error_at_the_record() -> None:
    p = mr.Pipeline("p")
    keyed(p).window(mr.WindowFn(lambda r: [r.timestamp])).assign().count().to("out")
    with mr.testing.Harness(p) as h, pytest.raises(mr.MillraceError, match="assign returned 3"):
        h.inject("elements", [(("a", 1), 3)])
