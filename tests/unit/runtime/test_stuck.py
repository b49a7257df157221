"""User code that does not return, found while it runs; and calls to services without an outcome."""

import asyncio
import gc
import re
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.kernel.execution import RunningCall
from millrace.model.calls import Call, CallPolicy
from millrace.runtime.call_pool import CallPool
from millrace.runtime.calls import CallPools
from millrace.runtime.stuck import CallWatch, Stuck, Watch
from millrace.runtime.virtual_loop import VirtualTimeLoop


class Slow(mr.Computation):
    """Waits where a record says so, until it is let go."""

    inputs = {"events": mr.by("key")}
    outputs = {}
    entered = threading.Semaphore(0)
    go_on = threading.Semaphore(0)

    def process_record(self, record: mr.Record) -> None:
        if record.value["wait"] == "timer":
            self.set_timer("soon", at=record.timestamp + 1)
        elif record.value["wait"]:
            self.wait()

    def process_timer(self, timer: mr.Timer) -> None:
        self.wait()

    def wait(self) -> None:
        self.entered.release()
        self.go_on.acquire()


class Told:
    """What a watch has said, by a clock that the test sets."""

    def __init__(self, running: RunningCall) -> None:
        self.now = 0.0
        self.said: list[Stuck | str] = []
        self.watch = Watch(
            running,
            10.0,
            self.said.append,
            lambda: self.said.append("over"),
            clock=lambda: self.now,
        )

    def at(self, now: float) -> list[Stuck | str]:
        """Look at a time; return what was said."""
        self.now = now
        self.said.clear()
        assert self.watch.look()
        return list(self.said)


@pytest.fixture(params=[False, True], ids=["", "timed"])
def h(request: Any) -> Iterator[Any]:
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(Slow)
    with mr.testing.Harness(p) as h:
        if request.param:
            h._process._runtime.execution._seconds = time.perf_counter
        yield h


@pytest.fixture
def told(h: Any) -> Told:
    return Told(h._process._runtime.execution.running)


def working(h: Any, *waits: Any, watermark: int = 0) -> threading.Thread:
    """Start a thread that gives the records to the Harness; by then it is in user code."""

    def work() -> None:
        h.inject("events", [({"key": "ann", "wait": wait}, 5) for wait in waits])
        if watermark:
            h.advance_watermark("events", watermark)

    thread = threading.Thread(target=work)
    thread.start()
    Slow.entered.acquire()
    return thread


def test_a_call_that_takes_too_long_is_told_with_key_record_and_stack(h: Any, told: Told) -> None:
    thread = working(h, True)
    assert (told.at(0), told.at(9.9)) == ([], [])
    [stuck] = told.at(10)
    Slow.go_on.release()
    thread.join()

    assert isinstance(stuck, Stuck)
    assert (stuck.computation, stuck.key, stuck.seconds) == ("Slow", "'ann'", 10)
    assert stuck.of.startswith("record ")
    assert stuck.of.endswith(" of 'events' at 1970-01-01T00:00:00.000005Z")
    assert [line for line in stuck.stack.splitlines() if "in " in line][-1].endswith("in wait")
    assert "machine.py" not in stuck.stack
    assert "hook_times.py" not in stuck.stack
    assert "Slow, key 'ann', record " in str(stuck)
    assert "in user code for 10 s (process " in str(stuck)


def test_it_is_told_again_as_long_as_it_goes_on_and_when_it_is_over(h: Any, told: Told) -> None:
    thread = working(h, True)
    told.at(0)
    said = [len(told.at(now)) for now in (10, 20, 25, 39, 40)]
    Slow.go_on.release()
    thread.join()

    assert said == [1, 0, 1, 0, 1]
    assert told.at(41) == ["over"]
    assert told.at(42) == []


def test_each_call_has_its_own_time(h: Any, told: Told) -> None:
    thread = working(h, True, True)
    told.at(0)
    Slow.go_on.release()
    Slow.entered.acquire()  # the second
    early = [told.at(now) for now in (9, 18)]
    [stuck] = told.at(19)
    Slow.go_on.release()
    thread.join()

    assert early == [[], []]
    assert isinstance(stuck, Stuck)
    assert stuck.seconds == 10


def test_a_timer_is_told_by_its_tag(h: Any, told: Told) -> None:
    thread = working(h, "timer", watermark=10)
    told.at(0)
    [stuck] = told.at(10)
    Slow.go_on.release()
    thread.join()

    assert isinstance(stuck, Stuck)
    assert stuck.of == "timer 'soon' at 1970-01-01T00:00:00.000006Z"


def test_what_does_not_run_any_more_is_not_watched() -> None:
    running = RunningCall()
    watch = Watch(running, 10.0, pytest.fail, pytest.fail)
    assert watch.look()
    del running
    assert not watch.look()


# -- calls to services -----------------------------------------------------------------------------


def test_a_call_to_a_service_is_told_with_its_attempts_until_it_has_its_outcome() -> None:
    pools = CallPools(make=lambda _: pool)
    loop, said = VirtualTimeLoop(), list[Stuck | str]()

    async def down(request: Any) -> Any:
        await asyncio.sleep(1.0)
        if loop.time() < 35:
            raise ConnectionError("down")
        return request

    policy = CallPolicy(breaker=1, backoff="1 s", max_backoff="1 s")
    pool = CallPool(down, policy, loop=loop, jitter=lambda: 1.0)
    pools.of(SimpleNamespace(name="7.scored"))  # type: ignore[arg-type]
    watch = CallWatch(
        pools, {"7.scored": "scored"}, 10.0, said.append, lambda: said.append("over"),
        clock=loop.time,
    )  # fmt: skip

    pool.submit([Call(b"\x01", "ann", {"amount": 3}), Call(b"\x02", "bob", None)])
    while loop.time() < 50:
        assert watch.look()
        pool.completed(0)
        loop.advance_to(loop.time() + 1.0)

    first, second, *_, last = said
    assert isinstance(first, Stuck)
    assert (first.computation, first.key, first.seconds) == ("scored", "'ann'", 10)
    assert first.of == "call 01 with {'amount': 3}"
    assert re.fullmatch(r"attempt \d, after ConnectionError: down", first.waits)
    assert "waits for a service (attempt " in str(first)
    assert isinstance(second, Stuck)
    assert (second.key, second.seconds) == ("'ann'", 25)
    assert last == "over"
    assert said.count("over") == 1
    pools.close()
    del pools
    gc.collect()
    assert not watch.look()
