"""Opaque bytes by the user's coder, and values of the wrong type."""

import traceback

import pytest

import millrace as mr
from millrace.model.errors import CoderError, UserCodeError


class Words:
    """A user's own format: words joined by a byte that no other coder would use."""

    def encode(self, value):
        return b"\xff".join(word.encode() for word in value)

    def decode(self, data):
        return [word.decode() for word in data.split(b"\xff")] if data else []


def test_a_users_coder_makes_the_bytes_of_streams_and_of_every_kind_of_cell(harness):
    class Opaque(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        outputs = {"out": Words()}
        value = mr.ValueState(Words())
        entries = mr.MapState(Words())
        bag = mr.BagState(Words())
        total = mr.CombiningState(Words())

        def process_record(self, record):
            word = [record.value]
            self.value.set(self.value.get([]) + word)
            self.entries["e"] = self.entries.get("e", []) + word
            self.bag.add(word)
            self.total.add(word)
            self.produce("out", self.value.get())
            self.produce("out", self.entries["e"])
            self.produce("out", [word for words in self.bag for word in words])
            self.produce("out", self.total.get())

    h = harness(Opaque)
    h.inject("events", [("a", 0)])
    h.crash()
    h.inject("events", [("b", 0)])

    assert [output.value for output in h.outputs("out")] == [["a"]] * 4 + [["a", "b"]] * 4


def test_raw_bytes_are_kept_as_they_are(harness):
    class Raw(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        outputs = {"out": mr.coders.Bytes()}
        value = mr.ValueState(mr.coders.Bytes())

        def process_record(self, record):
            self.value.set(self.value.get(b"") + b"\0\xff")
            self.produce("out", self.value.get())

    h = harness(Raw)
    h.inject("events", [(1, 0)])
    h.inject("events", [(2, 0)])

    assert [output.value for output in h.outputs("out")] == [b"\0\xff", b"\0\xff\0\xff"]


def test_pickle_carries_what_nothing_else_can_where_it_is_named(harness):
    class Pickled(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        outputs = {"out": mr.coders.Pickle()}
        value = mr.ValueState(mr.coders.Pickle())

        def process_record(self, record):
            self.value.set(self.value.get(frozenset()) | {record.value})
            self.produce("out", self.value.get())

    h = harness(Pickled)
    h.inject("events", [(1, 0)])
    h.inject("events", [(2, 0)])

    assert h.outputs("out")[-1].value == frozenset({1, 2})


WRONG = {
    "value": lambda c: c.value.set("seven"),
    "map": lambda c: c.entries.update(e="seven"),
    "bag": lambda c: c.bag.add("seven"),
    "combining": lambda c: c.total.add("seven"),
    "produce": lambda c: c.produce("out", "seven"),
}


class Typed(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"out": int}
    value = mr.ValueState(int)
    entries = mr.MapState(int)
    bag = mr.BagState(int)
    total = mr.CombiningState(int)

    def process_record(self, record):
        WRONG[record.value["what"]](self)


@pytest.mark.parametrize("what", WRONG)
def test_a_value_of_the_wrong_type_names_computation_key_and_epoch(what):
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Typed)
    h = mr.testing.Harness(p)

    with pytest.raises(UserCodeError, match=r"Typed(.|\n)*key 'JFK'(.|\n)*epoch 0") as failed:
        h.inject("events", [({"key": "JFK", "what": what}, 0)])
    assert isinstance(failed.value.__cause__, CoderError)


@pytest.mark.parametrize("what", WRONG)
def test_a_value_of_the_wrong_type_is_refused_at_the_line_that_wrote_it(what):
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Typed)
    h = mr.testing.Harness(p)

    with pytest.raises(mr.MillraceError) as failed:
        h.inject("events", [({"key": "JFK", "what": what}, 0)])
    frames = traceback.extract_tb((failed.value.__cause__ or failed.value).__traceback__)
    assert "process_record" in [frame.name for frame in frames]


@pytest.mark.parametrize("what", WRONG)
def test_a_value_of_the_wrong_type_goes_to_the_dead_letters(harness, what):
    h = harness(Typed, dead=True)
    h.inject("events", [({"key": "JFK", "what": what}, 0)])

    (letter,) = h.outputs("dead")
    assert "'seven'" in letter.value.reason


def test_a_stored_value_changed_in_place_to_the_wrong_type_names_computation_and_key():
    class Spoils(mr.Computation):
        inputs = {"events": mr.by("key")}
        items = mr.ValueState(list[int])

        def process_record(self, record):
            if self.items.get() is None:
                self.items.set([1])
            else:
                self.items.get().append("seven")

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Spoils)
    h = mr.testing.Harness(p)
    h.inject("events", [({"key": "JFK"}, 0)])

    with pytest.raises(mr.MillraceError, match=r"Spoils(.|\n)*JFK"):
        h.inject("events", [({"key": "JFK"}, 0)])
