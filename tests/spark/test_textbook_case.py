"""The textbook case of tests/faults/test_textbook_case.py on Spark: a worker dies at the 61st.

Source, enrichment, aggregation, alerting; 100 transactions in one epoch. One task of the
aggregation checkpoints 60 and sends nothing on; the other one's worker dies with 40 in its hands.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import RunFailed
from millrace.model.keys import encode_key, hash_key
from millrace.store import open_location

INTERVALS = 16


def interval(account: int) -> int:
    return hash_key(encode_key(account)) * INTERVALS >> 64


def accounts() -> list[int]:
    """Return ten accounts in ten intervals, six of the first task and four of the second."""
    found: dict[int, int] = {}
    for account in range(10_000):
        found.setdefault(interval(account), account)
    return [found[n] for n in (*range(6), *range(8, 12))]


class Enriched(msgspec.Struct):
    transaction: int
    account: int
    amount: int
    risk: float


class Balance(msgspec.Struct):
    account: int
    count: int
    total: int


class Enrichment(mr.Computation):
    inputs = {"transactions": mr.by("id")}
    outputs = {"enriched": Enriched}

    def process_record(self, record: mr.Record) -> None:
        t = record.value
        self.produce("enriched", Enriched(t["id"], t["account"], t["amount"], random.random()))


class Aggregation(mr.Computation):
    inputs = {"enriched": mr.by("account")}
    outputs = {"balances": Balance}
    count = mr.CombiningState(int)
    total = mr.CombiningState(int)

    def __init__(self, folder: str, checkpoint: str, first: list[int]) -> None:
        self.folder = folder
        self.checkpoint = checkpoint
        self.first = first

    def process_record(self, record: mr.Record) -> None:
        with Path(self.folder, "journal").open("a") as file:
            file.write(f"{record.value.transaction}\n")
        fuse = Path(self.folder, "fuse")
        if interval(self.key) >= INTERVALS // 2 and fuse.exists():
            # Not before the other task has checkpointed what it has.
            commits = open_location(self.checkpoint, pipeline="bank").commits
            while not all(commits.exists("Aggregation", interval(a), 1) for a in self.first):
                time.sleep(0.02)
            fuse.unlink()
            os._exit(1)
        self.count.add(1)
        self.total.add(record.value.amount)
        self.produce("balances", Balance(self.key, self.count.get(), self.total.get()))


class Alerting(mr.Computation):
    inputs = {"balances": mr.by("account")}
    outputs = {"alerts": Balance}
    alerted = mr.ValueState(bool)

    def process_record(self, record: mr.Record) -> None:
        if record.value.total >= 300 and not self.alerted.get(False):
            self.alerted.set(True)
            self.produce("alerts", record.value)


def test_a_worker_dies_with_60_of_100_checkpointed(tools: Any, tmp_path: Path) -> None:
    feed = tools.feed("id long, account long, amount long, at long")
    there = accounts()
    rows = [(n, there[n // 10], 7 * n % 60 + 1, n) for n in range(100)]
    feed.add(*rows)
    (tmp_path / "fuse").touch()
    balances, alerts = tools.Kept(), tools.Kept()
    p = mr.Pipeline("bank")
    p.inject("transactions", feed.stream, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Enrichment)
    p.add(Aggregation(str(tmp_path), tools.checkpoint, there[:6]))
    p.add(Alerting)
    p.sink("balances", balances)
    p.sink("alerts", alerts)
    run = tools.start(p, tasks=2, intervals=INTERVALS, attempts=1)
    with pytest.raises(RunFailed, match="worker"):
        tools.step(run)
    assert balances.rows == []

    run = tools.start(p, tasks=2, intervals=INTERVALS)
    status = tools.finish(run)
    assert status.replayed >= 6
    calls = Counter((tmp_path / "journal").read_text().split())
    assert all(calls[str(n)] == 1 for n in range(60)), "what was checkpointed ran again"
    assert all(calls[str(n)] in (1, 2) for n in range(60, 100))
    assert status.counters["Aggregation"].records == 100
    by_account = tools.by_key(balances.rows)
    totals = {a: sum(amount for _, account, amount, _ in rows if account == a) for a in there}
    for account in there:
        own = [value for value, _ in by_account[repr(account)]]
        assert [value["count"] for value in own] == list(range(1, 11))
        assert own[-1]["total"] == totals[account]
    assert sorted(value["account"] for value in alerts.values) == sorted(
        account for account in there if totals[account] >= 300
    )
