"""Status and metrics of one pipeline on both planes, name by name and value by value.

What is expected is in ``metrics_of_both_planes.json``. ``EXPECTED=write`` writes it anew.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.balance.load import RunLoads
from millrace.connectors.kafka.messages import MessageRows
from millrace.injectors.follower import Polling
from millrace.inspect import as_json
from millrace.inspect.overview import ended, fitted, overview_of_log, overview_of_run
from millrace.spark.metrics.table import BOUNDS, HISTOGRAMS, below, values
from millrace.spark.status import Progress, Status
from tests.live import Feeds, InEpochs, Kept, Live

FILE = Path(__file__).with_name("metrics_of_both_planes.json")


class Flight(msgspec.Struct):
    carrier: str
    delay: int
    at: int


class Delays(mr.Computation):
    """Adds up delays, fails on some, sets timers of both clocks."""

    inputs = {"flights": mr.by("carrier")}
    outputs = {"delays": dict}
    percentiles = (50,)
    total = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        if record.value.delay == 13:
            raise ValueError("thirteen")
        self.increment("delayed")
        self.total.add(record.value.delay)
        self.set_timer("hour", at=record.timestamp + mr.MINUTE)
        self.set_timer("day", at=self.wall_time + mr.DAY, domain=mr.WALL_TIME)
        self.produce("delays", {"carrier": self.key, "total": self.total.get()})

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("delays", {"carrier": self.key, "total": self.total.get()})


class Counts(mr.Computation):
    inputs = {"messages": mr.by("key")}
    outputs = {"counts": int}
    count_of = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count_of.set(self.count_of.get(0) + 1)
        self.produce("counts", self.count_of.get())


class Messages(mr.sources.Injector):
    """Rows of messages, as Kafka's are made; only those up to a limit are there yet."""

    def __init__(self, values: list[bytes | None]) -> None:
        self._rows = MessageRows("key long, at long", None, None, drops=True)
        self.schema = self._rows.schema
        self._values = values
        self.limit = 0

    def processes(self) -> list[str]:
        return ["t-3"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(min(len(self._values), self.limit))

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[Any]:
        yield self._rows.batch(
            process, [_Message(n, self._values[n]) for n in range(start or 0, end)]
        )

    def follow(self, places: Any, *, most: int = 100_000) -> Polling:
        return Polling(self, places, most=most, clock=itertools.count().__next__)


class _Message:
    def __init__(self, offset: int, value: bytes | None) -> None:
        self.offset, self.value = lambda: offset, lambda: value

    def key(self) -> bytes:
        return b"key"


class Promising(Feeds):
    """Feeds that publish a low watermark of their own, sometimes one of a broken clock."""

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        end = super().advance(process, offset).offset
        return mr.sources.Advance(end, low_watermark=(10**9 if end > 8 else end) * mr.SECOND)


def pipeline() -> mr.Pipeline:
    p = mr.Pipeline("flights")
    flights = {
        name: [
            (f"c{(n * step) % 5}", n % 14, (n * 10 if n % 9 else 1) * mr.SECOND)
            for n in range(1, 31)
        ]
        for name, step in (("east", 2), ("west", 3))
    }
    messages = [
        None if n % 7 == 0 else b"oops" if n % 5 == 0 else json.dumps(
            {"key": n % 3, "at": n * mr.SECOND}
        ).encode()
        for n in range(30)
    ]  # fmt: skip
    p.inject(
        "flights",
        Feeds("carrier string, delay long, at long", flights),
        timestamp="at",
        low_watermark=mr.BoundedDelay("5 s"),
        format=Flight,
    )
    p.inject(
        "messages", Messages(messages), timestamp="at", low_watermark=mr.BoundedDelay("1 s"),
        format=dict,
    )  # fmt: skip
    beats = Promising("n long, at long", {"x": [(n % 2, n * mr.SECOND) for n in range(1, 21)]})
    p.inject("beats", beats, timestamp="at", id="at", format=dict)
    p.add(Delays)
    p.add(Counts)
    p.stream("beats").key_by("n").window(mr.FixedWindows("5 s")).count().to("beaten")
    p.sink("beaten", Kept())
    p.sink("delays", Kept())
    p.dead_letter("letters")
    return p


def stopwatch() -> Callable[[], float]:
    """Return a stopwatch on which a millisecond passes whenever somebody looks."""
    looks = itertools.count()
    return lambda: next(looks) / 1000


def on_epochs() -> Iterator[tuple[Any, Any, Any, Progress]]:
    live = Live(pipeline(), seconds=stopwatch())
    epochs, progress = InEpochs(live), Progress("flights")
    loads = RunLoads(epochs.run_log)
    for limit in (7, 8, 20, 20, 30):
        for spec in epochs.topology.injected():
            spec.injection.source.limit = limit
        live.clock_us += mr.SECOND
        turn = epochs.run(live.clock_us, draining=limit == 30)
        progress.add(turn.report, 0.5, {"tasks": 0.25})
        yield epochs.run_log, loads, epochs.driver.publisher, progress


def in_real_time() -> Iterator[tuple[Any, Any, Any, Progress]]:
    live, progress = Live(pipeline(), seconds=stopwatch()), Progress("flights")
    publisher = InEpochs(Live(pipeline())).driver.publisher
    live.boot()
    for limit in (7, 8, 20, 20, 30):
        for spec in live.topology.injected():
            spec.injection.source.limit = limit
        live.clock_us += mr.SECOND
        live.plane.settle(live.clock_us)
        if limit == 8:
            live.boot()
            live.plane.settle(live.clock_us)
        if limit == 30:
            live.plane.end(live.clock_us, draining=True)
        else:
            live.plane.mark(live.clock_us)
        (marked,) = live.marks
        live.marks.clear()
        progress.add(marked.report, 0.5)
        yield live.run_log, live.loads, publisher, progress


def rounded(found: Any) -> Any:
    """Return plain data with floats of which the last digits do not count."""
    if isinstance(found, dict):
        return {name: rounded(of) for name, of in found.items() if name != "task_seconds"}
    if isinstance(found, list):
        return [rounded(one) for one in found]
    return round(found, 9) if isinstance(found, float) else found


def said(epochs: Any, loads: Any, publisher: Any, progress: Progress) -> dict[str, Any]:
    status: Status = progress.status(epochs, loads, publisher, state="running")
    run, log = overview_of_run(epochs), overview_of_log(fitted(ended(epochs.state.epochs)))
    assert (run.computations, run.streams) == (log.computations, log.streams)
    metric = HISTOGRAMS[0]
    plain = {
        "status": vars(status) | {"late": status.late, "lag": status.lag},
        "metrics": values(status),
        "hook_times": {
            "name": metric.name,
            "help": metric.help,
            "bounds": BOUNDS,
            "counts": {name: below(times) for name, times in metric.draw(status).items()},
            "sums": {name: times.seconds for name, times in metric.draw(status).items()},
        },
        "run": run,
    }
    return rounded(json.loads(as_json(plain)))


@pytest.mark.parametrize("plane", [on_epochs, in_real_time])
def test_what_is_said_of_a_run_is_what_was_said_before(plane: Any) -> None:
    found = [said(*one) for one in plane()]
    expected = json.loads(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("EXPECTED") == "write":
        written = json.dumps(expected | {plane.__name__: found}, sort_keys=True)
        FILE.write_text(written.replace('{"hook_times"', '\n{"hook_times"') + "\n")
    else:
        assert found == expected[plane.__name__]
