"""Code that would never run is refused by name: when the pipeline is built, or at the record."""

import asyncio
import functools
import re
import warnings

import msgspec
import numpy as np
import pytest

import millrace as mr
from millrace.compile.callables import never_runs
from millrace.model.errors import PipelineError, UserCodeError


async def ask(value):
    return value


async def ask_all(value):
    yield value


def spread(value):
    yield value


class Asking:
    async def __call__(self, value):
        return value

    async def method(self, value):
        return value


@functools.cache
def _cached(value):
    return value


def driven(function):
    """A decorator as a user writes it who wants to call what is async."""

    @functools.wraps(function)
    def run(value):
        return asyncio.run(function(value))

    return run


NEVER = {
    "async": (ask, "an async function"),
    "async generator": (ask_all, "an async generator function"),
    "generator": (spread, "a generator function"),
    "partial": (functools.partial(ask), "an async function"),
    "partial of a partial": (functools.partial(functools.partial(spread)), "a generator"),
    "bound": (Asking().method, "an async function"),
    "callable": (Asking(), "an async function"),
    "partial of a callable": (functools.partial(Asking()), "an async function"),
    "cached": (functools.cache(spread), "a generator function"),
}


@pytest.mark.parametrize("name", NEVER)
def test_what_would_never_run_is_seen(name):
    function, reason = NEVER[name]
    assert never_runs(function).startswith(reason)


@pytest.mark.parametrize("function", [print, len, _cached, driven(ask), str.upper, dict, Asking])
def test_what_runs_is_not_refused(function):
    assert never_runs(function) is None


STEPS = {
    "map": lambda stream, function: stream.map(function),
    "filter": lambda stream, function: stream.filter(function),
    "key_by": lambda stream, function: stream.key_by(function),
    "with_timestamps": lambda stream, function: stream.with_timestamps(function),
    "with_timestamps of a unit": lambda s, function: s.with_timestamps(function, unit="s"),
    "map of a record": lambda stream, function: stream.map(mr.of_record(function)),
    "flat_map": lambda stream, function: stream.flat_map(function),
    "sink": lambda stream, _: stream,
}


@pytest.mark.parametrize("name", NEVER)
@pytest.mark.parametrize("step", STEPS)
def test_step_that_would_never_run_is_refused_when_built(step, name):
    function, reason = NEVER[name]
    p = mr.Pipeline("p")
    STEPS[step](p.inject("in", format=int), function).to("out", int)
    p.sink("out", function if step == "sink" else print)
    if step == "flat_map" and "generator" in reason and "async" not in reason:
        p.explain()  # Its values are what it yields.
        return
    with pytest.raises(PipelineError, match=f"is {reason}.*: calling it would run none of its cod"):
        p.explain()


def test_flat_map_takes_what_a_generator_function_yields():
    p = mr.Pipeline("p")
    p.inject("in", format=int).flat_map(lambda n: (n * m for m in (1, 2))).flat_map(spread).to(
        "out", int
    )
    p.sink("out", print)
    with mr.testing.Harness(p) as h:
        h.inject("in", [(3, 0)])
        assert [output.value for output in h.outputs("out")] == [3, 6]


def _hook(kind):
    if kind == "async":

        async def hook(self, given):
            pass
    elif kind == "async generator":

        async def hook(self, given):
            yield
    else:

        def hook(self, given):
            yield

    return hook


class Plain(mr.Computation):
    inputs = {"in": mr.by("k")}
    outputs = {"out": int}

    def process_record(self, record):
        self.set_timer("t", at=record.timestamp)

    def process_timer(self, timer):
        pass


@pytest.mark.parametrize("hook", ["process_record", "process_timer"])
@pytest.mark.parametrize("kind", ["async", "async generator", "generator"])
def test_hook_that_would_never_run_is_refused_by_name_also_if_inherited(hook, kind):
    base = type("Base", (Plain,), {hook: _hook(kind)})
    p = mr.Pipeline("p")
    p.inject("in")
    p.add(type("Own", (base,), {}))
    with pytest.raises(PipelineError) as refused:
        p.explain()
    said = "a generator function" if kind == "generator" else f"an {kind} function"
    assert f"computation 'Own': hook is {said}" in str(refused.value)
    assert f"def {hook}(self, {hook.removeprefix('process_')})" in str(refused.value)


