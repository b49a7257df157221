"""In real time each sender's rows come to a sink in order, whether they travel as few or as many.

A sink that knows by the last number of a sender what it has takes a row that comes too late for one
that comes again, and drops it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import millrace as mr
from millrace.connectors.postgres.live_writer import Consumed
from tests.live import Feeds, Live

#: Rows of one turn that are few, and of another that are many.
FEW, MANY = 5, 200
ROWS = [(n % 3, n, 1_000_000 * n) for n in range(FEW + MANY)]


class Event(msgspec.Struct):
    key: int
    value: int


class Log(Feeds):
    """Only grows, so what is read again may be followed at once by what is new."""

    seamless = True


class Count(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counted": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("counted", record.value.value)


class Last(mr.Computation):
    """Makes it a pipeline of two levels: what the first sends to sinks passes the second."""

    inputs = {"counted": mr.by_key()}

    def process_record(self, record: mr.Record) -> None:
        pass


class Table:
    """A live sink that drops what it has, as that of PostgreSQL does, write by write."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._consumed = Consumed({})

    def live(self) -> Table:
        return self

    def begin(self, incarnation: int, generation: int, task: int) -> Table:
        return self

    def write(self, rows: Any, origins: Any, sequences: Any) -> None:
        news = self._consumed.news(origins, sequences)
        fresh = np.flatnonzero(news.fresh).tolist()
        self.rows += [rows.to_pylist()[n] for n in fresh]
        self._consumed.add(news)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __call__(self, *_: Any) -> None:
        """Stand for a sink of the epoch plane."""


def pipeline(stream: str) -> tuple[Live, Table]:
    p = mr.Pipeline("order")
    source = Log("key long, value long, at long", {"a": ROWS})
    p.inject("events", source, timestamp="at", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(Count)
    p.add(Last)
    sink = Table()
    p.sink(stream, sink)
    live = Live(p, tasks=1)
    live.boot()
    return live, sink


def above_the_sink(live: Live) -> None:
    """Have what there is read and consumed, and stand before the task that writes the sink."""
    for _ in range(3):
        live.plane.turn((0, 0), live.clock_us)
        live.plane.turn((1, 0), live.clock_us)


@pytest.mark.parametrize("stream", ["counted", "events"])
def test_few_rows_and_then_many_that_arrive_together_reach_a_sink_in_that_order(
    stream: str,
) -> None:
    live, sink = pipeline(stream)
    for rows in (FEW, FEW + MANY):
        live.feed(rows)
        above_the_sink(live)
    live.finish()
    assert sorted(row["value"] for row in sink.rows) == list(range(FEW + MANY))


def test_few_rows_that_are_read_again_and_then_many_new_ones_reach_a_sink_in_that_order() -> None:
    live, sink = pipeline("events")
    live.feed(FEW)
    above_the_sink(live)
    live.boot()
    live.feed(FEW + MANY)
    live.finish()
    assert sorted(row["value"] for row in sink.rows) == list(range(FEW + MANY))
