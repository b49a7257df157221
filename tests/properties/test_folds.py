"""One definition, four ways to fold: key by key, lifted, as columns, fanned out. One result."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.dataflow.aggregations import (
    Count,
    Distinct,
    Max,
    Mean,
    Min,
    Quantiles,
    StdDev,
    Sum,
    Top,
    Variance,
)
from millrace.dataflow.grouping import GroupingOperator


class Extent(mr.agg.VectorFold):
    """A user's: how far apart the smallest and the largest are; numbers below -1000 are refused."""

    accumulator = tuple[int | float, int | float] | None
    folds = (np.minimum, np.maximum)
    numbers_only = True

    def create(self) -> None:
        return None

    def add(self, accumulator: Any, value: Any) -> Any:
        if type(value) not in (int, float) or value != value or value < -1000:
            raise ValueError(f"no extent with {value!r}")
        return self.merge(accumulator, (value, value))

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return accumulator or other
        return min(accumulator[0], other[0]), max(accumulator[1], other[1])

    def extract(self, accumulator: Any) -> Any:
        return None if accumulator is None else accumulator[1] - accumulator[0]

    def of(self, values: Any) -> Any:
        return values, values

    def takes(self, values: Any) -> Any:
        return values >= -1000


class Days(mr.WindowFn):
    """A user's: days of 20, of which an element also counts for the next if it is in the last 5."""

    def assign(self, record: mr.Record) -> list[mr.Window]:
        start = record.timestamp // 20 * 20
        starts = [start, start + 20] if record.timestamp % 20 >= 15 else [start]
        return [mr.Window(start, start + 20) for start in starts]

    def assign_column(self, timestamps: Any, hashes: Any) -> Any:
        counts = 1 + (timestamps % 20 >= 15)
        rows = np.repeat(np.arange(len(timestamps)), counts)
        second = np.concatenate(([False], rows[1:] == rows[:-1]))
        starts = timestamps[rows] // 20 * 20 + 20 * second
        return rows, starts, starts + 20


class Naps(mr.WindowFn):
    """A user's sessions: the gap is 4 in the first half of every 40, and 9 in the second."""

    joins_overlapping = True

    def assign(self, record: mr.Record) -> list[mr.Window]:
        gap = 4 if record.timestamp % 40 < 20 else 9
        return [mr.Window(record.timestamp, record.timestamp + gap)]

    def merge(self, windows: Any) -> Any:
        return mr.Sessions(1).merge(windows)

    def assign_column(self, timestamps: Any, hashes: Any) -> Any:
        gaps = np.where(timestamps % 40 < 20, 4, 9)
        return np.arange(len(timestamps)), timestamps, timestamps + gaps


AGGREGATIONS = [
    Sum(), Count(), Mean(), Min(), Max(), Variance(), StdDev(sample=False), Extent(), Top(2),
    Quantiles([0, 0.5, 1]), Distinct(),
]  # fmt: skip
#: Several at once, by what they are of; the first can be kept as columns, of values with a type.
SEVERAL = [
    lambda of: {
        "n": mr.agg.count(), "total": mr.agg.sum(of), "few": mr.agg.count(where=_is_small(of)),
        "low": mr.agg.min(of, where=_is_small(of)), "mean": mr.agg.mean(of),
        "spread": mr.agg.variance(of, where=_is_odd(of)), "extent": mr.agg.Aggregate(Extent(), of),
    },
    lambda of: {
        "n": mr.agg.count(where=_is_odd(of)), "people": mr.agg.distinct(of),
        "best": mr.agg.top(2, of, where=_is_small(of)), "middle": mr.agg.quantiles([0.5], of),
        "high": mr.agg.max(of),
    },
]  # fmt: skip


def _number(of: Any, element: Any) -> Any:
    value = element if of is None else element[of]
    return value if type(value) in (int, float) else 0


def _is_small(of: Any) -> Any:
    return lambda element: abs(_number(of, element)) < 100


def _is_odd(of: Any) -> Any:
    return lambda element: _number(of, element) % 2 == 1


WINDOWS = [
    mr.FixedWindows(20), mr.FixedWindows(15, offset=4, phase_shift=True), mr.SlidingWindows(20, 5),
    mr.SlidingWindows(25, 10, offset=3), mr.Sessions(6), mr.GlobalWindow(), Days(), Naps(),
]  # fmt: skip

small = st.integers(-300, 300)
large = st.sampled_from([-(2**55), 2**55, 2**55 - 1, -1001])
broken = st.integers(-40, 40).map(lambda eighths: eighths / 8)
odd = st.sampled_from([None, float("nan"), True, "text"])
VALUES = {int: st.one_of(small, large), float: broken, Any: st.one_of(small, small, broken, odd)}


@st.composite
def scripts(draw: st.DrawFn, kind: Any) -> list[Any]:
    script: list[Any] = []
    for _ in range(draw(st.integers(1, 4))):
        times = st.integers(0, draw(st.sampled_from([9, 30, 60])))
        record = st.tuples(st.sampled_from("aab"), VALUES[kind], times)
        script.append(("records", draw(st.lists(record, min_size=4, max_size=20))))
        if draw(st.booleans()):
            script.append(("watermark", draw(st.integers(0, 60))))
    return script


