"""Whatever the triggers and the order of things, the net of a pipeline is the batch answer."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.dataflow.grouping import declaration
from millrace.dataflow.triggers.tree import TriggerTree
from tests.kit.triggers import composites

FAR = 10**6

leaves = st.one_of(
    st.just(mr.AtWatermark()),
    st.integers(1, 4).map(mr.AfterCount),
    st.integers(1, 20).map(mr.AfterBytes),
    st.sampled_from([10, 25]).map(mr.AtPeriod),
    st.sampled_from([10, 25]).map(lambda p: mr.AtPeriod(p, domain=mr.LOW_WATERMARK)),
    st.sampled_from([5, 30]).map(mr.AfterDelay),
    st.sampled_from([5, 30]).map(lambda d: mr.AfterDelay(d, mr.LOW_WATERMARK)),
    st.just(mr.Punctuation(lambda value: value % 3 == 0)),
)


triggers = st.recursive(leaves, composites, max_leaves=5).map(mr.Repeat)

records = st.tuples(st.sampled_from(["a", "b"]), st.integers(-3, 6), st.integers(0, 60))
steps = st.one_of(
    st.lists(records, min_size=1, max_size=4).map(lambda batch: ("records", batch)),
    st.integers(0, 80).map(lambda to: ("watermark", to)),
    st.integers(0, 80).map(lambda to: ("clock", to)),
    # Between two epochs, or right after the next one's n-th durable write.
    st.one_of(st.none(), st.integers(0, 8)).map(lambda writes: ("crash", writes)),
)
scripts = st.lists(steps, max_size=8)

WINDOWS: dict[str, tuple[Callable[[], mr.WindowFn], Any]] = {
    "fixed": (
        lambda: mr.FixedWindows(20),
        lambda times: {at: [(at // 20 * 20, at // 20 * 20 + 20)] for at in times},
    ),
    "sliding": (
        lambda: mr.SlidingWindows(20, 10),
        lambda times: {
            at: [(start, start + 20) for start in (at // 10 * 10 - 10, at // 10 * 10)]
            for at in times
        },
    ),
    "sessions": (lambda: mr.Sessions(6), lambda times: sessions(times, 6)),
    "global": (mr.GlobalWindow, lambda times: {at: [(None, None)] for at in times}),
}


def sessions(times: Any, gap: int) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    chain: list[int] = []
    for at in sorted(set(times)):
        if chain and at - chain[-1] >= gap:
            chain = []
        chain.append(at)
        for member in chain:
            found[member] = [(chain[0], at + gap)]
    return found


def drive(p: mr.Pipeline, script: Any, stream: str) -> list[Any]:
    """Run a script, and return the panes of a stream at the end of the input."""
    low_watermark = clock = 0
    with mr.testing.Harness(p, intervals=1) as h:
        for kind, what in script:
            if kind == "records":
                h.inject("elements", [((key, value), at) for key, value, at in what])
            elif kind == "watermark":
                low_watermark = max(low_watermark, what)
                h.advance_watermark("elements", low_watermark)
            elif kind == "clock":
                clock = max(clock, what)
                h.advance_clock(clock)
            else:
                crash(h, what)
        h.advance_watermark("elements", mr.MAX_TIMESTAMP)
        assert not [name for name in ("one", stream) if h.counters(name).counted]
        return h.outputs(stream)


def crash(h: mr.testing.Harness, writes: int | None) -> None:
    if writes is None:
        h.crash()
    else:
        h.crash_in_next_epoch(writes)


def elements(script: Any) -> list[tuple[str, int, int]]:
    return [record for kind, what in script if kind == "records" for record in what]


def in_windows(script: Any, kind: str) -> dict[tuple[str, Any], list[int]]:
    """Return the values of each key and window, as a batch would group them."""
    grouped = defaultdict(list)
    for key in ("a", "b"):
        of_key = [(value, at) for k, value, at in elements(script) if k == key]
        assigned = WINDOWS[kind][1]([at for _, at in of_key])
        for value, at in of_key:
            for window in assigned[at]:
                grouped[key, window].append(value)
    return grouped


def keyed(p: mr.Pipeline) -> Any:
    stream = p.inject("elements", format=tuple[str, int])
    return stream.key_by(lambda element: element[0]).map(lambda element: element[1])


def window_of(output: Any) -> tuple[Any, Any]:
    return output.pane.window.start, output.pane.window.end


@pytest.mark.parametrize("kind", WINDOWS)
@given(script=scripts, trigger=triggers)
@settings(max_examples=40)
def test_discarding_panes_add_up_to_the_batch_answer(kind: str, script: Any, trigger: Any) -> None:
    p = mr.Pipeline("discarding")
    how = {"trigger": trigger, "mode": mr.DISCARDING, "allowed_lateness": FAR}
    keyed(p).window(WINDOWS[kind][0](), **how).group().to("one")

    panes = drive(p, script, "one")

    batch = in_windows(script, kind)
    if kind == "sessions":  # a window that was emitted may have grown since
        found = Counter((o.key, value) for o in panes for value in o.value)
        wanted = Counter((key, value) for (key, _), values in batch.items() for value in values)
    else:
        found = Counter((o.key, window_of(o), value) for o in panes for value in o.value)
        wanted = Counter((*group, value) for group, values in batch.items() for value in values)
    assert found == wanted


@pytest.mark.parametrize("kind", WINDOWS)
@given(script=scripts, trigger=triggers)
@settings(max_examples=40)
def test_what_is_not_taken_back_is_the_batch_answer(kind: str, script: Any, trigger: Any) -> None:
    p = mr.Pipeline("retracting")
    how = {
        "trigger": trigger, "mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": FAR,
    }  # fmt: skip
    keyed(p).window(WINDOWS[kind][0](), **how).sum().to("one")

    panes = drive(p, script, "one")

    assert net(panes) == Counter(
        (key, window, sum(values)) for (key, window), values in in_windows(script, kind).items()
    )


def net(panes: list[Any]) -> Counter[Any]:
    """Return what is left of the panes, having checked that each retraction has its pane."""
    left: Counter[Any] = Counter()
    for output in panes:
        value = tuple(output.value) if isinstance(output.value, list) else output.value
        left[output.key, window_of(output), value] += -1 if output.pane.retraction else 1
        assert min(left.values()) >= 0, "a retraction without a pane before it"
    return +left


ANY_WINDOWS: dict[str, Callable[[], mr.WindowFn]] = {
    **{kind: made for kind, (made, _) in WINDOWS.items()},
    "a user's, which merge": lambda: mr.WindowFn(
        lambda record: [mr.Window(record.timestamp, record.timestamp + 6)], mr.Sessions(6).merge
    ),
}


@pytest.mark.parametrize("kind", ANY_WINDOWS)
@given(
    script=scripts,
    trigger=triggers,
    mode=st.sampled_from([mr.DISCARDING, mr.ACCUMULATING, mr.ACCUMULATING_AND_RETRACTING]),
)
@example(
    script=[("records", [("a", 0, 0), ("a", 0, 8), ("a", 0, 4)])],
    trigger=mr.Repeat(mr.AfterCount(2)), mode=mr.DISCARDING,
)  # fmt: skip
@settings(max_examples=40)
def test_a_pane_has_all_that_came_before_it_in_its_window(
    kind: str, script: Any, trigger: Any, mode: Any
) -> None:
    """Elements come one by one, so it is known which came before a pane.

    Each is a power of two, so that a sum says whose it is.
    """
    p = mr.Pipeline("so far")
    windows = ANY_WINDOWS[kind]()
    how = {"trigger": trigger, "mode": mode, "allowed_lateness": FAR}
    keyed(p).window(windows, **how).sum().to("one")
    came: list[tuple[str, int, list[mr.Window]]] = []
    emitted: dict[tuple[str, mr.Window], int] = defaultdict(int)
    current: Counter[Any] = Counter()
    seen = low_watermark = clock = 0
    with mr.testing.Harness(p, intervals=1) as h:

        def check() -> None:
            nonlocal seen
            new, seen = h.outputs("one")[seen:], len(h.outputs("one"))
            for output in new:
                if output.pane.retraction:
                    current[output.key, output.pane.window, output.value] -= 1
                    assert min(current.values()) >= 0, "a retraction without a pane before it"
                    continue
                there = [
                    (value, (output.key, window))
                    for key, value, assigned in came
                    for window in assigned
                    if key == output.key and within(window, output.pane.window)
                ]
                if mode is mr.DISCARDING:
                    there = [(value, own) for value, own in there if not emitted[own] & value]
                    for value, own in there:
                        emitted[own] |= value
                assert output.value == sum(value for value, _ in there), output
                current[output.key, output.pane.window, output.value] += 1

        for step, what in script:
            if step == "records":
                for key, _, at in what:
                    value = 1 << len(came)
                    record = mr.Record(key, value, at, "elements")
                    came.append((key, value, list(windows.assign(record))))
                    h.inject("elements", [((key, value), at)])
                    check()
            elif step == "watermark":
                h.advance_watermark("elements", low_watermark := max(low_watermark, what))
            elif step == "clock":
                h.advance_clock(clock := max(clock, what))
            else:
                crash(h, what)
            check()
        h.advance_watermark("elements", mr.MAX_TIMESTAMP)
        check()
        assert not h.counters("one").counted.get("dropped_late")


def within(window: mr.Window, whole: mr.Window) -> bool:
    return whole.start is None or (whole.start <= window.start and window.end <= whole.end)


AGGREGATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[list[int]], Any]]] = {
    "sum": (lambda s: s.sum(), sum),
    "count": (lambda s: s.count(), len),
    "mean": (lambda s: s.mean(), lambda values: sum(values) / len(values)),
    "max": (lambda s: s.max(), max),
    "distinct": (lambda s: s.distinct(), lambda values: len(set(values))),
    "quantiles": (
        lambda s: s.quantiles([0.5]),
        lambda values: (sorted(values)[(len(values) - 1) // 2],),
    ),
    "top": (lambda s: s.top(2), lambda values: tuple(sorted(values)[:-3:-1])),
    "a user's, which uncombines": (lambda s: s.aggregate(Squares()), lambda v: squares(v)),
    "a user's, which does not": (lambda s: s.aggregate(Spread()), lambda v: max(v) - min(v)),
}


def squares(values: list[int]) -> int:
    return sum(value * value for value in values)


class Squares(mr.CombineFn):
    accumulator = int

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return accumulator + value * value

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def extract(self, accumulator: int) -> int:
        return accumulator

    def uncombine(self, accumulator: int, value: int) -> int:
        return accumulator - value * value


class Spread(mr.CombineFn):
    accumulator = tuple[int, int] | None

    def create(self) -> None:
        return None

    def add(self, accumulator: Any, value: int) -> Any:
        return self.merge(accumulator, (value, value))

    def merge(self, accumulator: Any, other: Any) -> Any:
        if accumulator is None or other is None:
            return accumulator or other
        return min(accumulator[0], other[0]), max(accumulator[1], other[1])

    def extract(self, accumulator: Any) -> int:
        return accumulator[1] - accumulator[0]


class Parity(mr.Computation):
    """Stands between two groupings, and knows nothing of panes; none of some, two of others."""

    inputs = {"one": mr.by(lambda total: total % 2)}
    outputs = {"parities": int}
    seen = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.seen.add(1)
        for part in halves(record.value):
            self.produce("parities", part, key=part % 3)


def halves(total: int) -> list[int]:
    return [] if total % 5 == 4 else [total] if total % 2 else [total, total + 1]


def through_a_computation(p: mr.Pipeline, _: Any) -> Any:
    p.add(Parity)
    return p.stream("parities").key_by(lambda part: part % 3)


#: What stands between two groupings: the stream that it makes of "one", and what that has.
BETWEEN: dict[str, tuple[Callable[[mr.Pipeline, Any], Any], Callable[[int], list[int]]]] = {
    "a step": (lambda _, one: one.key_by(lambda total: total % 3), lambda total: [total]),
    "a computation": (through_a_computation, halves),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(script=scripts, first=triggers, second=triggers, kind=st.sampled_from(["fixed", "sliding"]))
@example(
    script=[
        ("records", [("a", 1, 5), ("b", 1, 5)]), ("watermark", 20), ("records", [("a", 2, 6)]),
    ],
    first=mr.Repeat(mr.AtWatermark()), second=mr.Repeat(mr.AtWatermark()), kind="fixed",
)  # fmt: skip
@settings(max_examples=30)
def test_two_groupings_with_keys_that_change_give_the_batch_answer(
    aggregation: str, between: str, script: Any, first: Any, second: Any, kind: str
) -> None:
    aggregate, plainly = AGGREGATIONS[aggregation]
    through, made = BETWEEN[between]
    p = mr.Pipeline("two stages")
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": FAR}
    one = keyed(p).window(WINDOWS[kind][0](), trigger=first, **how).sum().to("one")
    aggregate(through(p, one).window(mr.FixedWindows(60), trigger=second, **how)).to("two")

    panes = drive(p, script, "two")

    totals = {group: sum(values) for group, values in in_windows(script, kind).items()}
    by_key = defaultdict(list)
    for (_, (_, end)), total in totals.items():
        start = (end - 1) // 60 * 60
        for part in made(total):
            by_key[part % 3, (start, start + 60)].append(part)
    assert {(key, window): value for key, window, value in _plain(net(panes))} == {
        group: plainly(values) for group, values in by_key.items()
    }


def _plain(left: Counter[Any]) -> list[Any]:
    assert set(left.values()) <= {1}
    return list(left)


@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("kind", ["fixed", "sessions"])
@given(script=scripts, lateness=st.sampled_from([0, 15, FAR]))
@settings(max_examples=40)
def test_the_usual_trigger_is_as_the_tree_would_have_it(
    kind: str, repeated: bool, script: Any, lateness: int
) -> None:
    assume(repeated or lateness == 0)

    def panes() -> list[Any]:
        p = mr.Pipeline("usual")
        trigger = mr.Repeat(mr.AtWatermark()) if repeated else mr.AtWatermark()
        how = {"trigger": trigger, "mode": mr.ACCUMULATING_AND_RETRACTING}
        keyed(p).window(WINDOWS[kind][0](), allowed_lateness=lateness, **how).sum().to("one")
        low_watermark = 0
        with mr.testing.Harness(p, intervals=1) as h:
            for step, what in script:
                if step == "records":
                    h.inject("elements", [((key, value), at) for key, value, at in what])
                elif step == "watermark":
                    low_watermark = max(low_watermark, what)
                    h.advance_watermark("elements", low_watermark)
            h.advance_watermark("elements", mr.MAX_TIMESTAMP)
            # Where windows are kept as columns, all keys of one come before the next.
            by_key = sorted(h.outputs("one"), key=lambda output: str(output.key))
            return [by_key, h.counters("one").counted]

    quick = panes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(declaration, "runner", TriggerTree)
        assert panes() == quick
