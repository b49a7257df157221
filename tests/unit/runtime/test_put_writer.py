"""The execution: the commit protocol step by step, with two attempts at one epoch."""

import itertools
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

import millrace as mr
from millrace.balance.transfer import remap
from millrace.epochlog import fence as fence_module
from millrace.epochlog.positions import Followed
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.execution import Execution
from millrace.kernel.results import NO_TIMES
from millrace.model.errors import DamagedStore, ZombieWriter
from millrace.model.keys import encode_key, hash_key
from millrace.store import MemoryCaches, MemoryHardState
from millrace.watermark.map_change import Merge, Split
from millrace.watermark.report import Report
from tests.kit.epochs import run_epoch


class Count(mr.Computation):
    """Counts, and tells which call of user code it was: no two attempts produce the same."""

    inputs = {"events": mr.by_key()}
    outputs = {"out": list}
    n = mr.ValueState(int)

    def __init__(self, calls):
        self.calls = calls

    def process_record(self, record):
        self.calls.append(record.value)
        if record.value == "nothing":
            return
        self.n.set(self.n.get(0) + 1)
        self.set_timer("t", at=100)
        self.produce("out", [self.n.get(), len(self.calls)])

    def process_timer(self, timer):
        raise AssertionError("no low watermark comes so far")


class Attempts:
    """One epoch after the other on one checkpoint, by as many workers as a test wants."""

    def __init__(self, productions=mr.STRONG):
        self.calls = []
        self.declare(productions)
        self.state = MemoryHardState()
        self.run_log = RunLog(self.topology, self.state, intervals=2)
        self.begin()

    def declare(self, productions):
        p = mr.Pipeline("p")
        p.inject("events")
        p.add(Count(self.calls), productions=productions)
        p.sink("out", print)
        self.topology = p.build()

    def begin(self):
        self.manifest = self.run_log.begin(
            self.run_log.completed + 1, wall_time_us=0, injectors={"events": 0}
        )

    def execution(self, state=None):
        return Execution(self.topology, state or self.state, MemoryCaches())

    def run(self, execution, *values):
        keys = [encode_key(n) for n in range(len(values))]
        received = ReceivedRecords(
            np.array([hash_key(key) for key in keys], dtype=np.uint64),
            keys,
            list(values),
            np.zeros(len(keys), dtype=np.int64),
            ["events"] * len(keys),
            np.zeros(len(keys), dtype=np.int64),
            np.arange(len(keys), dtype=np.int64),
        )
        positions = Followed(self.topology, execution.state.epochs).at(self.manifest)
        owned = range(len(self.manifest.interval_map("Count")))
        spec = self.topology.computations[0]
        produced = run_epoch(execution, spec, self.manifest, positions, owned, received, {100: 0})
        return [
            SimpleNamespace(**msgspec.structs.asdict(result), productions=productions)
            for result, productions in produced
        ]

    def caches(self, execution):
        return [execution.caches.open("Count", interval) for interval in (0, 1)]

    def commits(self):
        return [
            commit
            for interval in (0, 1)
            for number in (1, 2, 3)
            if (commit := self.state.commits.read("Count", interval, number)) is not None
        ]


@pytest.fixture
def attempts():
    return Attempts()


#: Enough keys for both intervals to get some.
VALUES = ["a"] * 8


def told(results):
    return [
        (result.interval, result.number, result.report, result.counters, result.productions.pack())
        for result in results
    ]


def test_a_bundle_becomes_one_commit_an_interval(attempts):
    results = attempts.run(attempts.execution(), *VALUES)

    assert [(c.interval, c.number, c.epoch) for c in attempts.commits()] == [(0, 1, 0), (1, 1, 0)]
    assert [result.number for result in results] == [1, 1]
    assert not any(result.replayed for result in results)


