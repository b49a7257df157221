"""Snapshots are written by Spark's workers, collected after by the driver, and recovered from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import millrace as mr
from millrace.store import LocalHardState

#: Ten of these in an interval are more than a snapshot's fixed costs: one is due in two epochs.
BLOB_BYTES = 600_000


class Blobs(mr.Computation):
    """Keeps a count and something large, which every record replaces."""

    inputs = {"words": mr.by("word")}
    outputs = {"counts": int}
    count = mr.CombiningState(int)
    blob = mr.ValueState(bytes)

    def process_record(self, record: mr.Record) -> None:
        self.count.add(1)
        expected = f"{self.key} {self.count.get() - 1} ".encode()
        assert self.blob.get(expected).startswith(expected)
        filling = f"{self.key} {self.count.get()} ".encode()
        self.blob.set(filling + bytes(BLOB_BYTES))
        self.produce("counts", self.count.get())


def test_a_run_recovers_from_snapshots_when_the_log_was_collected(
    tools: Any, tmp_path: Path
) -> None:
    feed, kept = tools.feed("word string, at long"), tools.Kept()
    p = mr.Pipeline("blobs")
    p.inject("words", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Blobs)
    p.sink("counts", kept)
    words = [f"w{n}" for n in range(20)]

    def snapshots() -> int:
        found = LocalHardState.open(tools.checkpoint).snapshots.numbers("Blobs")
        return min(map(len, found.values())) if len(found) == 2 else 0

    def start(turn: int) -> Any:
        # Not the same directory: Spark's workers live on, and so do the files they have open.
        return tools.start(p, intervals=2, cache=str(tmp_path / f"cache-{turn}"))

    def until(run: Any, reached: Callable[[], bool]) -> None:
        while not reached():
            assert run.wait("50 ms") is False

    run = start(0)
    for turn in range(1, 5):
        feed.add(*((word, turn) for word in words))
        tools.step(run)
        until(run, lambda least=turn // 2: snapshots() >= least)
    feed.add(("w0", 5))
    tools.step(run)
    status = run.status()
    assert status.snapshots >= 4
    assert status.snapshot_bytes > 4 * BLOB_BYTES * 5
    assert (status.rebuilt, status.damaged, status.housekeeping_failures) == (0, 0, 0)
    run.stop()

    for turn in (6, 7):
        run = start(turn)
        feed.add(*((word, turn) for word in words))
        tools.step(run)
        status = run.status()
        assert status.rebuilt == 2
        assert status.damaged == 0
        assert status.recovered_bytes > 20 * BLOB_BYTES
        if turn == 6:
            until(run, lambda alive=run: alive.status().collected > 0)
        run.stop()
        commits = LocalHardState.open(tools.checkpoint).commits.numbers("Blobs")
        assert min(commits[0][0], commits[1][0]) > 1, "the first commits are gone"

    counts = {key: [value for (value, _) in rows] for key, rows in tools.by_key(kept.rows).items()}
    assert counts == {word: [*range(1, 7 + (word == "w0"))] for word in words}
