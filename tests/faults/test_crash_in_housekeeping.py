"""Die at any write of a snapshot or a collection, recover, and nothing is different."""

import sys
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.epochlog import run_log
from millrace.testing.faults import CrashingState

EPOCHS = 14
#: More than an epoch writes, with its snapshots and all that is collected after it.
WRITES = 26


class Count(mr.Computation):
    inputs = {"words": mr.by(lambda word: word)}
    outputs = {"counts": list}
    n = mr.CombiningState(int)
    seen = mr.MapState(int)

    def process_record(self, record):
        self.n.add(1)
        self.seen[record.timestamp % 7] = record.timestamp
        self.set_timer("t", at=record.timestamp + 30)
        self.produce("counts", [self.key, self.n.get()])

    def process_timer(self, timer):
        self.produce("counts", [self.key, self.n.get(), sorted(self.seen.items())])


class Total(mr.Computation):
    inputs = {"counts": mr.by(lambda count: count[0][:1])}
    outputs = {"totals": int}
    total = mr.CombiningState(int)

    def process_record(self, record):
        self.total.add(record.value[1])
        self.produce("totals", self.total.get())


@pytest.fixture(scope="module", autouse=True)
def claims_are_repeated_soon():
    """So that the script crosses collections of the epoch log as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_log, "_CLAIM_ENTRIES", 6)
        yield


def run(before_epoch=lambda *_: None, productions=mr.STRONG):
    p = mr.Pipeline("housekeeping")
    p.inject("words", format=str)
    p.add(Count, productions=productions)
    p.add(Total)
    with mr.testing.Harness(p, intervals=2) as h:
        for step in range(EPOCHS):
            before_epoch(h, step)
            at_us = 10 * step
            h.inject("words", [(word, at_us) for word in ("a", "b", "c", f"d{step}")])
            h.advance_watermark("words", at_us)
        return h, {name: h.outputs(name) for name in ("counts", "totals")}


@pytest.fixture(scope="module", params=["strong", "weak"])
def undisturbed(request):
    productions = mr.WEAK if request.param == "weak" else mr.STRONG
    return productions, run(productions=productions)[1]


def test_the_script_crosses_snapshots_and_collections():
    h, outputs = run()
    for name in ("Count", "Total"):
        beside = []
        for interval in (0, 1):
            snapshots = h._durable.snapshots.numbers(name)[interval]
            commits = h._durable.commits.numbers(name)[interval]
            assert len(snapshots) == 2, "two are kept"
            assert snapshots[0] > 6, "and there were others"
            assert commits[0] > 6, "and most of what they cover is gone"
            beside.append(snapshots[0] + 1 - commits[0])
        assert min(beside) == 0, "but what lies beside a commit that is needed"
    assert h._durable.epochs.first() > 2 * EPOCHS, "and so are old entries of the epoch log"
    assert len(outputs["counts"]) > 4 * EPOCHS, "timers fired"


def test_a_crash_after_every_epoch_changes_nothing(undisturbed):
    productions, outputs = undisturbed
    assert run(lambda h, _step: h.crash(), productions)[1] == outputs


@pytest.mark.parametrize("step", [4, 7, 10])
@pytest.mark.parametrize("writes", range(WRITES))
def test_a_crash_at_this_write_changes_nothing(undisturbed, step, writes):
    productions, outputs = undisturbed

    def crash(h, now):
        if now == step:
            h.crash_in_next_epoch(writes)

    assert run(crash, productions)[1] == outputs


def test_the_crashes_fall_everywhere():
    died = set()
    step = CrashingState.step

    def noting(state):
        if state.writes == 0:
            frame = sys._getframe(1)
            folder = str(frame.f_locals.get("name", "")).partition("/")[0]
            died.add(f"{frame.f_code.co_qualname} {folder}".rstrip())
        step(state)

    everywhere = {
        "_Blobs.put_if_absent commits", "_Blobs.remove commits", "_Blobs.put_if_absent epochs",
        "_Blobs.remove epochs", "_Blobs.put_pieces snapshots", "_Blobs.remove snapshots",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CrashingState, "step", noting)
        for crashing, writes in product(range(6, 12), range(WRITES)):
            if died == everywhere:
                break
            run(lambda h, now, at=crashing, n=writes: at == now and h.crash_in_next_epoch(n))
    assert died == everywhere


@settings(max_examples=40)
@given(st.dictionaries(st.integers(0, EPOCHS - 1), st.integers(0, WRITES)))
def test_crashes_at_any_writes_change_nothing(crashes):
    undisturbed = run()[1]

    def crash(h, now):
        if now in crashes:
            h.crash_in_next_epoch(crashes[now])

    assert run(crash)[1] == undisturbed
