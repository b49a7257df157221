"""Side tables: what a bundle brings to the side inputs of its interval, before it runs any key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from millrace.model.computation import Computation
from millrace.model.pane import Paned
from millrace.model.record import DeadLetter
from millrace.model.time import MIN_TIMESTAMP
from millrace.windmill.calls import Calls
from millrace.windmill.cells.sides import BoundSide
from millrace.windmill.failure import Failures
from millrace.windmill.work import Work

#: What one key has to do: key row, encoded key, key, first record and past its last, and the rest.
Part = TypeVar("Part", bound=tuple[Any, ...])


class SideTables:
    """The tables of one computation.

    Args:
        sides: Its side inputs.
        user: Its instance.
        calls: Of the key at hand.
        failures: Of the computation.
        set_aside: Takes the dead letter of a key.
    """

    def __init__(
        self,
        sides: Sequence[BoundSide],
        user: Computation,
        calls: Calls,
        failures: Failures,
        set_aside: Callable[[DeadLetter, Any], None],
    ) -> None:
        self._by_stream = {side.stream: side for side in sides}
        self._user = user
        self._calls = calls
        self._failures = failures
        self._set_aside = set_aside
        self._passed_us = MIN_TIMESTAMP
        for side in sides:
            side.as_of = self._as_of

    def take(
        self, work: Work, parts: list[Part], note_late: Callable[[Work, int], None]
    ) -> list[Part]:
        """Take the rows among the records of a bundle; return the parts that are not rows.

        Args:
            work: The bundle.
            parts: Of each key. Those of rows hash to the first of the interval's hashes.
            note_late: Called with the number of a row that is late.

        Raises:
            UserCodeError: A row cannot be taken, and no stream takes dead letters.
        """
        if not self._by_stream:
            return parts
        records, others = work.records, list[Part]()
        self._passed_us = work.passed_us
        for side in self._by_stream.values():
            side.begin(work.passed_us)
        for part in parts:
            _, encoded, key, start, stop, *_ = part
            if start == stop or records.stream_of(start) not in self._by_stream:
                others.append(part)
                continue
            self._user.key = key
            for n in range(start, stop):
                if records.timestamps[n] < work.low_watermark_before_us:
                    note_late(work, n)
                row, back = records.values[n], False
                if type(row) is Paned:
                    row, back = row.value, row.pane.retraction
                try:
                    side = self._by_stream[records.stream_of(n)]
                    side.take(encoded, row, records.timestamps[n], back=back)
                except Exception as error:  # noqa: BLE001  it says which row it is
                    self._set_aside(self._failures.of_record(work, key, error, n), key)
        for side in self._by_stream.values():
            side.flush()
        return others

    def _as_of(self) -> int:
        """Return the time whose rows the record or timer at hand sees.

        Those that a bundle before has passed may be gone, those that the low watermark has not
        passed may not be here yet.
        """
        return min(max(self._calls.at_hand_us, self._passed_us - 1), self._user.low_watermark - 1)
