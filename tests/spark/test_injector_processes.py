"""Processes of an injector on Spark: the slowest counts, idleness, and punctuation in the rows."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError

DDL = "name string, at long, who string, until long, mark boolean"


class Late(mr.Computation):
    """Fires for each record once, and says which were late."""

    inputs = {"events": mr.by("name")}
    outputs = {"seen": str}

    def process_record(self, record: mr.Record) -> None:
        assert sorted(record.value) == ["name"]
        if record.late:
            self.produce("seen", f"late {record.timestamp}")
        self.set_timer(record.timestamp, at=record.timestamp + 1)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("seen", f"fired {timer.tag}")


class LateByFunction(Late):
    """The same through the encode stage."""

    inputs = {"events": mr.by(lambda value: value["name"])}


@pytest.mark.parametrize("computation", [Late, LateByFunction])
def test_a_low_watermark_for_each_process(tools: Any, computation: Any) -> None:
    feed, kept = tools.feed(DDL), tools.Kept()
    p = mr.Pipeline("processes")
    p.inject(
        "events",
        feed.stream,
        timestamp="at",
        low_watermark=mr.WatermarkColumn("until", punctuation="mark"),
        process="who",
        expected=["a", "b"],
        idle="1 min",
    )
    p.add(computation, name="Late")
    p.sink("seen", kept)
    feed.add(("x", 100, "a", 50, False), ("y", 120, "a", 110, None))
    run = tools.start(p)
    tools.step(run)
    assert run.status().missing == {"events": ["b"]}
    assert run.status().low_watermark == mr.MIN_TIMESTAMP

    # Punctuation of b: no record, whatever else is in it; and a claim that no clock allows.
    feed.add((None, None, "b", 101, True), (None, 9, "b", T_FAR, True))
    tools.step(run)
    assert kept.values == ["fired 100"]
    assert run.status().low_watermark == 101
    assert run.status().injected == {"events": 2}
    assert run.status().refused_low_watermarks == {"events": 1}

    # A new run knows what the old one had heard; and a is silent for a minute.
    run.stop()
    tools.clock.now += 59 * mr.SECOND
    run = tools.start(p)
    feed.add(("z", 99, "b", 115, False), ("z", 130, "b", 118, False))
    tools.step(run)
    assert sorted(kept.values) == ["fired 100", "fired 99", "late 99"]
    assert run.status().low_watermark == 110
    tools.clock.now += mr.SECOND
    tools.step(run)
    assert run.status().idle == {"events": ["a"]}
    assert run.status().low_watermark == 118
    feed.add(("y", 140, "a", 125, False))
    tools.step(run)
    assert run.status().idle == {}
    assert run.status().low_watermark == 118
    assert tools.finish(run).counters["Late"].late == 1
    assert sorted(kept.values) == [
        *("fired 100", "fired 120", "fired 130", "fired 140", "fired 99", "late 99"),
    ]


T_FAR = mr.DAY * 365 * 200


def test_a_low_watermark_in_a_column_of_another_unit(tools: Any) -> None:
    feed, kept = tools.feed("name string, at long, until long"), tools.Kept()
    p = mr.Pipeline("units")
    policy = mr.WatermarkColumn("until", unit="ms")
    p.inject("events", feed.stream, timestamp="at", unit="s", low_watermark=policy)
    p.add(Late)
    p.sink("seen", kept)
    feed.add(("x", 7, 5_500))
    run = tools.start(p)
    tools.step(run)
    assert run.status().low_watermark == 5_500_000
    assert run.status().newest == {"events": 7_000_000}


def test_columns_that_are_not_there_are_named_before_anything_runs(tools: Any) -> None:
    def start(**options: Any) -> None:
        p = mr.Pipeline("wrong")
        p.inject("events", tools.feed(DDL).stream, timestamp="at", **options)
        p.add(Late)
        tools.start(p)

    with pytest.raises(PipelineError, match=r"no column 'partition', which inject\(process=\)"):
        start(low_watermark=mr.BoundedDelay(0), process="partition")
    with pytest.raises(PipelineError, match=r"'name', which says whether .* is string"):
        start(low_watermark=mr.WatermarkColumn("until", punctuation="name"))
    with pytest.raises(PipelineError, match="'who' is string"):
        start(low_watermark=mr.WatermarkColumn("who"))
