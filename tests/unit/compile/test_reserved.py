"""What a user may name what: anything but what is documented, and that is refused by its name."""

import inspect
from typing import Generic

import pytest

import millrace as mr
from millrace.compile.checks import RESERVED
from millrace.model.errors import PipelineError

#: What compiler and kernel ask of built-in computations, and used to ask of everyone's.
OURS = (
    "settings", "described", "bound", "lifting", "columnar", "display_tag", "renamed", "windowing",
    "combine", "output", "operator", "name", "state", "number", "bind", "run", "spec", "instance",
    "cells", "value", "format", "windows", "active", "_outside", "_user", "_hold", "_derive",
    "_operator", "copy", "timer", "timers", "record", "records", "machine", "view", "commit",
)  # fmt: skip

#: Without what typing keeps on a generic class.
DOCUMENTED = [
    name for name in dir(mr.Computation) if not name.startswith("__") and name not in dir(Generic)
]

#: Which of them declare something, and what is called. The rest is Millrace's to set.
DECLARED = ("inputs", "outputs", "may_produce_late", "percentiles", "productions", "delivery")
HOOKS = ("process_record", "process_start", "process_timer")

#: What is looked at, and refused, as soon as a computation is added: p.add has them as options.
OPTIONS = ("productions", "delivery")
AT_BUILD = [name for name in DOCUMENTED if name not in OPTIONS]


class Silent(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"sums": int}

    def process_record(self, record):
        pass


def outputs_of(computation):
    with mr.testing.Harness(pipeline(computation)) as h:
        h.inject("events", [({"key": "a", "n": n}, n) for n in (1, 2)])
        h.crash()
        h.inject("events", [({"key": "a", "n": 3}, 3)])
        return [output.value for output in h.outputs("sums")]


def pipeline(computation):
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(computation, name="it")
    return p


def refusal_of(members):
    p = pipeline(type("Mine", (Silent,), members))
    with pytest.raises(PipelineError) as refused:
        p.build()
    return str(refused.value)


def with_attribute(name, value):
    """Return members of a class whose instances get an attribute when they are made."""
    return {"__init__": lambda self: vars(self).update({name: value})}


def method(self):
    raise AssertionError(self)


@pytest.mark.parametrize("name", OURS)
def test_a_cell_may_be_called_what_it_likes(name):
    def process_record(self, record):
        cell = getattr(self, name)
        cell.set(cell.get(0) + record.value["n"])
        self.produce("sums", cell.get())

    cell = mr.ValueState(int)
    kind = type("Named", (Silent,), {"process_record": process_record, name: cell})

    assert outputs_of(kind) == [1, 3, 6]


def test_so_may_methods_and_attributes_of_class_and_instance():
    def process_record(self, record):
        assert all(getattr(self, name)() == "Named" for name in OURS[::3])
        assert all(getattr(self, name) == "of the class" for name in OURS[1::3])
        assert all(getattr(self, name) == "of the instance" for name in OURS[2::3])
        self.produce("sums", record.value["n"])

    def set_all(self):
        vars(self).update(dict.fromkeys(OURS[2::3], "of the instance"))

    members = dict.fromkeys(OURS[::3], lambda self: type(self).__name__)
    members |= dict.fromkeys(OURS[1::3], "of the class")
    members |= {"process_record": process_record, "__init__": set_all}

    assert outputs_of(type("Named", (Silent,), members)) == [1, 2, 3]


def test_nothing_but_what_is_documented_is_on_the_users_class():
    assert set(DOCUMENTED) == set(RESERVED)
    described = inspect.getdoc(mr.Computation)
    for name in DOCUMENTED:
        member = inspect.getattr_static(mr.Computation, name)
        assert f"    {name}: " in described or inspect.getdoc(member), name


@pytest.mark.parametrize("name", AT_BUILD)
def test_what_is_documented_is_no_name_for_a_cell(name):
    refused = refusal_of({name: mr.MapState(int)})

    assert f"Mine.{name}" in refused
    assert "computation 'it'" in refused
    assert "a state cell" in refused


@pytest.mark.parametrize("name", AT_BUILD)
def test_nor_for_a_cell_made_in_init(name):
    refused = refusal_of(with_attribute(name, mr.ValueState(int)))

    assert f"Mine.{name} is a state cell" in refused


@pytest.mark.parametrize("name", OPTIONS)
def test_nor_are_the_names_of_options(name):
    kind = type("Mine", (Silent,), {name: mr.ValueState(int)})
    with pytest.raises(PipelineError, match=f"computation 'it' has {name} = ValueState"):
        pipeline(kind)


@pytest.mark.parametrize("name", sorted({*AT_BUILD} - {*HOOKS}))
def test_nor_for_a_method(name):
    refused = refusal_of({name: method})

    assert f"computation 'it': Mine.{name} is a method" in refused


@pytest.mark.parametrize("name", sorted({*DOCUMENTED} - {*DECLARED}))
@pytest.mark.parametrize("of", ["class", "instance"])
def test_nor_for_an_attribute(name, of):
    refused = refusal_of({name: "mine"} if of == "class" else with_attribute(name, "mine"))

    assert f"computation 'it': Mine.{name} is 'mine'" in refused
    assert "Give it another name" in refused


def test_a_class_further_up_is_the_one_that_is_named():
    class Mixin:
        wall_time = "12:00"

    with pytest.raises(PipelineError) as failed:
        pipeline(type("Mine", (Mixin, Silent), {})).build()

    refused = str(failed.value)
    assert "Mixin.wall_time is '12:00'" in refused
    assert "'wall_time' is reserved" in refused


def test_what_is_declared_may_be_a_property():
    class Declared(Silent):
        @property
        def inputs(self):
            return {"events": mr.by("key")}

    assert outputs_of(Declared) == []


def test_all_names_are_refused_at_once():
    refused = refusal_of({"key": "k", "produce": mr.ValueState(int)})

    assert "2 problems" in refused
    assert "Mine.key" in refused
    assert "Mine.produce" in refused


def test_names_of_pythons_own_are_none_for_a_cell():
    refused = refusal_of({"__eq__": mr.ValueState(int)})

    assert "Mine.__eq__ is a state cell" in refused
