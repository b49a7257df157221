"""Streams that an operator holds back: nothing is read of them, and time waits for them."""

from typing import Any

import pytest

import millrace as mr
from millrace.injectors.rate_limit import EVERYONE, Throttle
from millrace.model.errors import PipelineError
from millrace.spark.run import check_holdable, check_rate


class Three(mr.sources.Injector):
    """Two processes of three rows, a row an epoch."""

    schema = "n long, at long"

    def processes(self) -> list[str]:
        return ["a", "b"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(min((offset or 0) + 1, 3))

    def read(self, process: str, start: Any, end: Any) -> Any:
        for n in range(start or 0, end):
            yield n, n * mr.SECOND


class Echo(mr.Computation):
    inputs = {"numbers": mr.by("n")}
    outputs = {}

    def process_record(self, record: mr.Record) -> None:
        pass


def harness() -> tuple[Any, Throttle]:
    p = mr.Pipeline("p")
    p.inject(
        "numbers", Three(), timestamp="at", unit="us",
        low_watermark=mr.BoundedDelay("1 s"), idle="10 s",
    )  # fmt: skip
    p.add(Echo)
    h = mr.testing.Harness(p, publish=True)
    return h, h._process.driver.publisher.throttle


def test_of_a_stream_that_is_paused_nothing_is_read_until_it_goes_on() -> None:
    h, throttle = harness()
    first = h.poll("numbers")
    throttle.pause("numbers")
    paused = [h.poll("numbers"), h.poll("numbers")]
    throttle.resume("numbers")

    assert (first, paused, h.poll("numbers")) == (2, [0, 0], 2)


def test_its_silence_is_not_idleness() -> None:
    h, throttle = harness()
    h.poll("numbers")
    throttle.pause("numbers")
    h.poll("numbers")
    for minute in range(1, 4):
        h.advance_clock(minute * mr.MINUTE)
        h.poll("numbers")

    assert h._process.driver.publisher.idle() == {}


def test_a_rate_lets_as_much_time_pass_as_its_records_take() -> None:
    throttle = Throttle()
    throttle.limit("numbers", 2.0)
    throttle.read({"numbers": 6}, 10 * mr.SECOND)
    assert throttle.holds("numbers")
    assert throttle.changes_us() == 13 * mr.SECOND
    throttle.read({}, 12 * mr.SECOND)
    assert throttle.holds("numbers")
    throttle.read({}, 13 * mr.SECOND)
    assert not throttle.holds("numbers")
    throttle.read({"numbers": 1}, 20 * mr.SECOND)
    assert throttle.descriptions() == {"numbers": "2 records a second"}
    throttle.resume("numbers")
    assert (throttle.holds("numbers"), throttle.descriptions()) == (False, {})


def test_everyone_includes_processes_that_come_later() -> None:
    assert "c" in EVERYONE


def test_what_cannot_be_is_refused_with_what_can() -> None:
    p = mr.Pipeline("p")
    for name in ("a", "b"):
        p.inject(name, Three(), timestamp="at", unit="us", low_watermark=mr.ArrivalTime(0))
    p.inject("frame")
    for name in ("a", "b", "frame"):
        p.sink(name, mr.sinks.Console())
    topology = p.build()
    for name, why in (("c", "is no injected stream"), ("frame", "is read by Spark, not Millrace")):
        with pytest.raises(PipelineError, match=f"{name}' {why}.* Those that can: a, b"):
            check_holdable(topology, name)
    check_holdable(topology, "a")
    for rate in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(PipelineError, match="expected a number of records a second above 0"):
            check_rate("a", rate)


def test_a_throttle_takes_what_another_was_asked() -> None:
    driver, task = Throttle(), Throttle()
    driver.pause("a")
    driver.limit("b", 2.0)
    task.take(*driver.asked())
    assert (
        task.descriptions() == driver.descriptions() == {"a": "paused", "b": "2 records a second"}
    )
    driver.resume("a")
    driver.resume("b")
    task.take(*driver.asked())
    assert task.descriptions() == {}
