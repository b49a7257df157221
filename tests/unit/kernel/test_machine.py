"""The machine is pure: the same work and the same rows give the same outcome, and write nothing."""

import numpy as np
import pytest

import millrace as mr
from millrace.kernel.bundle import NO_RECORDS, Attempt, Bundle, Position, ReceivedRecords
from millrace.kernel.machine import Machine
from millrace.kernel.router import Router
from millrace.model.errors import DamagedCache
from millrace.model.keys import encode_key, hash_key
from millrace.model.pane import Pane, Paned, Window
from millrace.store import Commit, MemoryCache
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.report import NOTHING_PENDING, Report

INTERVALS = IntervalMap.uniform(1)


class Everything(mr.Computation):
    inputs = {"events": mr.by_key()}
    outputs = {"out": list}
    value = mr.ValueState(list[int])
    entries = mr.MapState(int)
    bag = mr.BagState(int)
    total = mr.CombiningState(int)

    def process_record(self, record):
        n = record.value
        self.increment("seen")
        self.value.set([*self.value.get([]), n])
        self.entries[n % 3] = self.entries.get(n % 3, 0) + 1
        self.bag.add(n)
        self.total.add(n)
        self.set_timer(n % 2, at=n * 10)
        self.set_timer("wall", at=n * 7, domain=mr.WALL_TIME)
        self.hold(n)
        self.produce("out", [n, self.total.get()])

    def process_timer(self, timer):
        self.produce("out", [str(timer.tag), list(self.bag)])
        self.hold(None)


@pytest.fixture
def machine():
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Everything)
    p.sink("out", print)
    topology = p.build()
    return Machine(topology, topology.computations[0], Router(topology))


def work(number, values, low_watermark_us=mr.MIN_TIMESTAMP, wall_time_us=0, report=NOTHING_PENDING):
    keys = [encode_key(value % 4) for value in values]
    received = ReceivedRecords(
        np.array([hash_key(key) for key in keys], dtype=np.uint64),
        keys,
        list(values),
        np.array(values, dtype=np.int64),
        ["events"] * len(keys),
        np.full(len(keys), number, dtype=np.int64),
        np.arange(len(keys), dtype=np.int64),
    )
    found = [records for _, records in received.by_interval(INTERVALS)]
    records = found[0] if found else NO_RECORDS
    attempt = Attempt(number, 1, wall_time_us, mr.MIN_TIMESTAMP, {100: low_watermark_us})
    return Bundle(INTERVALS.intervals[0], Position(number - 1, report=report), attempt, records)


def commit(number, outcome):
    mutations = list(outcome.mutations.items())
    return Commit("Everything", 0, number, epoch=number, generation=1, mutations=mutations)


def told(outcome):
    productions = outcome.productions.pack()
    return list(outcome.mutations.items()), productions, outcome.report, outcome.counters


def test_the_same_work_on_the_same_rows_has_the_same_outcome(machine):
    cache, report = MemoryCache("Everything", 0), Report()
    for number, what in enumerate([(range(1, 9),), (range(5, 12), 30, 20), ([], 1_000, 1_000)], 1):
        given = work(number, *what, report=report)
        with cache.view() as view:
            first, second = machine.run(given, view), machine.run(given, view)

        assert told(first) == told(second)
        assert first.mutations
        cache.apply(commit(number, first))
        report = first.report


def test_a_bundle_that_failed_leaves_no_trace_in_the_machine(machine):
    cache = MemoryCache("Everything", 0)
    with cache.view() as view:
        expected = told(machine.run(work(1, [1, 2, 3]), view))
        broken = work(1, [5, 6, 7])
        broken.records.values[-1] = None
        with pytest.raises(mr.MillraceError):
            machine.run(broken, view)

        assert told(machine.run(work(1, [1, 2, 3]), view)) == expected


class Damaged:
    """A view of which one look, counted from 0, finds out that its rows are damaged."""

    def __init__(self, view, last):
        self._view, self._left = view, last

    def __getattr__(self, name):
        looking = getattr(self._view, name)
        if not callable(looking):
            return looking
        if not self._left:
            raise DamagedCache("a row was altered")
        self._left -= 1
        return looking


def test_a_bundle_whose_rows_are_found_damaged_leaves_no_trace_in_the_machine(machine):
    cache = MemoryCache("Everything", 0)
    with cache.view() as view:
        first = machine.run(work(1, [1, 2, 3, 5]), view)
    cache.apply(commit(1, first))
    again = work(2, [2, 6, 7, 9], 15, 15, first.report)
    with cache.view() as view:
        expected, looks = told(machine.run(again, view)), 0
        while True:
            try:
                found = told(machine.run(again, Damaged(view, looks)))
            except DamagedCache:
                looks += 1
                assert told(machine.run(again, view)) == expected
            else:
                break

    assert looks > 5
    assert found == expected


