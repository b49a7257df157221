"""The epoch log as a history: its end, and what it still has."""

import pytest
from obstore.store import MemoryStore

import millrace as mr
from millrace.epochlog.reader import completions, end_of, latest
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import DamagedStore
from millrace.store import BucketOptions, BucketUrl, MemoryHardState, ObjectBlobs, ObjectHardState


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


def test_an_entry_that_is_gone_is_damage(state, monkeypatch):
    play(state, 1)
    monkeypatch.setattr(state.epochs, "read", {}.get)
    with pytest.raises(DamagedStore, match="entry 3 of the epoch log is gone"):
        latest(state.epochs)


def test_the_end_is_found_from_what_stood_there_before(state):
    """Whatever came since: a claim, an epoch that is open, completed ones; many runs."""
    ends = [end_of(state.epochs)]
    append = state.epochs.append

    def appended(number, entry):
        done = append(number, entry)
        ends.append(end_of(state.epochs))
        return done

    state.epochs.append = appended
    for epochs, complete in ((2, True), (1, False), (0, True), (3, True), (1, False), (2, True)):
        play(state, *range(1, epochs + 1), complete=complete)
    assert len(ends) > 12
    for known in ends:
        assert end_of(state.epochs, known) == ends[-1]


def test_entries_of_a_bucket_are_read_some_at_a_time_and_once():
    rounds = list[int]()

    class Counting(ObjectBlobs):
        def map(self, call, items):
            rounds.append(len(items))
            return super().map(call, items)

        def read(self, name):
            rounds.append(1)
            return super().read(name)

    url, options = BucketUrl.parse("s3://b/c"), BucketOptions(requests=1)
    state = ObjectHardState.create_or_open(
        Counting(url, options, store=MemoryStore()), pipeline="p"
    )
    play(state, *range(1, 60))
    rounds.clear()
    known = end_of(state.epochs)
    entries = known.last
    assert rounds.count(1) <= entries + 2
    assert len(rounds) - rounds.count(1) <= 3 + entries // 16
    rounds.clear()
    assert end_of(state.epochs, known) == known
    assert rounds == []
