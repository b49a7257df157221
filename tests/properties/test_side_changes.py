"""A machine that has worked on other intervals makes of rows what one does that is new."""

from functools import cache
from typing import Any

import msgspec
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

import millrace as mr
from millrace.kernel.bundle import Attempt, Bundle, Position, ReceivedRecords
from millrace.kernel.machine import Machine
from millrace.kernel.router import Router
from millrace.model.keys import encode_key
from millrace.store import Commit, MemoryCache
from millrace.watermark.intervals import IntervalMap

INTERVALS = 3


class Row(msgspec.Struct, frozen=True):
    name: str
    n: int


class Look(mr.Computation):
    inputs = {"asks": mr.by_key()}
    outputs = {"told": list}
    waited = mr.SideInput("rows", "name", limit=90)
    newest = mr.SideInput("others", "name", waits=False, limit=40)

    def process_record(self, record: Any) -> None:
        tables = (self.waited, self.newest)
        self.produce("told", [[[k, table[k].n] for k in table] for table in tables])


p = mr.Pipeline("changes")
p.inject("rows", format=Row)
p.inject("others", format=Row)
p.inject("asks", format=int)
p.add(Look)
p.dead_letter("dead")
p.sink("told", print)
TOPOLOGY = p.build()

#: A row, of which the same may come again: stream, name, number, time.
rows = st.tuples(
    st.sampled_from(["rows", "others"]),
    st.sampled_from("xyz"),
    st.sampled_from([1, 2, 3, 1000]),
    st.integers(0, 5),
)
#: What comes together, to which intervals, and how far the low watermark goes on before.
bundles = st.tuples(
    st.lists(rows, min_size=1, max_size=5),
    st.sampled_from([(0,), (1,), (0, 1), (0, 1, 2)]),
    st.integers(0, 3),
)
#: Bundles after which tables are of one size, and not the same.
DIFFER = [
    ([(stream, "x", 1 + n, 0) for stream in ("rows", "others")], (n,), 0) for n in range(INTERVALS)
]


@cache
def row(name: str, n: int) -> Row:
    """Return a row, one object for all intervals: nothing else is taken for the same."""
    return Row(name, n)


def machine() -> Machine:
    return Machine(TOPOLOGY, TOPOLOGY.computations[0], Router(TOPOLOGY))


def work(number: int, came: list[tuple[str, Row, int]], fired_watermark_us: int) -> Bundle:
    keys = [*(encode_key(row.name) for _, row, _ in came), encode_key("asked")]
    arrivals = ReceivedRecords(
        np.array([*(0 for _ in came), 1], dtype=np.uint64),
        keys,
        [*(row for _, row, _ in came), 0],
        np.array([*(at for _, _, at in came), fired_watermark_us - 1], dtype=np.int64),
        [*(stream for stream, _, _ in came), "asks"],
        np.full(len(keys), number, dtype=np.int64),
        np.arange(len(keys), dtype=np.int64),
    )
    ((interval, records),) = arrivals.by_interval(IntervalMap.uniform(1))
    before = max(0, fired_watermark_us - 1)
    attempt = Attempt(number, 1, 0, before, {100: fired_watermark_us}, fired_watermark_us=before)
    return Bundle(interval, Position(number - 1), attempt, records)


def told(outcome: Any) -> Any:
    return list(outcome.mutations.items()), outcome.productions.pack(), outcome.counters


@given(st.lists(bundles, max_size=8))
@example([*DIFFER, ([("rows", "x", 3, 1), ("others", "x", 3, 0)], (0, 1, 2), 0)])
@example([*DIFFER, ([("rows", "y", 3, 0), ("others", "y", 3, 0)], (0, 1, 2), 5)])
@example(
    [
        ([("rows", "x", 1, 0), ("rows", "x", 2, 1)], (0, 1), 0),
        ([("rows", "x", 3, 2)], (0,), 0),
        ([("rows", "x", 3, 2)], (1,), 3),
    ]
)
def test_what_is_known_of_other_intervals_changes_nothing(script: Any) -> None:
    shared, fired_watermark_us, numbers = machine(), 0, [0] * INTERVALS
    caches = [MemoryCache("Look", n) for n in range(INTERVALS)]
    for came, where, on in script:
        fired_watermark_us += on
        fresh = [(stream, row(name, n), at) for stream, name, n, at in came]
        for interval in where:
            numbers[interval] += 1
            number, stored = numbers[interval], caches[interval]
            bundle = work(number, fresh, fired_watermark_us)
            with stored.view() as view:
                outcome = shared.run(bundle, view)
                assert told(outcome) == told(machine().run(bundle, view))
            mutations = list(outcome.mutations.items())
            stored.apply(Commit("Look", interval, number, number, 1, mutations))
