"""Levels are longest paths; senders are found through steps."""

import pytest

import millrace as mr
from millrace.compile.change.identity import identity


def computation(name, inputs, *outputs):
    return type(
        name,
        (mr.Computation,),
        {
            "inputs": {stream: mr.by_key() for stream in inputs},
            "outputs": dict.fromkeys(outputs, int),
            "process_record": lambda *_: None,
        },
    )


@pytest.fixture
def p():
    pipeline = mr.Pipeline("p")
    pipeline.inject("in", format=int)
    return pipeline


def levels(topology):
    return {spec.name: spec.level for spec in topology.computations}


def test_computations_fed_by_injectors_only_are_on_level_one(p):
    p.add(computation("A", ["in"]))
    p.add(computation("B", ["in"]))

    assert levels(p.build()) == {"A": 1, "B": 1}


def test_a_diamond_joins_one_below_its_sides(p):
    p.add(computation("Join", ["left", "right"]))
    p.add(computation("Left", ["top"], "left"))
    p.add(computation("Right", ["top"], "right"))
    p.add(computation("Top", ["in"], "top"))

    assert levels(p.build()) == {"Top": 1, "Left": 2, "Right": 2, "Join": 3}


def test_the_longest_path_decides_the_level(p):
    p.add(computation("Short", ["in", "c"]))
    p.add(computation("A", ["in"], "a"))
    p.add(computation("B", ["a"], "b"))
    p.add(computation("C", ["b"], "c"))

    topology = p.build()

    assert levels(topology)["Short"] == 4
    assert topology.depth == 4


def test_steps_add_no_level(p):
    p.add(computation("A", ["in"], "a"))
    p.stream("a").map(abs).filter(bool).to("b", format=int)
    p.add(computation("B", ["b"]))

    assert levels(p.build()) == {"A": 1, "B": 2}


def test_computations_are_ordered_by_level_then_by_name_whatever_the_order_of_lines(p):
    p.add(computation("Z", ["x"]))
    p.add(computation("Y", ["in"], "x"))
    p.add(computation("X", ["in"]))

    assert [spec.name for spec in p.build().computations] == ["X", "Y", "Z"]


def test_senders_are_all_computations_and_injectors_behind_steps(p):
    p.add(computation("A", ["in"], "mixed"))
    p.stream("in").map(abs).to("mixed", format=int)
    p.stream("mixed").filter(bool).to("kept", format=int)
    p.add(computation("B", ["kept"]))

    assert p.build().computation("B").senders == {"A", "injector:in"}


def test_a_stream_and_a_computation_may_have_one_name(p):
    p.add(computation("in", ["in"]))

    assert p.build().computation("in").senders == {"injector:in"}


def test_each_subscription_is_an_edge(p):
    p.add(computation("A", ["in"], "a"))
    p.add(computation("B", ["in", "a"]))
    p.sink("a", print)

    topology = p.build()

    assert [(edge.stream, edge.computation, edge.sink) for edge in topology.edges] == [
        ("in", "A", None),
        ("a", "B", None),
        ("in", "B", None),
        ("a", None, 0),
    ]
    assert [edge.number for edge in topology.edges] == [0, 1, 2, 3]


def test_equal_pipelines_describe_themselves_equally(p):
    p.add(computation("A", ["in"], "a"))
    again = mr.Pipeline("another name")
    again.inject("in", format=int)
    again.add(computation("A", ["in"], "a"))

    assert identity(p.build()) == identity(again.build())


def test_a_changed_state_cell_changes_the_description(p):
    p.add(computation("A", ["in"]))
    before = identity(p.build())
    type(p.computations["A"]).seen = mr.ValueState(int)

    assert identity(p.build()) != before
