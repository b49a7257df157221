"""History: where the low watermarks stood after each epoch, for pictures."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace.epochlog.entries import Completion
from millrace.epochlog.renames import titled
from millrace.kernel.results import FirstLate
from millrace.model.time import MIN_TIMESTAMP

#: A picture has some hundred pixels to the side, so nobody sees more moments than these.
_MOMENTS_MAX = 4_096


class Moment(msgspec.Struct, frozen=True):
    """Low watermarks after an epoch. All in microseconds.

    Attributes:
        epoch: Its number.
        wall_time_us: Its clock.
        inputs: Computation -> low watermark of its input.
        outputs: Computation, or ``injector:<stream>``, -> low watermark it showed.
        newest: Injected stream -> latest timestamp read so far.
        percentiles: Percentile -> computation -> low watermark of that share of its input.
        first_late: Computation -> the first late record that it has met so far.
    """

    epoch: int
    wall_time_us: int
    inputs: dict[str, int]
    outputs: dict[str, int]
    newest: dict[str, int]
    percentiles: dict[int, dict[str, int]]
    first_late: dict[str, FirstLate]

    @classmethod
    def of(cls, completion: Completion, called: Mapping[str, str]) -> Moment:
        """Return the moment that an epoch completed.

        Args:
            completion: Of the epoch.
            called: Computation -> what the pipeline calls it, where that is another name.
        """
        completion = titled(completion, called)
        return cls(
            completion.epoch,
            completion.wall_time_us,
            dict(completion.after.inputs),
            dict(completion.after.outputs),
            {
                stream: stats.newest_us
                for stream, stats in completion.sources.items()
                if stats.newest_us != MIN_TIMESTAMP
            },
            {p: dict(known.inputs) for p, known in completion.after.percentiles.items()},
            {
                name: counters.first_late
                for name, counters in completion.counters.items()
                if counters.first_late is not None
            },
        )


class WatermarkHistory:
    """Moments in order; when there are too many, every other of the older half is forgotten."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def add(self, moment: Moment) -> None:
        """Take the next moment."""
        self.moments.append(moment)
        if len(self.moments) > _MOMENTS_MAX:
            half = len(self.moments) // 2
            self.moments[:half] = self.moments[:half:2]
