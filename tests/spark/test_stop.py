"""stop() returns, whatever Spark is about to do at that moment."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

import pytest

import millrace as mr
from millrace.spark.microbatch_engine import MicroBatchEngine


class Echo(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"echoes": str}

    def process_record(self, record: mr.Record) -> None:
        self.produce("echoes", record.value["word"])


class SlowToStop:
    """A query whose stop() begins only when Spark has called for another epoch."""

    def __init__(self, engine: Any, called: threading.Event) -> None:
        self._query = engine.query
        self._alarm = engine._alarm
        self._called = called

    def stop(self) -> None:
        self._called.clear()
        self._alarm.ring_in(0)
        assert self._called.wait(30)
        self._query.stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)


@pytest.mark.timeout(200)
def test_an_epoch_that_begins_while_the_run_stops(
    tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = threading.Event()
    epoch = MicroBatchEngine.epoch

    def calling(self: MicroBatchEngine, rows: Any, number: int) -> None:
        called.set()
        epoch(self, rows, number)

    monkeypatch.setattr(MicroBatchEngine, "epoch", calling)
    feed, sink = tools.feed("word string, at long"), tools.Kept()
    p = mr.Pipeline("echo")
    p.inject("words", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Echo)
    p.sink("echoes", sink)
    run = tools.start(p)
    tools.step(run)
    engine = run._run.engine
    engine.query = SlowToStop(engine, called)

    def stop() -> None:
        # That of the rescue below.
        with contextlib.suppress(RuntimeError):
            run.stop()

    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    stopper.join(60)
    stopped = not stopper.is_alive()
    if not stopped:
        # So that a failure does not take the other tests along.
        engine._turn.release()
        stopper.join(60)

    assert stopped, "stop() waits for the epoch, and the epoch for stop()"
    assert run.status().state == "stopped"
    feed.add(("a", 1))
    tools.run(p)
    assert sink.values == ["a"]


def test_ctrl_c_stops_a_run_that_is_waited_for(tools: Any) -> None:
    """SIGTERM does the same, and is sent to a process of its own in processes/test_drivers.py."""
    feed, sink = tools.feed("word string, at long"), tools.Kept()
    p = mr.Pipeline("echo")
    p.inject("words", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Echo)
    p.sink("echoes", sink)
    feed.add(("a", 1))
    run = tools.start(p, trigger="50 ms")  # a unit that Spark does not know
    tools.step(run)
    handler, done = signal.getsignal(signal.SIGINT), threading.Event()

    def interrupt() -> None:
        while signal.getsignal(signal.SIGINT) is handler and not done.wait(0.01):
            pass  # until it is waited for
        if not done.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert run.wait("60 s")
    finally:
        done.set()
        thread.join()
    assert signal.getsignal(signal.SIGINT) is handler
    assert run.status().state == "stopped"
    assert sink.values == ["a"]
