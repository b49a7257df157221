"""Retractions through computations of a user's: what is made of one is one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import millrace as mr

HOW = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": 1000}


class Doubled(mr.Computation):
    """Knows nothing of panes."""

    inputs = {"totals": mr.by_key()}
    outputs = {"doubled": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("doubled", record.value * 2, key="all")


@pytest.fixture
def run() -> Iterator[Callable[..., mr.testing.Harness]]:
    """Run a computation over the totals 3, then 5 in its place."""
    open_: list[mr.testing.Harness] = []

    def make(
        computation: Any, add: Callable[[mr.Pipeline], Any] = str, mode: Any = None
    ) -> mr.testing.Harness:
        p = mr.Pipeline("retracting")
        numbers = p.inject("numbers", format=int).key_by(lambda number: number % 1)
        how = HOW if mode is None else {**HOW, "mode": mode}
        numbers.window(mr.FixedWindows(10), **how).sum().to("totals")
        p.add(computation)
        add(p)
        h = mr.testing.Harness(p)
        open_.append(h)
        h.inject("numbers", [(3, 1)])
        h.advance_watermark("numbers", 10)
        h.crash()
        h.inject("numbers", [(2, 2)])
        return h

    yield make
    for h in open_:
        h.close()


def signed(h: mr.testing.Harness, stream: str) -> list[Any]:
    """Return the values of a stream, (value,) for one that carries no pane, - for a retraction."""
    return [
        (out.value,) if out.pane is None else -out.value if out.pane.retraction else out.value
        for out in h.outputs(stream)
    ]


def test_what_is_made_of_a_retraction_is_one(run: Any) -> None:
    h = run(Doubled)

    assert signed(h, "doubled") == [6, -6, 10]
    # As of a stateless step: the facts of the pane that it was made of, and its time.
    for made, of in zip(h.outputs("doubled"), h.outputs("totals"), strict=True):
        assert (made.pane, made.timestamp) == (of.pane, of.timestamp)


def test_a_second_grouping_takes_it_out(run: Any) -> None:
    def second(p: mr.Pipeline) -> None:
        doubled = p.stream("doubled").key_by(lambda value: value % 1)
        doubled.window(mr.FixedWindows(100), **HOW).sum().to("sums")
        doubled.window(mr.FixedWindows(100), **HOW).max().to("largest")
        doubled.window(mr.FixedWindows(100), **HOW).count(fanout=2).to("counts")

    h = run(Doubled, second)
    h.advance_watermark("numbers", 100)

    assert [signed(h, stream) for stream in ("sums", "largest", "counts")] == [[10], [10], [1]]


def test_a_computation_sees_whether_it_is_one_and_may_say_otherwise(run: Any) -> None:
    class Net(mr.Computation):
        """State is the user's: it takes out what is taken back, and replaces its own result."""

        inputs = {"totals": mr.by(lambda total: total % 1)}
        outputs = {"net": int, "told": str}
        sum = mr.ValueState(int)

        def process_record(self, record: mr.Record) -> None:
            pane = record.pane
            self.produce("told", f"{pane.timing} {pane.index}", retraction=False)
            before = self.sum.get()
            now = (before or 0) + (-record.value if pane.retraction else record.value)
            if before is not None:
                self.produce("net", before, retraction=True)
            self.produce("net", now, retraction=False)
            self.sum.set(now)

    h = run(Net)

    assert signed(h, "net") == [3, -3, 0, 0, 5]
    assert [out.value for out in h.outputs("told")] == ["ON_TIME 0", "ON_TIME 0", "LATE 1"]
    assert not any(out.pane.retraction for out in h.outputs("told"))


def test_timers_have_no_pane_unless_one_is_given(run: Any) -> None:
    class Later(mr.Computation):
        inputs = {"totals": mr.by_key()}
        outputs = {"plain": int, "kept": int, "made": int}
        values = mr.BagState(tuple[int, mr.Pane])

        def process_record(self, record: mr.Record) -> None:
            self.values.add((record.value, record.pane))
            self.set_timer("now", 0, mr.WALL_TIME)

        def process_timer(self, timer: mr.Timer) -> None:
            for value, pane in self.values:
                self.produce("plain", value, 9)
                self.produce("kept", value, 9, pane=pane)
                self.produce("made", value, 9, retraction=pane.retraction)
            self.values.clear()

    h = run(Later)

    assert signed(h, "plain") == [(3,), (3,), (5,)]
    assert signed(h, "kept") == [3, -3, 5]
    assert signed(h, "made") == [(3,), -3, (5,)]
    assert h.outputs("made")[1].pane.window == mr.Window()


