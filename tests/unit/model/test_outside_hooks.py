"""State, timers and productions belong to a key, so they are refused where none is current."""

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class Owner(mr.Computation):
    value = mr.ValueState(int)
    entries = mr.MapState(int)
    bag = mr.BagState(int)
    total = mr.CombiningState(int)


USES = {
    "value.get": lambda c: c.value.get(),
    "value.set": lambda c: c.value.set(1),
    "value.clear": lambda c: c.value.clear(),
    "map.get": lambda c: c.entries["a"],
    "map.set": lambda c: c.entries.update(a=1),
    "map.del": lambda c: c.entries.pop("a"),
    "map.iter": lambda c: list(c.entries),
    "map.len": lambda c: len(c.entries),
    "bag.add": lambda c: c.bag.add(1),
    "bag.iter": lambda c: list(c.bag),
    "bag.clear": lambda c: c.bag.clear(),
    "total.add": lambda c: c.total.add(1),
    "total.get": lambda c: c.total.get(),
    "total.clear": lambda c: c.total.clear(),
}

CALLS = {
    "produce": lambda c: c.produce("out", 1),
    "set_timer": lambda c: c.set_timer("t", 1),
    "delete_timer": lambda c: c.delete_timer("t"),
    "hold": lambda c: c.hold(1),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_state_outside_of_a_hook_is_refused_by_its_name(use):
    with pytest.raises(PipelineError, match=r"Owner\.(value|entries|bag|total) was used outside"):
        use(Owner())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_outside_of_a_hook_is_refused_by_its_name(call):
    with pytest.raises(PipelineError, match=r"Owner\.\w+ was called outside"):
        call(Owner())


def test_a_run_leaves_the_users_own_instance_unbound():
    class Counting(mr.Computation):
        inputs = {"events": mr.by("key")}
        n = mr.ValueState(int)

        def process_record(self, record):
            self.n.set(1)

    mine = Counting()
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(mine)
    with mr.testing.Harness(p) as h:
        h.inject("events", [({"key": "a"}, 0)])

    with pytest.raises(PipelineError, match="outside"):
        mine.n.get()


class Assigning(mr.Computation):
    """Writes ``self.n = ...``, which would keep one value for all keys, and no state."""

    inputs = {"events": mr.by("key")}
    outputs = {"sums": int}
    n = mr.ValueState(int)

    def process_record(self, record):
        self.n = record.value["n"]


@pytest.mark.parametrize("letters", [False, True])
def test_a_cell_that_is_assigned_to_stops_the_run_by_its_name(letters):
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Assigning)
    if letters:
        p.dead_letter("rejects")
    saying = pytest.raises(PipelineError, match=r"Assigning\.n .* self\.n\.set\(value\)")
    with mr.testing.Harness(p) as h, saying:
        h.inject("events", [({"key": "a", "n": 1}, 0), ({"key": "b", "n": 1}, 0)])
