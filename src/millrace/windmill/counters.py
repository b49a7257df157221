"""Counters of what a computation did: kept with the commits, so a restart counts nothing twice."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from millrace.model.time import format_timestamp
from millrace.windmill.dead_letters import Reasons, merge, tell_first

_log = logging.getLogger("millrace")


class FirstLate(msgspec.Struct, array_like=True, frozen=True):
    """The first late record that a computation met.

    Attributes:
        key: Its key, as text, cut if it is long.
        stream: The stream it came by.
        timestamp_us: Its event time.
        low_watermark_us: The low watermark that it was behind.
        epoch: When it was delivered.
    """

    key: str
    stream: str
    timestamp_us: int
    low_watermark_us: int
    epoch: int


class Counters(msgspec.Struct, array_like=True):
    """What happened in a bundle, an epoch, or since the beginning.

    Attributes:
        records: Records delivered to user code, late ones included.
        late: Those behind the low watermark.
        worst_lateness_us: How far behind the worst was.
        timers: Timers fired.
        keys: Keys' parts of bundles.
        productions: Rows sent to consumers.
        dead_letters: Records and timers that user code failed on and that were set aside.
        first_late: The first record behind the low watermark; None if there was none.
        counted: What the computation counted itself, by name.
        duplicates_filtered: Records that an injector delivered again, and user code did not get.
        reasons: Why they were set aside -> how many, and the first of them.
    """

    records: int = 0
    late: int = 0
    worst_lateness_us: int = 0
    timers: int = 0
    keys: int = 0
    productions: int = 0
    dead_letters: int = 0
    first_late: FirstLate | None = None
    counted: dict[str, int] = {}
    duplicates_filtered: int = 0
    reasons: Reasons = {}

    def add(self, other: Counters) -> None:
        """Add another's counts to these."""
        self.records += other.records
        self.late += other.late
        self.worst_lateness_us = max(self.worst_lateness_us, other.worst_lateness_us)
        self.timers += other.timers
        self.keys += other.keys
        self.productions += other.productions
        self.dead_letters += other.dead_letters
        self.first_late = self.first_late or other.first_late
        for name, n in other.counted.items():
            self.counted[name] = self.counted.get(name, 0) + n
        self.duplicates_filtered += other.duplicates_filtered
        if other.reasons:
            merge(self.reasons, other.reasons)


def count(
    counters: Mapping[str, Counters],
    said: Iterable[tuple[str, Counters]],
    titles: Mapping[str, str],
) -> None:
    """Add what happened; say in the log who has met a first late record, or sent a dead letter.

    Args:
        counters: By computation.
        said: What happened lately, by computation.
        titles: Computation -> what its user calls it.
    """
    for name, more in said:
        if counters[name].first_late is None and more.first_late is not None:
            _tell_first_late(titles[name], more.first_late)
        if more.reasons and not counters[name].reasons:
            tell_first(titles[name], more.reasons)
        counters[name].add(more)


def _tell_first_late(computation: str, late: FirstLate) -> None:
    _log.warning(
        "%s: the first late record: key %s, stream %r, timestamp %s, low watermark %s, epoch %d. "
        "It was delivered with record.late set. Later ones are only counted.",
        computation,
        late.key,
        late.stream,
        format_timestamp(late.timestamp_us),
        format_timestamp(late.low_watermark_us),
        late.epoch,
        extra={
            "millrace": {
                "event": "late_record",
                "computation": computation,
                "key": late.key,
                "stream": late.stream,
                "epoch": late.epoch,
            }
        },
    )
