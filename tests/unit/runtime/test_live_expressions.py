"""Expressions in real time: rows of an injector, few and many, and of a computation."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

import millrace as mr
from tests.live import Feeds, Kept, Live


class Counted(msgspec.Struct):
    n: int


class Event(msgspec.Struct):
    key: int
    value: int


class Seen(mr.ColumnComputation):
    """Which record of its key is it?"""

    inputs = {"events": mr.by("key")}
    outputs = {"seen": Counted}
    count = mr.ValueState(int)

    def process_batch(self, block: mr.KeyBlock) -> None:
        before = block.state["count"].fill_null(0).to_numpy()
        nth = np.arange(len(block)) - block.starts[block.key_of] + 1 + before[block.key_of]
        block.set_state(count=before + np.bincount(block.key_of, minlength=len(block.keys)))
        block.produce("seen", {"n": nth})


@pytest.mark.parametrize("count", [3, 500])
def test_steps_are_computed_of_columns_that_an_injector_declares(count: int) -> None:
    rows = [(n % 5, n, n + 1) for n in range(count)]
    p, kept, sums = mr.Pipeline("many"), Kept(), Kept()
    events = p.inject(
        "events",
        Feeds("key long, value long, at long", {"a": rows}),
        timestamp="at",
        low_watermark=mr.BoundedDelay("1 s"),
    )
    some = events.filter(mr.col("value") % 2 == 1)
    some.select("key", twice=mr.col("value") * 2).to("twice")
    counts = some.key_by(mr.col("key") % 2).window(mr.FixedWindows("1 h")).count()
    counts.map(lambda n: {"n": n}).to("counts", Counted).filter(mr.col("n") > 0).to("kept")
    p.sink("twice", kept)
    p.sink("kept", sums)
    live = Live(p, tasks=2)
    live.boot()
    live.finish()

    odd = [(key, value) for key, value, _ in rows if value % 2]
    found = sorted((row["key"], row["twice"]) for row in kept.rows)
    assert found == sorted((key, 2 * value) for key, value in odd)
    assert len({row["_id"] for row in kept.rows}) == len(odd)
    wanted = {str(rest): sum(key % 2 == rest for key, _ in odd) for rest in (0, 1)}
    assert {row["_key"]: row["n"] for row in sums.rows} == {k: n for k, n in wanted.items() if n}


@pytest.mark.parametrize("seed", range(3))
def test_records_of_many_keys_are_one_block_in_real_time_with_crashes(seed: int) -> None:
    rows = [(n % 7, n, n + 1) for n in range(100)]
    p, kept = mr.Pipeline("blocks"), Kept()
    p.inject(
        "events",
        Feeds("key long, value long, at long", {"a": rows}),
        format=Event,
        timestamp="at",
        low_watermark=mr.BoundedDelay("1 s"),
    )
    p.add(Seen)
    p.sink("seen", kept)
    live = Live(p, tasks=2)
    live.boot()
    live.play(random.Random(seed), turns=80, crash=0.1, mark=0.1)
    live.finish()

    found = sorted((row["_key"], row["n"]) for row in kept.rows)
    assert found == sorted((str(key), n // 7 + 1) for key, n, _ in rows)
