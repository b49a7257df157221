"""Windows that are kept as columns have the panes of those that are kept key by key."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

import millrace as mr
from millrace.dataflow.aggregations import Count, Max, Mean, Min, Sum
from millrace.dataflow.columnar import sessions as columns_of_sessions
from millrace.dataflow.columnar import windows as columns_of_windows
from millrace.dataflow.grouping import GroupingOperator

windows = st.sampled_from(
    [
        mr.FixedWindows(20),
        mr.FixedWindows(20, offset=7),
        mr.FixedWindows(15, phase_shift=True),
        mr.SlidingWindows(20, 5),
        mr.SlidingWindows(25, 10, offset=3),
        mr.Sessions(4),
        mr.Sessions(9),
        mr.Sessions(15),
    ]
)
triggers = st.sampled_from([mr.Repeat(mr.AtWatermark()), mr.AtWatermark()])
modes = st.sampled_from([mr.DISCARDING, mr.ACCUMULATING, mr.ACCUMULATING_AND_RETRACTING])
whole = st.integers(-300, 300)
broken = st.integers(-40, 40).map(lambda eighths: eighths / 8)
odd = st.sampled_from([None, float("nan"), True, "text"])
records = st.tuples(
    st.sampled_from(["a", "b", "c", 7]), st.one_of(whole, whole, broken, odd), st.integers(0, 60)
)
steps = st.one_of(
    st.lists(records, min_size=1, max_size=12).map(lambda batch: ("records", batch)),
    st.integers(0, 80).map(lambda to: ("watermark", to)),
    st.integers(0, 4).map(lambda writes: ("crash in the next", writes)),
    st.just(("crash", None)),
)
scripts = st.lists(steps, max_size=8)


def run(
    script: list[Any], window_fn: mr.WindowFn, combine: mr.CombineFn, how: dict[str, Any],
    format: Any, lift: bool,
) -> tuple[Any, Any]:  # fmt: skip
    p = mr.Pipeline("columns")
    stream = p.inject("elements", format=dict).key_by("key")
    if format is not Any:
        stream = stream.map(lambda element: element["value"]).to("numbers", format=format)
    stream = stream.window(window_fn, **how)
    stream.aggregate(combine, "value" if format is Any else None).to("results")
    p.dead_letter("letters")
    p.late_records("late")
    with mr.testing.Harness(p, intervals=2, lift=lift) as h:
        for what, with_what in [*script, ("watermark", mr.MAX_TIMESTAMP)]:
            if what == "records":
                batch = [({"key": key, "value": value}, at) for key, value, at in with_what]
                h.inject("elements", batch)
            elif what == "watermark":
                if with_what >= h.low_watermark("results"):
                    h.advance_watermark("elements", with_what)
            elif what == "crash":
                h.crash()
            else:
                h.crash_in_next_epoch(after_writes=with_what)
        panes = defaultdict(list)
        for out in h.outputs("results"):
            assert out.pane is not None
            window = out.pane.window
            panes[out.key, window.start].append(
                (out.value, type(out.value), out.pane, out.timestamp)
            )
        counters = h.counters("results")
        counters.counted.pop("lifted", None)
        letters = sorted(
            (out.value.computation, out.value.key, out.value.value, out.value.reason)
            for out in h.outputs("letters")
        )
        late = sorted((late.key, late.value, late.timestamp) for late in h.late_records())
    counts = (counters.records, counters.late, counters.worst_lateness_us, counters.counted)
    return panes, (counts, letters, late)


@pytest.mark.parametrize("lift", [False, True], ids=["single", "lifted"])
@given(scripts, windows, st.sampled_from([Sum(), Count(), Mean()]), triggers, modes, st.just(Any))
@example(
    [("records", [("a", 1, 5), ("a", 2.5, 5), ("b", 1, 5), ("a", 1, 25), ("a", None, 5)])] * 2,
    mr.FixedWindows(20), Sum(), mr.AtWatermark(), mr.DISCARDING, Any,
)  # fmt: skip
@example(
    [("records", [("a", 2**62, 5), ("a", 2**62, 25)]), ("records", [("a", -1, 5)])],
    mr.FixedWindows(20), Sum(), mr.AtWatermark(), mr.DISCARDING, Any,
)  # fmt: skip
@example(
    [("watermark", 30), ("records", [("a", 1, 5), ("a", None, 5), ("a", 1, 25), ("a", 1, 31)])],
    mr.FixedWindows(20), Sum(), mr.AtWatermark(), mr.DISCARDING, Any,
)  # fmt: skip
@example(  # late in some of its windows only, and refused
    [("watermark", 30), ("records", [("a", n, at) for n in (1, None) for at in (5, 18, 24, 33)])],
    mr.SlidingWindows(20, 5), Sum(), mr.AtWatermark(), mr.DISCARDING, Any,
)  # fmt: skip
def test_panes_and_counts_are_the_same(
    lift: bool, script: Any, window_fn: Any, combine: Any, trigger: Any, mode: Any, format: Any
) -> None:
    compare(script, window_fn, combine, trigger, mode, format, lift)


@given(
    st.sampled_from([int, float]).flatmap(
        lambda kind: st.tuples(
            st.just(kind),
            st.lists(
                st.one_of(
                    st.lists(
                        st.tuples(
                            st.sampled_from("abc"),
                            whole if kind is int else broken,
                            st.integers(0, 60),
                        ),
                        min_size=1,
                        max_size=12,
                    ).map(lambda batch: ("records", batch)),
                    st.integers(0, 80).map(lambda to: ("watermark", to)),
                ),
                max_size=8,
            ),
        )
    ),
    windows,
    st.sampled_from([Min(), Max(), Sum()]),
    triggers,
    modes,
)
def test_typed_numbers_too(
    typed: Any, window_fn: Any, combine: Any, trigger: Any, mode: Any
) -> None:
    compare(typed[1], window_fn, combine, trigger, mode, typed[0], lift=False)


def compare(
    script: Any, window_fn: Any, combine: Any, trigger: Any, mode: Any, format: Any, lift: bool
) -> None:
    how = {"trigger": trigger, "mode": mode}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_of_windows, "MERGE_EVERY", 2)
        patch.setattr(columns_of_sessions, "MERGE_EVERY", 3)
        patch.setattr(columns_of_sessions, "PART_LEAST", 2)
        columns = run(script, window_fn, combine, how, format, lift)
    event(f"{bool(columns[0])} panes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupingOperator, "columnar", lambda *_: None)
        by_key = run(script, window_fn, combine, how, format, lift=False)

    assert columns == by_key


def test_these_are_columns() -> None:
    p = mr.Pipeline("columns")
    keyed = p.inject("elements", format=dict).key_by("key")
    keyed.window(mr.FixedWindows(10)).sum("value").to("sums")
    keyed.window(mr.FixedWindows(10), allowed_lateness=5).sum("value").to("refined")
    keyed.window(mr.Sessions(10)).sum("value").to("sessions")
    keyed.window(mr.FixedWindows(10), trigger=mr.Repeat(mr.AfterCount(2))).count().to("often")
    keyed.window(mr.FixedWindows(10)).max("value").to("anything")
    keyed.window(mr.FixedWindows(10)).count().to("counts")
    found = {spec.name for spec in p.build().computations if spec.columnar is not None}

    assert found == {"sums", "counts", "sessions"}


class Follows(mr.Computation):
    """Tells when half, and when all, of what is summed before it has passed a time."""

    inputs = {"sums": mr.by_key(), "ticks": mr.by("key")}
    outputs = {"told": tuple[int, int]}
    percentiles = (50,)

    def process_record(self, record: mr.Record) -> None:
        if record.stream == "ticks":
            for share in (50, 100):
                self.set_timer(share, at=record.timestamp, percentile=share)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("told", (timer.tag, timer.at))


@given(scripts, windows)
@example(
    [("records", [(key, 1, 5) for key in "abcd"] + [("a", 1, 50)]), ("watermark", 15)] * 2,
    mr.FixedWindows(20),
)
def test_percentiles_of_what_is_pending_are_the_same(script: Any, window_fn: Any) -> None:
    def told() -> list[Any]:
        p = mr.Pipeline("percentiles")
        p.inject("elements", format=dict).key_by("key").window(window_fn).count().to("sums")
        p.inject("ticks", format=dict)
        p.add(Follows)
        found = []
        with mr.testing.Harness(p, intervals=2) as h:
            h.inject("ticks", [({"key": n}, 3 * n) for n in range(30)])
            h.advance_watermark("ticks", mr.MAX_TIMESTAMP)
            for what, with_what in [*script, ("watermark", mr.MAX_TIMESTAMP)]:
                if what == "records":
                    h.inject("elements", [({"key": k, "value": v}, at) for k, v, at in with_what])
                elif what == "watermark" and with_what >= h.low_watermark("sums"):
                    h.advance_watermark("elements", with_what)
                    ahead_us = min(with_what + 40, mr.MAX_TIMESTAMP)
                    h.advance_watermark("elements", ahead_us, percentile=50)
                elif what == "crash":
                    h.crash()
                found.append(sorted(out.value for out in h.outputs("told")))
        return found

    columns = told()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupingOperator, "columnar", lambda *_: None)
        by_key = told()

    assert columns == by_key
