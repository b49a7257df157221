"""A year of the Zeitgeist pipeline as its authors might have lived it: it never starts over.

It begins with two computations that only learn. In spring one is added to look at, a cell and a
computation get other names, the model another format, and what was added goes again. In July, when
half a year has been learned, the detectors are switched on; from there on it is the pipeline of
`pipeline.build`. Each version goes on with the checkpoint that the one before it left.

What comes out is what the final code would have found if it had run from the start, where the
change allows that: a detector knows of no prediction that was made before it was there, and those
are made a week ahead; see `BLIND_US`. docs/changing.md has what each may change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

import millrace as mr

from .computations import DipDetector, ModelCalculator, SpikeDetector, WindowCounter
from .model import DAY, QUIET_US, WEEK, Model
from .records import Count, Departure

Sink = Callable[..., Any]

BLIND_US: Final = WEEK + QUIET_US
"""For so long a detector that is new may find other things than one that was there before: it has
no predictions for a week, and then an episode may be under way."""


class FirstCounter(WindowCounter):
    """The counter with the name that its cell had first."""

    opened = mr.MapState(int)
    buckets = property(lambda self: self.opened)


class Counter(WindowCounter):
    """The counter with its cell renamed; the line may go when no checkpoint needs it."""

    buckets = mr.MapState(int, was="opened")


class ListedModel(Model, array_like=True):
    """The model as it was written first: a list, to whose middle nothing can be added."""


class FirstModelCalculator(ModelCalculator):
    """Learns and predicts, with the model in its first format."""

    model = mr.ValueState(ListedModel)
    new_model = ListedModel


def by_name(listed: Any) -> Model:
    """Return the model of what its first format says."""
    return msgspec.convert(listed, Model)


class Tally(mr.Computation):
    """Counts the departures of each day, to look at for a while."""

    inputs = {"counts": mr.by("key")}
    outputs = {"tallies": Count}
    days = mr.MapState(int)

    def process_record(self, record: mr.Record) -> None:
        """Add to the day."""
        day = record.timestamp - record.timestamp % DAY
        if day not in self.days:
            self.set_timer(day, at=day + DAY)
        self.days[day] = self.days.get(day, 0) + record.value.count

    def process_timer(self, timer: mr.Timer) -> None:
        """Say how many there were."""
        day = timer.tag
        self.produce("tallies", Count(self.key, day, self.days.pop(day)), timestamp=timer.at - 1)


def january(source: Any = None) -> mr.Pipeline:
    """Two computations, and nobody who looks at what they learn."""
    p = _flights(source)
    p.add(FirstCounter, name="Windower")
    p.add(FirstModelCalculator, name="ModelCalculator")
    return p


def march(source: Any = None, tallies: Sink | None = None) -> mr.Pipeline:
    """A third, to look at: it begins empty."""
    p = january(source)
    p.add(Tally)
    return _sunk(p, "tallies", tallies)


def april(source: Any = None, tallies: Sink | None = None) -> mr.Pipeline:
    """The counter and its cell are called otherwise, the model is kept in another format."""
    p = _flights(source)
    p.add(Counter, name="WindowCounter", was="Windower")
    p.add(ModelCalculator, migrate={"model": by_name})
    p.add(Tally)
    return _sunk(p, "tallies", tallies)


def june(source: Any = None, tallies: Sink | None = None) -> mr.Pipeline:
    """Nobody looks at the tally any more; the day that it is in is counted to its end."""
    p = april(source, tallies)
    p.drain("Tally")
    return p


def july(source: Any = None, anomalies: Sink | None = None) -> mr.Pipeline:
    """The tally is gone, and the model of half a year is put to use."""
    p = _flights(source)
    p.add(Counter, name="WindowCounter", was="Windower")
    p.add(ModelCalculator, migrate={"model": by_name})
    p.remove("Tally")
    p.add(SpikeDetector)
    p.add(DipDetector)
    return _sunk(p, "anomalies", anomalies)


class Version(NamedTuple):
    """A version of the program.

    Attributes:
        since: The first day that it runs, in local time.
        pipeline: Makes it, of a source and a sink.
        shown: The stream that has the sink, if any.
    """

    since: str
    pipeline: Callable[..., mr.Pipeline]
    shown: str | None


VERSIONS: Final = (
    Version("2013-01-01", january, None),
    Version("2013-03-01", march, "tallies"),
    Version("2013-04-01", april, "tallies"),
    Version("2013-06-01", june, "tallies"),
    Version("2013-07-01", july, "anomalies"),
)


def _flights(source: Any) -> mr.Pipeline:
    p = mr.Pipeline("zeitgeist")
    p.inject(
        "departures",
        source,
        timestamp="scheduled",
        low_watermark=mr.BoundedDelay("3 h"),
        format=Departure,
    )
    return p


def _sunk(p: mr.Pipeline, stream: str, sink: Sink | None) -> mr.Pipeline:
    if sink is not None:
        p.sink(stream, sink)
    return p
