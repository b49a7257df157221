"""Times as datetimes: taken wherever microseconds are, and shown beside them."""

import datetime as dt
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError, UserCodeError

NOON = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


class Reminder(mr.Computation):
    """Keeps a due date an hour after each record, holds it, and produces at it."""

    inputs = {"events": mr.by(str.lower)}
    outputs = {"due": str}

    def process_record(self, record: mr.Record) -> None:
        self.hold(record.time)
        self.set_timer("due", at=record.time + HOUR, hold=record.time)

    def process_timer(self, timer: mr.Timer) -> None:
        self.hold(None)
        self.produce("due", timer.time.isoformat(), timestamp=timer.time + HOUR)


class Hours(mr.WindowFn):
    def assign(self, record: mr.Record) -> list[Any]:
        start: Any = record.time.replace(minute=0)
        return [mr.Window(start, start + HOUR)]


class OnTheHour(mr.Trigger):
    """Fires an hour after the first element."""

    finishes = True

    def on_element(self, ctx: Any) -> None:
        ctx.set_timer("hour", at=NOON + HOUR)

    def on_timer(self, ctx: Any) -> None:
        ctx.trigger()
        ctx.done()


def test_computations_take_and_show_them() -> None:
    p = mr.Pipeline("due")
    p.inject("events", format=str)
    p.add(Reminder)

    with mr.testing.Harness(p) as h:
        h.inject("events", [("A", NOON)])
        h.advance_watermark("events", NOON + HOUR / 2)
        assert h.output_low_watermark("Reminder") == NOON.timestamp() * mr.SECOND
        h.advance_watermark("events", NOON + HOUR)
        (output,) = h.outputs("due")

    assert (output.value, output.time) == ("2026-11-22T13:00:00+00:00", NOON + 2 * HOUR)


def test_windows_and_triggers_take_and_show_them() -> None:
    p = mr.Pipeline("hours")
    events = p.inject("events", format=str).key_by(str.lower)
    once = events.window(Hours(), trigger=OnTheHour(), allow_data_loss=True)
    once.count().map(mr.of_record(lambda r: [r.window.start_time, r.time])).to("hours")

    with mr.testing.Harness(p) as h:
        h.inject("events", [("A", NOON + dt.timedelta(minutes=7))])
        h.advance_watermark("events", NOON + HOUR)
        (output,) = h.outputs("hours")

    assert output.value == [NOON, NOON + HOUR - dt.timedelta(microseconds=1)]
    assert output.pane is not None
    assert output.pane.window.end_time == NOON + HOUR


def test_the_global_window_and_the_end_of_time_have_none() -> None:
    assert (mr.Window().start_time, mr.Window().end_time) == (None, None)
    with pytest.raises(PipelineError, match="end of time"):
        _ = mr.Timer("t", at=mr.MAX_TIMESTAMP).time


def test_a_datetime_without_a_time_zone_is_refused() -> None:
    class Local(Reminder):
        def process_record(self, record: mr.Record) -> None:
            self.set_timer("due", at=dt.datetime(2026, 11, 22))

    p = mr.Pipeline("local")
    p.inject("events", format=str)
    p.add(Local)

    with mr.testing.Harness(p) as h, pytest.raises(UserCodeError, match="has no time zone"):
        h.inject("events", [("A", NOON)])
