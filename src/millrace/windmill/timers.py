"""The timers of one key while its bundle runs: set, moved, deleted, and popped when due.

Pending timers lie in the store twice: by time, to find the due ones at a cost that depends on how
many fire and not on how many wait, and by tag, to move or delete one. One that holds the low
watermark has a row among the holds as well.

Source: MillWheel, "Timers" (4.6): timers fire in increasing timestamp order for a key.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

import msgspec

from millrace.model.time import MAX_TIMESTAMP
from millrace.store import View
from millrace.windmill import rows
from millrace.windmill.key_rows import KeyRows

_encode = msgspec.msgpack.Encoder().encode
_ONE_BYTE = [bytes([n]) for n in range(256)]
#: A pending timer as the kernel orders it: (at, domain, encoded tag).
Due = tuple[int, int, bytes]

#: Due timers of a key, and the hold and percentile of each.
DueTimers = dict[Due, tuple[int | None, int]]

#: What was set under a name: (at, hold, percentile). The name is (domain, encoded tag).
Setting = tuple[int, int | None, int]


class TimerRow(msgspec.Struct, array_like=True, frozen=True):
    """The value of a row of timers by time. Without a hold, it has only the first two."""

    key: bytes
    tag: bytes
    hold_us: int | None = None


decode_timer_row = msgspec.msgpack.Decoder(TimerRow).decode


class KeyTimers:
    """Timers of the current key.

    Attributes:
        clocks: Clock -> where it stands, in microseconds; see :func:`clock_of`.
        heap: Due timers, earliest first, some of them moved or deleted meanwhile.
        rearmed: How many were set when they were due already.
        touched: Whether there is anything to fire or to write.
    """

    def __init__(self, key_rows: KeyRows) -> None:
        self.clocks: Mapping[int, int] = {0: 0, 1: 0}
        self.heap: list[Due] = []
        self.rearmed = 0
        self.touched = False
        self._rows = key_rows
        self._stored: dict[tuple[int, bytes], Setting] = {}
        self._changed: dict[tuple[int, bytes], Setting | None] = {}

    def begin(self, due: DueTimers | None) -> None:
        """Start a key; ``due`` are its stored timers that are due, and how they were set."""
        self.rearmed = 0
        self._changed = {}
        self._stored = {}
        if due:
            self.heap = sorted(due) if len(due) > 1 else [*due]
            self.touched = True
            for (at_us, domain, tag), (hold_us, percentile) in due.items():
                self._stored[domain, tag] = (at_us, hold_us, percentile)
        else:
            self.heap = []
            self.touched = False

    def set(self, tag: bytes, domain: int, setting: Setting) -> None:
        """Set or move a timer; a due one joins those that fire in this bundle."""
        self.touched = True
        self._changed[domain, tag] = setting
        at_us, _, percentile = setting
        clock = domain if percentile == 100 else clock_of(domain, percentile)
        if at_us <= self.clocks[clock]:
            self.rearmed += 1
            heapq.heappush(self.heap, (at_us, domain, tag))

    def delete(self, tag: bytes, domain: int) -> None:
        """Cancel a timer."""
        self.touched = True
        self._changed[domain, tag] = None

    def pop_due(self) -> tuple[Due, Setting] | None:
        """Return the earliest due timer, no longer pending, and how it was set; or None."""
        heap, changed, stored = self.heap, self._changed, self._stored
        while heap:
            due = heapq.heappop(heap)
            at_us, domain, tag = due
            name = (domain, tag)
            setting = changed[name] if name in changed else stored.get(name)
            if (
                setting is not None
                and setting[0] == at_us
                # It may have been set again to the same time, by a clock that is not there yet.
                and at_us <= self.clocks[clock_of(domain, setting[2])]
            ):
                changed[name] = None
                return due, setting
        return None

    def flush(self, key: bytes) -> None:
        """Write what changed."""
        mutations, view, key_row = self._rows.mutations, self._rows.view, self._rows.key_row
        timed, delta = self._rows.timed, self._rows.delta
        for name, new in self._changed.items():
            domain, tag = name
            part = tag if len(tag) <= rows.WHOLE else rows.last_part(tag)
            named = key_row + _ONE_BYTE[domain] + part
            by_tag = rows.TIMER_BY_TAG + named
            old = self._stored.get(name)
            if old is None and (found := view.get(by_tag)) is not None:
                old = _setting(found)
            if old == new:
                continue
            if delta is not None:
                for setting, count in ((old, -1), (new, 1)):
                    if setting is not None and (work_us := _work_us(domain, setting)) is not None:
                        delta[work_us] = delta.get(work_us, 0) + count
            if old is not None:
                clock = _ONE_BYTE[clock_of(domain, old[2])]
                mutations[rows.TIMERS + clock + rows.time8(old[0]) + key_row + part] = None
                if old[1] is not None:
                    mutations[rows.HOLDS + rows.time8(old[1]) + named] = None
                if new is None:
                    mutations[by_tag] = None
            if new is not None:
                at_us, hold_us, percentile = new
                clock = _ONE_BYTE[clock_of(domain, percentile)]
                by_time = rows.TIMERS + clock + rows.time8(at_us) + key_row + part
                timed.append(by_time)
                mutations[by_tag] = encode_setting(new)
                if hold_us is None:
                    mutations[by_time] = _encode((key, tag))
                else:
                    mutations[by_time] = _encode((key, tag, hold_us))
                    hold = rows.HOLDS + rows.time8(hold_us) + named
                    mutations[hold] = key
                    timed.append(hold)


def due_timers(
    view: View, clock: int, clock_us: int
) -> Iterator[tuple[bytes, bytes, Due, tuple[int | None, int]]]:
    """Yield (key row, key, timer, (hold, percentile)) of what is due by a clock, earliest first."""
    prefix = rows.TIMERS + bytes([clock])
    domain, percentile = domain_of(clock)
    stop = prefix + rows.time8(min(clock_us, MAX_TIMESTAMP) + 1)
    for row, value in view.scan(prefix, stop):
        timer = decode_timer_row(value)
        key = timer.key
        due = (rows.time_of(row[2:10]), domain, timer.tag)
        key_row = (
            row[10 : 20 + len(key)] if len(key) <= rows.WHOLE else rows.key_row(row[10:18], key)
        )
        yield key_row, key, due, (timer.hold_us, percentile)


def pending_us(view: View) -> Iterator[int]:
    """Yield the timestamp that every timer and hold of an interval stands for as pending work."""
    for row, value in view.scan(rows.TIMERS, rows.after(rows.TIMERS)):
        domain, percentile = domain_of(row[1])
        setting = (rows.time_of(row[2:10]), decode_timer_row(value).hold_us, percentile)
        if (work_us := _work_us(domain, setting)) is not None:
            yield work_us
    for _, value in view.scan(rows.HOLD_BY_KEY, rows.after(rows.HOLD_BY_KEY)):
        yield rows.time_of(value)


def clock_of(domain: int, percentile: int) -> int:
    """Return the clock that a timer waits for: 0 low watermark, 1 wall, 128 + p a percentile."""
    return domain if percentile == 100 else 0x80 | percentile


def domain_of(clock: int) -> tuple[int, int]:
    """Return the domain and the percentile of a clock."""
    return (clock, 100) if clock < 0x80 else (0, clock & 0x7F)


def encode_setting(setting: Setting) -> bytes:
    """Return the value of a row of timers by tag: time, hold and percentile as far as there are."""
    at_us, hold_us, percentile = setting
    encoded = rows.time8(at_us)
    if hold_us is not None:
        encoded += rows.time8(hold_us)
    return encoded if percentile == 100 else encoded + bytes([percentile])


def _setting(by_tag: bytes) -> Setting:
    hold_us = rows.time_of(by_tag[8:16]) if len(by_tag) >= 16 else None
    return rows.time_of(by_tag[:8]), hold_us, by_tag[-1] if len(by_tag) % 8 else 100


def _work_us(domain: int, setting: Setting) -> int | None:
    """Return the timestamp that a timer stands for as pending work; None if for none."""
    at_us, hold_us, _ = setting
    if domain:
        return hold_us
    return at_us if hold_us is None else min(at_us, hold_us)
