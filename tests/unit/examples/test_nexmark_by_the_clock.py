"""Nexmark's query 12 in real time, whose windows are the clock's: no crash moves or loses a bid."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace_examples.nexmark import events, files, oracle, results, suite
from tests.live import Feeds, Kept, Live

MADE = [event for _, event in events.Generator(rate=20, seed=3).events(300)]
BIDS = [msgspec.structs.astuple(event) for event in MADE if isinstance(event, events.Bid)]


@pytest.mark.parametrize("seed", range(4))
def test_the_bids_of_each_bidder_are_those_of_sql_whatever_crashes(seed: int) -> None:
    feeds = Feeds(files.COLUMNS["bids"], {"even": BIDS[::2], "odd": BIDS[1::2]})
    p, kept = suite.pipeline({"arrivals": feeds}, ["q12"]), Kept()
    p.sink("q12", kept)
    live, rng = Live(p), random.Random(seed)
    live.boot()
    for _ in range(8):
        live.play(rng, turns=30, crash=0.05, mark=0.05)
        live.clock_us += rng.randrange(8) * mr.SECOND
    live.finish()

    verdict = results.compare(
        "q12",
        pa.Table.from_pylist(kept.rows),
        oracle.database((event, 0) for event in MADE),
        clock=False,
    )
    assert verdict.agrees, verdict
    assert verdict.rows >= 2
    windows = {row["_window_start"] for row in kept.rows}
    assert len(windows) > 1, "the clock stood still"
    assert len({(row["_key"], row["_window_start"]) for row in kept.rows}) == len(kept.rows)
