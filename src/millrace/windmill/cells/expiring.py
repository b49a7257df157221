"""Cells that expire: what they keep has a timer of the kernel's own, which each write moves on.

So forgetting costs by what expires, and what has expired is never seen: its timer fires among the
key's other timers, in order of time, before the next bundle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.model.keys import encode_key
from millrace.model.state import Expiry
from millrace.windmill import rows
from millrace.windmill.cells.maps import GONE, BoundMap
from millrace.windmill.cells.scalars import BoundCombining, BoundValue
from millrace.windmill.timers import KeyTimers


class Keeping:
    """How long a cell keeps what is written to it.

    Args:
        expires: As the cell declares it.
        number: What the cell's rows carry.
        timers: Of the key at hand.
        now_us: Clock -> the time of a write now, in microseconds.
    """

    def __init__(
        self, expires: Expiry, number: int, timers: KeyTimers, now_us: Callable[[int], int]
    ) -> None:
        self._after_us, self._domain = expires.after_us, int(expires.domain)
        self._cell = rows.BYTE[number]
        self._timers = timers
        self._now_us = now_us

    def written(self, entry: bytes = b"") -> None:
        """Keep it from now on for as long as the cell says, and for no less than it was to be."""
        at_us = self._now_us(self._domain) + self._after_us
        self._timers.prolong(rows.expiry_tag(self._cell, entry), self._domain, at_us)

    def gone(self, entry: bytes = b"") -> None:
        """Wait no more: there is nothing that could expire."""
        self._timers.delete(rows.expiry_tag(self._cell, entry), self._domain)


class ExpiringValue(BoundValue):
    """A ValueState that expires, with a key under it."""

    keeping: Keeping

    def get(self, default: Any = None) -> Any:
        value = super().get()
        if value is None:
            return default
        if not self.immutable:
            self.keeping.written()  # It may be changed in place, of which nobody would tell.
        return value

    def set(self, value: Any) -> None:
        super().set(value)
        if value is None:
            self.keeping.gone()
        else:
            self.keeping.written()

    def expire(self, entry: bytes) -> None:
        """Forget the value: its timer has fired."""
        super().set(None)


class ExpiringCombining(BoundCombining):
    """A CombiningState that expires, with a key under it."""

    keeping: Keeping

    def add(self, item: Any) -> None:
        super().add(item)
        self.keeping.written()

    def clear(self) -> None:
        super().clear()
        self.keeping.gone()

    def expire(self, entry: bytes) -> None:
        """Forget the accumulator: its timer has fired."""
        super().clear()


class ExpiringMap(BoundMap):
    """A MapState whose entries expire, with a key under it."""

    keeping: Keeping

    def get(self, entry: Any, default: Any = None) -> Any:
        value = super().get(entry, _NOTHING)
        if value is _NOTHING:
            return default
        if not self.immutable:
            self.keeping.written(encode_key(entry))
        return value

    def __contains__(self, entry: Any) -> bool:
        return super().get(entry, _NOTHING) is not _NOTHING

    def __setitem__(self, entry: Any, value: Any) -> None:
        super().__setitem__(entry, value)
        self.keeping.written(encode_key(entry))

    def __delitem__(self, entry: Any) -> None:
        super().__delitem__(entry)
        self.keeping.gone(encode_key(entry))

    def clear(self) -> None:
        for entry in self.between():
            self.keeping.gone(encode_key(entry))
        super().clear()

    def expire(self, entry: bytes) -> None:
        """Forget an entry: its timer has fired."""
        self._entries[entry] = GONE
        self._changed.add(entry)


_NOTHING: Any = object()
