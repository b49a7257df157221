"""The timers of one key while its bundle runs: set, moved, deleted, and popped when due.

Pending timers lie in the store twice: by time, to find the due ones at a cost that depends on how
many fire and not on how many wait, and by tag, to move or delete one.

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
_decode = msgspec.msgpack.Decoder(tuple[bytes, bytes]).decode

#: A pending timer as the kernel orders it: (at, domain, encoded tag).
Due = tuple[int, int, bytes]


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
        self._stored: dict[tuple[int, bytes], int] = {}
        self._changed: dict[tuple[int, bytes], int | None] = {}

    def begin(self, due: list[Due] | None) -> None:
        """Start a key; ``due`` are its stored timers that are due, in order."""
        self.heap = list(due) if due else []
        self.rearmed = 0
        self.touched = bool(due)
        self._changed = {}
        self._stored = {(domain, tag): at for at, domain, tag in self.heap}

    def set(self, tag: bytes, at_us: int, domain: int) -> None:
        """Set or move a timer; a due one joins those that fire in this bundle."""
        self.touched = True
        self._changed[domain, tag] = at_us
        if at_us <= self.clocks[domain]:
            self.rearmed += 1
            heapq.heappush(self.heap, (at_us, domain, tag))

    def delete(self, tag: bytes, domain: int) -> None:
        """Cancel a timer."""
        self.touched = True
        self._changed[domain, tag] = None

    def pop_due(self) -> Due | None:
        """Return the earliest due timer, no longer pending, or None."""
        heap, changed, stored = self.heap, self._changed, self._stored
        while heap:
            due = heapq.heappop(heap)
            at_us, domain, tag = due
            name = (domain, tag)
            if (changed[name] if name in changed else stored.get(name)) == at_us:
                changed[name] = None
                return due
        return None

    def flush(self, key: bytes) -> None:
        """Write what changed."""
        mutations, view, key_row = self._rows.mutations, self._rows.view, self._rows.key_row
        for (domain, tag), at_us in self._changed.items():
            kind = bytes([domain])
            by_tag = rows.TIMER_BY_TAG + key_row + kind + rows.last_part(tag)
            old_us = self._stored.get((domain, tag))
            if old_us is None:
                found = view.get(by_tag)
                old_us = rows.time_of(found) if found is not None else None
            if old_us == at_us:
                continue
            if old_us is not None:
                mutations[_by_time(kind, old_us, key_row, tag)] = None
                if at_us is None:
                    mutations[by_tag] = None
            if at_us is not None:
                mutations[by_tag] = rows.time8(at_us)
                by_time = _by_time(kind, at_us, key_row, tag)
                mutations[by_time] = _encode((key, tag))
                self._rows.timed.append(by_time)


def due_timers(view: View, domain: int, clock_us: int) -> Iterator[tuple[bytes, bytes, Due]]:
    """Yield (key row, key, timer) of every stored timer due at ``clock_us``, earliest first."""
    prefix = rows.TIMERS + bytes([domain])
    stop = prefix + rows.time8(min(clock_us, MAX_TIMESTAMP) + 1)
    for row, value in view.scan(prefix, stop):
        key, tag = _decode(value)
        at_us = rows.time_of(row[2:10])
        yield rows.key_row(row[10:18], key), key, (at_us, domain, tag)


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


def _by_time(kind: bytes, at_us: int, key_row: bytes, tag: bytes) -> bytes:
    return rows.TIMERS + kind + rows.time8(at_us) + key_row + rows.last_part(tag)
