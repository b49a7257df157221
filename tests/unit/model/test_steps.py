"""Stateless steps: they run where the stream is fed, and keep what they do not change."""

import pytest

import millrace as mr
from millrace.testing import Harness


class Seen(mr.Computation):
    """Shows what reaches it: (key, value)."""

    inputs = {"in": mr.by_key()}
    outputs = {"out": list}

    def process_record(self, record):
        self.produce("out", [self.key, record.value])


@pytest.fixture
def p():
    pipeline = mr.Pipeline("p")
    pipeline.inject("words", format=str)
    return pipeline


def run(pipeline, words, stream):
    with Harness(pipeline) as h:
        h.inject("words", [(word, at) for at, word in enumerate(words)])
        return [(output.value, output.timestamp) for output in h.outputs(stream)]


def test_map_replaces_the_value_and_keeps_the_timestamp(p):
    p.stream("words").map(len).to("out", format=int)
    p.sink("out", print)

    assert run(p, ["a", "bcd"], "out") == [(1, 0), (3, 1)]


def test_filter_drops_what_the_function_denies(p):
    p.stream("words").filter(str.isupper).to("out", format=str)
    p.sink("out", print)

    assert run(p, ["A", "b", "C"], "out") == [("A", 0), ("C", 2)]


def test_flat_map_makes_none_or_many(p):
    p.stream("words").flat_map(str.split).to("out", format=str)
    p.sink("out", print)

    assert run(p, ["a b", "", "c"], "out") == [("a", 0), ("b", 0), ("c", 2)]


def test_steps_compose_in_the_order_written(p):
    p.stream("words").map(str.upper).filter("A".__ne__).map(len).to("out", format=int)
    p.sink("out", print)

    assert run(p, ["a", "bc"], "out") == [(2, 1)]


def test_key_by_gives_a_key_to_by_key_consumers(p):
    p.stream("words").key_by(len).to("in", format=str)
    p.add(Seen)

    assert run(p, ["ab"], "out") == [([2, "ab"], 0)]


def test_map_keeps_the_key(p):
    p.stream("words").key_by(len).map(str.upper).to("in", format=str)
    p.add(Seen)

    assert run(p, ["ab"], "out") == [([2, "AB"], 0)]


def test_a_step_after_a_computation_sees_its_productions_with_their_key(p):
    class First(mr.Computation):
        inputs = {"words": mr.by(len)}
        outputs = {"first": str}

        def process_record(self, record):
            self.produce("first", record.value)

    p.add(First)
    p.stream("first").map(str.upper).to("in", format=str)
    p.add(Seen)

    assert run(p, ["ab"], "out") == [([2, "AB"], 0)]


def test_two_branches_of_a_stream_do_not_see_each_other(p):
    p.stream("words").map(str.upper).to("upper", format=str)
    p.stream("words").map(str.lower).to("lower", format=str)
    p.sink("upper", print)
    p.sink("lower", print)

    assert run(p, ["aB"], "upper") == [("AB", 0)]
    assert run(p, ["aB"], "lower") == [("ab", 0)]
