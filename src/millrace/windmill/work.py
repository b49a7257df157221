"""Work: the bundle that GetWork hands to the machine.

Source: Streaming Engine, "work item"; MillWheel 6.1 (several records in one checkpoint).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.model.record import LOW_WATERMARK, WALL_TIME
from millrace.model.time import MIN_TIMESTAMP
from millrace.watermark.report import NOTHING_PENDING, Report
from millrace.windmill import rows
from millrace.windmill.arrivals import KeyedRecords

#: A record for every key: its timestamp, value, stream, and both parts of its id.
Signal = tuple[int, Any, str, int, int]


@dataclass(slots=True)
class Work:
    """A bundle for one interval.

    Attributes:
        number: The number that the commit will have.
        epoch: The epoch that it belongs to.
        records: What arrived.
        arrival_watermark_us: Input low watermark while the records were on their way: a record
            behind it is late.
        input_watermark_us: Input low watermark now that they are here: it fires timers.
        wall_time_us: Wall-clock time of the epoch.
        wall_timers_us: Up to when wall-clock timers fire: that same time, or at the end of a batch
            the end of time.
        output_watermark_us: Low watermark that the computation had shown its consumers before: what
            it produces behind it reaches them late.
        percentiles: Percentile -> low watermark of that share of the input, now.
        arrival_percentiles: The same, while the records were on their way.
        report: What was pending in the interval before.
        fired_watermark_us: Input low watermark up to which timers have fired before.
        signals: Of a batch, whose records are in order of time: those for every key that came in
            earlier bundles. None: it is no batch.
    """

    number: int
    epoch: int
    records: KeyedRecords
    arrival_watermark_us: int
    input_watermark_us: int
    wall_time_us: int
    wall_timers_us: int
    output_watermark_us: int = MIN_TIMESTAMP
    percentiles: Mapping[int, int] = field(default_factory=dict)
    arrival_percentiles: Mapping[int, int] = field(default_factory=dict)
    report: Report = NOTHING_PENDING
    fired_watermark_us: int = MIN_TIMESTAMP
    signals: Sequence[Signal] | None = None

    def clocks(self) -> dict[int, int]:
        """Return clock -> its time; timers up to there are due."""
        found: dict[int, int] = {
            LOW_WATERMARK: self.input_watermark_us,
            WALL_TIME: self.wall_timers_us,
        }
        for percentile, us in self.percentiles.items():
            found[rows.clock_of(LOW_WATERMARK, percentile)] = us
        return found