def test_a_retry_replays_what_was_committed_and_runs_no_user_code(attempts):
    first = attempts.run(attempts.execution(), *VALUES)
    called = len(attempts.calls)
    again = attempts.run(attempts.execution(), *VALUES)

    assert len(attempts.calls) == called == len(VALUES)
    assert all(result.replayed for result in again)
    assert told(again) == told(first)


def test_a_retry_in_the_same_process_replays_too(attempts):
    execution = attempts.execution()
    first = attempts.run(execution, *VALUES)
    again = attempts.run(execution, *VALUES)

    assert len(attempts.calls) == len(VALUES)
    assert told(again) == told(first)


def test_after_a_replay_the_next_epoch_goes_on_from_the_winners_state(attempts):
    attempts.run(attempts.execution(), *VALUES)
    execution = attempts.execution()
    attempts.run_log.complete(attempts.manifest, attempts.run(execution, *VALUES))
    attempts.begin()
    results = attempts.run(execution, *VALUES)

    assert [result.number for result in results] == [2, 2]
    assert sum(len(result.productions) for result in results) == len(VALUES)
    assert len(attempts.calls) == 2 * len(VALUES)


class RacingState:
    """Hard state of an attempt that another one overtakes between its reads and its put."""

    def __init__(self, state, overtake):
        self.commits, self.epochs, self.uuid = self, state.epochs, state.uuid
        self.read, self.exists = state.commits.read, state.commits.exists
        self._log, self._overtake = state.commits, overtake

    def of_task(self, *task):
        mine = self._log.of_task(*task)
        put = mine.put

        def overtaken(commits):
            self._overtake()
            return put(commits)

        mine.put = overtaken
        return mine


def test_an_attempt_that_loses_the_race_sends_on_the_winners_productions(attempts):
    won = []
    state = RacingState(
        attempts.state, lambda: won.extend(attempts.run(attempts.execution(), *VALUES))
    )
    lost = attempts.run(attempts.execution(state), *VALUES)

    assert len(attempts.calls) == 2 * len(VALUES)
    assert all(result.replayed for result in lost)
    assert told(lost) == told(won)


def test_an_interval_that_the_winner_had_nothing_for_is_as_it_was(attempts):
    def overtake_in_interval_0():
        probe = Attempts()
        probe.calls += ["earlier"] * 100
        probe.run(probe.execution(), *VALUES)
        (stolen,) = (commit for commit in probe.commits() if commit.interval == 0)
        assert attempts.state.commits.of_task("Count", 0, 0).put([stolen])

    execution = attempts.execution(RacingState(attempts.state, overtake_in_interval_0))
    results = attempts.run(execution, *VALUES)

    assert [(result.interval, result.replayed) for result in results] == [(0, True)]
    committed = {commit.interval: commit.productions for commit in attempts.commits()}
    assert {r.interval: r.productions.pack() for r in results} == committed
    assert [cache.position for cache in attempts.caches(execution)] == [0, 0]


def test_a_zombie_of_an_epoch_in_which_nothing_was_committed_stops(attempts):
    stale = attempts.manifest
    attempts.run_log.complete(stale, ())
    attempts.begin()
    attempts.run(attempts.execution(), *VALUES)
    attempts.manifest = stale

    with pytest.raises(ZombieWriter, match=r"zombie writer: epoch 0 .* is complete"):
        attempts.run(attempts.execution(), *VALUES)


def test_what_an_attempt_replays_of_an_epoch_that_is_over_does_not_leave(attempts):
    """Another attempt that was left behind put it, after the epoch had been collected."""
    left = attempts.manifest
    for _ in range(3):
        attempts.run_log.complete(attempts.manifest, attempts.run(attempts.execution(), *VALUES))
        attempts.begin()
    for interval in (0, 1):
        attempts.state.commits.remove("Count", interval, [1, 2])
    attempts.manifest = left
    for _ in range(2):
        with pytest.raises(ZombieWriter, match=r"epoch 0 .* is complete"):
            attempts.run(attempts.execution(), *VALUES)


