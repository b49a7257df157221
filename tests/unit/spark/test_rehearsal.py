"""When epochs are rehearsed, how it ends, and what a failure leaves; the jobs are stubs."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.spark import rehearsal
from millrace.spark.rehearsal import Rehearsal


class Jobs:
    """Counts jobs; each runs what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes, self.interrupted, self.now = list[Any](), list[str](), 100.0
        self.job: Any = bool
        injector = SimpleNamespace(processes=self._processes)
        self.processes: Any = lambda: ["a", "b"]
        given: Any = None
        monkeypatch.setattr(rehearsal, "session_for_jobs", lambda _spark, _settings: None)
        self.rehearsal = Rehearsal(given, given, given, self._rows, [injector])  # type: ignore[list-item]
        monkeypatch.setattr(rehearsal, "rehearse", self._rehearse)
        monkeypatch.setattr(rehearsal, "tag_jobs", lambda _session, _tag: None)
        monkeypatch.setattr(
            rehearsal, "interrupt_jobs", lambda _session, tag: self.interrupted.append(tag)
        )
        monkeypatch.setattr(rehearsal, "time", SimpleNamespace(monotonic=lambda: self.now))

    def _processes(self) -> list[str]:
        names: list[str] = self.processes()
        return names

    def _rows(self, _session: Any, processes: int) -> list[Any]:
        return [(f"{processes} readers", None), ("one reader", None)]

    def _rehearse(self, _plan: Any, rows: Any, _manifest: Any, *, lots: Any) -> None:
        self.job()
        self.shapes.append(rows)

    def over(self) -> None:
        """Begin one, and wait until it is over."""
        self.rehearsal.repeat()
        assert self.rehearsal._thread is not None
        self.rehearsal._thread.join()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    return Jobs(monkeypatch)


def test_it_is_repeated_before_workers_have_been_idle_for_a_minute(jobs: Jobs) -> None:
    jobs.over()
    assert jobs.rehearsal.ready
    assert jobs.shapes == ["2 readers", "one reader"] * 3
    jobs.now += 29
    jobs.over()
    assert len(jobs.shapes) == 6
    jobs.now += 1
    jobs.over()
    assert len(jobs.shapes) == 8


def test_a_failure_is_kept_and_nothing_is_ready(jobs: Jobs) -> None:
    def fail() -> None:
        raise RuntimeError("no executor")

    jobs.job = fail
    jobs.over()
    assert not jobs.rehearsal.ready
    assert str(jobs.rehearsal.failure) == "no executor"


def test_what_is_under_way_is_interrupted_at_its_end_and_is_no_failure(jobs: Jobs) -> None:
    begun, ended = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        ended.wait()
        raise RuntimeError("interrupted")

    jobs.job = wait
    jobs.rehearsal.repeat()
    begun.wait()
    jobs.now += 60
    jobs.rehearsal.repeat()
    jobs.rehearsal.end()
    ended.set()
    jobs.over()
    assert jobs.interrupted == [jobs.rehearsal._tag]
    assert jobs.rehearsal.failure is None
    assert jobs.shapes == []


def test_a_run_begins_when_no_other_thread_asks_an_injector(jobs: Jobs) -> None:
    asked, answered, begins = threading.Event(), threading.Event(), threading.Event()

    def processes() -> list[str]:
        asked.set()
        answered.wait()
        return ["a"]

    jobs.processes = processes
    jobs.rehearsal.repeat()
    asked.wait()

    def begin() -> None:
        jobs.rehearsal.finish()
        begins.set()

    waiting = threading.Thread(target=begin)
    waiting.start()
    assert not begins.is_set()
    answered.set()
    waiting.join()
    jobs.over()
    assert jobs.shapes == [], "the run has begun"
    assert jobs.interrupted == []
