"""The cut of an interval's input into bundles is not seen by code that looks at no clock."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.model.keys import encode_key, hash_key
from millrace.store import MemoryCaches, MemoryHardState
from millrace.watermark.intervals import IntervalMap
from millrace.windmill import rows
from millrace.windmill.arrivals import NO_RECORDS, Arrivals
from millrace.windmill.bundle import Attempt, Bundle, Position
from millrace.windmill.worker import Worker

#: The low watermark before the records, and after them.
BEFORE, AFTER = 100, 160


class Everything(mr.Computation):
    """Uses every kind of cell, and timers that are set, moved and deleted, with holds."""

    inputs = {"events": mr.by("key")}
    outputs = {"told": list}
    last = mr.ValueState(int)
    by_number = mr.MapState(int)
    all = mr.BagState(int)
    total = mr.CombiningState(int)

    def process_record(self, record):
        n = record.value["n"]
        self.last.set(n)
        self.by_number[n] = self.by_number.get(n, 0) + 1
        self.all.add(n)
        self.total.add(n)
        if n % 3 == 0:
            self.set_timer(n, at=BEFORE + 1 + 7 * n, hold=BEFORE + 1 + n)
        if n % 5 == 4:
            self.delete_timer(n - 1)
        if n == 7:
            self.all.clear()
        self.produce("told", ["record", n, record.late, self.total.get(), list(self.all)])

    def process_timer(self, timer):
        counts = sorted(self.by_number.items())
        self.produce("told", ["timer", timer.tag, counts, self.last.get(), list(self.all)])


class Open:
    """A fence that lets everybody through."""

    def check(self):
        pass


def topology():
    p = mr.Pipeline("bundles")
    p.inject("events")
    p.add(Everything)
    p.sink("told", print)
    return p.build()


TOPOLOGY = topology()
(SPEC,) = TOPOLOGY.computations
(INTERVAL,) = IntervalMap.uniform(1).intervals


def arrived(records):
    """Return (key, n, timestamp) triples, in order of arrival, as one interval's records."""
    if not records:
        return NO_RECORDS
    keys = [encode_key(key) for key, _, _ in records]
    arrivals = Arrivals(
        np.array([hash_key(key) for key in keys], np.uint64),
        keys,
        [{"key": key, "n": n} for key, n, _ in records],
        np.array([at for _, _, at in records], np.int64),
        "events",
        np.zeros(len(keys), np.int64),
        np.arange(len(keys), dtype=np.int64),
    )
    ((_, found),) = arrivals.by_interval(IntervalMap.uniform(1))
    return found


def run(records, cuts):
    """Run records in bundles that end at the cuts; return state, timers, report and outputs."""
    state, caches, position, told = MemoryHardState(), MemoryCaches(), Position(), []
    worker = Worker(TOPOLOGY, state, caches)
    edges = [0, *sorted(cuts), len(records)]
    for start, stop in itertools.pairwise(edges):
        # Low watermarks come after what was sent before them: with the last bundle.
        clocks = {100: AFTER if stop == len(records) else BEFORE}
        attempt = Attempt(0, 1, 0, BEFORE, clocks)
        bundle = Bundle(INTERVAL, position, arrived(records[start:stop]))
        (result,) = worker.run(SPEC, [bundle], attempt, Open())
        position = Position(result.number, result.chain, result.report)
        made = result.productions
        told += zip(
            made.keys, map(msgspec.msgpack.decode, made.values), made.timestamps, strict=True
        )
    with caches.open(SPEC.name, 0).view() as view:
        kept = dict(view.scan(b"\x01", b"\xff"))
    # A bag has a row for each commit that added to it, so of bags their items are compared.
    bags = [row for row in kept if row[:1] == rows.BAG]
    items = [item for row in sorted(bags) for item in msgspec.msgpack.decode(kept.pop(row))]
    by_key = {key: [(value, at) for who, value, at in told if who == key] for key, *_ in told}
    return kept, items, position.report, by_key


RECORDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(90, 150)), max_size=40
)


@given(records=RECORDS, data=st.data())
def test_any_cut_gives_the_same_state_timers_and_outputs(records, data):
    places = st.integers(0, len(records))
    cuts = data.draw(st.lists(places, max_size=50), label="cuts")
    assert run(records, cuts) == run(records, [])


def test_a_bundle_for_each_record():
    records = [("ab"[n % 2], n % 10, 90 + n) for n in range(50)]
    assert run(records, range(1, 50)) == run(records, [])
