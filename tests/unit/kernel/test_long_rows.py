"""Keys, entries and tags longer than a row of the store (511 bytes) work like short ones."""

import itertools

import pytest

import millrace as mr

LENGTHS = [157, 158, 159, 160, 161, 511, 512, 5_000]
#: Same first kilobyte, so that only what stands for the whole can tell them apart.
LONG = ["x" * 1_000 + chr(ord("a") + n) for n in range(8)]


class Keeper(mr.Computation):
    """Keeps entries and timers under names as long as one likes."""

    inputs = {"events": mr.by("key")}
    outputs = {"out": list}
    entries = mr.MapState(int)
    count = mr.ValueState(int)
    bag = mr.BagState(int)

    def process_record(self, record):
        value = record.value
        self.count.set(self.count.get(0) + 1)
        self.bag.add(self.count.get())
        for entry in value.get("put", ()):
            self.entries[entry] = self.entries.get(entry, 0) + 1
        for entry in value.get("drop", ()):
            del self.entries[entry]
        for tag in value.get("set", ()):
            self.set_timer(tag, at=10)
        for tag in value.get("delete", ()):
            self.delete_timer(tag)
        self.produce("out", [self.count.get(), list(self.bag), dict(self.entries)])

    def process_timer(self, timer):
        self.produce("out", [timer.tag])


def put(h, key="k", **value):
    h.inject("events", [({"key": key, **value}, 0)])
    h.crash()


@pytest.mark.parametrize("length", LENGTHS)
def test_a_long_key_has_state_and_timers(harness, length):
    key = "k" * length
    h = harness(Keeper)
    put(h, key, put=["e"], set=["t"])
    put(h, key, put=["e"])
    h.advance_watermark("events", 10)

    outputs = h.outputs("out")
    assert [output.value for output in outputs[1:]] == [[2, [1, 2], {"e": 2}], ["t"]]
    assert {output.key for output in outputs} == {key}


@pytest.mark.parametrize("length", LENGTHS)
def test_a_long_entry_is_read_written_and_deleted(harness, length):
    entry = "e" * length
    h = harness(Keeper)
    put(h, put=[entry])
    put(h, put=[entry])
    put(h, drop=[entry])

    assert [output.value[2] for output in h.outputs("out")] == [{entry: 1}, {entry: 2}, {}]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_long_tag_fires_as_itself_and_can_be_deleted(harness, length):
    kept, deleted = "t" * length, "u" * length
    h = harness(Keeper)
    put(h, set=[kept, deleted])
    put(h, delete=[deleted])
    h.advance_watermark("events", 10)

    assert h.outputs("out")[-1].value == [kept]
    assert len(h.outputs("out")) == 3


def test_long_keys_that_begin_alike_are_different_keys(harness):
    h = harness(Keeper, intervals=1)
    for key in LONG:
        put(h, key)

    assert [output.value[0] for output in h.outputs("out")] == [1] * len(LONG)


def test_long_tags_that_begin_alike_are_different_timers(harness):
    h = harness(Keeper)
    put(h, set=LONG)
    put(h, delete=LONG[:1])
    h.advance_watermark("events", 10)

    assert sorted(output.value[0] for output in h.outputs("out")[2:]) == LONG[1:]


def test_long_entries_that_begin_alike_are_different_entries(harness):
    h = harness(Keeper)
    put(h, put=LONG)
    put(h, drop=LONG[:1])

    assert h.outputs("out")[-1].value[2] == dict.fromkeys(LONG[1:], 1)


def test_long_entries_that_begin_alike_are_iterated_once_each(harness):
    class Walks(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        outputs = {"out": list}
        entries = mr.MapState(int)

        def process_record(self, record):
            for entry in record.value:
                self.entries[entry] = 1
            self.produce("out", list(self.entries))

    for touched in itertools.permutations(LONG[:4], 2):
        h = harness(Walks)
        h.inject("events", [(LONG, 0)])
        h.inject("events", [(list(touched), 0)])

        assert sorted(h.outputs("out")[-1].value) == LONG


def test_long_entries_are_iterated_in_the_order_of_their_encoding(harness):
    class Walks(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        outputs = {"out": list}
        entries = mr.MapState(int)

        def process_record(self, record):
            for entry in record.value:
                self.entries[entry] = 1
            self.produce("out", list(self.entries))

    h = harness(Walks)
    h.inject("events", [(LONG, 0)])
    h.inject("events", [([], 0)])

    assert h.outputs("out")[-1].value == LONG
