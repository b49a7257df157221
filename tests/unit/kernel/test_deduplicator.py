"""The deduplicator between execution and store: several processes, attempts made again, memory."""

import numpy as np
import pytest

import millrace as mr
from millrace.balance.transfer import remap
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.execution import Execution
from millrace.kernel.record_ids import SourceIds, fingerprint, injected_origin
from millrace.kernel.source_dedup import Deduplicator
from millrace.model.keys import encode_key, hash_key
from millrace.store import MemoryCaches, MemoryHardState
from tests.kit.epochs import run_epoch

SLACK = 64


class Tell(mr.Computation):
    inputs = {"events": mr.by_key()}
    outputs = {"out": int}

    def process_record(self, record):
        self.produce("out", record.value)


class Run:
    """Epochs on one checkpoint, by whatever execution a test says; keys and values are its ids."""

    def __init__(self, productions=mr.STRONG):
        p = mr.Pipeline("p")
        p.inject("events", format=int, id="id", slack=SLACK * mr.SECOND)
        p.add(Tell, productions=productions)
        p.sink("out", print)
        self.topology = p.build()
        self.state = MemoryHardState()
        self.run_log = RunLog(self.topology, self.state, intervals=2)
        (self.spec,) = self.topology.computations

    def execution(self):
        return Execution(self.topology, self.state, MemoryCaches())

    def attempt(self, execution, ids, second=0):
        """Run the next epoch, and leave it open; return the ids that were delivered."""
        self.manifest = self.run_log.begin(
            self.run_log.completed + 1,
            wall_time_us=0,
            injectors={"events": second * mr.SECOND},
        )
        keys = [encode_key(n) for n in ids]
        origins = np.full(len(ids), injected_origin(0, self.manifest.epoch), dtype=np.int64)
        names = b"".join(fingerprint(n) for n in ids)
        received = ReceivedRecords(
            np.array([hash_key(key) for key in keys], dtype=np.uint64),
            keys,
            list(ids),
            np.zeros(len(keys), dtype=np.int64),
            "events",
            origins,
            np.arange(len(keys), dtype=np.int64),
            SourceIds.of("events", names, origins, {0: SLACK * mr.SECOND}),
        )
        owned = range(len(self.manifest.interval_map("Tell")))
        clocks, positions = {100: second * mr.SECOND}, self.run_log.positions
        produced = run_epoch(
            execution, self.spec, self.manifest, positions, owned, received, clocks
        )
        self.results = [result for result, _ in produced]
        made = [value for _, productions in produced for value in productions.values]
        return sorted(map(mr.coders.Msgpack(int).decode, made))

    def epoch(self, execution, ids, second=0):
        """Run the next epoch to its end."""
        delivered = self.attempt(execution, ids, second)
        self.run_log.complete(self.manifest, self.results)
        return delivered


def lookups(execution):
    return execution.deduplicators["Tell"].lookups


IDS = list(range(100))


def test_a_process_knows_what_others_have_committed_meanwhile():
    run = Run()
    here, there = run.execution(), run.execution()
    assert run.epoch(here, IDS[:40]) == IDS[:40]
    assert run.epoch(there, IDS[20:60]) == IDS[40:60]
    assert run.epoch(here, IDS[:80]) == IDS[60:80]
    assert run.epoch(there, IDS) == IDS[80:]
    assert run.epoch(run.execution(), IDS) == []


def test_the_store_is_asked_for_what_may_have_come_and_for_little_else():
    run = Run()
    execution = run.execution()
    many = list(range(20_000))
    run.epoch(execution, many[:10_000])
    assert lookups(execution) == 0
    run.epoch(execution, many[5_000:])
    assert 5_000 <= lookups(execution) <= 5_000 + 0.01 * 10_000


def test_an_attempt_that_did_not_commit_leaves_nothing_but_a_look_up():
    run = Run()
    dead, alive = run.execution(), run.execution()
    dead.state = Unwritable(run.state)
    with pytest.raises(OSError, match="full"):
        run.attempt(dead, IDS)
    dead.state = run.state
    assert run.epoch(dead, IDS) == IDS
    assert run.epoch(alive, IDS) == []


class Unwritable:
    def __init__(self, state):
        self.commits, self.epochs = self, state.epochs
        self.read, self.exists = state.commits.read, state.commits.exists
        self.snapshots = state.snapshots

        self._log = state.commits

    def of_task(self, *task):
        mine = self._log.of_task(*task)
        mine.put = refused
        return mine


def refused(commits):
    raise OSError("disk full")


@pytest.mark.parametrize("productions", [mr.STRONG, mr.WEAK])
def test_an_attempt_made_again_answers_the_same_though_ids_expire_in_it(productions):
    run = Run(productions)
    execution = run.execution()
    run.epoch(execution, IDS)
    assert run.attempt(execution, IDS[:10], second=10 * SLACK) == []
    assert run.attempt(execution, IDS[:10], second=10 * SLACK) == [], "their rows are there still"
    assert run.epoch(execution, IDS[:10], second=10 * SLACK) == []
    assert run.epoch(execution, IDS[:10], second=10 * SLACK) == IDS[:10], "and now they are not"
    assert execution.deduplicators["Tell"].filter_bytes() <= 2048


def test_ids_are_collected_in_an_epoch_without_records():
    run = Run()
    execution = run.execution()
    run.epoch(execution, IDS)
    assert min(result.report.ids_us for result in run.results) == (SLACK + 4) * mr.SECOND
    run.epoch(execution, [], second=SLACK)
    assert run.results == []
    run.epoch(execution, [], second=SLACK + 4)
    assert {result.report.ids_us for result in run.results} == {mr.MAX_TIMESTAMP}


def test_without_memory_for_filters_all_is_asked_of_the_store_and_comes_out_the_same():
    run = Run()
    execution = run.execution()
    execution.deduplicators["Tell"] = Deduplicator(run.spec, filter_bytes_max=0)
    many = list(range(20_000))
    assert run.epoch(execution, many[:15_000]) == many[:15_000]
    assert run.epoch(execution, many) == many[15_000:]
    assert lookups(execution) > 18_000
    assert execution.deduplicators["Tell"].filter_bytes() <= 2 * 512


def test_memory_is_shared_by_the_intervals():
    run = Run()
    found = Deduplicator(run.spec, 1 << 20)
    execution = run.execution()
    execution.deduplicators["Tell"] = found
    for start in range(0, 200_000, 50_000):
        run.epoch(execution, range(start, start + 50_000))
    assert found.filter_bytes() <= 1 << 20


def test_memory_of_intervals_that_are_no_more_is_given_back():
    run = Run()
    execution = run.execution()
    run.epoch(execution, IDS)
    for _ in range(4):
        ids = [one.id for one in run.run_log.positions.maps["Tell"].intervals]
        remap(run.run_log, {"Tell": [mr.ops.Merge(*ids)]})
        assert run.epoch(execution, IDS) == []
        [one] = run.run_log.positions.maps["Tell"].intervals
        remap(run.run_log, {"Tell": [mr.ops.Split(one.id)]})
        assert run.epoch(execution, IDS) == []
    assert execution.deduplicators["Tell"].filter_bytes() <= 2 * 1024
