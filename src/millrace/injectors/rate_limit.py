"""Throttle: injected streams that an operator holds back, altogether or to a rate.

Held back is a stream as its processes are by a skew limit: nothing more is read of it, its rows
wait where they are, and its silence is not taken for idleness.

Skew limiting: a process that is too far ahead of the low watermark waits until that advances.

Whatever is read beyond the low watermark has to be kept in state until the low watermark gets
there. So what is not read keeps state small: its bound is what the allowed span of time holds.

Held streams: what an operator holds back in a run, for who looks into its checkpoint.

Source: MillWheel, "Low Watermarks" (4.5): state that waits for the low watermark;
docs/injectors.md, "Skew".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final

import msgspec

from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, SECOND
from millrace.store import Mailbox

#: Letters sort behind the digits that requests begin with, of which old ones are removed.
_PREFIX: Final = "held-"

#: Who comes late to read what it might have read may read more for it, up to so much: the rate is
#: kept also where nobody looks at the very moment.
_CREDIT_US: Final = SECOND


class _Everyone(frozenset[str]):
    """All processes of a stream, those included that are not known yet."""

    def __contains__(self, process: object) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


EVERYONE: Final[frozenset[str]] = _Everyone()


class Throttle:
    """Which streams are held back, and how long for. Any thread may tell it.

    A rate is kept on the average: an epoch reads what there is, and then none does until as much
    time has passed as the rate gives its records.

    >>> throttle = Throttle()
    >>> throttle.limit("trips", 100.0)
    >>> throttle.read({"trips": 250}, now_us=0)
    >>> throttle.holds("trips"), throttle.changes_us()
    (True, 2500000)
    >>> throttle.read({}, now_us=2_500_000)
    >>> throttle.holds("trips")
    False
    """

    def __init__(self) -> None:
        self._paused: set[str] = set()
        self._waiting: set[str] = set()
        self._rates: dict[str, float] = {}
        self._until: dict[str, int] = {}
        self._now_us = 0

    def pause(self, stream: str) -> None:
        """Hold a stream back."""
        self._paused.add(stream)

    def resume(self, stream: str) -> None:
        """Hold a stream back no more, at whatever rate."""
        self._paused.discard(stream)
        self.limit(stream, None)

    def limit(self, stream: str, rate: float | None) -> None:
        """Let a stream have so many records a second; None: any number."""
        self._until.pop(stream, None)
        if rate is None:
            self._rates.pop(stream, None)
        else:
            self._rates[stream] = rate

    def wait(self, streams: Iterable[str]) -> None:
        """Hold streams back for what is behind them, whatever the operator says; and no others."""
        self._waiting = set(streams)

    def asked(self) -> tuple[list[str], dict[str, float]]:
        """Return the streams that are paused, and injected stream -> records a second."""
        return sorted(self._paused), dict(self._rates)

    def take(self, paused: Iterable[str], rates: Mapping[str, float]) -> None:
        """Take what another was asked, in place of what this one was."""
        self._paused = set(paused)
        for stream in self._rates.keys() - rates.keys():
            self.limit(stream, None)
        for stream, rate in rates.items():
            self.limit(stream, rate)

    def read(self, injected: Mapping[str, int], now_us: int) -> None:
        """Take how many records an epoch has read, by stream, and what time it is."""
        self._now_us = now_us
        for stream, rate in list(self._rates.items()):
            since_us = max(now_us - _CREDIT_US, self._until.get(stream, now_us))
            self._until[stream] = since_us + ceil(injected.get(stream, 0) / rate * SECOND)

    def holds(self, stream: str) -> bool:
        """Return whether nothing is to be read of a stream now."""
        if stream in self._paused or stream in self._waiting:
            return True
        return self._until.get(stream, 0) > self._now_us

    def changes_us(self) -> int:
        """Return when something that is held back by its rate is not any more."""
        later = [us for us in list(self._until.values()) if us > self._now_us]
        return min(later, default=MAX_TIMESTAMP)

    def descriptions(self) -> dict[str, str]:
        """Return stream -> what is asked of it, in words."""
        rates = {stream: f"{rate:,g} records a second" for stream, rate in self._rates.items()}
        return rates | dict.fromkeys(sorted(self._paused), "paused")


def too_far(
    processes: Mapping[str, int], low_watermark_us: int, skew_us: int | None
) -> frozenset[str]:
    """Return the processes that have to wait.

    The furthest behind never has to: the low watermark is not below what it publishes.

    Args:
        processes: Process -> low watermark that it publishes by itself.
        low_watermark_us: The lowest that is published to the computations it feeds.
        skew_us: How far ahead of that a process may be; None: any distance.

    >>> sorted(too_far({"a": 100, "b": 40, "c": 51}, 40, 10))
    ['a', 'c']
    """
    if skew_us is None:
        return frozenset()
    return frozenset(
        name
        for name, us in processes.items()
        if us != MIN_TIMESTAMP and us > low_watermark_us + skew_us
    )


def publish_held(mailbox: Mailbox, generation: int, held: Mapping[str, str]) -> None:
    """Say in a mailbox what a run holds back; what earlier runs left there is removed.

    Args:
        mailbox: Of the run's checkpoint.
        generation: Of the run.
        held: Stream -> what is asked of it, as :meth:`Throttle.descriptions` has it.

    >>> from millrace.store import MemoryBlobs
    >>> mailbox = Mailbox(MemoryBlobs())
    >>> publish_held(mailbox, 1, {"trips": "paused"})
    >>> held_in(mailbox, 1), held_in(mailbox, 2)
    ({'trips': 'paused'}, {})
    """
    name = f"{_PREFIX}{generation}"
    old = [other for other in mailbox.names() if other.startswith(_PREFIX)]
    if held:
        mailbox.replace(name, msgspec.json.encode(held))
        old = [other for other in old if other != name]
    mailbox.remove(old)


def held_in(mailbox: Mailbox, generation: int) -> dict[str, str]:
    """Return what a run holds back: stream -> ``paused``, or a rate."""
    data = mailbox.read(f"{_PREFIX}{generation}")
    return {} if data is None else msgspec.json.decode(data, type=dict[str, str])
