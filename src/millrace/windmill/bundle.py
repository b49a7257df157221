"""Bundles of work for key intervals, and the attempt that they share.

Nothing here knows how long an epoch is. An epoch on Spark is one bundle for each interval that has
something to do; any other cut of the same input leads to the same state and productions, for code
that does not look at a clock.

Source: Streaming Engine, "work item"; MillWheel 6.1 (several records in one checkpoint).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millrace.model.record import LOW_WATERMARK, WALL_TIME
from millrace.model.time import MIN_TIMESTAMP
from millrace.watermark.intervals import KeyInterval
from millrace.watermark.report import NOTHING_PENDING, Report
from millrace.windmill import rows
from millrace.windmill.arrivals import NO_RECORDS, KeyedRecords


class Position(msgspec.Struct, frozen=True):
    """Where an interval stands: after its last commit.

    Attributes:
        number: Of that commit; 0 before the first.
        chain: That commit's, by which a cache of another history is told.
        report: What pinned its low watermark then.
    """

    number: int = 0
    chain: int = 0
    report: Report = NOTHING_PENDING


#: A record for every key: its timestamp, value, stream, and both parts of its id.
Signal = tuple[int, Any, str, int, int]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at bundles of a computation: in whose name they commit, and what time it is.

    Attributes:
        epoch: That the commits belong to.
        generation: Of the run.
        wall_time_us: The wall clock.
        arrival_watermark_us: Input low watermark while the records were on their way: one behind it
            is late.
        input_watermarks: Percentile -> input low watermark now that they are here; it fires timers.
            100 is the low watermark itself.
        output_watermark_us: Low watermark that the computation had shown its consumers before: what
            it produces behind it reaches them late.
        arrival_percentiles: Percentile -> its low watermark while the records were on their way.
        fired_watermark_us: Input low watermark up to which timers have fired, and source ids have
            been collected.
        intervals: How many intervals share the worker's memory for source ids.
        task: Which of the epoch's tasks it is; of a live one, 0: its commits are in a journal.
        wall_timers_us: Up to when wall-clock timers fire, if that is not the wall clock: at the end
            of a batch the end of time.
    """

    epoch: int
    generation: int
    wall_time_us: int
    arrival_watermark_us: int
    input_watermarks: Mapping[int, int]
    output_watermark_us: int = MIN_TIMESTAMP
    arrival_percentiles: Mapping[int, int] = field(default_factory=dict)
    fired_watermark_us: int = MIN_TIMESTAMP
    intervals: int = 1
    task: int = 0
    wall_timers_us: int | None = None

    @property
    def input_watermark_us(self) -> int:
        """Input low watermark now that the records are here."""
        return self.input_watermarks[100]

    def clocks(self, percentiles: Mapping[int, int]) -> dict[int, int]:
        """Return clock -> its time; timers up to there are due.

        Args:
            percentiles: Percentile -> low watermark of that share of the input.
        """
        wall_us = self.wall_time_us if self.wall_timers_us is None else self.wall_timers_us
        found: dict[int, int] = {LOW_WATERMARK: self.input_watermarks[100], WALL_TIME: wall_us}
        for percentile, us in percentiles.items():
            found[rows.clock_of(LOW_WATERMARK, percentile)] = us
        return found


class Bundle(msgspec.Struct, frozen=True):
    """Records for one interval, where it stands, and the attempt; its due timers come with them.

    Attributes:
        interval: The interval.
        position: Where it stands.
        attempt: At this bundle, and at those of other intervals.
        records: What arrived; none if only timers are due.
        signals: Of a batch, whose records are in order of time: those for every key that came in
            earlier bundles. None: it is no batch.
    """

    interval: KeyInterval
    position: Position
    attempt: Attempt
    records: KeyedRecords = NO_RECORDS
    signals: Sequence[Signal] | None = None

    @property
    def number(self) -> int:
        """The number that its commit will have."""
        return self.position.number + 1
