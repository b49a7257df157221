"""The heat map: key intervals by load and by lag, put together until a page can show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from millrace.dashboard.plain import behind
from millrace.inspect import Interval
from millrace.model.time import MAX_TIMESTAMP

#: A cell of the map is some ten pixels wide, and a laptop's page some thousand.
CELLS: Final = 768


def heat_of(
    intervals: Sequence[Interval], load: Mapping[int, float], unit: str, newest_us: int
) -> dict[str, Any]:
    """Return neighbouring key intervals as cells, in the order of their hashes.

    Args:
        intervals: Of a computation, by hash.
        load: Interval id -> its load; without those that have none.
        unit: Of the load, for people.
        newest_us: The latest event time read.

    Returns:
        ``intervals``, how many there are; ``each``, how many one cell holds at most; and columns
        with a value a cell: ``first`` and ``last`` id, the sum of ``load``, in ``unit``, and
        ``lag`` in seconds, that of the oldest pending work, None where nothing is pending.

    >>> from millrace.watermark.report import Report
    >>> halves = [
    ...     Interval(id=n, start=n, end=n + 1, commit=1, chain=0, report=Report(hold_us=n * 10**6))
    ...     for n in (1, 2)
    ... ]
    >>> (
    ...     heat_of(halves, {2: 5}, "commits", 4_000_000)["load"],
    ...     heat_of(halves, {}, "%", 4_000_000)["lag"],
    ... )
    ([0, 5], [3.0, 2.0])
    """
    each = -(-len(intervals) // CELLS) or 1
    cells = [intervals[at : at + each] for at in range(0, len(intervals), each)]
    return {
        "intervals": len(intervals),
        "each": each,
        "first": [cell[0].id for cell in cells],
        "last": [cell[-1].id for cell in cells],
        "unit": unit,
        "load": [round(sum(load.get(one.id, 0) for one in cell), 1) for cell in cells],
        "lag": [_lag(cell, newest_us) for cell in cells],
    }


def _lag(cell: Sequence[Interval], newest_us: int) -> float | None:
    oldest_us = min(
        (one.report.oldest_work_us() for one in cell if one.report is not None),
        default=MAX_TIMESTAMP,
    )
    return None if oldest_us >= MAX_TIMESTAMP else behind(oldest_us, newest_us)