def test_work_with_nothing_to_do_has_no_effect(machine):
    with MemoryCache("Everything", 0).view() as view:
        outcome = machine.run(work(1, [], mr.MAX_TIMESTAMP, 10**15), view)

    assert not outcome.mutations
    assert not len(outcome.productions)
    assert outcome.report == Report()


def test_the_report_is_what_is_pending_after_the_bundle(machine):
    with MemoryCache("Everything", 0).view() as view:
        outcome = machine.run(work(1, [3, 4, 5], low_watermark_us=35, wall_time_us=30), view)

    # The key of 3 fired its low-watermark timer (30) and the wall timer (21); that of 4 its wall
    # timer (28). Firing releases the hold. The key of 5 waits for 50 and 35, and holds 5.
    # Those of 4 and 5 by the low watermark, and that of 5 by the wall clock, are left.
    assert outcome.report == Report(
        low_watermark_timer_us=40, wall_timer_us=35, hold_us=5, timers=2, wall_timers=1
    )


def test_once_all_is_undone_no_row_is_left(machine):
    class Undo(mr.Computation):
        inputs = {"events": mr.by_key()}
        value = mr.ValueState(int)
        entries = mr.MapState(int)
        bag = mr.BagState(int)

        def process_record(self, record):
            if record.value < 2:
                self.value.set(1)
                self.entries["a"] = 1
                self.bag.add(1)
                self.set_timer("t", at=10)
                self.hold(5)
            else:
                self.value.clear()
                del self.entries["a"]
                self.bag.clear()
                self.delete_timer("t")
                self.hold(None)

        def process_timer(self, timer):
            raise AssertionError("it was deleted")

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Undo)
    topology = p.build()
    machine = Machine(topology, topology.computations[0], Router(topology))
    cache, report = MemoryCache("Everything", 0), Report()
    for number, value in ((1, 1), (2, 5)):
        given = work(number, [value], report=report)
        with cache.view() as view:
            outcome = machine.run(given, view)
        report = outcome.report
        cache.apply(commit(number, outcome))

    with cache.view() as view:
        assert list(view.scan(b"\x01", b"\xff")) == []
    assert outcome.report == Report()


def test_timers_of_both_domains_that_become_due_at_once_fire_in_order_of_time():
    class Order(mr.Computation):
        inputs = {"events": mr.by_key()}
        outputs = {"fired": int}

        def process_record(self, record):
            for at in (5, 10):
                self.set_timer(at, at=at)
            for at in (3, 7):
                self.set_timer(at, at=at, domain=mr.WALL_TIME)

        def process_timer(self, timer):
            self.produce("fired", timer.at, timestamp=0)

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Order)
    p.sink("fired", print)
    topology = p.build()
    machine = Machine(topology, topology.computations[0], Router(topology))
    cache = MemoryCache("Order", 0)
    with cache.view() as view:
        first = machine.run(work(1, [1]), view)
    cache.apply(Commit("Order", 0, 1, 1, 1, list(first.mutations.items())))
    with cache.view() as view:
        given = work(2, [], 100, 100, report=first.report)
        outcome = machine.run(given, view)

    decode = topology.streams["fired"].coder.decode
    assert [decode(value) for value in outcome.productions.values] == [3, 5, 7, 10]


def test_a_key_that_begins_has_no_pane_of_the_record_before_it():
    class Begins(mr.Computation):
        inputs = {"panes": mr.by_key()}
        outputs = {"out": mr.coders.Paned(int, retracts=True)}

        def process_start(self):
            self.produce("out", 1)

        def process_record(self, record):
            self.produce("out", 2)

    p = mr.Pipeline("p")
    p.inject("panes", format=mr.coders.Paned(int, retracts=True))
    p.add(Begins, keys=[0])
    p.sink("out", print)
    topology = p.build()
    [spec] = topology.computations
    machine = Machine(topology, spec, Router(topology))
    bundle = work(1, [4, 0])
    bundle.records.streams = ["panes", spec.starts]
    bundle.records.values = [Paned(4, Pane(Window(0, 10), retraction=True)), 0]
    with MemoryCache("Begins", 0).view() as view:
        effects = machine.run(bundle, view)
    out = [
        spec.coder.decode(value)
        for value in effects.productions.values
        for spec in [topology.streams["out"]]
    ]
    assert [getattr(one, "pane", None) for one in out] == [bundle.records.values[0].pane, None]
