"""Percentile low watermarks of live tasks: as on the epoch plane, and through crashes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import timedelta

import msgspec
import pytest

import millrace as mr
from millrace.store import MemoryHardState
from tests.live import Feeds, InEpochs, Kept, Live

SCHEMA = "key string, n long, at long"
SHARES = (50, 90)


class Event(msgspec.Struct):
    key: str
    n: int
    at: int


class Clocks(msgspec.Struct):
    key: str
    n: int
    all: int
    most: int
    half: int


class Tells(mr.Computation):
    """Says which low watermarks it is run at."""

    inputs = {"events": mr.by("key")}
    outputs = {"told": Clocks}
    percentiles = SHARES

    def process_record(self, record: mr.Record) -> None:
        half, most = (self.percentile_low_watermarks[p] for p in SHARES)
        self.produce("told", Clocks(self.key, record.value.n, self.low_watermark, most, half))


class Again(mr.Computation):
    """The same, one level further down."""

    inputs = {"told": mr.by("key")}
    outputs = {"clocks": Clocks}

    def process_record(self, record: mr.Record) -> None:
        half, most = (self.percentile_low_watermarks[p] for p in SHARES)
        self.produce("clocks", Clocks(self.key, record.value.n, self.low_watermark, most, half))


def straggling(seed: int, rows: int, *, keys: str = "k") -> list[tuple[str, int, int]]:
    """One record every ten seconds; one in ten is minutes old."""
    rng = random.Random(seed)
    return [
        (
            rng.choice(keys),
            n,
            max(1, n * 10 - (rng.randrange(100, 500) if rng.random() < 0.1 else 0)) * mr.SECOND,
        )
        for n in range(rows)
    ]


def windowed(feeds: Feeds) -> tuple[mr.Pipeline, Kept]:
    p, kept = mr.Pipeline("windowed"), Kept()
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("10 min"), format=Event)
    trigger = mr.SequenceOf(mr.AtWatermark(90), mr.Repeat(mr.AtWatermark()))
    windows = p.stream("events").key_by("key").window(mr.FixedWindows("1 min"), trigger=trigger)
    windows.count().to("counts")
    p.sink("counts", kept)
    return p, kept


def clocks(feeds: Feeds) -> tuple[mr.Pipeline, Kept, Kept]:
    p, told, further = mr.Pipeline("clocks"), Kept(), Kept()
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("10 min"), format=Event)
    p.add(Tells)
    p.add(Again)
    p.sink("told", told)
    p.sink("clocks", further)
    return p, told, further


def read(live: Live, limit: int) -> None:
    """Have everything read up to a limit, and all low watermarks told."""
    live.feed(limit)
    for _ in range(3):
        live.clock_us += 10 * mr.MILLISECOND
        live.plane.settle(live.clock_us)


def panes(kept: Kept) -> list[tuple]:
    names = ("_window_end", "value", "_pane_index", "_pane_timing", "_percentile")
    return [tuple(row[name] for name in names) for row in kept.rows]


@pytest.mark.parametrize(("processes", "tasks"), [(1, 2), (2, 1)])
def test_panes_are_those_of_the_epoch_plane(processes: int, tasks: int) -> None:
    def feeds() -> Feeds:
        return Feeds(SCHEMA, {f"p{n}": straggling(n, 100) for n in range(processes)})

    pipeline, expected = windowed(feeds())
    epochs = InEpochs(Live(pipeline, tasks=tasks))
    live_pipeline, kept = windowed(feeds())
    live = Live(live_pipeline, tasks=tasks)
    live.boot()
    for limit in range(20, 120, 20):
        epochs.topology.injected()[0].injection.source.limit = limit
        epochs.run(live.clock_us)
        epochs.run(live.clock_us)  # what is published after those records
        read(live, limit)
        live.plane.mark(live.clock_us)

        assert sorted(panes(kept)) == sorted(panes(expected))
    found = panes(kept)
    assert {(timing, percentile) for *_, timing, percentile in found} == {
        ("EARLY", 90), ("ON_TIME", 100)
    }  # fmt: skip
    assert max(end for end, *_, share in found if share == 90) > timedelta(minutes=4) + max(
        end for end, *_, share in found if share == 100
    )
    assert live.run_log.authority.low_watermarks == epochs.run_log.authority.low_watermarks


def test_a_process_that_stands_still_does_not_hold_a_smaller_share() -> None:
    feeds = Feeds(
        SCHEMA,
        {
            "fast": [("k", n, n * 10 * mr.SECOND) for n in range(300)],
            "slow": [("k", n, n * 10 * mr.SECOND) for n in range(5)],
        },
    )
    pipeline, kept = windowed(feeds)
    live = Live(pipeline, tasks=2)
    live.boot()
    for limit in range(5, 305, 5):
        read(live, limit)
    live.plane.mark(live.clock_us)

    low_watermarks = live.run_log.authority.low_watermarks
    (computation,) = low_watermarks.inputs
    assert low_watermarks.inputs[computation] == (40 - 600) * mr.SECOND
    # Of a hundred records, two were of the slow one. The fast one's own is at 2390 s.
    assert low_watermarks.percentiles[90].inputs[computation] >= 2390 * mr.SECOND
    assert {share for *_, share in panes(kept)} == {90}


def assert_ordered(rows: list[dict], last: dict[str, tuple[int, ...]]) -> None:
    for row in sorted(rows, key=lambda row: (row["key"], row["_id"])):
        now = row["all"], row["most"], row["half"]
        assert now == tuple(sorted(now))
        for before, after in zip(last.get(row["key"], now), now, strict=True):
            assert after >= before
        last[row["key"]] = now


@pytest.mark.parametrize("seed", range(6))
def test_they_are_ordered_and_never_move_back_whatever_crashes(seed: int) -> None:
    feeds = Feeds(SCHEMA, {f"p{n}": straggling(n, 120, keys="abcdef") for n in range(3)})
    pipeline, told, further = clocks(feeds)
    live = Live(pipeline)
    live.boot()
    live.play(random.Random(seed), turns=900, crash=0.02, mark=0.1)
    live.boot()
    live.finish()

    for kept in (told, further):
        assert len(kept.rows) == 360
        assert_ordered(kept.rows, {})
    before_the_end = [row for row in told.rows if row["half"] < mr.MAX_TIMESTAMP]
    assert any(row["half"] > row["most"] > row["all"] for row in before_the_end)


def test_they_go_from_plane_to_plane_with_what_they_go_by() -> None:
    feeds = Feeds(SCHEMA, {f"p{n}": straggling(n, 200, keys="abc") for n in range(2)})
    pipeline, told, _ = clocks(feeds)
    live = Live(pipeline, state=MemoryHardState())
    known: Mapping[int, int] = {}
    for limit, plane in (
        (40, "live"),
        (100, "epochs"),
        (101, "live"),
        (102, "live"),
        (103, "epochs"),
    ):
        if plane == "live":
            live.open()
            live.boot()
            read(live, limit)
            live.plane.end(live.clock_us)
            authority = live.run_log.authority
        else:
            epochs = InEpochs(live)
            live.feed(limit)
            epochs.run(live.clock_us)
            epochs.run(live.clock_us)
            authority = epochs.run_log.authority
        now = {p: of.inputs["Tells"] for p, of in authority.low_watermarks.percentiles.items()}
        if known:
            # By what this run has read alone, they would not move yet.
            assert all(now[p] >= known[p] + 10 * mr.SECOND for p in SHARES)
        known = now
    assert len(told.rows) == 206
    assert_ordered([row for row in told.rows if row["key"] == "a"], {})
