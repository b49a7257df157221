"""A stuck key, a hot key, a late feed and a crashing record, each found and mended.

What finds them on Spark is the same: the status, by `millrace status` and Prometheus, the watch and
the probe of a worker. Here they look at a Harness.
"""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import millrace as mr
from millrace.runtime.stuck import Probe, Stuck, TimeLimit, Watch
from millrace.spark.metrics.table import values
from millrace.spark.status import Progress, Status


class Delays(mr.Computation):
    """Adds up the delays of each carrier's flights."""

    inputs = {"flights": mr.by("carrier")}
    outputs = {"delays": int}
    total = mr.CombiningState(int)
    entered = threading.Semaphore(0)
    never = threading.Semaphore(0)

    def process_record(self, record: mr.Record) -> None:
        self.total.add(record.value["delay"])
        if record.value["delay"] == 404:
            self.entered.release()
            self.never.acquire()
        if record.value["delay"] == 500:
            os.kill(os.getpid(), signal.SIGSEGV)
        self.produce("delays", self.total.get())


@pytest.fixture
def h() -> Iterator[Any]:
    p = mr.Pipeline("flights")
    delay = mr.BoundedDelay("1 s")
    feeds = ["west", "east"]
    p.inject("flights", format=dict, low_watermark=delay, process="feed", expected=feeds)
    p.add(Delays)
    p.dead_letter("rejects")
    with mr.testing.Harness(p, publish=True) as h:
        yield h


def flight(carrier: str, delay: int, second: int) -> tuple[dict[str, Any], int]:
    return {"carrier": carrier, "delay": delay}, second * mr.SECOND


def status_of(h: Any, *stuck: Stuck) -> Status:
    progress = Progress("flights")
    return progress.status(
        h._run_log, h._process.loads, h._process.driver.publisher, state="running", stuck=stuck
    )


def test_a_hot_key_is_named(h: Any) -> None:
    h.inject("flights", [flight("AA" if n % 10 else f"C{n}", 1, 5) for n in range(4000)])
    status = status_of(h)

    assert values(status)["hottest_key_ratio"]["Delays"] > 0.6  # type: ignore[index]
    assert "AA" in status.load["Delays"].hottest[0].key
    assert "hottest key" in str(status)


def test_a_late_feed_is_named_and_time_goes_on_when_it_is_mended(h: Any) -> None:
    h.inject("flights", [flight("AA", 1, 5)], process="west")
    h.inject("flights", [flight("AA", 1, 100)], process="east")
    before = values(status_of(h))
    why = str(h.explain_watermark("Delays"))
    h.inject("flights", [flight("AA", 1, 100)], process="west")
    after = values(status_of(h))

    assert before["low_watermark_lag_seconds"] == {"Delays": 96.0}
    assert "process 'west'" in why
    assert after["low_watermark_lag_seconds"] == {"Delays": 1.0}


def test_a_stuck_key_is_named_while_it_hangs_and_ended_at_its_limit(h: Any) -> None:
    told, now = list[Stuck](), [0.0]
    limit, before = TimeLimit(60.0), signal.getsignal(signal.SIGRTMIN)
    limit.install()
    running = h._process._runtime.execution.running
    watch = Watch(
        running, 10.0, told.append, lambda: None, limit=limit, clock=lambda: now[0]
    )  # fmt: skip

    over = threading.Event()

    def look() -> None:
        # On and on, as a real watch does: a call that is interrupted where it wakes who waits may
        # fail with another error, and is made again.
        Delays.entered.acquire()
        while not over.is_set():
            watch.look()
            now[0] += 10.0

    thread = threading.Thread(target=look)
    thread.start()
    try:
        h.inject("flights", [flight("AA", 1, 5), flight("AA", 404, 5), flight("AA", 2, 5)])
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGRTMIN, before)
    status = status_of(h, told[0])

    assert values(status)["stuck_calls"] == {"Delays": 1.0}
    assert "stuck" in str(status)
    assert "key 'AA'" in str(told[0])
    assert [output.value for output in h.outputs("delays")] == [1, 3]
    assert [output.value.value for output in h.outputs("rejects")] == [
        "{'carrier': 'AA', 'delay': 404}"
    ]


def test_a_record_that_crashes_is_named_in_a_dead_letter(h: Any) -> None:
    h._process._runtime.execution.carefully(Probe())
    h.inject("flights", [flight("AA", 1, 5), flight("AA", 500, 5), flight("AA", 2, 5)])

    assert values(status_of(h))["dead_letters"] == {"Delays": 1.0}
    [letter] = [output.value for output in h.outputs("rejects")]
    assert "signal SIGSEGV" in letter.reason
    assert (letter.key, letter.value) == ("'AA'", "{'carrier': 'AA', 'delay': 500}")
    assert [output.value for output in h.outputs("delays")] == [1, 3]
