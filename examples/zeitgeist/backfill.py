"""A model of the first half of the year, switched on for the second.

The program of January counts the flights of each day, and no more. In July its authors want the
detectors; what these need to know is in files. So the first half is read once more, beside the
stream, for those who are new: the counter, the model and the detectors. When it is through, the
line may go. docs/how-to/backfill.md goes through it.
"""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

import millrace as mr

from .computations import DipDetector, ModelCalculator, SpikeDetector, WindowCounter
from .model import DAY
from .records import Count, Departure

SWITCHED_ON: Final = pd.Timestamp("2013-07-01", tz="UTC")
"""What is scheduled before is of the first half."""


class Daily(mr.Computation):
    """Counts the departures of each day."""

    inputs = {"departures": mr.by("key")}
    outputs = {"daily": Count}
    days = mr.MapState(int)

    def process_record(self, record: mr.Record) -> None:
        """Add to the day."""
        day = record.timestamp - record.timestamp % DAY
        self.days[day] = self.days.get(day, 0) + 1
        self.set_timer(day, at=day + DAY)

    def process_timer(self, timer: mr.Timer) -> None:
        """Say how many there were."""
        count = Count(self.key, timer.tag, self.days.pop(timer.tag))
        self.produce("daily", count, timestamp=timer.at - 1)


class WholeCounter(WindowCounter):
    """The counter of the whole year."""

    inputs = {"whole year": mr.by("key")}


def first_half(source: Any = None) -> mr.Pipeline:
    """Nobody learns."""
    p = mr.Pipeline("traffic")
    _flights(p, "departures", source)
    p.add(Daily)
    return p


def second_half(source: Any = None, files: Any = None, *, past: bool = True) -> mr.Pipeline:
    """The detectors are there, and learn from the first half what they need to know.

    Args:
        source: Of the stream.
        files: Of the first half; more may be in them.
        past: Whether the first half has yet to be read to its end.
    """
    p = first_half(source)
    departures = p.stream("departures")
    if past:
        before = _flights(p, "first half", files)
        departures = departures.backfilled(before, until=int(SWITCHED_ON.value) // 1000)
    departures.to("whole year", Departure)
    p.add(WholeCounter, name="WindowCounter")
    p.add(ModelCalculator)
    p.add(SpikeDetector)
    p.add(DipDetector)
    return p


def _flights(p: mr.Pipeline, name: str, source: Any) -> mr.Stream:
    late = mr.BoundedDelay("3 h")
    return p.inject(name, source, timestamp="scheduled", low_watermark=late, format=Departure)
