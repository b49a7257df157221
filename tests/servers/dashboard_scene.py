"""A checkpoint for a dashboard to show: flights in the Harness, kept in a directory."""

import json
import os
import random
import time
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

import millrace as mr
from millrace.compile.build import build
from millrace.inspect import key_text, shortened
from millrace.runtime.stuck import Stuck
from millrace.store import LocalHardState

SCRIPT = "<script>document.title='pwned'</script><img src=x onerror=document.title='pwned'>"
AIRPORTS = ("ATL", "ORD", "DFW", "DEN", "LAX", "SFO", "JFK", "BOS", SCRIPT)


class Delays(mr.Computation):
    """Counts flights by airport, and holds the low watermark for one that waits for a gate."""

    inputs = {"departures": mr.by("airport"), "weather": mr.by("airport")}
    outputs = {"delays": dict}
    minutes = mr.CombiningState(int)
    carriers = mr.MapState(int)
    wind = mr.ValueState(float)

    def process_record(self, record: mr.Record) -> None:
        if record.stream == "weather":
            self.wind.set(record.value["wind"])
            return
        if record.value["delay"] < 0:
            raise ValueError("a flight cannot leave before it is there")
        self.minutes.add(record.value["delay"])
        carrier = record.value["carrier"]
        self.carriers[carrier] = self.carriers.get(carrier, 0) + 1
        if record.value["delay"] == 99:
            self.hold(record.timestamp)
        self.produce("delays", record.value)
        self.set_timer("quiet", at=record.timestamp + 10 * mr.MINUTE)

    def process_timer(self, timer: mr.Timer) -> None:
        pass


class Alerts(mr.Computation):
    """Has the airports that are worst, by what groupings said."""

    inputs = {"totals": mr.by_key(), "worst": mr.by_key()}
    outputs = {"alerts": int}
    worst = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        if record.value > 40:
            self.worst.set(record.value)
            self.produce("alerts", record.value)


class _Hasty:
    """A disk that is not waited for."""

    def fsync(self, descriptor: int) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _Directory(LocalHardState):
    """Hard state in a directory, of which the Harness thinks that it is in memory."""

    def copy(self) -> "_Directory":
        return self  # nothing fails here that would have to be undone


def kept(
    pipeline: mr.Pipeline, path: Path, **harness: Any
) -> tuple[mr.testing.Harness, LocalHardState]:
    """Return a Harness that keeps its checkpoint in a directory, and the checkpoint."""
    state = _Directory.create_or_open(path, pipeline=pipeline.name, disk=_Hasty())
    with (
        patch("millrace.testing.harness.MemoryHardState", lambda: state),
        patch("millrace.testing.harness.with_taps", build),  # no sinks but the pipeline's
    ):
        return mr.testing.Harness(pipeline, **harness), state


