"""Calls on Spark, by epochs and in a batch: as in the Harness, and none again for a replay."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import RunFailed
from tests.spark.test_exactly_once import Flaky

DDL = "card string, amount long, at long"
ROWS = [(f"c{n % 5}", n, n * 1_000) for n in range(60)]


class Score(mr.AsyncComputation):
    """Asks with the total of its card so far; writes down every call."""

    inputs = {"payments": mr.by("card")}
    outputs = {"scored": str}
    calls = mr.CallPolicy(concurrency=20, timeout="20 s")
    total = mr.ValueState(int)

    def __init__(self, journal: str, *, deadly: bool = False) -> None:
        self.journal = journal
        self.deadly = deadly

    def request(self, record: mr.Record) -> Any:
        return record.value["amount"], self.total.get(0)

    async def call(self, request: Any, call: Any) -> Any:
        await asyncio.sleep(0.005)
        with Path(self.journal).open("a") as file:
            file.write(f"{call.id}\n")
        if self.deadly and request[0] == 31:
            os.kill(os.getpid(), signal.SIGKILL)
        return request[1]

    def process_response(self, record: mr.Record, response: Any) -> None:
        assert response == self.total.get(0)
        self.total.set(response + record.value["amount"])
        self.produce("scored", f"{self.key} {self.total.get()}")


async def double(payment: dict[str, Any]) -> int:
    await asyncio.sleep(0.001 * (payment["amount"] % 3))
    return 2 * payment["amount"]


def pipeline(rows: Any, journal: Path, *sinks: Any, deadly: bool = False) -> mr.Pipeline:
    p = mr.Pipeline("payments")
    p.inject("payments", rows, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Score(str(journal), deadly=deadly))
    doubled = p.stream("payments").key_by("card").map_async(double, name="doubled")
    doubled.to("twice", int)
    for stream, sink in zip(("scored", "twice"), sinks, strict=False):
        p.sink(stream, sink)
    return p


def totals() -> Counter[str]:
    found: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    for card, amount, _ in ROWS:
        found[card] += amount
        expected[f"{card} {found[card]}"] += 1
    return expected


def test_a_replay_makes_no_call_and_a_kill_loses_none(tools: Any, tmp_path: Path) -> None:
    feed, journal = tools.feed(DDL), tmp_path / "journal"
    feed.add(*ROWS)
    # The worker dies amid the calls of the epoch: nothing of it was committed.
    run = tools.start(pipeline(feed.stream, journal, tools.Kept(), tools.Kept(), deadly=True))
    with pytest.raises(RunFailed):
        tools.step(run)
    first = journal.read_text().splitlines()
    assert first

    # The commits are there, and the driver dies at the sink.
    scored = tools.Kept()
    run = tools.start(pipeline(feed.stream, journal, Flaky(scored, 1), tools.Kept()))
    with pytest.raises(RunFailed, match="the sink is away"):
        tools.step(run)
    called = journal.read_text().splitlines()
    assert set(first) < set(called), "calls are made again under their ids"
    assert len(set(called)) == len(ROWS)

    scored, twice = tools.Kept(), tools.Kept()
    run = tools.start(pipeline(feed.stream, journal, scored, twice))
    status = tools.finish(run)
    assert journal.read_text().splitlines() == called
    assert Counter(scored.values) == totals()
    assert sorted(twice.values) == sorted(2 * amount for _, amount, _ in ROWS)
    assert status.counters["Score"].records == len(ROWS)


def test_a_batch_makes_calls(spark: SparkSession, tools: Any, tmp_path: Path) -> None:
    feed, scored, twice = tools.feed(DDL), tools.Kept(), tools.Kept()
    feed.add(*ROWS)
    pipeline(feed.bounded, tmp_path / "journal", scored, twice).run_batch(spark, tasks=2)
    assert Counter(scored.values) == totals()
    assert sorted(twice.values) == sorted(2 * amount for _, amount, _ in ROWS)
