"""Lateness: what is said of a record that came behind the low watermark.

Source: Dataflow, "Windowing and triggering", late data; MillWheel 4.5.
"""

from __future__ import annotations

from typing import Any

from millrace.model.brief import LETTER_MOST, brief
from millrace.model.pane import plain
from millrace.model.record import LateRecord
from millrace.windmill.counters import FirstLate
from millrace.windmill.work import Work


def first_late(work: Work, key: Any, n: int) -> FirstLate:
    """Return what a run is told of its first late record, the n-th of some work."""
    records = work.records
    return FirstLate(
        brief(key),
        records.stream_of(n),
        records.timestamps[n],
        work.arrival_watermark_us,
        work.epoch,
    )


def late_record(computation: str, work: Work, key: Any, n: int) -> LateRecord:
    """Return what the stream of late records gets of the n-th record of some work."""
    records = work.records
    return LateRecord(
        computation=computation,
        stream=records.stream_of(n),
        key=brief(key, LETTER_MOST),
        value=brief(plain(records.original(n)), LETTER_MOST),
        timestamp=records.timestamps[n],
        low_watermark=work.arrival_watermark_us,
        wall_time=work.wall_time_us,
        delivered_in=work.epoch,
    )
