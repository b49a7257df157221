"""The epoch log as a history: its end, and what it still has."""

import pytest

import millrace as mr
from millrace.epochlog.reader import completions, latest
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import DamagedStore
from millrace.store import MemoryHardState


class Pass(mr.Computation):
    inputs = {"events": mr.by_key()}

    def process_record(self, record):
        pass


@pytest.fixture
def state():
    return MemoryHardState()


def play(state, *low_watermarks, complete=True):
    """Start a run, and let it have an epoch for each low watermark."""
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Pass)
    run_log = RunLog(p.build(), state, intervals=1)
    for us in low_watermarks:
        manifest = run_log.begin(
            run_log.completed + 1, wall_time_us=1_000 + us, injectors={"events": us}
        )
        if complete:
            run_log.complete(manifest, [])
    return run_log


def test_an_empty_log_has_no_end(state):
    assert latest(state.epochs) == (None, None, None)
    assert list(completions(state.epochs)) == []


def test_the_end_is_the_last_claim_completion_and_open_manifest(state):
    play(state, 1, 2)
    play(state, 3, complete=False)
    claim, completion, manifest = latest(state.epochs)

    assert (claim.generation, completion.epoch, manifest.epoch) == (2, 1, 2)


def test_a_completed_epochs_manifest_is_not_open(state):
    play(state, 1)

    assert latest(state.epochs)[2] is None


def test_what_was_collected_is_not_looked_for(state):
    play(state, 1, 1, 1)
    state.epochs.remove_before(4)

    assert [completion.epoch for completion in completions(state.epochs)] == [1, 2]


def test_an_entry_that_is_gone_is_damage(state):
    play(state, 1)

    class Torn:
        first, last = state.epochs.first, state.epochs.last

        read = {}.get

    with pytest.raises(DamagedStore, match="entry 3 of the epoch log is gone"):
        latest(Torn)
