"""Results: what one bundle of a key interval gave, as its task tells it the driver.

Counts and report are also the footing of the bundle's commit, so an attempt that replays the commit
reports the same. What the attempt cost is not: a replay did nothing.
"""

from __future__ import annotations

import msgspec

from millrace.store import NOTHING, Commit, Repair
from millrace.watermark.report import Report
from millrace.windmill.counters import Counters
from millrace.windmill.load import NO_LOAD, Load
from millrace.windmill.routing import RowsBuilder


class IntervalResult(msgspec.Struct, array_like=True):
    """One interval after a bundle, or after all bundles between two marks.

    Attributes:
        computation: Its name.
        interval: The interval's id.
        number: Number of its last commit.
        report: What pins its low watermark.
        counters: What happened.
        replayed: Whether an earlier attempt had committed. Then no user code ran, or, where the
            commit holds no productions, only to make those again.
        chain: That commit's.
        repair: What it took to bring its cache to where the bundle begins.
        load: What it cost this attempt.
    """

    computation: str
    interval: int
    number: int
    report: Report
    counters: Counters
    replayed: bool = False
    chain: int = 0
    repair: Repair = NOTHING
    load: Load = NO_LOAD


#: A result, and what leaves for consumers: that goes another way than the result.
Produced = tuple[IntervalResult, RowsBuilder]


class Footing(msgspec.Struct, array_like=True):
    """What a commit carries besides state and productions, so that a replay reports the same.

    Attributes:
        report: What pins the interval's low watermark.
        counters: What happened.
        weak: Whether the productions are not in the commit. It stands in the commit, and is not
            taken from the pipeline, as that may have changed since.
    """

    report: Report
    counters: Counters
    weak: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Footing).decode


def footing(report: Report, counters: Counters, *, weak: bool) -> bytes:
    """Return what a commit carries besides state and productions."""
    return _encode(Footing(report, counters, weak))


def footing_of(commit: Commit) -> Footing:
    """Return what a commit carries besides state and productions."""
    return _decode(commit.report)


def result_of(commit: Commit, footing: Footing, *, replayed: bool = False) -> IntervalResult:
    """Return the result that a commit says, which an earlier attempt or session made."""
    return IntervalResult(
        commit.computation,
        commit.interval,
        commit.number,
        footing.report,
        footing.counters,
        replayed,
        commit.chain,
    )
