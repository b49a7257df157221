"""What a computation counts itself: once for each key, and not for what failed."""

from typing import Any

import numpy as np
import pytest

import millrace as mr


class Counting(mr.Computation):
    inputs = {"events": mr.by(abs)}
    outputs = {"done": int}

    def process_record(self, record: mr.Record) -> None:
        self.increment("seen")
        self.increment("sum", record.value)
        if record.value < 0:
            raise ValueError("below zero")


def pipeline(*, letters: bool) -> mr.Pipeline:
    p = mr.Pipeline("counting")
    p.inject("events", format=int)
    p.add(Counting)
    if letters:
        p.dead_letter("letters")
    return p


def test_keys_of_one_bundle_are_counted_once_each() -> None:
    with mr.testing.Harness(pipeline(letters=False), intervals=1) as h:
        h.inject("events", [(1, 0), (2, 0), (3, 0), (2, 0)])
        h.crash()
        h.inject("events", [(5, 0)])
        assert h.counters("Counting").counted == {"seen": 5, "sum": 13}


def test_what_a_failed_record_counted_is_forgotten() -> None:
    with mr.testing.Harness(pipeline(letters=True), intervals=1) as h:
        h.inject("events", [(1, 0), (-2, 0), (2, 0), (3, 0)])
        assert h.counters("Counting").counted == {"seen": 3, "sum": 6}


@pytest.mark.parametrize(
    "counted", [(3,), ([],), ("a\ud800",), ("seen", 1.5), ("seen", "2"), ("seen", 1 << 63)]
)
def test_what_cannot_be_counted_is_refused_at_its_record(counted: Any) -> None:
    class Wrong(Counting):
        def process_record(self, record: mr.Record) -> None:
            if record.value:
                self.increment(*counted)
            self.increment("seen", np.int64(2))

    p = mr.Pipeline("wrong")
    p.inject("events", format=int)
    p.add(Wrong, name="Wrong")
    p.dead_letter("letters")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("events", [(1, 0), (0, 0)])
        assert h.counters("Wrong").counted == {"seen": 2}
        [letter] = h.outputs("letters")
        assert f"increment({', '.join(map(repr, counted))}" in letter.value.reason