class Flights:
    """A run of the Harness in a directory, moved along by hand.

    Args:
        path: Where its checkpoint is.
        epochs: How many rounds there are until now, twelve seconds of the clock each.
        intervals: Key intervals a computation, a power of two.
        now: What time it is, in microseconds; by default what it is.
    """

    def __init__(
        self, path: Path, *, epochs: int, intervals: int = 64, now: int | None = None
    ) -> None:
        p = mr.Pipeline("flights")
        p.inject("departures", format=dict)
        p.inject("weather", format=dict)
        p.add(Delays, name="Delays")
        p.dead_letter("broken")
        p.late_records("late")
        keyed = p.stream("delays").key_by("airport")
        windows = keyed.window(
            mr.FixedWindows("5 min"),
            trigger=mr.Repeat(mr.FirstOf(mr.AfterCount(20), mr.AtWatermark())),
            mode=mr.ACCUMULATING_AND_RETRACTING,
            allowed_lateness="30 min",
        )
        windows.sum("delay").to("totals")
        keyed.window(mr.Sessions("4 min")).max("delay").to("worst")
        p.add(Alerts, name="Alerts")
        p.sink("alerts", print)
        self.harness, self.state = kept(p, path, intervals=intervals)
        self.path = path
        self._draw = random.Random(7)
        self._measurements = 0
        now = time.time_ns() // 1000 if now is None else now
        self._now = now - epochs * 12 * mr.SECOND
        self._lines = path / "metrics" / "epochs.jsonl"
        self._lines.parent.mkdir(parents=True, exist_ok=True)
        self._shares = {"0": 0.52, "3": 0.085} | {
            str(n): round(0.2 / n, 4) for n in range(5, intervals, 3)
        }

    def go_on(self, rounds: int, *, late: bool = False, held: bool = False) -> None:
        """Let flights leave.

        Args:
            rounds: How many times.
            late: Whether a late record is in each.
            held: Whether one key holds the low watermark from now on.
        """
        for n in range(rounds):
            self._now += 12 * mr.SECOND
            self._round(self._now, late=late, held=held and not n)

    def fail(self) -> None:
        """Let user code fail on a record."""
        at = self._now - mr.MINUTE
        value = {"airport": "BOS", "carrier": "B6", "delay": -1}
        self.harness.inject("departures", [(value, at)])

    def heat(self, *keys: str | bytes) -> None:
        """Let the weather of keys be kept, and let them be the hottest in what is measured."""
        said = [({"airport": key, "wind": 3.5}, self._now) for key in keys]
        self.harness.inject("weather", said)
        line = json.loads(self._lines.read_bytes().splitlines()[-1])
        hot = {shortened(key_text(key), key): 0.6 - n / 100 for n, key in enumerate(keys)}
        line["hottest_keys"]["Delays"] |= hot
        self._write(line)

    def hang(self) -> None:
        """Write up user code that hangs, as a worker does again and again while it does."""
        mailbox = self.state.mailbox
        mailbox.remove([name for name in mailbox.names() if name.endswith(".stuck")])
        stuck = Stuck(
            "Alerts", "'JFK'", "record 40008 of 'totals' at 2026-11-22T09:00:05Z",
            "process 4914 on host worker-2", 94.0,
            '  File "flights.py", line 41, in process_record\n    answer = ask_gate(record.key)\n'
            '  File "gates.py", line 12, in ask_gate\n    return socket.recv(4096)\n',
        )  # fmt: skip
        name = f"{time.time_ns() // 1000:016d}-{uuid.uuid4().hex[:8]}.stuck"
        mailbox.put(name, msgspec.json.encode(stuck))

    def _round(self, wall: int, *, late: bool, held: bool) -> None:
        h = self.harness
        h.advance_clock(wall)
        flights: list[Any] = []
        for _ in range(self._draw.randrange(20, 45)):
            airport = "JFK" if self._draw.random() < 0.4 else self._draw.choice(AIRPORTS)
            delay = self._draw.choice((0, 1, 2, 3, 5, 8, 13))
            value = {"airport": airport, "carrier": self._draw.choice(("AA", "DL", "UA", "WN"))}
            at = wall - self._draw.randrange(5, 40) * mr.SECOND
            flights.append(({**value, "delay": delay}, at))
        if held:
            value = {"airport": "JFK", "carrier": "DL", "delay": 99}
            flights.append((value, wall - 20 * mr.SECOND))
        h.inject("departures", flights)
        h.inject("weather", [({"airport": a, "wind": 3.5}, wall - mr.SECOND) for a in AIRPORTS[:4]])
        h.advance_watermark("departures", wall - 45 * mr.SECOND)
        h.advance_watermark("weather", wall - 10 * mr.SECOND)
        if late:
            value = {"airport": "SFO", "carrier": "UA", "delay": 30}
            h.inject("departures", [(value, wall - 3 * mr.MINUTE)])
        self._measured(wall)

    def _measured(self, wall: int) -> None:
        parts = {
            name: round(seconds * self._draw.uniform(0.7, 1.5), 3)
            for name, seconds in (
                ("planning", 0.07), ("tasks", 0.36), ("sinks", 0.11), ("completing", 0.05),
            )
        }  # fmt: skip
        self._measurements += 1
        n = self._measurements
        line = {
            "at": wall, "epoch": self.harness.checkpoint().epoch,
            "epoch_duration_seconds": round(sum(parts.values()), 3),
            "epoch_part_seconds": parts,
            "backlog_records": {"departures": 1_284 + 37 * abs(n % 12 - 6) * (n % 24 < 12)},
            "backlog_files": {"weather": 3},
            "backlog_bytes": {"weather": 5_400_000},
            "hook_duration_seconds": {
                "Delays": {"p50": 2.0**-16, "p95": 2.0**-14, "p99": 2.0**-7},
                "Alerts": {"p50": 2.0**-9, "p95": 0.125, "p99": 2.0},
            },
            "hook_calls": {
                "Delays": {
                    str(size): calls * n
                    for size, calls in zip(
                        (*range(-18, -11), -8, -7), (210, 1900, 2600, 900, 130, 40, 9, 30, 31),
                        strict=True,
                    )
                },
                "Alerts": {
                    "-10": 120 * n, "-9": 310 * n, "-8": 90 * n, "-7": 22 * n,
                    # Of some epochs only:
                    "-4": 8 * (n // 2), "-3": 14 * (n // 3), "1": 6 * (n // 5),
                },
            },
            "service_calls": {"Alerts": 12_345},
            "service_call_retries": {"Alerts": 17},
            "service_failures": {"Alerts": 2},
            "service_calls_in_flight": {"Alerts": 96},
            "service_calls_waiting": {"Alerts": 0},
            "service_breaker_open_seconds": {"Alerts": 0.0},
            "service_call_duration_seconds": {
                "Alerts": {"p50": 2.0**-5, "p95": 2.0**-4, "p99": 0.5},
            },
            "hottest_keys": {
                "Delays": {"JFK": 0.412, "ATL": 0.081, SCRIPT: 0.06},
                "totals": {"JFK": 0.334},
            },
            "interval_shares": {"Delays": self._shares},
        }  # fmt: skip
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        with self._lines.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
