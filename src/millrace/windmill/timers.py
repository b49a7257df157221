"""The timers of one key while its bundle runs: set, moved, deleted, and popped when due.

Pending timers lie in the store twice: by time, to find the due ones at a cost that depends on how
many fire and not on how many wait, and by tag, to move or delete one. One that holds the low
watermark has a row among the holds as well.

Source: MillWheel, "Timers" (4.6): timers fire in increasing timestamp order for a key.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from millrace.model.time import MAX_TIMESTAMP
from millrace.store import View
from millrace.windmill import rows
from millrace.windmill.cells import KeyRows

_encode = msgspec.msgpack.Encoder().encode
#: A pending timer as the kernel orders it: (at, domain, encoded tag).
Due = tuple[int, int, bytes]

#: Due timers of a key, and where each held the low watermark; None if it did not.
DueTimers = dict[Due, int | None]

#: What was set under a name: (at, hold). The name is (domain, encoded tag).
Setting = tuple[int, int | None]


class TimerRow(msgspec.Struct, array_like=True, frozen=True):
    """The value of a row of timers by time. Without a hold, it has only the first two."""

    key: bytes
    tag: bytes
    hold_us: int | None = None


decode_timer_row = msgspec.msgpack.Decoder(TimerRow).decode


class KeyTimers:
    """Timers of the current key.

    Attributes:
        clocks: Where each domain's clock stands, in microseconds.
        heap: Due timers, earliest first, some of them moved or deleted meanwhile.
        rearmed: How many were set when they were due already.
        touched: Whether there is anything to fire or to write.
    """

    def __init__(self, key_rows: KeyRows) -> None:
        self.clocks = (0, 0)
        self.heap: list[Due] = []
        self.rearmed = 0
        self.touched = False
        self._rows = key_rows
        self._stored: dict[tuple[int, bytes], Setting] = {}
        self._changed: dict[tuple[int, bytes], Setting | None] = {}

    def begin(self, due: DueTimers | None) -> None:
        """Start a key; ``due`` are its stored timers that are due, with their holds."""
        self.heap = sorted(due) if due else []
        self.rearmed = 0
        self.touched = bool(due)
        self._changed = {}
        self._stored = (
            {(domain, tag): (at, hold) for (at, domain, tag), hold in due.items()} if due else {}
        )

    def set(self, tag: bytes, domain: int, setting: Setting) -> None:
        """Set or move a timer; a due one joins those that fire in this bundle."""
        self.touched = True
        self._changed[domain, tag] = setting
        at_us = setting[0]
        if at_us <= self.clocks[domain]:
            self.rearmed += 1
            heapq.heappush(self.heap, (at_us, domain, tag))

    def delete(self, tag: bytes, domain: int) -> None:
        """Cancel a timer."""
        self.touched = True
        self._changed[domain, tag] = None

    def pop_due(self) -> tuple[Due, int | None] | None:
        """Return the earliest due timer, no longer pending, and its hold; or None."""
        heap, changed, stored = self.heap, self._changed, self._stored
        while heap:
            due = heapq.heappop(heap)
            at_us, domain, tag = due
            name = (domain, tag)
            setting = changed[name] if name in changed else stored.get(name)
            if setting is not None and setting[0] == at_us:
                changed[name] = None
                return due, setting[1]
        return None

    def flush(self, key: bytes) -> None:
        """Write what changed."""
        mutations, view, key_row = self._rows.mutations, self._rows.view, self._rows.key_row
        timed = self._rows.timed
        for (domain, tag), new in self._changed.items():
            kind = bytes([domain])
            named = key_row + kind + rows.last_part(tag)
            by_tag = rows.TIMER_BY_TAG + named
            old = self._stored.get((domain, tag))
            if old is None and (found := view.get(by_tag)) is not None:
                old = _setting(found)
            if old == new:
                continue
            if old is not None:
                mutations[_by_time(kind, old[0], key_row, tag)] = None
                if old[1] is not None:
                    mutations[rows.HOLDS + rows.time8(old[1]) + named] = None
                if new is None:
                    mutations[by_tag] = None
            if new is not None:
                at_us, hold_us = new
                by_time = _by_time(kind, at_us, key_row, tag)
                timed.append(by_time)
                if hold_us is None:
                    mutations[by_tag] = rows.time8(at_us)
                    mutations[by_time] = _encode((key, tag))
                else:
                    mutations[by_tag] = rows.time8(at_us) + rows.time8(hold_us)
                    mutations[by_time] = _encode((key, tag, hold_us))
                    hold = rows.HOLDS + rows.time8(hold_us) + named
                    mutations[hold] = key
                    timed.append(hold)


def due_timers(
    view: View, domain: int, clock_us: int
) -> Iterator[tuple[bytes, bytes, Due, int | None]]:
    """Yield (key row, key, timer, hold) of stored timers due at ``clock_us``, earliest first."""
    prefix = rows.TIMERS + bytes([domain])
    stop = prefix + rows.time8(min(clock_us, MAX_TIMESTAMP) + 1)
    for row, value in view.scan(prefix, stop):
        timer = decode_timer_row(value)
        due = (rows.time_of(row[2:10]), domain, timer.tag)
        yield rows.key_row(row[10:18], timer.key), timer.key, due, timer.hold_us


def earliest_us(key_rows: KeyRows, prefix: bytes) -> int:
    """Return the first instant under a prefix of rows ordered by time, as the commit leaves them.

    Returns:
        Microseconds; MAX_TIMESTAMP if no row is left.
    """
    mutations = key_rows.mutations
    stored = next(
        (
            row
            for row, _ in key_rows.view.scan(prefix, rows.after(prefix))
            if mutations.get(row, b"") is not None
        ),
        None,
    )
    made = [row for row in key_rows.timed if row.startswith(prefix) and mutations[row] is not None]
    first = min([*made, stored] if stored is not None else made, default=None)
    at = len(prefix)
    return rows.time_of(first[at : at + 8]) if first is not None else MAX_TIMESTAMP


def _setting(by_tag: bytes) -> Setting:
    return rows.time_of(by_tag[:8]), rows.time_of(by_tag[8:]) if len(by_tag) > 8 else None


def _by_time(kind: bytes, at_us: int, key_row: bytes, tag: bytes) -> bytes:
    return rows.TIMERS + kind + rows.time8(at_us) + key_row + rows.last_part(tag)
