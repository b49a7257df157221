"""What decides whether a record is late: what its sender had shown when it sent."""

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.store import MemoryHardState


class First(mr.Computation):
    inputs = {"in": mr.by(str)}
    outputs = {"out": str}

    def process_record(self, record):
        self.produce("out", record.value)


class Second(mr.Computation):
    inputs = {"out": mr.by(str)}
    outputs = {}

    def process_record(self, record):
        pass


class Both(mr.Computation):
    inputs = {"in": mr.by(str), "out": mr.by(str)}
    outputs = {}

    def process_record(self, record):
        pass


@pytest.fixture
def topology():
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    for computation in (First, Second, Both):
        p.add(computation)
    return p.build()


@pytest.fixture
def epochs(topology):
    """Two epochs have gone by; the injector published 10, then 20."""
    run_log = RunLog(topology, MemoryHardState(), intervals=1)
    for number, published_us in enumerate((10, 20)):
        manifest = run_log.begin(number, wall_time_us=0, injectors={"in": published_us})
        run_log.complete(manifest, [])
    return run_log


def delivery(topology, manifest):
    return {spec.name: manifest.arrival_watermark_us(spec) for spec in topology.computations}


def test_an_injector_publishes_and_then_sends_a_computation_sends_and_then_shows(topology, epochs):
    manifest = epochs.begin(2, wall_time_us=0, injectors={"in": 30})

    assert delivery(topology, manifest) == {"First": 30, "Second": 20, "Both": 20}


def test_the_records_of_the_epoch_that_ends_the_input_are_not_late_for_it(topology, epochs):
    manifest = epochs.begin(2, wall_time_us=0, injectors={"in": 30}, draining=True)

    assert manifest.injectors == {"in": mr.MAX_TIMESTAMP}
    assert delivery(topology, manifest) == {"First": 20, "Second": 20, "Both": 20}
