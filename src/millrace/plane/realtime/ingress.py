"""Event times by ingress on live tasks: decided once, and durable before a record leaves.

A stamp says: records of a process up to this number that have no stamp before it came at this time.
Stamps are written down before the records are sent, so what is read again after a failure has the
time that it had. Source: Dataflow patent and VLDB 2015 paper, "Processing-time windows";
docs/design/2026-11-23-ingress-in-real-time.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.model.time import MAX_TIMESTAMP

#: Each append repeats all stamps since the last mark, so there are at most ten a second.
STEP_US: Final = 100_000

#: Injected stream -> process -> (number of the last record, time of it), both ascending.
Stamps = dict[str, dict[str, list[tuple[int, int]]]]


class IngressTimes:
    """The stamps of one injector task.

    Args:
        stamps: What was written down before.
        counts: Stream by ingress -> process -> number of its next record to be read.

    >>> times = IngressTimes({}, {"s": {"a": 0}})
    >>> times.stamp("s", "a", 4, 250_000, 0), times.stamp("s", "a", 2, 900_000, 0)
    (True, False)
    >>> times.stamp("s", "a", 6, 390_000, 350_000)
    True
    >>> times.of("s", "a", np.array([3, 4, 5])).tolist()
    [200000, 200000, 350000]
    >>> IngressTimes(times.stamps, {"s": {"a": 5}}).stamps
    {'s': {'a': [(6, 350000)]}}
    """

    def __init__(self, stamps: Stamps, counts: Mapping[str, Mapping[str, int]]) -> None:
        self.stamps: Stamps = {
            stream: {
                process: [one for one in stamps.get(stream, {}).get(process, []) if one[0] >= count]
                for process, count in of.items()
            }
            for stream, of in counts.items()
        }
        self._counts = counts

    def stamp(self, stream: str, process: str, last: int, wall_us: int, shown_us: int) -> bool:
        """Give records up to a number a time if they have none; return whether any had none.

        Args:
            stream: By ingress.
            process: Whose records they are.
            last: Number of the last one.
            wall_us: The time now.
            shown_us: The stream's low watermark here: nothing is late.
        """
        known = self.stamps[stream][process]
        at_us = max(wall_us - wall_us % STEP_US, shown_us)
        if known:
            through, before_us = known[-1]
            if last <= through:
                return False
            if at_us <= before_us:
                at_us = before_us
                known.pop()
        known.append((last, at_us))
        return True

    def of(
        self, stream: str, process: str, numbers: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the times of records, which have stamps."""
        stamps = np.array(self.stamps[stream][process], np.int64)
        times: npt.NDArray[np.int64] = stamps[np.searchsorted(stamps[:, 0], numbers), 1]
        return times

    def pending_us(self, counts: Mapping[str, Mapping[str, int]]) -> int:
        """Return the earliest time of records that have one and were not read again yet.

        Nothing later may be published before they are: they would be late. ``MAX_TIMESTAMP`` if
        there are none.
        """
        return min(
            (
                next((at_us for last, at_us in known if last >= counts[stream][process]))
                for stream, of in self.stamps.items()
                for process, known in of.items()
                if known and known[-1][0] >= counts[stream][process]
            ),
            default=MAX_TIMESTAMP,
        )

    def passed(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Forget what came before the mark before this one, which is complete.

        Args:
            counts: As when it was made, for the mark that is passed now.
        """
        kept = IngressTimes(self.stamps, self._counts)
        self.stamps, self._counts = kept.stamps, counts
