"""Follower: reads some processes of an injector for as long as a task of the real-time plane lives.

Source: MillWheel, "Injector and Low Watermark API" (5.2);
docs/design/2026-11-22-the-real-time-plane.md, "Injectors".

Polling: how any injector is followed that says how far to read, and reads between two offsets.

Source: MillWheel, "Injector and Low Watermark API" (5.2).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.injectors.advance import Advances, along, decision, process_watermark
from millrace.injectors.columns import arrow_schema, conformed

#: About how many bytes are taken at once.
ROOM = 4 << 20
#: Up to here what lies around rows is taken for part of them.
_LITTLE = 64 << 10


def about_bytes(rows: pa.RecordBatch) -> int:
    """Return about how many bytes rows have, in little time where that is little.

    >>> about_bytes(pa.RecordBatch.from_pydict({"n": range(1 << 20)}).slice(5, 10_000))
    80000
    """
    around = rows.get_total_buffer_size()
    return int(around if around <= _LITTLE else rows.nbytes)


class FetchedBatch(NamedTuple):
    """Rows that were taken of one process, and where that stands after them.

    Attributes:
        process: Its name.
        rows: With the columns of the injector's schema; there may be none.
        offset: Where to go on after these rows. Anything that JSON can say.
        first: The number of the first row where the source counts its rows itself and these are
            consecutive; None where they are counted as they come, or ``numbers`` has them.
        numbers: The numbers of the rows, ascending, where the source's own have gaps; else None.
        low_watermark: What the process promises after these rows, in microseconds; None: nothing
            new.
        decided: What must be durable before more is taken, so that after a failure the same is read
            in the same order: see :func:`~millrace.injectors.advance.along`. None: nothing.
    """

    process: str
    rows: pa.RecordBatch
    offset: Any
    first: int | None = None
    numbers: npt.NDArray[np.int64] | None = None
    low_watermark: int | None = None
    decided: Any = None

    def places(self, count: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows, where ``count`` is the next of rows that are counted."""
        if self.numbers is not None:
            return self.numbers
        first = count if self.first is None else self.first
        return np.arange(first, first + self.rows.num_rows, dtype=np.int64)


class Follower(Protocol):
    """Reads on and on; asked by one thread. What it raises ends the task."""

    def take(self, wait_s: float) -> list[FetchedBatch]:
        """Return what there is, in order by process; wait for it if there is nothing.

        It is limited in rows and bytes, so that a backlog does not come at once.

        Args:
            wait_s: How long to wait at the most. An empty list is returned if nothing came.

        Raises:
            InputLost: What is to be read is gone.
        """
        ...

    def hold(self, processes: Collection[str]) -> None:
        """Take nothing of these processes from now on, and of all others again."""
        ...

    def limit(self, most: int) -> None:
        """Take no more rows at once from now on, however many they were."""
        ...

    def close(self) -> None:
        """Give connections and files back."""
        ...


if TYPE_CHECKING:
    from millrace.injectors.injector import Injector

#: A process that has had nothing for a while is asked again after such a part of it, so that what
#: it has then has waited for as much of the silence before it at the most; within these bounds.
_PART: Final = 1 / 16
_SHORTEST_S: Final = 0.000_25
_LONGEST_S: Final = 0.1
#: A process that takes long to answer is asked so rarely that it costs a twentieth of a core, but
#: within a second.
_REST: Final = 20
_LONGEST_REST_S: Final = 1.0


