"""What holds for every follower: a row has one number, however the input is cut and resumed.

And so is what becomes of it: its rows on edges, and their ids.
"""

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.epochlog.entries import Manifest
from millrace.injectors.advance import Advances, along, decision
from millrace.injectors.follower import Polling
from millrace.kernel.channels import number_of, sender_of
from millrace.kernel.record_ids import injected_count
from millrace.kernel.user_errors import total
from millrace.runtime.reports import TaskReport
from millrace.runtime.row_encoder import LiveRows, ids_of, number_at
from millrace.runtime.worker_process import Task
from millrace.watermark.propagation import LowWatermarks
from tests.live import Feeds, Kept, Live


class Shuffled(mr.sources.Injector):
    """Numbers that are written, in an order that depends on how far it was decided to read.

    What lies between a and c is not what lies between a and b, and then b and c: as with files, of
    which those that are there are read oldest first.
    """

    schema = "n long"

    def __init__(self):
        self.written = 0
        self.step = 1
        self.batch = 1

    def processes(self):
        return ["all"]

    def advance(self, process, offset):
        return mr.sources.Advance(min((offset or 0) + self.step, self.written), None)

    def read_arrow(self, process, start, end):
        numbers, batch = np.arange(start or 0, end)[::-1], self.batch
        for first in range(0, len(numbers), batch):
            yield pa.RecordBatch.from_pydict({"n": numbers[first : first + batch]})


@dataclass
class Standing:
    """What a task of the plane keeps of a process: a place, and what was decided since."""

    offset: Any = None
    count: int = 0
    decided: list[Any] = field(default_factory=list)

    def resumed(self) -> str:
        return json.dumps(along(self.offset, self.decided))


#: One after the other: how much more is written, how large a step is, in batches of how many rows,
#: how many rows are taken at once, how often, then a mark or not, then a failure or not.
scripts = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(1, 9),
        st.integers(1, 5),
        st.integers(1, 7),
        st.integers(0, 6),
        st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)


offsets = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(0, 1), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(offsets, st.lists(offsets, max_size=4))
def test_what_was_decided_leads_from_offset_to_offset(start, ends):
    decided = [
        decision(before, mr.sources.Advance(end, n))
        for n, (before, end) in enumerate(itertools.pairwise([start, *ends]))
    ]
    advances = Advances.of(json.loads(json.dumps(along(start, json.loads(json.dumps(decided))))))

    assert advances.start == start
    assert advances.ahead == tuple((end, n) for n, end in enumerate(ends))


def follow(injector, offset, most):
    # A second passes whenever it looks, so nobody waits before a process is asked again.
    return Polling(injector, {"all": offset}, most=most, clock=itertools.count().__next__)


@given(scripts)
def test_a_row_has_the_same_number_after_every_failure(script):
    injector, found = Shuffled(), dict[int, int]()
    mark, count, last = Standing(), 0, None
    follower = follow(injector, None, 5)
    for more, injector.step, injector.batch, most, takes, marked, fails in [
        *script,
        (1, 5, 5, 100, 0, False, True),
        (1, 5, 5, 100, 200, False, False),
    ]:
        injector.written += more
        if fails:
            last, count = json.loads(mark.resumed()), mark.count
            follower = follow(injector, last, most)
        for _ in range(takes):
            for one in follower.take(0):
                if one.decided is not None:
                    mark.decided.append(one.decided)
                for row in one.rows.column("n").to_pylist():
                    assert found.setdefault(count, row) == row
                    count += 1
                last = one.offset
        if marked:
            mark = Standing(last, count)
    assert sorted(found) == sorted(found.values()) == list(range(injector.written))


