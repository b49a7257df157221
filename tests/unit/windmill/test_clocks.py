"""Clocks that jump: the machine's, and what timers and low watermarks make of it."""

import pytest

import millrace as mr
from millrace.model.errors import UserCodeError
from millrace.store import MemoryCaches, MemoryHardState
from millrace.testing.shuffle import Shuffle
from millrace.windmill.epochs import Epochs, Observed
from millrace.windmill.routing import Productions, Router
from millrace.windmill.worker import Worker


class Remind(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"fired": int}

    def process_record(self, record):
        for at in record.value.get("at", ()):
            self.set_timer(at, at=at, domain=mr.WALL_TIME)
        if "produce" in record.value:
            self.produce("fired", 0, timestamp=record.value["produce"])

    def process_timer(self, timer):
        self.produce("fired", timer.at, timestamp=0)


class Driver:
    """Runs epochs with any clock, as a driver whose machine's clock jumps."""

    def __init__(self):
        p = mr.Pipeline("clocks")
        p.inject("events")
        p.add(Remind)
        p.sink("fired", print)
        self.topology = p.build()
        state = MemoryHardState()
        self.epochs = Epochs(self.topology, state, intervals=1)
        self.worker = Worker(self.topology, state, MemoryCaches())

    def epoch(self, wall_time_us, *records):
        """Run an epoch; return the clock that it had, and the timers that fired."""
        rows, made = Shuffle(), Productions()
        for value in records:
            Router(self.topology).send(made, "events", value, 0, None)
        rows.add(made, 0, range(len(made)))
        manifest = self.epochs.begin(
            self.epochs.completed + 1, wall_time_us=wall_time_us, injectors={}
        )
        (spec,) = self.topology.computations
        intervals = manifest.interval_map(spec.name)
        results = self.worker.run(
            spec,
            manifest,
            intervals,
            intervals.intervals,
            rows.arrivals(self.topology, spec.name),
            mr.MIN_TIMESTAMP,
        )
        self.epochs.complete(manifest, results, Observed())
        decode = self.topology.streams["fired"].coder.decode
        fired = [decode(value) for result in results for value in result.productions.values]
        return manifest.wall_time_us, fired


def test_a_clock_that_jumps_back_stands_still_until_it_is_there_again():
    driver = Driver()
    assert driver.epoch(100, {"key": "k", "at": [90, 110, 200]}) == (100, [90])
    assert driver.epoch(40) == (100, [])
    assert driver.epoch(90) == (100, [])
    assert driver.epoch(110) == (110, [110])


def test_a_clock_that_jumped_forward_fired_its_timers_once():
    driver = Driver()
    driver.epoch(100, {"key": "k", "at": [150, 200_000]})
    assert driver.epoch(300_000) == (300_000, [150, 200_000])
    assert driver.epoch(120) == (300_000, [])
    assert driver.epoch(300_001) == (300_001, [])


def test_a_timer_before_1970_is_due_at_once():
    assert Driver().epoch(0, {"key": "k", "at": [-5]}) == (0, [-5])


@pytest.mark.parametrize("at", [-1, 9_223_372_036_854_776, mr.MAX_TIMESTAMP, mr.MIN_TIMESTAMP])
def test_a_production_before_1970_or_after_2262_is_refused(at):
    with pytest.raises(UserCodeError, match="before 1970 or after 2262"):
        Driver().epoch(0, {"key": "k", "produce": at})


@pytest.mark.parametrize("at", [0, 9_223_372_036_854_775])
def test_a_production_at_either_end_is_allowed(at):
    assert Driver().epoch(0, {"key": "k", "produce": at})[1] == [0]


@pytest.mark.parametrize("at", ["now", 1.5, True, mr.MAX_TIMESTAMP + 1])
def test_a_production_at_no_time_is_refused(at):
    with pytest.raises(UserCodeError, match="is not a time"):
        Driver().epoch(0, {"key": "k", "produce": at})
