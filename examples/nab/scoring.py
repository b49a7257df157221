"""The scoring rule of the Numenta Anomaly Benchmark, written from its description.

A detector gives each record a score in [0, 1]; records at or above a threshold are its detections.
Each labelled window is worth its earliest detection: almost 1 at its left edge, 0 at its right one,
and a loss of `Profile.missed` if there is none. A detection outside of windows costs up to
`Profile.false_alarm`, less just behind a window. The first records of a stream are not scored. One
threshold is chosen for all streams: the one with the best sum (that is the benchmark's rule, and
how all published scores came about). 0 is the score of a detector that never reports, 100 that of a
perfect one.

Source: Lavin and Ahmad, "Evaluating Real-Time Anomaly Detection Algorithms: the Numenta Anomaly
Benchmark", ICMLA 2015, section II; and, for what the paper leaves open (edges, rounding), what its
published results add up to: `--check` scores them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

PROBATION = 0.15
"""Share of a stream that is not scored, of its first 5,000 records at most."""

PROBATION_RECORDS = 750

FAR = 3.0
"""Window widths behind a window from which on a detection costs in full."""


@dataclass(frozen=True)
class Profile:
    """What detections and misses are worth.

    Attributes:
        name: As in NAB's tables.
        false_alarm: Cost of one detection far from any window.
        missed: Cost of one window without a detection.
    """

    name: str
    false_alarm: float
    missed: float


PROFILES = (
    Profile("standard", 0.11, 1.0),
    Profile("reward_low_FP_rate", 0.22, 1.0),
    Profile("reward_low_FN_rate", 0.11, 2.0),
)
STANDARD = PROFILES[0]


@dataclass(frozen=True)
class Stream:
    """One labelled stream, with what a detector made of it.

    Attributes:
        scores: Anomaly score of each record, in order of time.
        windows: First and last record of each labelled window, counted from 0, in order of time.
    """

    scores: Sequence[float]
    windows: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Verdict:
    """A detector's result.

    Attributes:
        score: 0 for no detections at all, 100 for the perfect detector; may be negative.
        threshold: The threshold that gave it.
        found: Windows with a detection.
        false_alarms: Detections outside of windows.
    """

    score: float
    threshold: float
    found: int
    false_alarms: int


def worth(position: float) -> float:
    """Return what a detection is worth at a position relative to a window.

    Args:
        position: -1 at the left edge of a window, 0 at the right one, and on in window widths.

    Returns:
        From 0.9866 down to -1.

    >>> round(worth(-1.0), 4), worth(0.0), worth(4.0)
    (0.9866, 0.0, -1.0)
    """
    if position > FAR:
        return -1.0
    return 2.0 / (1.0 + math.exp(5.0 * position)) - 1.0


def probation(records: int) -> int:
    """Return how many records at the start of a stream are not scored.

    >>> probation(4032), probation(100_000)
    (604, 750)
    """
    return min(math.floor(PROBATION * records), PROBATION_RECORDS)


def worths(records: int, windows: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return what a detection at each record of a stream is worth, without a profile's weights.

    Args:
        records: Length of the stream.
        windows: As in `Stream`.

    Returns:
        Two arrays, one entry a record: the worth, of at most 1; and the number of the record's
        window, or -1.
    """
    worth_of = np.full(records, -1.0)
    window_of = np.full(records, -1)
    for number, (first, last) in enumerate(windows):
        width = last - first + 1
        for at in range(first, last + 1):
            worth_of[at] = worth(-(last - at + 1) / width) / worth(-1.0)
        window_of[first : last + 1] = number
        end = windows[number + 1][0] if number + 1 < len(windows) else records
        for at in range(last + 1, min(end, last + math.ceil(FAR * width) + 1)):
            worth_of[at] = worth((at - last) / (width - 1))
    return worth_of, window_of


def best(
    streams: Iterable[Stream], profile: Profile = STANDARD, *, threshold: float | None = None
) -> Verdict:
    """Score a detector over all streams.

    Args:
        streams: All streams of the benchmark.
        profile: What counts how much.
        threshold: Score from which on a record is a detection, the same for all streams. None
            takes the one that scores best.

    Returns:
        The verdict at the threshold.

    Raises:
        ValueError: There is no window to find.

    >>> quiet = Stream([0.0] * 100, [(50, 59)])
    >>> best([quiet], threshold=0.5).score
    0.0
    >>> early = Stream([0.0] * 50 + [1.0] + [0.0] * 49, [(50, 59)])
    >>> best([early])
    Verdict(score=100.0, threshold=1.0, found=1, false_alarms=0)
    """
    scores, gains, owners, total = _gather(streams, profile)
    if not total:
        raise ValueError("no labelled window in any stream: give the benchmark's windows")
    order = np.argsort(-scores, kind="stable")
    scores, gains, owners = scores[order], gains[order], owners[order]
    first = _raise_to_best(gains, owners, profile)
    sums = np.cumsum(gains)
    ends = np.flatnonzero(np.append(np.diff(scores) != 0, True))  # last record of each threshold
    if threshold is None:
        end = int(ends[np.argmax(sums[ends])])
        if sums[end] <= 0.0:
            return Verdict(0.0, math.inf, 0, 0)
    else:
        end = int(np.searchsorted(-scores, -threshold, side="right")) - 1
        if end < 0:
            return Verdict(0.0, threshold, 0, 0)
    return Verdict(
        score=100.0 * float(sums[end]) / (total * (1.0 + profile.missed)),
        threshold=float(scores[end]) if threshold is None else threshold,
        found=int(first[: end + 1].sum()),
        false_alarms=int((owners[: end + 1] < 0).sum()),
    )


def _gather(
    streams: Iterable[Stream], profile: Profile
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return score, worth and window of all scored records, and the number of windows."""
    scores, gains, owners, total = [], [], [], 0
    for stream in streams:
        start = probation(len(stream.scores))
        gain, owner = worths(len(stream.scores), stream.windows)
        gain = np.where(owner < 0, gain * profile.false_alarm, gain)
        scores.append(np.asarray(stream.scores, dtype=float)[start:])
        gains.append(gain[start:])
        owners.append(np.where(owner < 0, -1, owner + total)[start:])
        total += len(stream.windows)
    return np.concatenate(scores), np.concatenate(gains), np.concatenate(owners), total


def _raise_to_best(gains: np.ndarray, owners: np.ndarray, profile: Profile) -> np.ndarray:
    """Turn worths in windows into what each adds to its window's best; say which are the first."""
    best_of: dict[int, float] = {}
    first = np.zeros(len(gains), dtype=bool)
    for at in np.flatnonzero(owners >= 0).tolist():
        window = int(owners[at])
        before = best_of.get(window, -profile.missed)
        first[at] = window not in best_of
        best_of[window] = max(before, gains[at])
        gains[at] = best_of[window] - before
    return first
