"""A program that makes calls in real time, while workers are killed.

Its test is ``test_live_calls.py``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import millrace as mr
from tests.spark.processes.live_oracles import Live, Marked, settle

CARDS, ROUNDS, EACH = 17, 12, 200


class Spend(mr.AsyncComputation):
    """Asks with the total of its card so far, which the response must find as it was."""

    inputs = {"payments": mr.by("card")}
    outputs = {"spent": str}
    calls = mr.CallPolicy(concurrency=50, timeout="20 s")
    total = mr.ValueState(int)

    def request(self, record: mr.Record) -> Any:
        return record.value["amount"], self.total.get(0)

    async def call(self, request: Any) -> Any:
        await asyncio.sleep(0.005)
        return request[1]

    def process_response(self, record: mr.Record, response: Any) -> None:
        assert response == self.total.get(0), (response, self.total.get(0))
        self.total.set(response + record.value["amount"])
        self.produce("spent", f"{self.key} {self.total.get()}")


async def score(payment: dict[str, Any]) -> int:
    await asyncio.sleep(0.02)
    return int(payment["amount"])


def kill(run: Any, task: tuple[int, int]) -> None:
    """Kill the process of a task, and return when another has its place."""
    victim = wait_for_process(run, task)
    os.kill(victim, signal.SIGKILL)
    wait_for_process(run, task, victim)


def wait_for_process(run: Any, task: tuple[int, int], victim: int = 0) -> int:
    """Wait until a task has a process that was not killed, and return it."""
    deadline = time.monotonic() + 120
    while task not in run.hosts or run.hosts[task].pid == victim:
        assert time.monotonic() < deadline, f"task {task} has no other process in two minutes"
        time.sleep(0.05)
    return int(run.hosts[task].pid)


def main(spark: SparkSession, root: Path) -> dict[str, Any]:
    """Return what was found, and what should have been."""
    live = Live(spark, root / "calls", {"payments": "card string, amount long, at long"})
    p = mr.Pipeline("payments")
    payments = p.inject(
        "payments", live.sources["payments"], timestamp="at", low_watermark=mr.BoundedDelay("5 s")
    )
    p.add(Spend)
    scores = payments.key_by("card").map_async(score, concurrency=100, name="scores")
    scores.window(mr.FixedWindows("1 min")).sum().to("sums", int)
    sinks = {name: Marked(root / name) for name in ("spent", "sums")}
    for name, sink in sinks.items():
        p.sink(name, sink.sink)
    run = live.start(p, clock=None)
    spent: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    windows: Counter[tuple[str, int]] = Counter()
    killed = 0
    try:
        for n in range(ROUNDS):
            some = [(f"c{k % CARDS}", k % 7 + n, (n * EACH + k) * 100_000) for k in range(EACH)]
            for card, amount, at in some:
                spent[card] += amount
                expected[f"{card} {spent[card]}"] += 1
                windows[card, at // 60_000_000] += amount
            live.sources["payments"].append(some)
            if n == 3:
                settle(run)
            if n in (5, 8):
                time.sleep(0.3)  # into the middle of it, not for a result
                kill(run, (1, killed))
                killed += 1
        settle(run)
        assert run.drain("120 s")
        status = run.status()
    finally:
        run.stop()
    told = sinks["spent"].table()
    column = "value" if "value" in told.column_names else told.column_names[0]
    sums: Counter[tuple[str, int]] = Counter()
    for one in sinks["sums"].table().to_pylist():
        at = (
            one["_card"] if "_card" in one else one["_key"],
            int(one["_window_start"].timestamp()) // 60,
        )
        sums[at] = max(sums[at], one["value"])
    return {
        "spent": Counter(told[column].to_pylist()),
        "expected": expected,
        "sums": sums,
        "windows": windows,
        "killed": killed,
        "injected": status.injected,
        "late": status.counters["sums"].late,
    }
