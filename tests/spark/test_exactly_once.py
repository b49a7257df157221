"""A driver that dies after the commits: the retry replays them and runs no user code."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import RunFailed


class Fickle(mr.Computation):
    """Never says the same twice, and writes down every call."""

    inputs = {"words": mr.by("word")}
    outputs = {"draws": str}
    count = mr.CombiningState(int)

    def __init__(self, journal: str) -> None:
        self.journal = journal

    def process_record(self, record: mr.Record) -> None:
        with Path(self.journal).open("a") as file:
            file.write(f"{self.key}\n")
        self.count.add(1)
        self.produce("draws", f"{self.count.get()} {random.random()} {time.time_ns()}")


class Tail(mr.Computation):
    """The level below sees the bytes of the first attempt."""

    inputs = {"draws": mr.by_key()}
    outputs = {"seen": str}

    def __init__(self, journal: str) -> None:
        self.journal = journal

    def process_record(self, record: mr.Record) -> None:
        with Path(self.journal).open("a") as file:
            file.write(f"tail {self.key}\n")
        self.produce("seen", record.value)


class Flaky:
    """A sink that fails, as often as it is told to, on epochs with rows."""

    def __init__(self, kept: Any, failures: int) -> None:
        self.kept = kept
        self.failures = failures

    def __call__(self, rows: Any, epoch: int) -> None:
        self.kept(rows, epoch)
        if self.kept.epochs[epoch] and self.failures:
            self.failures -= 1
            raise ConnectionError("the sink is away")


def _pipeline(tools: Any, feed: Any, journal: Path, *sinks: Any) -> mr.Pipeline:
    p = mr.Pipeline("fickle")
    p.inject("words", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Fickle(str(journal)))
    p.add(Tail(str(journal)))
    for stream, sink in zip(("seen", "draws"), sinks, strict=False):
        p.sink(stream, sink)
    return p


def test_a_retry_runs_no_user_code(tools: Any, tmp_path: Path) -> None:
    feed, journal = tools.feed("word string, at long"), tmp_path / "journal"
    first, second, third = tools.Kept(), tools.Kept(), tools.Kept()
    feed.add(*((f"w{n % 7}", n) for n in range(30)))
    run = tools.start(_pipeline(tools, feed, journal, Flaky(first, 1)))
    with pytest.raises(RunFailed, match="ConnectionError: the sink is away"):
        tools.step(run)
    called = journal.read_text()
    assert len(called.splitlines()) == 60
    (epoch,) = [number for number, rows in first.epochs.items() if rows]

    # Again, with other tasks and with nothing in the caches.
    shutil.rmtree(Path(tools.checkpoint) / "cache")
    run = tools.start(_pipeline(tools, feed, journal, Flaky(second, 1)), tasks=3)
    with pytest.raises(RunFailed, match="the sink is away"):
        tools.step(run)
    run = tools.start(_pipeline(tools, feed, journal, third), tasks=1)
    tools.step(run)

    assert journal.read_text() == called
    status = run.status()
    assert status.replayed > 0
    assert status.injected == {"words": 30}
    assert status.counters["Fickle"].records == 30
    attempts = [
        sorted(zip(kept.epochs[epoch], kept.ids[epoch], strict=True))
        for kept in (first, second, third)
    ]
    assert attempts[0] == attempts[1] == attempts[2]
    assert len(attempts[0]) == 30

    feed.add(("w0", 100), ("new", 100))
    status = tools.finish(run)
    assert len(journal.read_text().splitlines()) == 64
    counts = {key: rows[-1][0].split()[0] for key, rows in tools.by_key(third.rows).items()}
    assert counts == {"w0": "6", "w1": "5", "w2": "4", "w3": "4", "w4": "4", "w5": "4", "w6": "4",
                      "new": "1"}  # fmt: skip
    assert status.state == "drained"
    load = status.load["Fickle"]
    assert load.seconds > 0
    assert load.state_rows >= 2  # of the intervals with work, in this run
    assert load.committed_bytes > 0


def test_caches_are_rebuilt_and_tasks_may_change(tools: Any, tmp_path: Path) -> None:
    """Stopped after each file, with other tasks and without caches: the counts go on."""
    feed, journal = tools.feed("word string, at long"), tmp_path / "journal"
    kept = tools.Kept()
    repaired = 0
    for turn, tasks in enumerate((2, 3, 1)):
        feed.add(*((f"w{n % 9}", 1000 * turn + n) for n in range(27)))
        run = tools.start(_pipeline(tools, feed, journal, kept), tasks=tasks)
        tools.step(run)
        run.stop()
        repaired += run.status().repaired
        # Whoever still has the old files open goes on with them; a new run finds none.
        shutil.rmtree(Path(tools.checkpoint) / "cache")

    assert repaired > 0
    by_key = tools.by_key(kept.rows)
    assert len(by_key) == 9
    for rows in by_key.values():
        assert [int(value.split()[0]) for value, _ in rows] == list(range(1, 10))
        assert [at for _, at in rows] == sorted(at for _, at in rows)


def test_a_run_that_was_stopped_in_the_middle_ends_as_an_undisturbed_one(
    tools: Any, tmp_path: Path
) -> None:
    feed = tools.feed("word string, at long")
    for turn in range(6):
        feed.add(*((f"w{n % 5}", 10 * turn + n) for n in range(10)))
    results = []
    for stops in (0, 3):
        kept, journal = tools.Kept(), tmp_path / f"journal-{stops}"
        options: dict[str, Any] = {"checkpoint": str(tmp_path / f"checkpoint-{stops}")}
        if stops:
            options["cache_limit"] = 0  # every cache goes after its epoch
        p = mr.Pipeline("fickle")
        delay = mr.BoundedDelay("1 s")
        p.inject("words", feed.stream_one_by_one, timestamp="at", low_watermark=delay)
        p.add(Fickle(str(journal)))
        p.add(Tail(str(journal)))
        p.sink("seen", kept)
        for n in range(stops):
            run = tools.start(p, **options)
            # Stop while the epoch after some progress is under way.
            while run.status().epoch < n:
                assert run.wait("20 ms") is False
            run.stop()
            assert run.status().state == "stopped"
        rebuilt = tools.run(p, **options).rebuilt
        assert (rebuilt > 0) == bool(stops), "with cache_limit=0 caches are evicted"
        assert len(journal.read_text().splitlines()) == 120
        by_key = tools.by_key(kept.rows)
        results.append(
            {key: [(value.split()[0], at) for value, at in rows] for key, rows in by_key.items()}
        )

    assert results[0] == results[1]
