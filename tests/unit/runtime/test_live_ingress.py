"""Event time by ingress on the real-time plane: a record's time is decided once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

import millrace as mr
from millrace.injectors.follower import Polling
from tests.live import Feeds, Kept, Live


class OneByOne(Feeds):
    """Gives one row a turn."""

    def follow(self, places: Mapping[str, Any], *, most: int = 0) -> Polling:
        return super().follow(places, most=1)


def pipeline(feeds: Feeds) -> tuple[mr.Pipeline, Kept, Kept]:
    p, kept, late = mr.Pipeline("ingress"), Kept(), Kept()
    events = p.inject("events", feeds, timestamp=mr.INGRESS, low_watermark=mr.ArrivalTime(0))
    events.key_by("key").window(mr.FixedWindows("10 s")).count().to("counts")
    p.late_records("late")
    p.sink("counts", kept)
    p.sink("late", late)
    return p, kept, late


def test_what_is_read_again_has_the_time_that_it_had_and_is_not_late() -> None:
    feeds = Feeds("key long", {"a": [(1,), (1,), (1,)]})
    p, kept, late = pipeline(feeds)
    live = Live(p, tasks=1)
    live.boot()
    began_us = live.clock_us
    feeds.limit = 2
    for _ in range(2):  # it decides what to read, and reads it; no level has a turn
        live.plane.turn((0, 0), live.clock_us, 0)
    live.plane.crash()
    live.open()
    live.clock_us += mr.MINUTE
    live.boot()
    live.finish()

    windows = {
        round(row["_window_start"].timestamp() * mr.SECOND): row["value"] for row in kept.rows
    }
    assert windows == {began_us: 2, began_us + mr.MINUTE: 1}
    assert late.rows == []


@pytest.mark.parametrize("marks", [0, 1, 2])
def test_the_times_of_what_is_not_read_again_yet_outlast_marks_and_crashes(marks: int) -> None:
    feeds = OneByOne("key long", {"a": [(1,), (2,), (3,)]})
    p, kept, late = pipeline(feeds)
    live = Live(p, tasks=1)
    live.boot()
    began_us, feeds.limit = live.clock_us, 3
    for _ in range(8):
        live.plane.turn((0, 0), live.clock_us, 0)
    for _ in range(2):  # the second time it knows only what was written down in the first
        live.plane.crash()
        live.open()
        live.clock_us += mr.MINUTE
        live.boot()
        live.plane.turn((0, 0), live.clock_us)  # what was decided is read on: one row
        live.plane.turn((1, 0), live.clock_us)
        for _ in range(marks):
            live.coordinator.mark_soon()
            live.plane.tick(live.clock_us)
            live.plane.turn((0, 0), live.clock_us)
            live.plane.turn((1, 0), live.clock_us)
    live.finish()

    times = [round(row["_window_start"].timestamp() * mr.SECOND) for row in kept.rows]
    assert times == [began_us] * 3
    assert late.rows == []


def test_a_process_that_joins_before_another_in_order_changes_no_time_of_its_records() -> None:
    feeds = Feeds("key long", {"b": [(1,)]})
    p, kept, late = pipeline(feeds)
    live = Live(p, tasks=2)
    live.boot()
    began_us, feeds.limit = live.clock_us, 1
    for _ in range(2):  # the record's time is written down, and no level has a turn
        live.plane.turn((0, 0), live.clock_us, 0)
    live.plane.crash()
    feeds.feeds = {"a": [], **feeds.feeds}
    live.open()
    live.clock_us += mr.MINUTE
    live.boot()
    live.finish()

    times = [round(row["_window_start"].timestamp() * mr.SECOND) for row in kept.rows]
    assert times == [began_us]
    assert late.rows == []


@pytest.mark.parametrize("seed", range(12))
def test_each_record_counts_once_and_none_is_late_whatever_crashes(seed: int) -> None:
    rows = {name: [(n % 3,) for n in range(20)] for name in "ab"}
    feeds = Feeds("key long", rows)
    p, kept, late = pipeline(feeds)
    live = Live(p)
    live.boot()
    rng = random.Random(seed)
    for _ in range(6):
        live.play(rng, turns=40, crash=0.05, mark=0.05)
        live.clock_us += rng.randrange(4) * mr.SECOND
    live.finish()

    counted = Counter[str]()
    for row in kept.rows:
        counted[row["_key"]] += int(row["value"])
    assert sorted(counted.values()) == [12, 14, 14]
    assert len({(row["_key"], row["_window_start"]) for row in kept.rows}) == len(kept.rows)
    assert late.rows == []