def test_without_retractions_outputs_stay_plain(run: Any) -> None:
    assert signed(run(Doubled, mode=mr.ACCUMULATING), "doubled") == [(6,), (10,)]


class Correcting(mr.Computation):
    """Takes its own results back: the newest number of each key stands."""

    inputs = {"numbers": mr.by(lambda number: number % 1)}
    outputs = {"newest": mr.coders.Paned(int, retracts=True)}
    last = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        if (last := self.last.get()) is not None:
            self.produce("newest", last, retraction=True)
        self.produce("newest", record.value)
        self.last.set(record.value)


def test_a_computation_may_be_the_first_to_take_something_back(run: Any) -> None:
    def second(p: mr.Pipeline) -> None:
        newest = p.stream("newest").key_by(lambda value: value % 1)
        newest.window(mr.FixedWindows(100), **HOW).sum().to("sums")

    h = run(Correcting, second)
    h.advance_watermark("numbers", 100)

    assert signed(h, "newest") == [(3,), -3, (2,)]
    assert signed(h, "sums") == [2]


@pytest.mark.parametrize(
    ("format", "said", "complaint"),
    [
        (int, {"retraction": True}, "produced a retraction to stream 'made'"),
        (int, {"pane": mr.Pane(mr.Window())}, "produced a pane to stream 'made'"),
        (mr.coders.Paned(int), {"retraction": True}, "produced a retraction to stream 'made'"),
    ],
)
def test_a_retraction_that_nobody_looks_for_is_refused(
    format: Any, said: Any, complaint: str
) -> None:
    class Says(mr.Computation):
        inputs = {"numbers": mr.by(lambda number: number % 1)}
        outputs = {"made": format}

        def process_record(self, record: mr.Record) -> None:
            self.produce("made", record.value, **said)

    p = mr.Pipeline("unlooked for")
    p.inject("numbers", format=int)
    p.add(Says)
    with pytest.raises(mr.MillraceError, match=complaint) as refused:
        mr.testing.Harness(p).inject("numbers", [(1, 1)])
    assert 'outputs = {"made": mr.coders.Paned(<format>, retracts=True)}' in str(refused.value)


@pytest.mark.parametrize(
    ("aggregate", "complaint"),
    [
        (lambda s: s.window(mr.FixedWindows(9), mode=mr.DISCARDING).max(), "DISCARDING"),
        (lambda s: s.window(mr.FixedWindows(9)).max(fanout=2), "Leave fanout out"),
    ],
)
def test_what_could_not_take_it_out_is_refused_when_the_pipeline_is_built(
    aggregate: Any, complaint: str
) -> None:
    p = mr.Pipeline("hopeless")
    numbers = p.inject("numbers", format=int).key_by(lambda number: number % 1)
    numbers.window(mr.FixedWindows(10), **HOW).sum().to("totals")
    p.add(Doubled)
    aggregate(p.stream("doubled").key_by(lambda value: value % 1))

    with pytest.raises(mr.MillraceError, match=complaint):
        p.build()


def test_a_value_that_was_never_there_is_laid_to_what_made_it(run: Any) -> None:
    class Fickle(mr.Computation):
        inputs = {"totals": mr.by_key()}
        outputs = {"fickle": int}
        n = mr.CombiningState(int)

        def process_record(self, record: mr.Record) -> None:
            self.n.add(1)
            self.produce("fickle", self.n.get())

    with pytest.raises(mr.MillraceError, match="a step or a computation that does not return"):
        run(
            Fickle,
            lambda p: p.stream("fickle").key_by(str).window(mr.FixedWindows(9)).max().to("most"),
        )


def test_an_output_whose_format_is_none_is_told_once(run: Any) -> None:
    class Odd(Doubled):
        outputs = {"doubled": object()}

    with pytest.raises(mr.MillraceError, match="stream 'doubled'") as refused:
        run(Odd, lambda p: p.stream("doubled").map(str).to("texts"))
    assert "problems" not in str(refused.value)


def test_formats_are_found_once_however_many_ways_lead_to_a_stream() -> None:
    """Forty steps of two ways each are 2^40 ways."""

    class Both(mr.Computation):
        def __init__(self, n: int) -> None:
            self.inputs = {f"a{n}": mr.by_key(), f"b{n}": mr.by_key()}  # type: ignore[misc]
            self.outputs = {f"a{n + 1}": int, f"b{n + 1}": int}  # type: ignore[misc]

        def process_record(self, record: mr.Record) -> None:
            pass

    p = mr.Pipeline("ladder")
    p.inject("a0", format=int)
    p.inject("b0", format=int)
    for n in range(40):
        p.add(Both(n), name=f"both-{n}")

    assert p.build().depth == 40
