"""What a run says of itself, and what it does when there is nothing to do."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
import millrace.spark.epoch_engine

SECOND = mr.SECOND


class Remind(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"reminders": str}

    def process_record(self, record: mr.Record) -> None:
        self.set_timer("soon", at=self.wall_time + 3600 * SECOND, domain=mr.WALL_TIME)
        self.set_timer("window", at=record.timestamp + SECOND)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("reminders", str(timer.tag), timestamp=timer.at)


def _pipeline(
    tools: Any, computation: Any = Remind, name: str = "reminders"
) -> tuple[mr.Pipeline, Any, Any]:
    feed, sink = tools.feed("word string, at long"), tools.Kept()
    p = mr.Pipeline(name)
    p.inject("words", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(computation)
    p.sink("reminders", sink)
    return p, feed, sink


def _shown(dashboard: Any) -> dict[str, Any]:
    with urllib.request.urlopen(f"{dashboard.url}api/now", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


class Terminal(io.StringIO):
    """Standard error of somebody who looks."""

    def isatty(self) -> bool:
        return True


def test_status_from_start_to_end(
    tools: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="millrace.progress")
    p, feed, sink = _pipeline(tools)
    run = tools.start(p)
    assert str(run.explain()) == str(p.explain())
    status = run.status()
    assert (status.state, status.epoch) == ("running", -1)
    assert (status.pipeline, status.generation) == ("reminders", 1)
    assert (status.oldest_work, status.wall_timers) == ({}, {})
    assert status.low_watermark == mr.MIN_TIMESTAMP
    assert status.lag is None
    tools.step(run)
    assert run.status().epoch >= 0

    feed.add(("a", 10 * SECOND), ("b", 8 * SECOND))
    tools.step(run)
    # Without further data the low watermark follows, and fires b's timer.
    assert sink.rows == [("b", "window", 9 * SECOND)]
    feed.add(("a", 7 * SECOND))
    tools.step(run)
    status = run.status()
    assert status.low_watermarks == {"Remind": 9 * SECOND}
    assert status.low_watermark == 9 * SECOND
    assert status.newest == {"words": 10 * SECOND}
    assert status.injected == {"words": 3}
    assert status.dead_letters.get("words", 0) == 0
    assert status.lag == pytest.approx(1.0)
    counters = status.counters["Remind"]
    assert (counters.records, counters.late, status.late) == (3, 1, 1)
    assert counters.worst_lateness_us == 2 * SECOND
    # The late record moved a's window timer to where it was due at once.
    assert (counters.timers, counters.productions) == (2, 2)
    assert status.records_per_second > 0
    assert status.epoch_seconds > 0
    assert status.task_seconds > 0
    assert list(status.epoch_parts) == ["planning", "tasks", "sinks", "completing"]
    assert 0 < sum(status.epoch_parts.values()) <= status.epoch_seconds
    assert status.moved.keys() == {"Remind"}
    assert status.injected_bytes["words"] > 0
    assert status.received_bytes["Remind"] > 0
    assert status.load["Remind"].cache_misses == 0 < status.load["Remind"].cache_hits
    # Its place among them says which source is a stream's: the last is that of ticks.
    assert len(run.query.lastProgress.sources) == 2
    lines = Path(tools.checkpoint, "metrics", "epochs.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["late_records"] == {"Remind": 1}
    assert (status.replayed, status.repaired) == (0, 0)
    assert status.oldest_work == {}
    assert status.wall_timers == {"Remind": tools.T0 + 3600 * SECOND}
    assert (status.pending_timers, status.pending_wall_timers) == ({"Remind": 0}, {"Remind": 2})
    assert json.loads(lines[-1])["pending_wall_timers"] == {"Remind": 2}
    assert "low watermark  1970-01-01T00:00:09Z, 1 s behind the newest record\n" in str(status)
    assert status.behind(status.low_watermarks["Remind"]) == 1.0

    dashboard = run.dashboard()
    shown = _shown(dashboard)
    assert (shown["pipeline"], shown["state"], shown["generation"]) == ("reminders", "running", 1)
    assert shown["checkpoint"] == str(tools.checkpoint)
    assert (shown["totals"]["injected"], shown["totals"]["late"]) == (3, 1)
    assert [(edge["from"], edge["to"]) for edge in shown["graph"]["edges"]] == [
        ("injector:words", "Remind"), ("Remind", "sink:reminders"),
    ]  # fmt: skip

    # With no data and a timer for the wall clock: it fires when the clock gets there.
    tools.clock.now += 3600 * SECOND - 1
    tools.step(run)
    assert len(sink.rows) == 2
    tools.clock.now += 1
    tools.step(run)
    assert sorted(sink.values) == ["soon", "soon", "window", "window"]
    assert run.status().pending_wall_timers == {"Remind": 0}

    epoch = run.status().epoch
    run.stop()
    assert run.status().state == "stopped"
    assert _until(lambda: _shown(dashboard)["state"] == "stopped", 60)
    assert _shown(dashboard)["epoch"] == epoch
    dashboard.close()
    # What a run says in a log ends with where it ended; on a terminal too, once.
    assert caplog.messages[-1] == (
        f"reminders: stopped, epoch {epoch}, 3 records, 1 s behind, 1 late, low watermark "
        "1970-01-01T00:00:09Z"
    )
    caplog.clear()
    screen, printed = Terminal(), io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", printed)
    run = tools.start(p)
    status = run.status()
    assert (status.epoch, status.generation, status.injected) == (epoch, 2, {"words": 3})
    status = tools.finish(run)
    assert status.state == "drained"
    assert status.low_watermark == mr.MAX_TIMESTAMP
    assert f"reminders: running, epoch {epoch}, 3 records" in screen.getvalue()
    # What was drawn before was cut at the edge.
    last = f"reminders: drained, epoch {status.epoch}, 3 records, 1 late, low watermark at the end"
    assert screen.getvalue().count(f"{last} of time\n") == 1
    assert printed.getvalue() == ""
    assert caplog.messages == []


class Soon(Remind):
    def process_record(self, record: mr.Record) -> None:
        self.set_timer("soon", at=self.wall_time + SECOND // 2, domain=mr.WALL_TIME)


class Later(Remind):
    def process_record(self, record: mr.Record) -> None:
        self.set_timer("soon", at=self.wall_time + 60 * SECOND, domain=mr.WALL_TIME)


def _until(condition: Any, seconds: float) -> bool:
    """Wait for a condition; return whether it came to be."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    return bool(condition())


