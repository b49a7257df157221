"""The cut of an interval's input into bundles is not seen by code that looks at no clock."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.kernel import families, row_codec
from millrace.kernel.bundle import NO_RECORDS, Attempt, Bundle, Position, ReceivedRecords
from millrace.kernel.execution import Execution
from millrace.kernel.record_ids import SourceIds, fingerprint, injected_origin
from millrace.model.keys import encode_key, hash_key
from millrace.runtime.commit_writer import PutWriter
from millrace.store import MemoryCaches, MemoryHardState
from millrace.watermark.intervals import IntervalMap

S = mr.SECOND
#: The low watermark before the records, and after them.
BEFORE, AFTER = 100 * S, 160 * S
(INTERVAL,) = IntervalMap.uniform(1).intervals


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
            self.set_timer(n, at=BEFORE + (1 + 7 * n) * S, hold=BEFORE + (1 + n) * S)
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


class Case:
    """A pipeline of one computation, and what its input may be."""

    def __init__(self, add, *, earliest=90, after=AFTER, **injection):
        p = mr.Pipeline("bundles")
        p.inject("events", **injection)
        add(p)
        p.sink("told", print)
        self.topology = p.build()
        (self.spec,) = self.topology.computations
        self.after = after
        self.identified = self.topology.edges[0].identified
        self.records = st.lists(
            st.tuples(
                st.sampled_from("abc"), st.integers(0, 9), st.integers(earliest, 180).map(S.__mul__)
            ),
            max_size=40,
        )

    def arrived(self, records):
        """Return (key, n, timestamp) triples, in order of arrival, as one interval's records.

        Where records have ids, n is the id.
        """
        if not records:
            return NO_RECORDS
        keys = [encode_key(key) for key, _, _ in records]
        origins, ids = np.full(len(keys), injected_origin(0, 0), np.int64), None
        if self.identified:
            prints = b"".join(fingerprint(n) for _, n, _ in records)
            ids = SourceIds.of("events", prints, origins, self.topology.streams["events"].slacks)
        arrivals = ReceivedRecords(
            np.array([hash_key(key) for key in keys], np.uint64),
            keys,
            [{"key": key, "n": n} for key, n, _ in records],
            np.array([at for _, _, at in records], np.int64),
            "events",
            origins,
            np.arange(len(keys), dtype=np.int64),
            ids,
        )
        ((_, found),) = arrivals.by_interval(IntervalMap.uniform(1))
        return found

    def run(self, records, cuts):
        """Run records in bundles that end at the cuts; return state, report and outputs."""
        caches, position, told = MemoryCaches(), Position(), []
        execution = Execution(self.topology, MemoryHardState(), caches)
        edges = [0, *sorted(cuts), len(records)]
        for epoch, (start, stop) in enumerate(itertools.pairwise(edges)):
            # Low watermarks come after what was sent before them: with the last bundle.
            clocks = {100: self.after if stop == len(records) else BEFORE}
            attempt = Attempt(epoch, 1, 0, BEFORE, clocks)
            bundle = Bundle(INTERVAL, position, attempt, self.arrived(records[start:stop]))
            writer = PutWriter(execution, Open(), 0)
            ((result, made),) = writer.commit(writer.run(self.spec, [bundle]))
            position = Position(result.number, result.chain, result.report)
            told += zip(made.keys, made.values, made.timestamps, strict=True)
        with caches.open(self.spec.name, 0).view() as view:
            kept = dict(row_codec.everything(view))
        by_key = {key: [(value, at) for who, value, at in told if who == key] for key, *_ in told}
        return plain(kept), position.report, by_key


def plain(kept):
    """Return rows without what says which commit they were made by, and the items of the bags."""
    bags = [row for row in sorted(kept) if row[:1] == families.BAG]
    items = [item for row in bags for item in msgspec.msgpack.decode(kept.pop(row))]
    not_of_keys = (families.IDS_BY_COMMIT, families.IDS_BY_EXPIRY, families.CHUNKS)
    return {row: value for row, value in kept.items() if row[:1] not in not_of_keys}, items


def grouped(window, **options):
    """Return what adds a grouping by window to a pipeline."""

    def add(p):
        p.stream("events").key_by("key").window(window, **options).sum("n").to("told")

    return add


CASES = {
    "cells and timers": Case(lambda p: p.add(Everything)),
    "source ids": Case(lambda p: p.add(Everything), id="id", slack=20 * S),
    # On time: of late ones, a grouping by columns makes one pane a bundle, as it does an epoch.
    "windows as columns": Case(grouped(mr.FixedWindows("10 s")), earliest=100),
    # To their ends: a session that goes on has a chunk, and a timer, of each bundle that it met.
    "sessions as columns": Case(grouped(mr.Sessions("7 s")), earliest=100, after=300 * S),
    "windows by key": Case(
        grouped(mr.FixedWindows("10 s"), trigger=mr.Repeat(mr.AfterCount(3))), earliest=100
    ),
    "sessions by key": Case(
        grouped(mr.Sessions("7 s"), trigger=mr.Repeat(mr.AfterCount(3))), earliest=100
    ),
}
by_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@by_case
@given(data=st.data())
def test_any_cut_gives_the_same_state_timers_and_outputs(case, data):
    records = data.draw(case.records, label="records")
    cuts = data.draw(st.lists(st.integers(0, len(records)), max_size=50), label="cuts")
    assert case.run(records, cuts) == case.run(records, [])


@by_case
def test_a_bundle_for_each_record(case):
    records = [("ab"[n % 2], n % 10, (100 + n) * S) for n in range(50)]
    state, report, told = case.run(records, [])
    assert told
    assert case.run(records, range(1, 50)) == (state, report, told)


def test_the_cases_are_what_they_are_called():
    columns = {name for name, case in CASES.items() if case.spec.columnar is not None}
    assert columns == {"windows as columns", "sessions as columns"}
    assert [name for name, case in CASES.items() if case.identified] == ["source ids"]
