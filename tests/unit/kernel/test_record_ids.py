"""Record ids: unique in a checkpoint, and the same on every attempt."""

import pytest

import millrace as mr
from millrace.kernel.record_ids import injected_origin, place, production_ids


class First(mr.Computation):
    inputs = {"events": mr.by(lambda value: value % 5)}
    outputs = {"first": int, "ids": bytes}

    def process_record(self, record):
        self.produce("ids", record.id)
        self.produce("first", record.value)
        self.produce("first", record.value)


class Second(mr.Computation):
    inputs = {"first": mr.by(lambda value: value % 3), "others": mr.by(lambda value: value % 3)}
    outputs = {"ids": bytes}

    def process_record(self, record):
        self.produce("ids", record.id)


def ids(h):
    return [output.value for output in h.outputs("ids")]


def run(h, crash_after=None):
    for start in (0, 20):
        if crash_after is not None:
            h.crash_in_next_epoch(crash_after)
        h.inject("events", [(n, 0) for n in range(start, start + 20)])
        h.inject("others", [(n, 0) for n in range(start, start + 20)])
    return h


def test_ids_are_unique_over_streams_epochs_and_computations(harness):
    seen = ids(run(harness(First, Second, streams=("events", "others"))))

    assert len(seen) == 40 + 80 + 40
    assert len(set(seen)) == len(seen)
    assert {len(id) for id in seen} == {16}


@pytest.mark.parametrize("crash_after", range(0, 11, 2))
def test_ids_are_the_same_after_a_crash(harness, crash_after):
    undisturbed = run(harness(First, Second, streams=("events", "others")))
    disturbed = run(harness(First, Second, streams=("events", "others")), crash_after)

    assert ids(disturbed) == ids(undisturbed)


def test_records_that_a_step_makes_of_one_have_ids_of_their_own():
    class Ids(mr.Computation):
        inputs = {"words": mr.by(lambda word: word)}
        outputs = {"ids": bytes}

        def process_record(self, record):
            self.produce("ids", record.id)

    p = mr.Pipeline("p")
    p.inject("lines", format=str)
    p.stream("lines").flat_map(str.split).to("words", format=str)
    p.add(Ids)
    with mr.testing.Harness(p) as h:
        h.inject("lines", [("to be or not", 0)])

        assert len(set(ids(h))) == 4


def test_halves_of_an_id_fit_64_bits_at_their_limits():
    assert injected_origin(2**14 - 1, 2**48 - 1) < 2**63
    assert place(2**30 - 1, 2**33 - 1) < 2**63
    origin, sequences = production_ids(2**14 - 1, 2**48 - 1, 2**30 - 1, 2)
    assert origin < injected_origin(0, 0)
    assert list(sequences) == [(2**30 - 1) << 33, ((2**30 - 1) << 33) + 1]


def test_origins_of_injected_and_produced_records_never_meet():
    injected = {injected_origin(stream, epoch) for stream in range(3) for epoch in range(3)}
    produced = {production_ids(c, n, 0, 1)[0] for c in range(3) for n in range(3)}

    assert len(injected) == len(produced) == 9
    assert not injected & produced