def run(
    script: list[Any],
    window_fn: Any,
    combine: Any,
    kind: Any,
    way: str,
    crashes: Any = (),
    **how: Any,
) -> Any:
    p = mr.Pipeline("folds")
    numbers = p.inject("elements", format=dict).key_by("key")
    if kind is not Any:
        numbers = numbers.map(lambda element: element["value"]).to("numbers", format=kind)
    p.dead_letter("letters")
    windowed = numbers.window(window_fn, allow_data_loss=True)
    of = "value" if kind is Any else None
    how["fanout"] = 3 if way == "fan-out" else None
    if callable(combine):
        windowed.aggregate(**how, **combine(of)).to("results")
    else:
        windowed.aggregate(combine, of, **how).to("results")
    with mr.testing.Harness(p, intervals=1, lift="lifted" in way) as h:
        for n, (what, with_what) in enumerate([*script, ("watermark", mr.MAX_TIMESTAMP)]):
            if n < len(crashes) and crashes[n] is not None:
                h.crash_in_next_epoch(crashes[n])
            if what == "records":
                h.inject("elements", [({"key": k, "value": v}, at) for k, v, at in with_what])
            elif with_what >= h.low_watermark("elements" if way == "none" else "results"):
                h.advance_watermark("elements", with_what)
        panes = defaultdict(list)
        for out in h.outputs("results"):
            assert out.pane is not None
            panes[out.key, out.pane.window.start, out.pane.window.end].append(
                (out.value, out.pane, out.timestamp)
            )
        letters = sorted((repr(o.value.value), o.value.reason) for o in h.outputs("letters"))
    return panes, letters, p.build().computation("results").columnar is not None


def _comparable(records: list[Any]) -> list[Any]:
    return [record for record in records if type(record[1]) not in (str, bool)]


def close(panes: Any) -> Any:
    """Return panes with results that are the same if they are but for rounding."""

    def about(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: about(each) for name, each in value.items()}
        return pytest.approx(value, rel=1e-9, abs=1e-9) if type(value) is float else value

    return {
        where: [(about(value), *rest) for value, *rest in those] for where, those in panes.items()
    }


@settings(max_examples=30)  # each is five runs
@given(
    st.sampled_from([int, float, Any]).flatmap(lambda k: st.tuples(st.just(k), scripts(k))),
    st.sampled_from(WINDOWS),
    st.sampled_from([*AGGREGATIONS, *SEVERAL, *SEVERAL]),
)
@example(
    (int, [("records", [("a", n * 10**9, n % 40) for n in range(40)])] * 2), Days(), Variance()
)
@example((Any, [("records", [("a", v, 5) for v in (1, None, 2.5, 7, "x")])] * 2), Naps(), Extent())
def test_the_ways_to_fold_agree(typed: Any, window_fn: Any, combine: Any) -> None:
    kind, script = typed
    if callable(combine) or isinstance(combine, Min | Max | Top):
        # A partial that cannot be compared with what is there is refused as a whole.
        script = [(w, _comparable(those) if w == "records" else those) for w, those in script]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupingOperator, "columnar", lambda *_: None)
        single = run(script, window_fn, combine, kind, "key by key")
        lifted = run(script, window_fn, combine, kind, "lifted")
        fanned = run(script, window_fn, combine, kind, "fan-out")
    columns = run(script, window_fn, combine, kind, "columns")
    both = run(script, window_fn, combine, kind, "columns, lifted")
    event(f"{columns[2]} columns")

    assert (columns[2], single[2]) == (both[2], False)
    expected = close(single[0])
    for other in (lifted, columns, both):
        assert other[:2] == (expected, single[1])
    assert fanned[0] == expected
    # A part of a key judges a value before the key itself would drop it as too late.
    assert set(fanned[1]) >= set(single[1])


@settings(max_examples=20)
@given(
    st.sampled_from([int, Any]).flatmap(lambda k: st.tuples(st.just(k), scripts(k))),
    st.sampled_from(WINDOWS),
    st.sampled_from(SEVERAL),
    st.lists(st.none() | st.integers(0, 3), max_size=4),
    st.sampled_from([mr.STRONG, mr.WEAK]),
    st.sampled_from([True, False]),
)
def test_crashes_change_nothing_of_several(
    typed: Any, window_fn: Any, combine: Any, crashes: Any, productions: Any, fanned: bool
) -> None:
    kind, script = typed
    way = "fan-out" if fanned else "columns, lifted"
    how = {"productions": productions, "delivery": mr.AT_LEAST_ONCE}

    crashed = run(script, window_fn, combine, kind, way, crashes, **how)

    assert crashed == run(script, window_fn, combine, kind, way)


def test_which_of_them_are_columns() -> None:
    def kept(combine: Any, window_fn: Any) -> bool:
        return bool(run([], window_fn, combine, int, "columns")[2])

    assert [kept(combine, WINDOWS[0]) for combine in AGGREGATIONS] == [True] * 8 + [False] * 3
    assert [kept(several, WINDOWS[0]) for several in SEVERAL] == [True, False]
    assert [kept(Sum(), window_fn) for window_fn in WINDOWS] == [
        True, True, True, True, True, False, True, True,
    ]  # fmt: skip