def test_a_bundle_without_effect_has_a_commit_too(attempts):
    results = attempts.run(attempts.execution(), *["nothing"] * 8)

    assert [(c.number, c.mutations, c.productions) for c in attempts.commits()] == [
        (1, [], results[0].productions.pack())
    ] * 2
    assert [result.number for result in results] == [1, 1]
    assert sum(result.counters.records for result in results) == 8


def test_a_late_attempt_cannot_commit_in_place_of_the_next_epoch(attempts):
    """User code that draws lots: one attempt changes nothing, the attempt left behind does."""
    attempts.run_log.complete(
        attempts.manifest, attempts.run(attempts.execution(), *["nothing"] * 8)
    )
    with pytest.raises(ZombieWriter, match=r"epoch 0 .* is complete"):
        attempts.run(attempts.execution(), *VALUES)

    attempts.begin()
    results = attempts.run(attempts.execution(), *VALUES)
    assert [result.number for result in results] == [2, 2]
    assert sum(len(result.productions) for result in results) == len(VALUES)


def test_an_attempt_left_behind_does_not_win_what_was_collected(attempts):
    """Its name is free again; what it puts there reaches no cache and no consumer."""
    left, caches = attempts.manifest, MemoryCaches()
    for _ in range(3):
        attempts.run_log.complete(attempts.manifest, attempts.run(attempts.execution(), *VALUES))
        attempts.begin()
    for interval in (0, 1):
        attempts.state.commits.remove("Count", interval, [1, 2])
    attempts.manifest = left
    with pytest.raises(ZombieWriter, match=r"epoch 0 .* is complete"):
        attempts.run(Execution(attempts.topology, attempts.state, caches), *VALUES)
    assert [caches.open("Count", interval).position for interval in (0, 1)] == [0, 0]


def test_nor_when_its_manifest_was_collected_too(attempts):
    left = attempts.manifest
    attempts.run_log.complete(attempts.manifest, attempts.run(attempts.execution(), *VALUES))
    attempts.begin()
    for interval in (0, 1):
        attempts.state.commits.remove("Count", interval, [1])
    attempts.state.epochs.remove_before(attempts.state.epochs.last())
    attempts.manifest = left
    with pytest.raises(ZombieWriter, match=r"epoch 0 .* is complete"):
        attempts.run(attempts.execution(), *VALUES)


def test_an_attempt_whose_checkpoint_has_gone_is_not_left_behind(attempts, monkeypatch):
    """A run tries that again, and ends where others have gone on."""
    refuse, blobs = fence_module.refuse_superseded, attempts.state.blobs

    def removed(log, manifest):
        blobs.remove(blobs.names("epochs"))
        refuse(log, manifest)

    monkeypatch.setattr(fence_module, "refuse_superseded", removed)
    with pytest.raises(DamagedStore, match="and all after it, are gone"):
        attempts.run(attempts.execution(), *VALUES)


def test_an_attempt_that_won_and_slept_until_its_epoch_was_over_leaves_its_commits(
    attempts, monkeypatch
):
    """Found by the simulator: it took them for won unfairly, and removed what counts."""
    refuse = fence_module.refuse_superseded

    def sleep(log, manifest):
        monkeypatch.setattr(fence_module, "refuse_superseded", refuse)
        others = attempts.run(attempts.execution(), *VALUES)
        attempts.run_log.complete(manifest, others)
        refuse(log, manifest)

    monkeypatch.setattr(fence_module, "refuse_superseded", sleep)
    with pytest.raises(ZombieWriter, match=r"epoch 0 .* is complete"):
        attempts.run(attempts.execution(), *VALUES)
    assert [commit.number for commit in attempts.commits()] == [1, 1]