@given(
    st.dictionaries(st.integers(0, 2**63 - 1), st.integers(1, 3), min_size=1, max_size=5),
    st.integers(0, 2**30 - 1),
)
def test_ids_sort_as_the_places_of_their_records_do(records, process):
    numbers = np.repeat(sorted(records), [records[number] for number in sorted(records)])
    made = np.concatenate([np.arange(records[number]) for number in sorted(records)])
    origins, sequences = ids_of(3, process, numbers, made)
    ids = list(zip(origins.tolist(), sequences.tolist(), strict=True))
    found = [number_of(*each) for each in ids]

    assert {sender_of(*each) for each in ids} == {((1 << 14) + 3, process)}
    assert found == sorted(set(found))
    assert [injected_count(each) for each in found] == numbers.tolist()
    lasts = [number_at(number) for number in numbers.tolist()]
    assert all(each <= last for each, last in zip(found, lasts, strict=True))
    assert all(last < each for last, each in zip(lasts, found[1:], strict=False) if made.max() == 0)


class Keyed(mr.Computation):
    inputs = {"numbers": mr.by("n")}
    outputs = {"some": int}

    def process_record(self, record):
        pass


class KeyedByAnother(Keyed):
    inputs = {"numbers": mr.by("id")}
    outputs = {"others": int}


class KeyedByFunction(Keyed):
    inputs = {"numbers": mr.by(lambda row: row["n"] // (row["n"] != 13))}


def live_rows(kind):
    p = mr.Pipeline("rows")
    feeds = Feeds("n long, at long, id string", {"a": []})
    p.inject("numbers", feeds, timestamp="at", id="id", low_watermark=mr.BoundedDelay(1))
    p.dead_letter("rejects")
    p.add(KeyedByFunction if kind == "function" else Keyed, name="Keyed")
    p.sink("some", Kept())
    if kind == "columns":
        p.add(KeyedByAnother)
        p.sink("others", Kept())
    if kind == "steps":
        p.stream("numbers").flat_map(lambda row: range(row["n"] % 4)).to("few")
        p.sink("few", Kept())
    runtime = Live(p, tasks=3).runtime(0)
    task_names = [one.name for one in runtime.topology.computations]
    assert runtime.sources[0].native is kind.startswith("column")
    manifest = Manifest(
        epoch=0,
        generation=1,
        wall_time_us=mr.HOUR,
        injectors={"numbers": 0},
        draining=False,
        before=LowWatermarks({}, {}),
        intervals=dict.fromkeys(task_names, 4),
        entry=1,
        edges=[edge.number for edge in runtime.topology.edges],
    )
    return LiveRows(runtime), Task(runtime, manifest, 0)


#: What says which record a row is, whether its value is encoded already or is in columns.
SENT = ["edge", "hash", "key", "ts", "origin", "sequence"]


def made(rows, task, table, cuts):
    """Return the rows that a table becomes when it is cut at some places."""
    found, report, numbers = [], TaskReport(), np.arange(len(table["n"])) * 3 + (1 << 40)
    batch = pa.RecordBatch.from_pydict(table)
    for first, end in itertools.pairwise([0, *sorted(cuts), len(numbers)]):
        if first < end:
            part = batch.slice(first, end - first)
            source = task.runtime.sources[0]
            for one in rows.on_edges(task, source, part, numbers[first:end], 7, report):
                found += one.batch().select(SENT).to_pylist()
    return sorted(map(str, found)), report


@pytest.mark.parametrize("kind", ["column", "columns", "function", "steps"])
def test_rows_are_the_same_however_they_are_cut(kind, monkeypatch):
    rows, task = live_rows(kind)

    @given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(0, 12), st.data())
    def check(numbers, few, data):
        monkeypatch.setattr("millrace.runtime.rows.FEW", few)
        table = {
            "n": np.array(numbers),
            "at": np.array(numbers) * 1000,
            "id": [f"id {n}" for n in numbers],
        }
        cuts = data.draw(st.lists(st.integers(0, len(numbers)), max_size=4))
        whole = made(rows, task, table, [])
        assert made(rows, task, table, cuts) == whole
        refused = numbers.count(13) if kind == "function" else 0
        assert len(whole[0]) >= len(numbers) - refused
        assert total(whole[1].source("numbers").letters) == refused

    check()