def test_start_that_would_never_run_is_refused():
    class Starting(Plain):
        inputs = {}

        async def process_start(self):
            pass

    p = mr.Pipeline("p")
    p.add(Starting, keys=["a"])
    with pytest.raises(PipelineError, match="process_start is an async function"):
        p.explain()


class AsyncWindows(mr.WindowFn):
    async def assign(self, record):
        return []


class YieldingWindows(mr.WindowFn):
    def assign(self, record):
        yield mr.Window(0, 10)


class AsyncTrigger(mr.Trigger):
    async def should_fire(self, ctx):
        return True


class YieldingTrigger(mr.Trigger):
    def on_element(self, ctx):
        yield


class AsyncSum(mr.CombineFn):
    def create(self):
        return 0

    async def add(self, accumulator, value):
        return accumulator + value

    def merge(self, accumulator, other):
        return accumulator + other

    def extract(self, accumulator):
        return accumulator


@pytest.mark.parametrize(
    ("window", "trigger", "combine", "said"),
    [
        (AsyncWindows(), None, sum, "AsyncWindows.assign is an async function"),
        (mr.FixedWindows(10), AsyncTrigger(), sum, "AsyncTrigger.should_fire is an async function"),
        (mr.FixedWindows(10), YieldingTrigger(), sum, "YieldingTrigger.on_element is a generator"),
        (
            mr.FixedWindows(10),
            mr.Repeat(AsyncTrigger()),
            sum,
            "AsyncTrigger.should_fire is an async function",
        ),
        (mr.FixedWindows(10), None, AsyncSum(), "AsyncSum.add is an async function"),
    ],
)
def test_windows_triggers_and_combines_that_would_never_run_are_refused(
    window, trigger, combine, said
):
    p = mr.Pipeline("p")
    windowed = p.inject("in", format=int).key_by(str)
    windowed = windowed.window(window, trigger=trigger, allow_data_loss=True)
    totals = windowed.sum() if combine is sum else windowed.aggregate(combine)
    totals.to("out")
    p.sink("out", print)
    with pytest.raises(PipelineError, match=said):
        p.explain()


def test_windows_may_be_yielded():
    p = mr.Pipeline("p")
    p.inject("in", format=int).key_by(str).window(YieldingWindows()).sum().to("out")
    p.sink("out", print)
    with mr.testing.Harness(p) as h:
        h.inject("in", [(3, 0)])
        h.advance_watermark("in", 100)
        assert [output.value for output in h.outputs("out")] == [3]


@pytest.mark.parametrize(
    ("function", "said"),
    [(lambda _self, _r: ask(1), "a coroutine"), (lambda _self, _r: spread(1), "a generator")],
)
def test_what_a_hook_returns_that_has_not_run_is_refused_at_the_record(function, said):
    p = mr.Pipeline("p")
    p.inject("in", format=dict)
    p.add(type("Lambda", (Plain,), {"process_record": function}))
    p.dead_letter("letters")
    with warnings.catch_warnings(), mr.testing.Harness(p) as h:
        warnings.simplefilter("error")
        h.inject("in", [({"k": "a"}, 1)])
        (letter,) = h.outputs("letters")
    assert letter.value.reason == (
        f"PipelineError: process_record returned {said}, which was never run. Expected None: "
        "run it to its end in the hook, and call self.produce(stream, value) for each value."
    )


class Returns(mr.Computation):
    inputs = {"in": mr.by("k")}
    outputs = {"out": int}

    def process_record(self, record):
        self.set_timer("t", at=record.timestamp)
        return record.value.record

    def process_timer(self, timer):
        return 7


class Keyed(msgspec.Struct):
    k: str
    record: int | None = None


class ReturnsColumns(mr.ColumnComputation):
    inputs = {"in": mr.by("k")}
    outputs = {"out": int}

    def process_batch(self, block):
        return {"n": [1]}


@pytest.mark.parametrize(
    ("computation", "value", "said"),
    [
        (Returns, Keyed("a", 5), "process_record returned 5 (int)"),
        (Returns, Keyed("a"), "process_timer returned 7 (int)"),
        (ReturnsColumns, Keyed("a"), "process_batch returned {'n': [1]} (dict)"),
    ],
)
def test_what_a_hook_returns_is_refused_as_nobody_would_get_it(computation, value, said):
    p = mr.Pipeline("p")
    p.inject("in", format=Keyed)
    p.add(computation)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("in", [(value, 1)])
        h.advance_watermark("in", 10)
        (letter,) = h.outputs("letters")
    call = "block.produce(stream, columns" if "batch" in said else "self.produce(stream, value"
    assert letter.value.reason == (
        f"PipelineError: {said}, which nobody gets. Expected None: a value goes on by {call})."
    )