def test_an_attempt_left_behind_does_not_turn_back_a_cache_that_went_on(attempts):
    left, caches = attempts.manifest, MemoryCaches()
    for _ in range(2):
        execution = Execution(attempts.topology, attempts.state, caches)
        attempts.run_log.complete(attempts.manifest, attempts.run(execution, *VALUES))
        attempts.begin()
    for interval in (0, 1):
        attempts.state.commits.remove("Count", interval, [1, 2])
    attempts.manifest = left
    with pytest.raises(ZombieWriter):
        attempts.run(Execution(attempts.topology, attempts.state, caches), *VALUES)
    assert [caches.open("Count", interval).position for interval in (0, 1)] == [2, 2]


def test_a_cache_that_is_emptied_while_user_code_runs_is_brought_forward_later(attempts):
    """The thread that writes snapshots may find it damaged, and remove it."""
    caches = MemoryCaches()
    attempts.run_log.complete(
        attempts.manifest,
        attempts.run(Execution(attempts.topology, attempts.state, caches), *VALUES),
    )
    attempts.begin()

    def empty():
        for interval in (0, 1):
            caches.open("Count", interval).clear()

    state = RacingState(attempts.state, empty)
    results = attempts.run(Execution(attempts.topology, state, caches), *VALUES)
    assert [result.number for result in results] == [2, 2]
    assert [caches.open("Count", interval).position for interval in (0, 1)] == [0, 0]


def test_a_claim_since_the_manifest_does_not_end_its_epoch(attempts):
    RunLog(attempts.topology, attempts.state, intervals=2)
    results = attempts.run(attempts.execution(), *VALUES)
    assert [result.number for result in results] == [1, 1]


def test_an_interval_with_nothing_to_do_has_no_result_and_is_as_before(attempts):
    attempts.run_log.complete(attempts.manifest, attempts.run(attempts.execution(), *VALUES))
    attempts.begin()
    results = attempts.run(attempts.execution())

    assert results == []
    for interval in (0, 1):
        stands = attempts.run_log.positions.of("Count", interval)
        ours = [n for n in range(len(VALUES)) if hash_key(encode_key(n)) >> 63 == interval]
        assert (stands.number, stands.report) == (
            1, Report(low_watermark_timer_us=100, timers=len(ours))
        )  # fmt: skip
    assert len(attempts.calls) == len(VALUES)


def test_results_come_in_the_order_of_the_interval_map(attempts):
    results = attempts.run(attempts.execution(), *VALUES)

    assert [result.interval for result in results] == [0, 1]


