"""Percentile low watermarks on Spark: estimated from the records, for timers and for triggers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.testing import Output, outputs_of


class Event(msgspec.Struct, frozen=True):
    key: str
    n: int


class Count(msgspec.Struct, frozen=True):
    window: int
    percentile: int
    count: int


class Seen(msgspec.Struct, frozen=True):
    window: int
    counts: list[int]


class Early(mr.Computation):
    """Says a window's count twice: when most of it, and when all of it should be there."""

    inputs = {"events": mr.by("key")}
    outputs = {"counts": Count}
    percentiles = (90,)
    counts = mr.MapState(int)

    def process_record(self, record: mr.Record) -> None:
        window = record.timestamp // mr.MINUTE
        self.counts[window] = self.counts.get(window, 0) + 1
        self.set_timer((window, 90), at=(window + 1) * mr.MINUTE, percentile=90)
        self.set_timer((window, 100), at=(window + 1) * mr.MINUTE)

    def process_timer(self, timer: mr.Timer) -> None:
        window, percentile = timer.tag
        made = Count(window, percentile, self.counts[window])
        self.produce("counts", made, timestamp=timer.at - 1)


class Sees(mr.Computation):
    """Keeps the counts of a window, up to when most windows that end with it have been counted."""

    inputs = {"counts": mr.by("window")}
    outputs = {"seen": Seen}
    percentiles = (90,)
    seen = mr.ValueState(list[int])

    def process_record(self, record: mr.Record) -> None:
        self.seen.set([*self.seen.get([]), record.value.count])
        self.set_timer("end", at=record.timestamp, percentile=90)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("seen", Seen(self.key, self.seen.get([])))


def test_most_of_a_window_is_counted_before_the_stragglers_are_waited_for(tools: Any) -> None:
    feed = tools.feed("key string, n long, at timestamp")
    counts, panes = tools.Kept(), list[Output]()
    p = mr.Pipeline("percentiles")
    events = p.inject(
        "events",
        feed.stream,
        timestamp="at",
        low_watermark=mr.BoundedDelay("10 min"),
        format=Event,
    )
    p.add(Early)
    p.add(Sees)
    trigger = mr.SequenceOf(mr.AtWatermark(90), mr.Repeat(mr.AtWatermark()))
    windowed = events.key_by("key").window(mr.FixedWindows("1 min"), trigger=trigger)
    windowed.count().to("panes")
    p.sink("counts", counts)
    p.sink("panes", lambda rows, _: panes.extend(outputs_of(rows)))
    run = tools.start(p, intervals=4)
    # Nineteen records in twenty come in order; the twentieth is five minutes old.
    for epoch in range(5):
        times = [(epoch * 20 + n) * 10 * mr.SECOND for n in range(20)]
        times[10] = max(0, times[10] - 5 * mr.MINUTE)
        feed.add(*[("k", n, at) for n, at in enumerate(times)])
        tools.step(run)
    status = run.status()
    low_watermark = status.low_watermarks["Early"]
    early = [count["window"] for count in counts.values if count["percentile"] == 90]
    sure = [count["window"] for count in counts.values if count["percentile"] == 100]
    explained = str(run.explain_watermark())
    run.stop()

    assert low_watermark == 99 * 10 * mr.SECOND - 10 * mr.MINUTE
    assert sure == list(range(low_watermark // mr.MINUTE))
    # A straggler sets its window's early timer again, in the past.
    assert sorted(set(early)) == list(range(max(early) + 1))
    assert max(early) > max(sure) + 4
    assert status.counters["Sees"].timers > 0
    # A trigger fires when the timer of a computation does, and counts the same; again only if more
    # has come since.
    first: dict[int, dict[int, int]] = {90: {}, 100: {}}
    for count in counts.values:
        first[count["percentile"]].setdefault(count["window"], count["count"])
    again = {window: n for window, n in first[100].items() if n != first[90][window]}
    fired = [(each.pane.percentile, each.pane.timing) for each in panes]
    assert set(fired) == {(90, mr.EARLY), (100, mr.ON_TIME)}
    for percentile, expected in ((90, first[90]), (100, again)):
        found = [each for each in panes if each.pane.percentile == percentile]
        assert [(each.pane.window.start // mr.MINUTE, each.value) for each in found] == sorted(
            expected.items()
        )
    assert "the injector of stream 'events', which published" in explained


class Logs(mr.sources.Injector):
    """Ten hosts with a record each; the last goes on for as long as it is asked."""

    schema = "key string, n long, at timestamp"

    def processes(self) -> list[str]:
        return [f"host {n}" for n in range(10)]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(1)

    def read(self, process: str, start: Any, end: Any) -> Any:
        raise AssertionError("only by columns")

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        at = pa.array([0], pa.timestamp("us", tz="UTC"))
        row = pa.RecordBatch.from_arrays([[process], [1], at], ["key", "n", "at"])
        yield from itertools.repeat(row, 10**9 if process == "host 9" else 1)


def test_a_batch_ends_when_most_of_its_input_has_been_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    def pipeline(trigger: Any) -> tuple[mr.Pipeline, list[Output]]:
        p, panes = mr.Pipeline("stragglers"), list[Output]()
        logs = p.inject("logs", Logs(), timestamp="at", format=Event).key_by("key")
        logs.window(mr.FixedWindows("1 min"), trigger=trigger).count().to("panes")
        p.sink("panes", lambda rows, _: panes.extend(outputs_of(rows)))
        return p, panes

    final = mr.Repeat(mr.AtWatermark())
    p, panes = pipeline(mr.SequenceOf(mr.AtWatermark(90), final))
    status = p.run_batch(spark, percentile=90, scratch=str(tmp_path), progress=False)

    assert {pane.key: pane.pane.timing for pane in panes} == dict.fromkeys(
        [f"host {n}" for n in range(10 if len(panes) == 10 else 9)], mr.EARLY
    )
    assert {(pane.pane.percentile, pane.value) for pane in panes if pane.key != "host 9"} == {
        (90, 1)
    }
    (left,) = status.left["logs"]
    assert (left.process, left.between) == ("host 9", (None, 1))
    assert left.rows == sum(pane.value for pane in panes if pane.key == "host 9")
    assert status.counters["panes"].counted["timers_left"] == len(panes)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))

    with pytest.raises(PipelineError, match="no window or timer of 'stragglers' waits for so"):
        pipeline(final)[0].run_batch(spark, percentile=90, scratch=str(tmp_path))
