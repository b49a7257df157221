"""How many timers are pending is known on both planes, whatever happened to driver and caches."""

from __future__ import annotations

import random

import msgspec
import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.inspect import Checkpoint
from millrace.inspect.overview import overview_of_log, overview_of_run
from tests.live import Feeds, InEpochs, Kept, Live

#: Of more keys than key intervals, each record with a timer of its own, half by either clock.
ROWS = [(n % 12, n, (n + 1) * mr.SECOND) for n in range(60)]


class Event(msgspec.Struct):
    key: int
    value: int
    at: int


class Reminds(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"reminders": int}

    def process_record(self, record: mr.Record) -> None:
        if self.key % 2:
            self.set_timer(record.value.value, at=self.wall_time + mr.DAY, domain=mr.WALL_TIME)
        else:
            self.set_timer(record.value.value, at=record.timestamp + 30 * mr.SECOND)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("reminders", timer.tag)


def reminding() -> mr.Pipeline:
    p = mr.Pipeline("reminding")
    feeds = Feeds("key long, value long, at long", {"a": ROWS})
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("1 s"), format=Event)
    p.add(Reminds)
    p.sink("reminders", Kept())
    return p


def told(run_log: RunLog) -> tuple[int | None, int | None]:
    """Return what is pending as the run says it."""
    one = overview_of_run(run_log).computations["Reminds"]
    return one.pending_timers, one.pending_wall_timers


def stored(live: Live) -> tuple[int, int]:
    """Return what is pending as the rows of the last commits say it."""
    found = [timer.domain for timer in Checkpoint(live.state)["Reminds"].timers()]
    return found.count("LOW_WATERMARK"), found.count("WALL_TIME")


@pytest.mark.parametrize("seed", range(3))
def test_in_real_time_it_is_what_is_stored_after_crashes_too(seed: int) -> None:
    live = Live(reminding())
    live.boot()
    live.play(random.Random(seed), turns=300, crash=0.03)
    live.boot()
    live.feed(60)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)

    # The low watermark is at 59 s. Of the 30 records of even keys those up to 29 s have fired.
    assert told(live.run_log) == stored(live) == (15, 30)


def test_it_goes_from_one_plane_to_the_other_and_is_there_right_after_a_restart() -> None:
    live = Live(reminding())
    epochs = InEpochs(live)
    live.feed(20)
    epochs.run(live.clock_us)
    assert told(epochs.run_log) == stored(live) == (10, 10)

    live.open()
    assert told(live.run_log) == (10, 10)
    one = overview_of_log(Checkpoint(live.state).ended).computations["Reminds"]
    assert (one.pending_timers, one.pending_wall_timers) == (10, 10)

    live.boot()
    live.feed(60)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    assert told(live.run_log) == stored(live)
    assert told(live.run_log)[1] == 30
    live.plane.end(live.clock_us)

    live.open()
    assert told(live.run_log) == stored(live)
