"""Draw the pictures of docs/time.md: ``python docs/pictures/time.py``.

Each is a run in the Harness, with records whose delays are drawn from a seeded generator, so they
come out the same. Needs ``pip install 'millrace-spark[plots]'``.
"""

from __future__ import annotations

import random
from pathlib import Path

import millrace as mr

HERE = Path(__file__).parent
START = 1_767_261_600_000_000  # 2026-01-01T10:00:00Z
DELAY = 40 * mr.SECOND
VISIT = 45 * mr.SECOND  # one user after the other


class Clean(mr.Computation):
    """Passes records on."""

    inputs = {"events": mr.by("user")}
    outputs = {"clean": dict}

    def process_record(self, record: mr.Record) -> None:
        """Pass it on at its time."""
        if not record.late:
            self.produce("clean", record.value)


class Sessions(mr.Computation):
    """Keeps what a user does until a pause of half a minute, under a hold."""

    inputs = {"clean": mr.by("user")}
    outputs = {"sessions": int}
    first = mr.ValueState(int)
    count = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count it, and hold the low watermark at the session's first record."""
        self.first.set(min(self.first.get(record.timestamp), record.timestamp))
        self.count.add(1)
        self.hold(self.first.get())
        self.set_timer("end", at=record.timestamp + 30 * mr.SECOND)

    def process_timer(self, timer: mr.Timer) -> None:
        """Report the session, with the time of its first record."""
        self.produce("sessions", self.count.get(), timestamp=self.first.get())
        self.first.clear()
        self.count.clear()
        self.hold(None)


class Report(mr.Computation):
    """Takes the sessions in."""

    inputs = {"sessions": mr.by_key()}

    def process_record(self, record: mr.Record) -> None:
        """Do nothing with it."""


class Estimate(mr.Computation):
    """Waits for nine tenths of the records, or for all."""

    inputs = {"events": mr.by("user")}
    percentiles = (50, 90)

    def process_record(self, record: mr.Record) -> None:
        """Do nothing with it."""


def arrivals(seconds: int, seed: int, silent: range = range(0)) -> list[tuple[int, int]]:
    """Return (wall clock, event time) of records: most come within seconds, a few much later."""
    made = random.Random(seed)
    found = []
    for second in range(seconds):
        delay = made.expovariate(1 / 6) + (made.random() < 0.04) * made.uniform(20, 90)
        at = START + second * mr.SECOND + made.randrange(mr.SECOND)
        if second not in silent:
            found.append((at + int(delay * mr.SECOND), at))
    return sorted(found)


def play(h: mr.testing.Harness, records: list[tuple[int, int]], until: int) -> None:
    """Let five seconds of the wall clock be an epoch, until the clock is there."""
    waiting = list(records)
    for clock in range(START, until, 5 * mr.SECOND):
        h.advance_clock(clock)
        batch = []
        while waiting and waiting[0][0] <= clock:
            _, at = waiting.pop(0)
            batch.append(({"user": f"u{(at - START) // VISIT}"}, at))
        if batch:
            h.inject("events", batch)


def stages() -> None:
    """Draw the low watermarks of three stages, one of which holds, and the late records."""
    p = mr.Pipeline("stages")
    p.inject("events", low_watermark=mr.BoundedDelay(DELAY))
    for computation in (Clean, Sessions, Report):
        p.add(computation)
    p.late_records("late")
    records = arrivals(600, seed=15, silent=range(300, 380))
    with mr.testing.Harness(p, publish=True) as h:
        play(h, records, START + 12 * mr.MINUTE)
        figure = mr.plot.watermarks(h, records=records, title="Three stages, bounded delay 40 s")
        figure.savefig(HERE / "low-watermarks.png", dpi=110)


def percentiles() -> None:
    """Draw the low watermark beside that of half and of nine tenths of the records."""
    p = mr.Pipeline("percentiles")
    p.inject("events", low_watermark=mr.BoundedDelay(100 * mr.SECOND))
    p.add(Estimate)
    records = arrivals(600, seed=90)
    with mr.testing.Harness(p, publish=True) as h:
        play(h, records, START + 11 * mr.MINUTE)
        figure = mr.plot.watermarks(
            h, percentiles=(90, 50), records=records, title="Percentiles, bounded delay 100 s"
        )
        figure.savefig(HERE / "percentiles.png", dpi=110)


if __name__ == "__main__":
    stages()
    percentiles()
