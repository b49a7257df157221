"""Clocks that jump: the machine's, and what timers and low watermarks make of it."""

from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.execution import Execution
from millrace.model.errors import UserCodeError
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import MemoryCaches, MemoryHardState
from millrace.testing.feed import Feed, Read
from millrace.testing.output import tapped


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
        run_log = RunLog(self.topology, state, intervals=1)
        self.driver = EpochDriver(self.topology, run_log, WatermarkPublisher({}))
        execution = Execution(self.topology, state, MemoryCaches())
        self.runtime = WorkerProcess(self.topology, tasks=1, execution=execution)

    def epoch(self, wall_time_us, *records):
        """Run an epoch; return the clock that it had, and the timers that fired."""
        feed, fired = Feed("events", [Read(value, 0, "") for value in records], {}), []

        def stages(manifest):
            sent = list(feed.rows(Task(self.runtime, manifest, 0)))
            left = through_levels(LocalExchange(self.runtime, manifest), sent, 1)
            fired.extend(out.value for batch in left for _, out in tapped(self.topology, batch, 0))
            return TaskReport.together(reports_in(left)), 0.0

        number = self.driver.run_log.completed + 1
        turn = self.driver.run(number, stages, wall_time_us=wall_time_us)
        return turn.manifest.wall_time_us, fired


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
    with pytest.raises(UserCodeError, match=r"is not a(n instant| time)"):
        Driver().epoch(0, {"key": "k", "produce": at})


class Alarms(mr.Computation):
    """Sets a timer by what a record says of it."""

    inputs = {"orders": mr.by(lambda _: "all")}
    outputs = {"fired": int}

    def process_record(self, record: mr.Record) -> None:
        self.set_timer("alarm", **record.value)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("fired", timer.at, timestamp=max(timer.at, 0))
        if timer.tag == "alarm":
            self.set_timer("again", after="5 s", domain=timer.domain)


def alarms() -> mr.testing.Harness:
    p = mr.Pipeline("alarms")
    p.inject("orders", format=dict)
    p.add(Alarms)
    return mr.testing.Harness(p)


def test_a_timer_is_set_at_an_instant_in_text_or_after_a_while() -> None:
    """By event time counted from the record or timer at hand, else from the wall clock."""
    with alarms() as h:
        h.advance_clock(100 * mr.SECOND)
        h.inject("orders", [({"at": "1970-01-01T00:00:03Z"}, "1970-01-01T00:00:01Z")])
        h.advance_watermark("orders", "1970-01-01T00:00:10Z")
        h.inject("orders", [({"after": "10 s"}, 20 * mr.SECOND)])
        h.advance_watermark("orders", 40 * mr.SECOND)
        h.inject("orders", [({"after": "10 s", "domain": mr.WALL_TIME}, 50 * mr.SECOND)])
        h.advance_clock(200 * mr.SECOND)
        h.advance_clock(205 * mr.SECOND)
        fired = [out.value // mr.SECOND for out in h.outputs("fired")]

    assert fired == [3, 8, 30, 35, 110, 205]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, r"set_timer\('alarm', at=None, after=None\): expected one of the two"),
        ({"at": 5, "after": "1 s"}, "expected one of the two"),
        ({"at": "10 s"}, r"'10 s' is not an instant.*For so long from now on say after="),
        ({"at": "1970-01-01T00:00:10"}, "has no time zone"),
        ({"after": "soon"}, r"set_timer\(after\): 'soon' is not a duration"),
        ({"at": 1.5}, "set_timer: 1.5 is not a time"),
    ],
)
def test_what_is_no_time_for_a_timer_is_said(given: dict[str, Any], says: str) -> None:
    with pytest.raises(mr.MillraceError, match=says):
        alarms().inject("orders", [(given, 1)])


def test_a_clock_in_the_place_of_a_time_is_refused() -> None:
    class Swapped(mr.Computation):
        inputs = {"orders": mr.by(str)}

        def process_record(self, record: mr.Record) -> None:
            self.set_timer("alarm", mr.WALL_TIME)  # by mistake at 1, by the low watermark

        def process_timer(self, timer: mr.Timer) -> None: ...

    p = mr.Pipeline("swapped")
    p.inject("orders", format=int)
    p.add(Swapped)
    with pytest.raises(mr.MillraceError, match=r"is not a time.*Did you mean domain=mr\.WALL_TIME"):
        mr.testing.Harness(p).inject("orders", [(7, 1)])
