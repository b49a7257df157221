"""Whatever user code raises, returns or hands on: it is a letter, and the good records go on.

A table of places where user code runs, and of kinds of bad value or behaviour there.
"""

import math
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.dataflow.joins.interval_join import JoinByKeyAndTime
from millrace.model.errors import LETTER_MOST, TRACE_MOST, MillraceError


class NoStr(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    def __reduce__(self):
        raise TypeError("not to be pickled")


class NoRepr:
    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no equality")

    def __hash__(self):
        raise RuntimeError("no hash")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def recursive():
    value = []
    value.append(value)
    return value


def endless(n=0):
    return endless(n + 1)


async def later():
    return True


def raises(error):
    def bad():
        raise error

    return bad


RAISED = {
    "error": raises(ValueError("bad")),
    "error without text": raises(NoStr()),
    "error with surrogates": raises(ValueError("\udc80")),
    "huge error": raises(ValueError("x" * 1_000_000)),
    "StopIteration": raises(StopIteration()),
    "SystemExit": raises(SystemExit(3)),
    "GeneratorExit": raises(GeneratorExit()),
    "MemoryError": raises(MemoryError()),
    "RecursionError": endless,
    "error group": raises(ExceptionGroup("many", [NoStr(), ValueError("\udc80")])),
}
VALUES = {
    "int of 65 bits": lambda: 1 << 64,
    "int of 20,000 digits": lambda: 10**20_000,
    "lone surrogate": lambda: "\udc80",
    "no repr": NoRepr,
    "nested": lambda: nested(50_000),
    "recursive": recursive,
    "object": object,
    "lambda": lambda: lambda: 1,
    "complex": lambda: 1j,
}
TIMES = {
    "before 1970": lambda: -1,
    "65 bits": lambda: 1 << 64,
    "20,000 digits": lambda: 10**20_000,
    "float": lambda: 1.5,
    "nan": lambda: math.nan,
    "true": lambda: True,
    "text": lambda: "soon",
    "no repr": NoRepr,
    "nested": lambda: nested(50_000),
}
#: What is given for yes or no.
ANSWERS = {
    "no truth": lambda: np.array([True, False]),
    "function": lambda: later,
    "coroutine": lambda: later(),
    "generator": lambda: (n for n in [1]),
}
TIMER_TIMES = {name: made for name, made in TIMES.items() if name != "before 1970"}
KEYS = {**VALUES, "none": lambda: None, "list": lambda: [1], "dict": dict}


class Coded:
    """A coder of a user's, whose methods raise what they are given."""

    def encode(self, value):
        return b"" if value is None else value()

    def decode(self, data):
        return None


class Hooks(mr.Computation):
    """Does at "bad" what a case of the table says."""

    inputs = {"in": mr.by(lambda _: "a")}
    outputs = {"out": int, "any": Any}
    kept = mr.ValueState(int)
    bag = mr.BagState(int)
    entries = mr.MapState(int)
    lists = mr.ValueState(list)
    coded = mr.ValueState(Coded())
    bad = staticmethod(lambda _self: None)

    def process_record(self, record):
        if record.value == 2:
            self.bad(self)
        self.produce("out", record.value)


class Timers(Hooks):
    def process_record(self, record):
        self.set_timer(record.value, at=record.timestamp + 10)

    def process_timer(self, timer):
        if timer.tag == 2:
            self.bad(self)
        self.produce("out", timer.tag)


def in_hook(kind, call):
    def place(p, stream, bad):
        p.add(type("Own", (kind,), {"bad": staticmethod(lambda self: call(self, bad))}))

    return place


def changed_in_place(self, bad):
    self.lists.set([])
    self.lists.get().append(bad())


def in_step(add):
    def place(p, stream, bad):
        def function(value):
            return bad() if value == 2 else value

        add(stream, function)

    return place


def to_out(stream):
    return stream.to("out", int)


def alone(combine, trigger=None):
    """Each record has a window of its own."""

    def place(p, stream, bad):
        windowed = stream.key_by(lambda _: "a").window(
            mr.FixedWindows(1), trigger=None if trigger is None else trigger(bad)
        )
        windowed.aggregate(combine(bad)).flat_map(list).to("out", int)

    return place


def joined(combine=None, trigger=None):
    """The windows of 1 and 3 touch, and that of 2, which comes last, makes them one."""

    def place(p, stream, bad):
        stream.key_by(lambda _: "a").window(
            mr.Sessions(2),
            trigger=None if trigger is None else trigger(bad),
            allow_data_loss=trigger is not None,
        ).aggregate(Unfailing(None) if combine is None else combine(bad)).flat_map(list).to(
            "out", int
        )

    return place


def grouped(value=None, window=None, trigger=None):
    def place(p, stream, bad):
        windowed = stream.key_by(lambda _: "a").window(
            mr.FixedWindows(1_000) if window is None else window(bad),
            trigger=None if trigger is None else trigger(bad),
            allow_data_loss=trigger is not None,
        )
        if trigger is not None or window is not None:
            windowed.group().flat_map(list).to("out", int)
        elif value is None:
            windowed.aggregate(Folds(bad)).flat_map(list).to("out", int)
        else:
            windowed.aggregate(mr.Folded(value(bad)))

    return place


class Windows(mr.WindowFn):
    def __init__(self, bad):
        super().__init__()
        self.bad = bad

    def assign(self, record):
        return self.bad() if record.value == 2 else [mr.Window(0, 1_000)]


class Fires(mr.Trigger):
    def __init__(self, bad):
        self.bad = bad

    def on_element(self, ctx):
        if ctx.element == 2:
            self.bad()

    def should_fire(self, ctx):
        return True


class Answers(Fires):
    def on_element(self, ctx):
        ctx.set("bad", ctx.element == 2)

    def should_fire(self, ctx):
        return self.bad() if ctx.get("bad") else True


class FiresByTimer(Fires):
    def on_element(self, ctx):
        ctx.set_timer("bad" if ctx.element == 2 else "good", ctx.timestamp + 1)

    def on_timer(self, ctx):
        if ctx.tag == "bad":
            self.bad()
        ctx.trigger()

    def should_fire(self, ctx):
        return ctx.triggered


class FiresByMerge(Fires):
    def on_element(self, ctx):
        ctx.set_timer("end", ctx.window.end)

    def on_merge(self, ctx):
        if len(ctx.sources) == 2:
            self.bad()

    def should_fire(self, ctx):
        return ctx.triggered

    def on_timer(self, ctx):
        ctx.trigger()


class KeepsState(Fires):
    def on_element(self, ctx):
        if ctx.element == 2:
            ctx.set("state", self.bad())


class Folds(mr.CombineFn):
    def __init__(self, bad):
        self.bad = bad

    def create(self):
        return []

    def add(self, accumulator, value):
        if value == 2:
            accumulator.append(self.bad())
            return accumulator
        return [*accumulator, value]

    def merge(self, accumulator, other):
        return accumulator + other

    def extract(self, accumulator):
        return accumulator


class Merges(Folds):
    def add(self, accumulator, value):
        return [*accumulator, value]

    def merge(self, accumulator, other):
        return [*accumulator, self.bad()]


class Unfailing(Merges):
    def merge(self, accumulator, other):
        return accumulator + other


class Extracts(Unfailing):
    def extract(self, accumulator):
        return [self.bad()] if 2 in accumulator else accumulator


PLACES = {
    # place: how it is built, which cases there are
    "hook": (in_hook(Hooks, lambda _self, bad: bad()), RAISED),
    "timer": (in_hook(Timers, lambda _self, bad: bad()), RAISED),
    "produced value": (in_hook(Hooks, lambda self, bad: self.produce("out", bad())), VALUES),
    "value of any type": (
        in_hook(Hooks, lambda self, bad: self.produce("any", bad())),
        VALUES,
    ),
    "produced time": (in_hook(Hooks, lambda self, bad: self.produce("out", 0, bad())), TIMES),
    "timer's time": (
        in_hook(Timers, lambda self, bad: self.set_timer("t", at=bad())),
        TIMER_TIMES,
    ),
    "timer's hold": (
        in_hook(Timers, lambda self, bad: self.set_timer("t", at=99, hold=bad())),
        TIMER_TIMES,
    ),
    "timer's tag": (in_hook(Timers, lambda self, bad: self.set_timer(bad(), at=99)), KEYS),
    "hold": (in_hook(Hooks, lambda self, bad: self.hold(bad())), TIMER_TIMES),
    "value cell": (in_hook(Hooks, lambda self, bad: self.kept.set(bad())), VALUES),
    "value changed in place": (in_hook(Hooks, changed_in_place), VALUES),
    "coder of a cell": (in_hook(Hooks, lambda self, bad: self.coded.set(bad)), RAISED),
    "bag cell": (in_hook(Hooks, lambda self, bad: self.bag.add(bad())), VALUES),
    "map cell": (in_hook(Hooks, lambda self, bad: self.entries.__setitem__("a", bad())), VALUES),
    "map entry": (in_hook(Hooks, lambda self, bad: self.entries.__setitem__(bad(), 1)), KEYS),
    "map": (in_step(lambda s, f: to_out(s.map(f))), {**RAISED, **VALUES}),
    "flat_map": (
        in_step(lambda s, f: to_out(s.flat_map(lambda value: [f(value)]))),
        {**RAISED, **VALUES},
    ),
    "flat_map that yields": (
        in_step(lambda s, f: to_out(s.flat_map(lambda value: (f(value) for _ in "a")))),
        {**RAISED, **VALUES},
    ),
    "filter": (
        in_step(lambda s, f: to_out(s.filter(lambda v: v != 2 or f(v)))),
        {**RAISED, **ANSWERS},
    ),
    "key_by": (
        in_step(
            lambda s, f: (
                s.key_by(f).window(mr.FixedWindows(1_000)).group().flat_map(list).to("out", int)
            )
        ),
        {**RAISED, **KEYS},
    ),
    "with_timestamps": (
        in_step(lambda s, f: to_out(s.with_timestamps(f, backwards="1 h"))),
        {**RAISED, **TIMES},
    ),
    "window function": (
        grouped(window=Windows),
        {
            **RAISED,
            "nothing": lambda: None,
            "number": lambda: 5,
            "no window": lambda: [5],
            "end before start": lambda: [mr.Window(10, 5)],
            "65 bits": lambda: [mr.Window(0, 1 << 65)],
            "float": lambda: [mr.Window(0.5, 1.5)],
        },
    ),
    "trigger": (grouped(trigger=lambda bad: mr.Repeat(Fires(bad))), RAISED),
    "should_fire": (grouped(trigger=lambda bad: mr.Repeat(Answers(bad))), {**RAISED, **ANSWERS}),
    "state of a trigger": (grouped(trigger=lambda bad: mr.Repeat(KeepsState(bad))), VALUES),
    "trigger's timer": (
        alone(Unfailing, trigger=lambda bad: mr.Repeat(FiresByTimer(bad))),
        RAISED,
    ),
    "trigger as windows merge": (joined(trigger=FiresByMerge), RAISED),
    "punctuation": (
        grouped(
            trigger=lambda bad: mr.Repeat(
                mr.FirstOf(
                    mr.AfterCount(1),
                    mr.Punctuation(lambda value: bad() if value == 2 else False),
                )
            )
        ),
        {**RAISED, **ANSWERS},
    ),
    "where": (
        in_step(
            lambda s, f: (
                s.key_by(lambda _: "a")
                .window(mr.FixedWindows(1))
                .aggregate(
                    n=mr.agg.sum(lambda v: v, where=lambda v: v != 2 or f(v)),
                    all=mr.agg.group(lambda v: v),
                )
                .flat_map(lambda found: found["all"])
                .to("out", int)
            )
        ),
        {**RAISED, **ANSWERS},
    ),
    "fold": (grouped(), {**RAISED, **VALUES}),
    "merge": (joined(Merges), {**RAISED, **VALUES}),
    "extract": (alone(Extracts), {**RAISED, **VALUES}),
}


def answered_by_timer(join):
    def place(p, stream, bad):
        other = p.inject("other", format=int).key_by(lambda _: "a")
        answers = join(
            stream.key_by(lambda _: "a").with_timestamps(lambda _: 5, backwards=9), other
        )
        answers.map(lambda pair: bad() if pair[0] == 2 else pair[0]).to("out", int)

    return place


ANSWERED_BY_TIMER = {
    "answer of enrich": (answered_by_timer(lambda s, o: s.enrich(o)), {**RAISED, **VALUES}),
    "value without partner": (
        answered_by_timer(lambda s, o: s.join(o, "left", within=(-5, 5))),
        {**RAISED, **VALUES},
    ),
}
PLACES |= ANSWERED_BY_TIMER
CASES = [(place, case) for place, (_, cases) in PLACES.items() for case in cases]


def pipeline(place, case, *, letters):
    build, cases = PLACES[place]
    p = mr.Pipeline("p")
    stream = p.inject("in", format=int)
    build(p, stream, cases[case])
    p.sink("out", print)
    if letters:
        p.dead_letter("letters")
    return p


def run(h, place):
    h.inject("in", [(n, n) for n in (1, 3, 2)])
    h.advance_watermark("in", 10_000)
    if place in ANSWERED_BY_TIMER:
        h.advance_watermark("other", 10_000)


@pytest.mark.parametrize(("place", "case"), CASES)
def test_bad_record_is_a_letter_and_good_ones_go_on(place, case):
    with mr.testing.Harness(pipeline(place, case, letters=True)) as h:
        run(h, place)
        assert sorted({output.value for output in h.outputs("out")}) == [1, 3]
        (letter,) = [output.value for output in h.outputs("letters")]
    assert letter.reason
    assert letter.timestamp is not None
    assert max(len(letter.reason), len(letter.key), len(letter.value)) <= LETTER_MOST
    assert len(letter.error) <= TRACE_MOST
    for text in (letter.reason, letter.key, letter.value, letter.error):
        text.encode()


@pytest.mark.parametrize(("place", "case"), CASES)
def test_without_letters_an_error_of_ours_names_the_record(place, case):
    with mr.testing.Harness(pipeline(place, case, letters=False)) as h:
        with pytest.raises(MillraceError) as raised:
            run(h, place)
        assert h.outputs("out") == []
    text = str(raised.value)
    text.encode()
    assert len(text) <= 4 * TRACE_MOST
    assert "stream 'in'" in text or "key 'a'" in text
    assert "Nothing of this epoch was applied" in text


def test_value_without_partner_in_maps_is_a_letter_and_good_ones_go_on(monkeypatch):
    monkeypatch.setattr(JoinByKeyAndTime, "row_weight", 0)
    with mr.testing.Harness(pipeline("value without partner", "error", letters=True)) as h:
        run(h, "value without partner")
        assert sorted(output.value for output in h.outputs("out")) == [1, 3]
        (letter,) = [output.value for output in h.outputs("letters")]
        assert (letter.value, letter.timestamp, h.dead_letters()) == ("2", 5, 1)


def test_letters_of_answers_come_once_though_the_bundle_ended_before_they_left():
    died = False

    def mapped(pair):
        nonlocal died
        if pair[0] == 2:
            raise ValueError("two")
        if pair[0] == 3 and not died:
            died = True
            raise KeyboardInterrupt
        return pair[0]

    p = mr.Pipeline("p")
    stream, other = p.inject("in", format=int), p.inject("other", format=int)
    keyed = [one.key_by(lambda _: "a").with_timestamps(lambda _: 5, backwards=9)
             for one in (stream, other)]  # fmt: skip
    keyed[0].join(keyed[1], "left", within=(-5, 5)).map(mapped).to("out", int)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("in", [(1, 1), (2, 2), (3, 3)])
        h.advance_watermark("in", 10_000)
        with pytest.raises(KeyboardInterrupt):
            h.advance_watermark("other", 10_000)
        h.advance_watermark("other", 10_001)

        assert sorted(output.value for output in h.outputs("out")) == [1, 3]
        assert [output.value.value for output in h.outputs("letters")] == ["2"]