class TestWeakProductions:
    @pytest.fixture
    def attempts(self):
        return Attempts(productions=mr.WEAK)

    def test_a_commit_holds_state_and_no_productions(self, attempts):
        results = attempts.run(attempts.execution(), *VALUES)
        assert sum(len(result.productions) for result in results) == len(VALUES)
        assert [(bool(c.mutations), c.productions) for c in attempts.commits()] == [(True, b"")] * 2

    def test_an_attempt_after_the_commit_makes_them_again_over_the_state_from_before(
        self, attempts
    ):
        first = attempts.run(attempts.execution(), *VALUES)
        commits = attempts.commits()
        again = attempts.run(attempts.execution(), *VALUES)

        assert len(attempts.calls) == 2 * len(VALUES), "user code ran again"
        assert attempts.commits() == commits, "and what it changed was dropped"
        assert all(result.replayed for result in again)
        assert [(r.number, r.report, r.counters) for r in again] == [
            (r.number, r.report, r.counters) for r in first
        ]
        assert [decoded(r)[0] for r in again] == [decoded(r)[0] for r in first], "the same counts"
        assert [decoded(r)[1] for r in again] != [decoded(r)[1] for r in first], "another call"

    def test_the_same_worker_can_make_them_again_without_rebuilding_its_cache(self, attempts):
        execution = attempts.execution()
        for _ in range(2):
            attempts.run_log.complete(attempts.manifest, attempts.run(execution, *VALUES))
            attempts.begin()
        attempts.run(execution, *VALUES)
        assert [cache.position for cache in attempts.caches(execution)] == [2, 2], "a commit behind"
        again = attempts.run(execution, *VALUES)
        assert [decoded(r)[0] for r in again] == [[3] * len(r.productions) for r in again]
        assert [r.repair.deltas_applied for r in again] == [0, 0]

    @pytest.mark.parametrize("between", ["nothing", "cleared", "another process"])
    def test_a_cache_that_is_a_commit_behind_follows_however_it_was_left(self, attempts, between):
        execution = attempts.execution()
        for epoch in range(4):
            ran = execution if epoch != 2 or between != "another process" else attempts.execution()
            results = attempts.run(ran, *VALUES)
            assert [decoded(r)[0] for r in results] == [
                [epoch + 1] * len(r.productions) for r in results
            ]
            attempts.run_log.complete(attempts.manifest, results)
            attempts.begin()
            if between == "cleared":
                for cache in attempts.caches(execution):
                    cache.clear()

    def test_commits_of_intervals_that_remaps_have_ended_are_not_kept(self, attempts):
        execution = attempts.execution()
        for _ in range(12):
            results = attempts.run(execution, *VALUES)
            attempts.run_log.complete(attempts.manifest, results)
            intervals = attempts.run_log.positions.maps["Count"].intervals
            last = intervals[-1].id
            step = Merge(intervals[-2].id, last) if len(intervals) > 2 else Split(last)
            remap(attempts.run_log, {"Count": [step]})
            attempts.begin()
        kept = execution.deferred["Count"]
        assert len(kept) <= 3
        assert {result.interval for result in results} <= kept.keys()

    def test_the_loser_of_a_race_sends_its_own_productions_and_the_winners_footing(self, attempts):
        race = RacingState(attempts.state, lambda: attempts.run(attempts.execution(), *VALUES))
        results = attempts.run(attempts.execution(race), *VALUES)
        assert all(result.replayed for result in results)
        assert sum(len(result.productions) for result in results) == len(VALUES)
        assert len(attempts.commits()) == 2

    def test_an_attempt_whose_epoch_is_over_stops(self, attempts):
        manifest = attempts.manifest
        for _ in range(2):
            attempts.run_log.complete(
                attempts.manifest, attempts.run(attempts.execution(), *VALUES)
            )
            attempts.begin()
        attempts.manifest = manifest
        with pytest.raises(ZombieWriter, match="wants the weak productions of commit 1 of 'Count'"):
            attempts.run(attempts.execution(), *VALUES)

    @pytest.mark.parametrize(("first", "then"), [(mr.STRONG, mr.WEAK), (mr.WEAK, mr.STRONG)])
    def test_a_commit_is_replayed_as_it_was_made_whatever_the_pipeline_says_now(self, first, then):
        attempts = Attempts(productions=first)
        made = [decoded(result) for result in attempts.run(attempts.execution(), *VALUES)]
        attempts.declare(then)
        again = [decoded(result) for result in attempts.run(attempts.execution(), *VALUES)]
        assert [counts for counts, _ in again] == [counts for counts, _ in made]
        assert (again == made) is (first is mr.STRONG)


def decoded(result):
    """Return the counts, and the calls, that an interval's productions carry."""
    values = [msgspec.msgpack.decode(value) for value in result.productions.values]
    return [count for count, _ in values], [call for _, call in values]


def test_with_a_clock_the_calls_of_bundles_are_timed(attempts):
    ticks = itertools.count()
    execution = Execution(
        attempts.topology, attempts.state, MemoryCaches(), seconds=lambda: float(next(ticks))
    )
    results = attempts.run(execution, *VALUES)
    # From one look at the clock to the next a second goes by, and each call has two.
    assert [result.load.times.calls for result in results] == [
        {1: result.counters.records} for result in results
    ]
    assert sum(result.counters.records for result in results) == len(VALUES)
    untimed = attempts.run(attempts.execution(), *VALUES)
    assert [result.load.times for result in untimed] == [NO_TIMES, NO_TIMES]
