"""Lateness: what is said of a record that came behind the low watermark.

Source: Dataflow, "Windowing and triggering", late data; MillWheel 4.5.
"""

from __future__ import annotations

from typing import Any

from millrace.model.brief import LETTER_MOST, brief
from millrace.model.pane import plain
from millrace.model.record import LateRecord
from millrace.windmill.bundle import Bundle
from millrace.windmill.counters import FirstLate


def first_late(bundle: Bundle, key: Any, n: int) -> FirstLate:
    """Return what a run is told of its first late record, the n-th of a bundle."""
    records = bundle.records
    return FirstLate(
        brief(key),
        records.stream_of(n),
        records.timestamps[n],
        bundle.attempt.arrival_watermark_us,
        bundle.attempt.epoch,
    )


def late_record(computation: str, bundle: Bundle, key: Any, n: int) -> LateRecord:
    """Return what the stream of late records gets of the n-th record of a bundle."""
    records = bundle.records
    return LateRecord(
        computation=computation,
        stream=records.stream_of(n),
        key=brief(key, LETTER_MOST),
        value=brief(plain(records.original(n)), LETTER_MOST),
        timestamp=records.timestamps[n],
        low_watermark=bundle.attempt.arrival_watermark_us,
        wall_time=bundle.attempt.wall_time_us,
        delivered_in=bundle.attempt.epoch,
    )
