"""Side tables: what a bundle brings to the side inputs of its interval, before it runs any key."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from millrace.model.brief import RAISED
from millrace.model.computation import Computation
from millrace.model.pane import Paned
from millrace.model.record import DeadLetter
from millrace.model.time import MIN_TIMESTAMP
from millrace.windmill.arrivals import KeyedRecords
from millrace.windmill.bundle import Bundle
from millrace.windmill.calls import Calls
from millrace.windmill.cells.sides import BoundSide, TableChange
from millrace.windmill.failure import Failures

#: What one key has to do: key row, encoded key, key, first record and past its last, and the rest.
Part = TypeVar("Part", bound=tuple[Any, ...])


class _Came(NamedTuple):
    """Rows as a bundle brings them: what, beside a table, decides what becomes of it."""

    fired_watermark_us: int
    keys: list[bytes]
    firsts: list[int]
    streams: Sequence[str]
    timestamps: list[int]
    values: Sequence[Any]

    @classmethod
    def of(cls, bundle: Bundle, ours: list[Part]) -> _Came:
        """Return the rows of a bundle, with what lies between them, which is next to nothing."""
        records, first, last = bundle.records, ours[0][3], ours[-1][4]
        streams = records.streams
        return cls(
            bundle.attempt.fired_watermark_us,
            [part[1] for part in ours],
            [part[3] - first for part in ours],
            streams if isinstance(streams, str) else streams[first:last],
            records.timestamps[first:last],
            records.values[first:last],
        )

    def is_like(self, other: _Came) -> bool:
        """Return whether other rows are the same: equal ones of a user's class may not be."""
        return (
            self[:-1] == other[:-1]
            and len(self.values) == len(other.values)
            and all(map(operator.is_, self.values, other.values))
        )


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
        self._fired_watermark_us = MIN_TIMESTAMP
        #: The rows that came last, and what they made of each table. Every interval of a task is
        #: brought the same rows, and most have the same tables; a row is worked on once for all.
        self._last: tuple[_Came, list[TableChange]] | None = None
        for side in sides:
            side.as_of = self._as_of

    def take(
        self, bundle: Bundle, parts: list[Part], note_late: Callable[[Bundle, int], None]
    ) -> list[Part]:
        """Take the rows among the records of a bundle; return the parts that are not rows.

        Args:
            bundle: The bundle.
            parts: Of each key. Those of rows hash to the first of the interval's hashes.
            note_late: Called with the number of a row that is late.

        Raises:
            UserCodeError: A row cannot be taken, and no stream takes dead letters.
        """
        if not self._by_stream:
            return parts
        records, ours, others = bundle.records, list[Part](), list[Part]()
        self._fired_watermark_us = bundle.attempt.fired_watermark_us
        for side in self._by_stream.values():
            side.begin(bundle.attempt.fired_watermark_us)
        stream_of, by_stream = _streams(records), self._by_stream
        for part in parts:
            row = part[3] < part[4] and stream_of(part[3]) in by_stream
            (ours if row else others).append(part)
        last, self._last = self._last, None
        if not ours:
            return others
        came = _Came.of(bundle, ours)
        if last is not None and last[0].is_like(came) and self._repeat(last[1]):
            self._last = last
            for _, _, self._user.key, start, stop, *_ in ours:
                for n in range(start, stop):
                    if records.timestamps[n] < bundle.attempt.arrival_watermark_us:
                        note_late(bundle, n)
        elif (changes := self._take(bundle, ours, note_late)) is not None:
            self._last = came, changes
        return others

    def _take(
        self, bundle: Bundle, ours: list[Part], note_late: Callable[[Bundle, int], None]
    ) -> list[TableChange] | None:
        """Take rows one by one; return what that made of each table, None if some were refused."""
        records, refused = bundle.records, False
        stream_of, timestamps = _streams(records), records.timestamps
        coming: dict[str, list[bytes]] = {}
        for _, encoded, _, start, stop, *_ in ours:
            for n in range(start, stop):
                coming.setdefault(stream_of(n), []).append(encoded)
        for stream, side in self._by_stream.items():
            side.read(coming.get(stream, ()))
        for _, encoded, key, start, stop, *_ in ours:
            self._user.key = key
            for n in range(start, stop):
                if timestamps[n] < bundle.attempt.arrival_watermark_us:
                    note_late(bundle, n)
                row, back = records.values[n], False
                if type(row) is Paned:
                    row, back = row.value, row.pane.retraction
                try:
                    side = self._by_stream[stream_of(n)]
                    side.take(encoded, row, timestamps[n], back=back)
                except RAISED as error:  # it says which row it is
                    refused = True
                    self._set_aside(self._failures.of_record(bundle, key, error, n), key)
        changes = [side.flush() for side in self._by_stream.values()]
        return None if refused else changes

    def _repeat(self, changes: list[TableChange]) -> bool:
        """Make of the tables what was made in another interval; return whether that is right."""
        sides = self._by_stream.values()
        if not all(side.would_repeat(change) for side, change in zip(sides, changes, strict=True)):
            return False
        for side, change in zip(sides, changes, strict=True):
            side.repeat(change)
        return True

    def _as_of(self) -> int:
        """Return the time whose rows the record or timer at hand sees.

        Those that a bundle before has passed may be gone, those that the low watermark has not
        passed may not be here yet.
        """
        return min(
            max(self._calls.at_hand_us, self._fired_watermark_us - 1), self._user.low_watermark - 1
        )


def _streams(records: KeyedRecords) -> Callable[[int], str]:
    """Return what returns the stream of a record."""
    streams = records.streams
    return (lambda _: streams) if isinstance(streams, str) else streams.__getitem__
