"""What is made of times: which row belongs to which record, whether rows are right, percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contest import ContenderFailed
from benchmarks.latency.job import REKEY

#: A bin of a histogram is 5 % wider than the one before.
_BIN = np.log(1.05)


@dataclass(frozen=True)
class Latency:
    """Latencies of the measured records at one point, in milliseconds.

    Attributes:
        records: How many.
        mean, p50, p95, p99, p999, max: Of all records.
        histogram: Pairs: where a bin begins, and how many records it has; empty ones are left out.
        by_second: Median, 99th percentile and maximum of the records sent in each second.
    """

    records: int
    mean: float
    p50: float
    p95: float
    p99: float
    p999: float
    max: float
    histogram: list[tuple[float, int]]
    by_second: list[tuple[float, float, float]]

    @classmethod
    def of(cls, sent_ns: np.ndarray, seen_ns: np.ndarray) -> Latency:
        """Return what records sent and seen at such times amount to.

        >>> found = Latency.of(np.array([0, 0, 10**9]), np.array([10**6, 3 * 10**6, 1_002_000_000]))
        >>> found.p50, found.max, [second[2] for second in found.by_second]
        (2.0, 3.0, [3.0, 2.0])
        """
        if not len(sent_ns):
            raise ContenderFailed("no record was seen in the measured seconds")
        ms = (seen_ns - sent_ns) / 1e6
        # Clocks of two processes agree on a machine; a millisecond that Flink cuts off may not.
        bins = np.floor(np.log(np.maximum(ms, 1e-3)) / _BIN).astype(int)
        which, counts = np.unique(bins, return_counts=True)
        starts = np.round(np.exp(which * _BIN), 4)
        seconds = (sent_ns - sent_ns.min()) // 1_000_000_000
        order = np.argsort(seconds, kind="stable")
        _, firsts = np.unique(seconds[order], return_index=True)
        by_second = [
            (*_rounded(np.percentile(part, [50, 99])), round(float(part.max()), 3))
            for part in np.split(ms[order], firsts[1:])
        ]
        percentiles = np.percentile(ms, [50, 95, 99, 99.9])
        return cls(
            len(ms),
            float(ms.mean()),
            *_rounded(percentiles),
            round(float(ms.max()), 3),
            list(zip(starts.tolist(), counts.tolist(), strict=True)),
            by_second,
        )


def _rounded(values: np.ndarray) -> Any:
    return [round(float(value), 3) for value in values]


def last_keys(keys: np.ndarray, count: int, stages: int) -> np.ndarray:
    """Return the keys of the last stage, given those of the first.

    >>> last_keys(np.array([1, 2]), 100, 3).tolist()
    [61, 22]
    """
    for _ in range(stages - 1):
        keys = keys * REKEY % count
    return keys


def ranks(keys: np.ndarray) -> np.ndarray:
    """Return for each record the how many-th of its key it is, from 1.

    >>> ranks(np.array([5, 3, 5, 5])).tolist()
    [1, 1, 2, 3]
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sizes = np.diff(np.r_[firsts, len(keys)])
    found = np.empty(len(keys), dtype=np.int64)
    found[order] = np.arange(len(keys)) - np.repeat(firsts, sizes) + 1
    return found


def check_rows(rows: np.ndarray, keys: np.ndarray) -> None:
    """Check that rows are what they have to be.

    Args:
        rows: As ``wire.parse_rows`` returns them.
        keys: Of all records, in the last stage.

    Raises:
        ContenderFailed: Something is missing, double or wrong.
    """
    if not len(rows):
        raise ContenderFailed("not one row came out")
    if rows[:, 0].any():
        found = np.sort(rows[:, 1] * _FACTOR + rows[:, 2])
        expected = np.sort(keys * _FACTOR + ranks(keys))
        what = "rows, one for each record"
    else:
        found = np.unique(rows[:, 1] * _FACTOR + rows[:, 2])
        last = np.r_[found[1:] // _FACTOR != found[:-1] // _FACTOR, True]
        found = found[last]
        present, counts = np.unique(keys, return_counts=True)
        expected = present * _FACTOR + counts
        what = "keys with their last counts"
    if not np.array_equal(found, expected):
        missing, extra = np.setdiff1d(expected, found), np.setdiff1d(found, expected)
        double = len(found) - len(np.unique(found))
        example = (missing if len(missing) else found)[0]
        raise ContenderFailed(
            f"expected {len(expected):,} {what}; found {len(found):,}: {len(missing):,} are "
            f"missing, {len(extra):,} are wrong, {double:,} are double; such as key "
            f"{example // _FACTOR}, count {example % _FACTOR}"
        )


#: Counts are below it, and keys times it fit in 63 bits.
_FACTOR = 1 << 32


def match(
    rows: np.ndarray, arrived_ns: np.ndarray, sent_ns: np.ndarray, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return of each record when it was sent and when its row was there.

    Args:
        rows: That have been checked.
        arrived_ns: When each was there.
        sent_ns: Of all records.
        keys: Of all records, in the last stage.

    >>> rows = np.array([[0, 7, 2, 0], [0, 7, 3, 0]])
    >>> match(rows, np.array([50, 60]), np.array([1, 2, 3]), np.array([7, 7, 7]))
    (array([1, 2, 3]), array([50, 50, 60]))
    """
    if rows[:, 0].any():
        return rows[:, 0], arrived_ns
    codes = rows[:, 1] * _FACTOR + rows[:, 2]
    order = np.lexsort((arrived_ns, codes))
    wanted = keys * _FACTOR + ranks(keys)
    return sent_ns, arrived_ns[order][np.searchsorted(codes[order], wanted)]
