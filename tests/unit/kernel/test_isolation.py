"""Keys do not see each other, whichever interval they share."""

import pytest

import millrace as mr

#: Alike enough to be confused by a careless encoding.
KEYS = ["a", "b", "ab", "", 1, "1", b"1", ("a", "b")]


class Private(mr.Computation):
    inputs = {"events": mr.by(lambda value: KEYS[value["n"]])}
    outputs = {"seen": list}

    value = mr.ValueState(list[int])
    entries = mr.MapState(int)
    bag = mr.BagState(int)
    total = mr.CombiningState(int)

    def process_record(self, record):
        n = record.value["n"]
        self.value.set([*self.value.get([]), n])
        self.entries[n] = n
        self.bag.add(n)
        self.total.add(n)
        self.set_timer(n, at=10)

    def process_timer(self, timer):
        seen = [self.value.get(), list(self.entries), list(self.bag), self.total.get(), timer.tag]
        self.produce("seen", seen)


@pytest.mark.parametrize("intervals", [1, 4])
def test_each_key_has_state_and_timers_of_its_own(harness, intervals):
    h = harness(Private, intervals=intervals)
    h.inject("events", [({"n": n}, 0) for n in range(len(KEYS))])
    h.advance_watermark("events", 10)

    seen = {output.key: output.value for output in h.outputs("seen")}
    assert seen == {key: [[n], [n], [n], n, n] for n, key in enumerate(KEYS)}


def test_the_accumulator_of_one_key_does_not_leak_into_another(harness):
    """The initial accumulator is where every key starts, even if ``add`` changes it in place."""

    def append(items, item):
        items.append(item)
        return items

    class Collect(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"seen": list}
        items = mr.CombiningState(list[int], append, initial=[])

        def process_record(self, record):
            self.items.add(record.value["n"])
            self.produce("seen", self.items.get())

    h = harness(Collect, intervals=1)
    h.inject("events", [({"key": "a", "n": 1}, 0), ({"key": "b", "n": 2}, 0)])

    assert {output.key: output.value for output in h.outputs("seen")} == {"a": [1], "b": [2]}


def test_two_computations_with_equal_cells_do_not_share_them(harness):
    class Count(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"counts": int}
        n = mr.ValueState(int)

        def process_record(self, record):
            self.n.set(self.n.get(0) + 1)
            self.produce("counts", self.n.get())

    class Again(Count):
        pass

    h = harness(Count, Again)
    h.inject("events", [({"key": "k"}, 0)])

    assert [output.value for output in h.outputs("counts")] == [1, 1]