def test_an_idle_run_wakes_for_a_timer_and_not_for_nothing(tools: Any) -> None:
    p, feed, sink = _pipeline(tools, Soon)
    feed.add(("a", 10 * SECOND))
    run = tools.start(p, clock=lambda: time.time_ns() // 1000)
    tools.step(run)

    assert _until(lambda: sink.values == ["soon"], 60)
    epoch = run.status().epoch
    assert run.wait("4 s") is False
    assert run.status().epoch <= epoch + 1


def test_an_idle_run_on_an_injected_clock(tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The injected clock decides: it stands still, so nothing happens; it moves, so timers fire."""
    # That the clock has moved is seen at the next epoch of an idle run.
    monkeypatch.setattr(millrace.spark.epoch_engine, "_IDLE_US", 3 * SECOND)
    found = []
    for now in (0, 2**52):  # behind the machine's, and ahead
        p, feed, sink = _pipeline(tools, Later, f"reminders at {now}")
        clock = tools.Clock()
        clock.now = now
        feed.add(("a", 10 * SECOND))
        run = tools.start(p, clock=clock, checkpoint=f"{tools.checkpoint}-{now}")
        tools.step(run)
        found.append((run, clock, sink))
    epochs = [run.status().epoch for run, *_ in found]
    assert found[0][0].wait("2 s") is False
    for (run, _, sink), epoch in zip(found, epochs, strict=True):
        assert run.status().epoch <= epoch + 1
        assert sink.rows == []

    for _, clock, _ in found:
        clock.now += 60 * SECOND
    assert _until(lambda: all(sink.values == ["soon"] for *_, sink in found), 40)
