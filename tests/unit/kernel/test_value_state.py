"""ValueState: get, set, clear, defaults, and values changed in place."""

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import MillraceError


class Box(msgspec.Struct):
    n: int


class LabelledBox(Box):
    label: str = ""


@pytest.fixture
def steps(harness):
    """Run functions one after the other, each in an epoch of its own, on one computation."""

    def run(cell, *functions, crash=False):
        class Stepped(mr.Computation):
            inputs = {"events": mr.by(lambda _: "k")}
            outputs = {"out": None.__class__ | int | list | dict | str}
            state = cell

            def process_record(self, record):
                self.produce("out", functions[record.value](self.state))

        h = harness(Stepped)
        for n in range(len(functions)):
            h.inject("events", [(n, 0)])
            if crash:
                h.crash()
        return [output.value for output in h.outputs("out")]

    return run


def test_it_is_empty_at_first(steps):
    assert steps(mr.ValueState(int), lambda s: s.get(), lambda s: s.get(7)) == [None, 7]


@pytest.mark.parametrize("crash", [False, True])
def test_what_was_set_is_there_in_the_next_epoch(steps, crash):
    assert steps(mr.ValueState(int), lambda s: s.set(3), lambda s: s.get(), crash=crash) == [
        None,
        3,
    ]


@pytest.mark.parametrize("falsy", [0, "", [], {}])
def test_a_falsy_value_is_a_value(steps, falsy):
    got = steps(mr.ValueState(type(falsy)), lambda s: s.set(falsy), lambda s: s.get("default"))

    assert got == [None, falsy]


def test_cleared_it_is_empty(steps):
    got = steps(
        mr.ValueState(int),
        lambda s: s.set(3),
        lambda s: (s.clear(), s.get())[1],
        lambda s: s.get("default"),
    )

    assert got == [None, None, "default"]


def test_none_means_empty(steps):
    got = steps(mr.ValueState(int), lambda s: s.set(3), lambda s: s.set(None), lambda s: s.get(7))

    assert got == [None, None, 7]


def test_set_after_clear_counts(steps):
    got = steps(
        mr.ValueState(int),
        lambda s: s.set(3),
        lambda s: (s.clear(), s.set(4))[1],
        lambda s: s.get(),
    )

    assert got == [None, None, 4]


def test_what_is_set_is_read_back_in_the_same_hook(steps):
    assert steps(mr.ValueState(int), lambda s: (s.set(3), s.get())[1]) == [3]


def test_a_list_changed_in_place_is_persisted(steps):
    got = steps(
        mr.ValueState(list[int]),
        lambda s: s.set([1]),
        lambda s: s.get().append(2),
        lambda s: s.get(),
        crash=True,
    )

    assert got == [None, None, [1, 2]]


def test_a_struct_changed_in_place_is_persisted(steps):
    got = steps(
        mr.ValueState(Box),
        lambda s: s.set(Box(1)),
        lambda s: setattr(s.get(), "n", 2),
        lambda s: s.get().n,
        crash=True,
    )

    assert got == [None, None, 2]


def test_a_value_changed_after_it_was_set_is_persisted_as_it_is_in_the_end(steps):
    def set_then_append(state):
        items = [1]
        state.set(items)
        items.append(2)

    assert steps(mr.ValueState(list[int]), set_then_append, lambda s: s.get()) == [None, [1, 2]]


def test_a_default_is_not_stored(steps):
    got = steps(mr.ValueState(list[int]), lambda s: s.get([]).append(1), lambda s: s.get())

    assert got == [None, None]


def test_several_cells_change_independently(harness):
    class Three(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        outputs = {"out": list}
        a = mr.ValueState(int)
        b = mr.ValueState(str)
        c = mr.CombiningState(int)

        def process_record(self, record):
            if record.value == "a":
                self.a.set(1)
            if record.value == "b":
                self.b.set("x")
            if record.value == "c":
                self.c.add(5)
            if record.value == "clear":
                self.a.clear()
            self.produce("out", [self.a.get(), self.b.get(), self.c.get()])

    h = harness(Three)
    for value in ("c", "a", "b", "clear", "c"):
        h.inject("events", [(value, 0)])
        h.crash()

    assert [output.value for output in h.outputs("out")] == [
        [None, None, 5],
        [1, None, 5],
        [1, "x", 5],
        [None, "x", 5],
        [None, "x", 10],
    ]


@pytest.mark.parametrize("cell", [mr.ValueState(Box), mr.ValueState(list[Box])])
def test_fields_of_a_subclass_that_would_be_lost_are_refused_by_cell(steps, cell):
    box = LabelledBox(3, "full")
    value = box if cell.shape is Box else [box]
    with pytest.raises(MillraceError, match=r"Stepped\.state: .*LabelledBox .*lost: 'label'"):
        steps(cell, lambda s: s.set(value))
