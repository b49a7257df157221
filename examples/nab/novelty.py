"""How far each value of a stream goes beyond all that came before it: the model and the detectors.

Plain functions of NumPy and pandas, without Millrace. Four measures are taken of each value, each
from the values up to it:

- ``spike_or_dip``: distance from the median of the last `LONG` values;
- ``shift``: distance of the mean of the last `SHORT` values from that median;
- ``season``: distance from the value a day before;
- ``unrest``: standard deviation of the last `UNREST` values.

A value is as novel as its measures are beyond their records: the largest ratio of a measure to its
maximum until then. A record needs no unit, no distribution and no rate, and the longer a stream
is known, the rarer one is by chance: among n values of one distribution, the last is the largest
with probability 1/n. After a report, only what is more novel still is reported for `REST` values.

Results do not depend on how a stream is cut into calls: each measure is taken from the values it
names, and from no running sum.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view

LONG = 1000
SHORT = 20
UNREST = 10
LEAST = 20
"""Values from which a median is taken."""

WARM_UP = 300
"""Values of a measure that only set its record."""

REST = 200
FAINT = 0.3
"""Novelty that is not looked at."""

TINY = 1e-12
"""The least record: of a stream that never changed, any change is novel."""

DAY_S = 86_400
PACE = 50
"""Values whose median distance in time tells how many make a day."""

MEASURES = ("spike_or_dip", "shift", "season", "unrest")


class Known(msgspec.Struct):
    """What is kept of a stream.

    Attributes:
        values: The last ones, as many as the measures look back to.
        seen: Values so far.
        starts: Times of the first `PACE` values, in seconds.
        records: Maximum of each measure so far.
        counts: Values of each measure so far.
        reported: Number of the value last reported.
        level: Its novelty.
    """

    values: list[float] = []
    seen: int = 0
    starts: list[float] = []
    records: dict[str, float] = {}
    counts: dict[str, int] = {}
    reported: int = -REST
    level: float = 0.0


def novelty(known: Known, times: list[float], values: list[float]) -> list[float]:
    """Return how novel the next values of a stream are, and get to know them.

    Args:
        known: What is known of the stream; it is changed.
        times: Seconds, never less than the one before.
        values: As many.

    Returns:
        For each value 0, or novelty / (1 + novelty) of what is to be reported: 0.5 and more is
        beyond all that was seen before.

    >>> known = Known()
    >>> steady = [float(n % 7) for n in range(1000)]
    >>> max(novelty(known, [300.0 * n for n in range(1000)], steady)[500:])
    0.5
    >>> round(novelty(known, [300_000.0], [30.0])[0], 2)
    0.9
    """
    known.starts += times[: PACE - len(known.starts)]
    new = len(values)
    series = np.array(known.values + values)
    measures = _measures(series, new, known)
    novel = np.max([_beyond(known, name, measures[name]) for name in MEASURES], axis=0)
    keep = LONG + _a_day(known.starts) + SHORT
    known.values = series[-keep:].tolist()
    return [_report(known, each) for each in novel.tolist()]


def _measures(series: np.ndarray, new: int, known: Known) -> dict[str, np.ndarray]:
    """Return the measures of the last values of a series; NaN where there is none."""
    before = pd.Series(series).rolling(LONG, min_periods=LEAST).median().shift(1).to_numpy()
    lag = _a_day(known.starts)
    day_before = np.concatenate([np.full(lag, np.nan), series])[: len(series)]
    return {
        "spike_or_dip": abs(series - before)[-new:],
        "shift": abs(_of_last(SHORT, series, np.mean) - before)[-new:],
        "season": abs(series - day_before)[-new:],
        "unrest": _of_last(UNREST, series, np.std)[-new:],
    }


def _of_last(count: int, series: np.ndarray, statistic: Any) -> np.ndarray:
    """Return a statistic of each value and those before it, `count` together."""
    if len(series) < count:
        return np.full(len(series), np.nan)
    rows = np.ascontiguousarray(sliding_window_view(series, count))
    return np.concatenate([np.full(count - 1, np.nan), statistic(rows, axis=1)])


def _a_day(starts: list[float]) -> int:
    """Return how many values make a day, by the first of them."""
    pace = float(np.median(np.diff(starts))) if len(starts) == PACE else 0.0
    return max(1, round(DAY_S / pace)) if pace > 0.0 else DAY_S


def _beyond(known: Known, name: str, measured: np.ndarray) -> np.ndarray:
    """Return the ratio of each measure to its record before, and keep the new record."""
    have = measured[~np.isnan(measured)]
    count = known.counts.get(name, 0)
    ratio = np.zeros(len(measured))
    if not len(have):
        return ratio
    highs = np.maximum.accumulate(np.append(known.records.get(name, 0.0), have))
    beyond = have / np.maximum(highs[:-1], TINY)
    known.records[name] = float(highs[-1])
    beyond[: max(0, WARM_UP - count)] = 0.0
    known.counts[name] = count + len(have)
    ratio[len(measured) - len(have) :] = beyond
    return ratio


def _report(known: Known, novel: float) -> float:
    """Return the score of one value, 0 while what was reported last is more novel."""
    known.seen += 1
    resting = known.seen - known.reported <= REST
    if novel <= FAINT or (resting and novel <= known.level):
        return 0.0
    known.reported, known.level = known.seen, novel
    return novel / (1.0 + novel)
