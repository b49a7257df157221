"""What a checkpoint remembers of a pipeline besides its state: numbers, subscribers, offsets."""

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch
from millrace.store import MemoryHardState


class Counts(mr.Computation):
    inputs = {"in": mr.by(str)}
    outputs = {"good": str, "bad": str}

    def process_record(self, record):
        self.produce("good", record.value)


def pipeline(*sunk):
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    p.add(Counts)
    for stream in sunk:
        p.sink(stream, print)
    return p.build()


@pytest.mark.parametrize(
    ("sunk", "words"),
    [
        (["bad"], r"lacks \['good -> sink print'\]"),
        (["bad", "good", "bad"], r"\['bad -> sink print \(2\)'\] may be one that was there"),
    ],
)
def test_an_open_epoch_is_not_finished_without_a_sink_or_with_its_twin(sunk, words):
    state = MemoryHardState()
    first = RunLog(pipeline("good", "bad"), state, intervals=1)
    first.begin(0, wall_time_us=0, injectors={})
    written = state.epochs.last()

    with pytest.raises(CheckpointMismatch, match=f"epoch 0 .* is unfinished.*{words}"):
        RunLog(pipeline(*sunk), state, intervals=1)
    assert state.epochs.last() == written


def test_an_open_epoch_goes_on_with_its_sinks_in_another_order():
    state = MemoryHardState()
    first = RunLog(pipeline("good", "bad"), state, intervals=1)
    begun = first.begin(0, wall_time_us=0, injectors={})
    again = RunLog(pipeline("bad", "good"), state, intervals=1)

    assert again.open == begun
    assert {(e.stream, e.number) for e in again.topology.edges} == {
        (e.stream, e.number) for e in first.topology.edges
    }


class Mended:
    def __call__(self, frame, epoch):
        pass


def test_an_open_epoch_goes_on_with_a_sink_that_was_mended():
    state = MemoryHardState()
    first = RunLog(pipeline("good", "bad"), state, intervals=1)
    begun = first.begin(0, wall_time_us=0, injectors={})
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    p.add(Counts)
    p.sink("good", Mended())
    p.sink("bad", print)
    again = RunLog(p.build(), state, intervals=1)

    assert again.open == begun
    assert {(e.stream, e.number) for e in again.topology.edges} == {
        (e.stream, e.number) for e in first.topology.edges
    }
    # And once more, as when the mended one fails, too.
    assert RunLog(p.build(), state, intervals=1).topology == again.topology


def test_between_epochs_sinks_may_change():
    state = MemoryHardState()
    first = RunLog(pipeline("good"), state, intervals=1)
    first.complete(first.begin(0, wall_time_us=0, injectors={}), [])

    assert RunLog(pipeline("bad", "good"), state, intervals=1).completed == 0


def test_the_last_epoch_asked_for_again_is_done_already_and_an_older_one_is_a_mismatch():
    run_log = RunLog(pipeline(), MemoryHardState(), intervals=1)
    for number in (0, 1):
        run_log.complete(run_log.begin(number, wall_time_us=0, injectors={}), [])

    assert run_log.begin(1, wall_time_us=0, injectors={}) is None
    with pytest.raises(CheckpointMismatch, match="come apart"):
        run_log.begin(0, wall_time_us=0, injectors={})
