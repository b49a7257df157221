"""Parts: what a bundle has of each key, its records and its due timers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import repeat
from operator import itemgetter
from typing import Any

from millrace.model.keys import decode_key
from millrace.store import View
from millrace.watermark.report import NOTHING_PENDING, Report
from millrace.windmill import rows
from millrace.windmill.bundle import Bundle
from millrace.windmill.pending import pending_by
from millrace.windmill.timers import DueTimers

#: A key's part of a bundle: its row, its key encoded and as it is, its first record and past its
#: last, its due timers.
Part = tuple[bytes, bytes, Any, int, int, DueTimers | None]

#: Row of a key -> the key, encoded, and its due timers.
_Due = dict[bytes, tuple[bytes, DueTimers]]

_NONE_DUE: _Due = {}


def parts_of(bundle: Bundle, view: View, clocks: Mapping[int, int]) -> list[Part]:
    """Return what each key has to do, sorted by row.

    Args:
        bundle: The bundle.
        view: The rows of its interval, as they were before it.
        clocks: Clock -> its time; timers up to there are due.
    """
    due = (
        _NONE_DUE
        if bundle.position.report == NOTHING_PENDING
        else _due(bundle.position.report, view, clocks)
    )
    records = bundle.records
    cuts = records.cuts
    timers: Iterable[DueTimers | None] = repeat(None, len(records.keys))
    if due:
        nothing: tuple[bytes, None] = (b"", None)
        timers = [due.pop(key_row, nothing)[1] for key_row in records.key_rows]
    parts: list[Part] = list(
        zip(
            records.key_rows, records.encoded, records.keys, cuts[:-1], cuts[1:], timers,
            strict=True,
        )
    )  # fmt: skip
    if due:
        parts += [
            (key_row, encoded, decode_key(encoded), 0, 0, alone)
            for key_row, (encoded, alone) in due.items()
        ]
        parts.sort(key=itemgetter(0))
    return parts


def _due(report: Report, view: View, clocks: Mapping[int, int]) -> _Due:
    due: _Due = {}
    for clock, clock_us in clocks.items():
        if pending_by(report, clock) > clock_us:
            continue
        for key_row, key, timer, setting in rows.due_timers(view, clock, clock_us):
            due.setdefault(key_row, (key, {}))[1][timer] = setting
    return due