class Polling:
    """Asks an injector's processes in turn how far they can be read, and reads them.

    What was decided is taken first, without rows; what it says is read from then on. Of an injector
    that is seamless rows come at once. Rows are of
    one advance; only the last of it come with the offset at its end.

    Args:
        injector: The injector.
        places: Process -> where it stands.
        most: Rows that are taken at once, at the most.
        clock: Seconds; by default the machine's.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        injector: Injector,
        places: Mapping[str, Any],
        *,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._processes = {name: _Process(injector, name, places[name]) for name in places}
        self._turn = list(self._processes.values())
        self._most = most
        self._clock = clock
        self._sleep = sleep

    def take(self, wait_s: float) -> list[FetchedBatch]:
        """Return what there is; ask again, more and more rarely, while there is nothing."""
        until = self._clock() + wait_s
        while True:
            found = self._found()
            now = self._clock()
            if found or now >= until:
                return found
            due = min((one.due for one in self._turn if not one.held), default=until)
            self._sleep(max(0.0, min(due, until) - now))

    def hold(self, processes: Collection[str]) -> None:
        """Neither ask nor read these processes."""
        for name, process in self._processes.items():
            process.held = name in processes

    def limit(self, most: int) -> None:
        """Take no more rows at once from now on."""
        self._most = most

    def close(self) -> None:
        """Read nothing more."""
        for process in self._turn:
            process.close()

    def _found(self) -> list[FetchedBatch]:
        found, rows, size = list[FetchedBatch](), self._most, ROOM
        for process in list(self._turn):
            if process.held or process.due > self._clock():
                continue
            for taken in process.taken(self._clock, rows):
                found.append(taken)
                rows -= taken.rows.num_rows
                size -= about_bytes(taken.rows)
            if rows <= 0 or size <= 0:
                # Who comes after it is the first the next time.
                at = self._turn.index(process) + 1
                self._turn = self._turn[at:] + self._turn[:at]
                break
        return found


class _Process:
    """One process: what is ahead of it, and the rows that are being read."""

    def __init__(self, injector: Injector, name: str, offset: Any) -> None:
        self._injector = injector
        self._name = name
        self._advances = Advances.of(offset)
        self._rows: Iterator[pa.RecordBatch] | None = None
        self._next: pa.RecordBatch | None = None
        self._process_watermark_us: int | None = None
        self._silent_since: float | None = None
        self.held = False
        self.due = float("-inf")

    def taken(self, clock: Callable[[], float], most: int) -> Iterator[FetchedBatch]:
        """Yield what is there now: what was decided, or rows of one advance."""
        if not self._advances.ahead:
            began = clock()
            advance = self._injector.advance(self._name, self._advances.start)
            if advance.offset != self._advances.start:
                decided = decision(self._advances.start, advance)
                # As whoever goes on from there has it: the names of a dict in that order, in which
                # its files may be read.
                self._advances = Advances.of(along(self._advances.offset, [decided]))
                self._silent_since, self.due = None, float("-inf")
                if not self._injector.seamless:
                    yield self._batch(_none(self._injector.schema), decided=decided)
                    return
            elif (process_watermark_us := self._news(advance.low_watermark)) is not None:
                self._silent_since, self.due = None, float("-inf")
                yield self._batch(
                    _none(self._injector.schema), process_watermark_us=process_watermark_us
                )
                return
            else:
                now = clock()
                if self._silent_since is None:
                    self._silent_since = began
                pause_s = min(max(_PART * (now - self._silent_since), _SHORTEST_S), _LONGEST_S)
                self.due = now + max(pause_s, min(_REST * (now - began), _LONGEST_REST_S))
                return
        size = ROOM
        while most > 0 and size > 0 and self._advances.ahead:
            rows = self._slice(most, size)
            most -= rows.num_rows
            size -= about_bytes(rows)
            if self._next is not None:
                self._advances = self._advances.read(rows.num_rows)
                yield self._batch(rows)
                continue
            process_watermark_us = self._advances.ahead[0].low_watermark
            self._advances, self._rows = self._advances.done(), None
            yield self._batch(rows, process_watermark_us=self._news(process_watermark_us))

    def close(self) -> None:
        rows, self._rows = self._rows, None
        close = getattr(rows, "close", None)
        if close is not None:
            close()

    def _slice(self, most: int, size: int) -> pa.RecordBatch:
        """Return the next rows; those after them are in ``_next``, None at the advance's end."""
        if self._rows is None:
            self._rows = self._read(self._advances)
            self._next = next(self._rows, None)
        batch = self._next
        if batch is None:
            return _none(self._injector.schema)
        count = min(most, max(1, size * batch.num_rows // max(1, about_bytes(batch))))
        if count < batch.num_rows:
            self._next = batch.slice(count)
            return batch.slice(0, count)
        self._next = next(self._rows, None)
        return batch

    def _read(self, advances: Advances) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the next advance that were not read, none of them empty."""
        injector, skip = self._injector, advances.rows
        where = f"{type(injector).__name__}.read_arrow({self._name!r})"
        for start, end in injector.split(self._name, advances.start, advances.ahead[0].offset):
            for batch in injector.read_arrow(self._name, start, end):
                left = batch.slice(skip)
                skip -= batch.num_rows - left.num_rows
                if left.num_rows:
                    yield conformed(left, injector.schema, where)

    def _batch(
        self, rows: pa.RecordBatch, *, process_watermark_us: int | None = None, decided: Any = None
    ) -> FetchedBatch:
        return FetchedBatch(
            self._name,
            rows,
            self._advances.offset,
            low_watermark=process_watermark_us,
            decided=decided,
        )

    def _news(self, process_watermark_us: int | None) -> int | None:
        """Return a promise if it is a new one."""
        before_us, who = self._process_watermark_us, f"injector {type(self._injector).__name__}"
        self._process_watermark_us = process_watermark(
            who, self._name, process_watermark_us, before_us
        )
        return None if self._process_watermark_us == before_us else self._process_watermark_us


def _none(ddl: str) -> pa.RecordBatch:
    schema = arrow_schema(ddl)
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)