def test_what_process_start_returns_is_refused():
    p = mr.Pipeline("p")
    p.add(type("Started", (mr.Computation,), {"process_start": lambda self: self.key}), keys=["a"])
    refused = pytest.raises(mr.MillraceError, match=r"process_start returned 'a' \(str\)")
    with refused, mr.testing.Harness(p):
        pass


class Item:
    def is_big(self):
        return False


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (lambda value: ask(value), "a coroutine"),
        (lambda value: spread(value), "a generator"),
        (lambda value: ask_all(value), "an async generator"),
        (lambda _: Item().is_big, "Item.is_big, a function that was not called"),
        (lambda value: str(value).isdigit, "str.isdigit, a function that was not called"),
    ],
)
def test_filter_that_returns_what_is_always_true_is_refused_at_the_record(kept, said):
    p = mr.Pipeline("p")
    p.inject("in", format=int).filter(kept).to("out", int)
    p.sink("out", print)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("in", [(1, 0)])
        (letter,) = h.outputs("letters")
        assert h.outputs("out") == []
    assert f"filter on stream 'in': its function returned {said}." in letter.value.reason


def test_filter_goes_by_truth_as_python_does():
    answers = [True, False, None, 0, 1, "", "x", np.True_, np.False_, re.match("a", "a")]
    p = mr.Pipeline("p")
    p.inject("in", format=int).filter(lambda n: answers[n]).to("out", int)
    p.sink("out", print)
    with mr.testing.Harness(p) as h:
        h.inject("in", [(n, n) for n in range(len(answers))])
        assert [output.value for output in h.outputs("out")] == [0, 4, 6, 7, 9]


def test_hook_without_letters_names_itself():
    p = mr.Pipeline("p")
    p.inject("in", format=dict)
    p.add(type("Lambda", (Plain,), {"process_record": lambda _self, _r: spread(1)}))
    with mr.testing.Harness(p) as h, pytest.raises(UserCodeError, match="returned a generator"):
        h.inject("in", [({"k": "a"}, 1)])


def _two(first, second):
    return first


def _none():
    return 1


WRONG = {
    "map": lambda s: s.map(_two),
    "flat_map": lambda s: s.flat_map(_none),
    "filter": lambda s: s.filter(_none),
    "key_by": lambda s: s.key_by(_two),
    "with_timestamps": lambda s: s.with_timestamps(_none),
    "of_record": lambda s: s.map(mr.of_record(_none)),
    "by": lambda _: mr.by(_none),
    "OnSignal": lambda _: mr.OnSignal("in", _none),
    "Punctuation": lambda _: mr.Punctuation(_none),
    "WindowFn": lambda _: mr.WindowFn(_none),
    "merge": lambda _: mr.WindowFn(spread, _none),
    "sum": lambda s: s.key_by("k").window(mr.FixedWindows(5)).sum(_none),
    "top": lambda s: s.key_by("k").window(mr.FixedWindows(5)).top(1, key=_none),
    "where": lambda _: mr.agg.count(where=_none),
    "CombiningState": lambda _: mr.CombiningState(int, spread),
    "map_async": lambda s: s.map_async(_none),
    "client": lambda s: s.map_async(spread, setup=_none),
    "map_batches": lambda s: s.map_batches(_two),
    "setup": lambda s: s.map_batches(_two, setup=spread),
}


@pytest.mark.parametrize("name", WRONG)
def test_function_of_other_parameters_is_refused_where_it_is_given(name):
    stream = mr.Pipeline("p").inject("in", format=int)
    with pytest.raises(PipelineError, match=r"would be called with .*, and has the parameters \("):
        WRONG[name](stream)


def test_decorated_function_is_judged_by_what_is_called():
    @functools.wraps(_two)
    def run(value):
        return _two(value, 1)

    p = mr.Pipeline("p")
    p.inject("in", format=int).map(run).map_async(_two).to("out", int)
    with mr.testing.Harness(p) as h:
        h.inject("in", [(3, 0)])
        assert [output.value for output in h.outputs("out")] == [3]
