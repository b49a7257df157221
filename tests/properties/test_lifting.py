"""Lifted or not, the panes of every window are the same, one by one."""

from collections import defaultdict
from typing import Any

from hypothesis import event, example, given
from hypothesis import strategies as st

import millrace as mr
from millrace.dataflow.aggregations import Count, Distinct, Max, Mean, Min, Quantiles, Sum, Top
from tests.kit.triggers import composites

leaves = st.one_of(
    st.just(mr.AtWatermark()),
    st.sampled_from([10, 25]).map(mr.AtPeriod),
    st.sampled_from([10, 25]).map(lambda p: mr.AtPeriod(p, domain=mr.LOW_WATERMARK)),
    st.sampled_from([5, 30]).map(mr.AfterDelay),
    st.sampled_from([5, 30]).map(lambda d: mr.AfterDelay(d, mr.LOW_WATERMARK)),
)


triggers = st.one_of(
    st.just(mr.Repeat(mr.AtWatermark())),
    st.recursive(leaves, composites, max_leaves=5).map(mr.Repeat),
)
windows = st.sampled_from(
    [
        mr.FixedWindows(20),
        mr.FixedWindows(20, offset=7),
        mr.FixedWindows(20, phase_shift=True),
        mr.SlidingWindows(20, 10),
        mr.SlidingWindows(25, 10, offset=3),
        mr.Sessions(6),
        mr.GlobalWindow(),
    ]
)
aggregations = st.sampled_from(
    [Sum(), Count(), Mean(), Min(), Max(), Top(2), Quantiles([0, 0.5, 1]), Distinct()]
)
modes = st.sampled_from([mr.DISCARDING, mr.ACCUMULATING, mr.ACCUMULATING_AND_RETRACTING])
output_times = st.sampled_from(
    [mr.OutputTime.END_OF_WINDOW, mr.OutputTime.EARLIEST, mr.OutputTime.LATEST]
)

numbers = st.one_of(
    st.just(st.integers(-300, 300)),
    st.just(st.integers(-40, 40).map(lambda eighths: eighths / 8)),
    st.just(
        st.one_of(
            st.integers(-3, 3),
            st.integers(-40, 40).map(lambda eighths: eighths / 8),
            st.sampled_from([None, float("nan"), 2**70, True]),
        )
    ),
)


@st.composite
def scripts(draw: st.DrawFn) -> list[Any]:
    """Draw mostly batches of many records, so that most are lifted."""
    values, script = draw(numbers), []
    for _ in range(draw(st.integers(1, 5))):
        what = draw(st.sampled_from(["records", "records", "watermark", "clock", "crash"]))
        if what == "records":
            keys = draw(st.sampled_from(["a", "aaab"]))
            times = st.integers(0, draw(st.sampled_from([9, 30, 60])))
            record = st.tuples(st.sampled_from(keys), values, times)
            script.append((what, draw(st.lists(record, min_size=6, max_size=24))))
        else:
            script.append((what, draw(st.integers(0, 80))))
    return script


def run(
    script: list[Any],
    window_fn: mr.WindowFn,
    combine: mr.CombineFn,
    how: dict[str, Any],
    lift: bool,
) -> tuple[Any, Any, int]:
    p = mr.Pipeline("lifting")
    stream = p.inject("elements", format=dict).key_by("key")
    stream.window(window_fn, allow_data_loss=True, **how).aggregate(combine, "value").to("results")
    p.dead_letter("letters")
    with mr.testing.Harness(p, intervals=1, lift=lift) as h:
        for what, with_what in [*script, ("clock", 100), ("watermark", mr.MAX_TIMESTAMP)]:
            if what == "records":
                batch = [({"key": key, "value": value}, at) for key, value, at in with_what]
                h.inject("elements", batch)
            elif what == "watermark":
                if with_what >= h.low_watermark("results"):
                    h.advance_watermark("elements", with_what)
            elif what == "clock":
                if with_what >= h._wall_time_us:
                    h.advance_clock(with_what)
            else:
                h.crash()
        panes = defaultdict(list)
        for out in h.outputs("results"):
            assert out.pane is not None
            window = out.pane.window
            panes[out.key, window.start, window.end].append((out.value, out.pane, out.timestamp))
        counters = h.counters("results")
        lifted = counters.counted.pop("lifted", 0)
        letters = sorted((out.value.value, out.value.reason) for out in h.outputs("letters"))
    return panes, (counters.records, counters.late, counters.counted, letters), lifted


AT_WATERMARK = mr.Repeat(mr.AtWatermark())


def records(*times: int, values: Any = (1,)) -> list[Any]:
    found = [("a", values[n % len(values)], at) for n, at in enumerate(times)]
    return [("records", found)]


@given(scripts(), windows, aggregations, triggers, modes, output_times, st.sampled_from([0, 15]))
@example(
    records(0, 1, 2, 8, 9, 10),
    mr.Sessions(6), Sum(), AT_WATERMARK, mr.DISCARDING, mr.OutputTime.END_OF_WINDOW, 0,
)  # fmt: skip
@example(
    records(5, values=(1, 2.5, 3, 0.5, None, 4)) * 6,
    mr.FixedWindows(20), Sum(), AT_WATERMARK, mr.ACCUMULATING, mr.OutputTime.LATEST, 0,
)  # fmt: skip
@example(
    records(*[5] * 8, values=(1.5, 2.5, float("nan"), 0.5)),
    mr.FixedWindows(20), Sum(), AT_WATERMARK, mr.ACCUMULATING, mr.OutputTime.LATEST, 0,
)  # fmt: skip
@example(
    records(*[5] * 8, values=(2**62,)),
    mr.FixedWindows(20), Sum(), AT_WATERMARK, mr.ACCUMULATING, mr.OutputTime.LATEST, 0,
)  # fmt: skip
@example(
    records(3, 4, 9, 10, 12, 6, 7, 8, 11, 5),
    mr.SlidingWindows(25, 10), Sum(), AT_WATERMARK, mr.ACCUMULATING, mr.OutputTime.LATEST, 0,
)  # fmt: skip
@example(
    records(*[12] * 4, values=(1, 2)) + records(*[12] * 4, values=(1, 3)),
    mr.SlidingWindows(20, 10), Distinct(), AT_WATERMARK, mr.ACCUMULATING, mr.OutputTime.LATEST, 0,
)  # fmt: skip
@example(
    [*records(7, 2, 9, 4), ("watermark", 10), ("watermark", 12)],
    mr.GlobalWindow(), Count(), mr.Repeat(mr.AfterDelay(5, mr.LOW_WATERMARK)), mr.DISCARDING,
    mr.OutputTime.EARLIEST, 0,
)  # fmt: skip
def test_lifting_changes_no_pane_and_no_count(
    script: Any,
    window_fn: mr.WindowFn,
    combine: mr.CombineFn,
    trigger: mr.Trigger,
    mode: Any,
    output_time: Any,
    lateness: int,
) -> None:
    how = {
        "trigger": trigger,
        "mode": mode,
        "output_time": output_time,
        "allowed_lateness": lateness,
    }

    plain = run(script, window_fn, combine, how, lift=False)
    lifted = run(script, window_fn, combine, how, lift=True)

    event(f"{lifted[2] > 0} lifted")
    assert plain[2] == 0
    assert lifted[0] == plain[0]
    assert lifted[1] == plain[1]
