"""Which event times are accepted, and what is said of the others."""

from __future__ import annotations

import numpy as np
import pytest

import millrace as mr
from millrace.model.time import LATEST_RECORD
from millrace.runtime.refusal import EventTimes

NOW = 1_795_000_000 * mr.SECOND
BARE = EventTimes(NOW, "at", bare=True)


@pytest.mark.parametrize(
    ("at_us", "words"),
    [
        (None, r"the timestamp is null, or could not be parsed \(column 'at'\)"),
        (-1, "before 1970"),
        (LATEST_RECORD + 1, r'nanoseconds\? Then say inject\(..., unit="ns"\)'),
        (NOW + 1, r"too far past the wall clock; see inject\(..., ahead=\)"),
        (1_700_000_000_000, r"column 'at'\) is 1970-01-20T.*2023-11-14T.*unit=\"ms\"\), or"),
        (1_700_000_000, r"column 'at'\) is 1970-01-01T00:28:20Z.*2023-11-14T.*unit=\"s\"\), or"),
    ],
)
def test_why_a_time_is_refused(at_us, words):
    reason = BARE.refusal(at_us)
    assert reason is not None
    assert __import__("re").search(words, reason), reason


@pytest.mark.parametrize("at_us", [0, 5, 3600 * mr.SECOND, NOW])
def test_other_times_are_not(at_us):
    assert BARE.refusal(at_us) is None


def test_a_time_whose_unit_was_said_is_taken_at_its_word():
    assert EventTimes(NOW, "at").refusal(1_700_000_000_000) is None


@pytest.mark.parametrize("times", [BARE, EventTimes(NOW)])
def test_a_column_of_times_is_judged_as_each_of_them(times):
    at_us = np.array([0, 10**9, 1_700_000_000, 10**12, 10**15, NOW, NOW + 1], np.int64)
    each = [times.refusal(one) is not None for one in at_us.tolist()]
    assert times.refused(at_us).tolist() == each
    assert each[-1]
