"""What a cell reads from the store: a spying view shows every read of a bundle."""

import numpy as np
import pytest

import millrace as mr
from millrace.kernel.bundle import Attempt, Bundle, Position, ReceivedRecords
from millrace.kernel.machine import Machine
from millrace.kernel.router import Router
from millrace.model.keys import encode_key, hash_key
from millrace.store import Commit, MemoryCache
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.report import Report


class SpyingView:
    """A view that writes down the rows that are read of the cells, by ``get`` and by ``scan``."""

    def __init__(self, view):
        self._view = view
        self.position = view.position
        self.got = []
        self.scans = 0
        self.scanned = []

    def get(self, row):
        self.got.append(row)
        return self._view.get(row)

    def get_many(self, rows):
        assert list(rows) == sorted(set(rows)), "the store's contract: sorted and distinct"
        self.got += rows
        return self._view.get_many(rows)

    def scan(self, start, stop):
        self.scans += 1
        for row, value in self._view.scan(start, stop):
            self.scanned.append(row)
            yield row, value


@pytest.fixture
def spy():
    """Run hooks one after the other, each as a bundle of one record; return the last one's view."""

    def run(cell, *hooks, keys=("k",)):
        class Spied(mr.Computation):
            inputs = {"events": mr.by_key()}
            state = mr.ValueState(int) if cell is None else cell

            def process_record(self, record):
                hooks[record.value](self if cell is None else self.state)

            def process_timer(self, timer):
                pass

        p = mr.Pipeline("p")
        p.inject("events")
        p.add(Spied)
        topology = p.build()
        machine = Machine(topology, topology.computations[0], Router(topology))
        cache, report = MemoryCache("Spied", 0), Report()
        for n in range(len(hooks)):
            with cache.view() as view:
                spying = SpyingView(view)
                outcome = machine.run(work(n, keys, report), spying)
            report = outcome.report
            mutations = list(outcome.mutations.items())
            cache.apply(Commit("Spied", 0, n + 1, epoch=n, generation=1, mutations=mutations))
        return spying

    return run


def work(n, keys, report):
    encoded = [encode_key(key) for key in keys]
    received = ReceivedRecords(
        np.array([hash_key(key) for key in encoded], dtype=np.uint64),
        encoded,
        [n] * len(keys),
        np.zeros(len(keys), dtype=np.int64),
        ["events"] * len(keys),
        np.full(len(keys), n, dtype=np.int64),
        np.arange(len(keys), dtype=np.int64),
    )
    ((interval, records),) = received.by_interval(IntervalMap.uniform(1))
    attempt = Attempt(n, 1, 0, mr.MIN_TIMESTAMP, {100: 100})
    return Bundle(interval, Position(n, report=report), attempt, records)


def fill(m):
    m.update({n: n for n in range(100)})


def test_reading_an_entry_of_a_map_reads_that_entry(spy):
    view = spy(mr.MapState(int), fill, lambda m: m[50])

    assert len(view.got) == 1
    assert view.scanned == []


def test_reading_an_entry_twice_reads_it_once(spy):
    view = spy(mr.MapState(int), fill, lambda m: (m[50], m.get(50), 50 in m))

    assert len(view.got) == 1


def test_an_entry_that_is_not_there_is_asked_for_once(spy):
    view = spy(mr.MapState(int), fill, lambda m: (m.get(-1), m.get(-1), -1 in m))

    assert len(view.got) == 1


def test_writing_an_entry_of_a_map_reads_nothing(spy):
    view = spy(mr.MapState(int), fill, lambda m: m.update({50: 0}))

    assert view.got == view.scanned == []


def test_looking_for_the_first_entry_reads_no_more_than_it(spy):
    view = spy(mr.MapState(int), fill, lambda m: next(iter(m)))

    assert len(view.scanned) <= 2


def drain(m):
    while (entry := next(iter(m), None)) is not None:
        del m[entry]


def drain_from_the_middle(m):
    for n in range(50, 100):
        for entry in list(m.between(50, n)):
            del m[entry]


@pytest.mark.parametrize("empty", [drain, drain_from_the_middle])
def test_a_map_that_is_emptied_in_order_is_not_walked_from_its_beginning_each_time(spy, empty):
    view = spy(mr.MapState(int), fill, empty)

    assert len(view.scanned) < 500


def test_adding_to_a_bag_is_a_blind_write(spy):
    view = spy(mr.BagState(int), lambda b: b.add(1), lambda b: b.add(2))

    assert view.got == view.scanned == []


def test_a_bag_in_use_reads_its_own_blocks_only(spy):
    view = spy(mr.BagState(int), lambda b: b.add(1), lambda b: b.add(2), lambda b: list(b))

    assert len(view.scanned) == 2


def test_value_cells_of_all_keys_are_read_in_one_call(spy):
    view = spy(mr.ValueState(int), lambda s: s.set(1), lambda s: s.get(), keys=("a", "b", "c", "d"))

    assert len(view.got) == 4


def test_a_computation_with_no_value_cells_asks_for_none(spy):
    assert spy(mr.MapState(int), fill, lambda _: None).got == []


def waits(at):
    """Return a hook that has a timer wait for an instant; the low watermark is at 100."""
    return lambda me: me.set_timer("tag", at=at)


def test_what_is_not_due_is_not_looked_for(spy):
    view = spy(None, waits(200), waits(200), lambda me: me.set_timer("other", at=300))

    assert view.scans == 0


def test_where_the_first_timer_was_moved_the_next_one_is_looked_for(spy):
    view = spy(None, waits(200), waits(300))

    assert view.scans == 1


def test_a_hold_that_is_let_go_is_looked_for_once(spy):
    view = spy(None, lambda me: me.hold(5), lambda me: me.hold(None))

    assert view.scans == 1
