"""``p.dead_letter(at_most=)`` in real time: judged at each mark, and nothing is lost by it."""

from __future__ import annotations

from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import DeadLettersExceeded
from tests.live import Feeds, Kept, Live


class Halving(mr.Computation):
    inputs = {"numbers": mr.by("key")}
    outputs = {"halves": float}

    def process_record(self, record: mr.Record) -> None:
        if record.value["n"] < 0:
            raise ValueError("it is negative")
        self.produce("halves", record.value["n"] / 2)


class Limited:
    """A pipeline in real time whose dead letters are limited; each start counts anew."""

    def __init__(self, at_most: Any, numbers: list[int]) -> None:
        rows = [(n % 3, number, n) for n, number in enumerate(numbers)]
        self.halves, self.letters = Kept(), Kept()
        p = mr.Pipeline("numbers")
        source = Feeds("key long, n long, at long", {"p0": rows})
        p.inject("numbers", source, timestamp="at", low_watermark=mr.BoundedDelay(0))
        p.add(Halving)
        p.sink("halves", self.halves)
        p.dead_letter("rejects", at_most=at_most)
        p.sink("rejects", self.letters)
        self.live = Live(p)
        self.live.boot()

    def read(self, limit: int) -> None:
        """Process so many records, and pass a mark."""
        self.live.clock_us += mr.SECOND
        self.live.feed(limit)
        self.live.plane.settle(self.live.clock_us)
        self.live.plane.mark(self.live.clock_us)

    def start_again(self) -> None:
        self.live.plane.crash()
        self.live.open()
        self.live.boot()

    @property
    def seen(self) -> tuple[list[float], int]:
        halves = sorted(row["value"] for row in self.halves.rows)
        return halves, len(self.letters.rows)


def test_a_number_stops_a_run_and_the_next_counts_anew() -> None:
    run = Limited(2, [2, -1, -1, 4, -1, 6, -1, -1, 8])
    run.read(4)
    assert run.seen == ([1.0, 2.0], 2)

    with pytest.raises(DeadLettersExceeded, match=r"3 dead letters.*\n.*3 times, in Halving: V"):
        run.read(6)
    assert run.seen == ([1.0, 2.0, 3.0], 3), "its mark has passed: nothing is lost"

    run.start_again()
    run.read(9)
    assert run.seen == ([1.0, 2.0, 3.0, 4.0], 5)


def test_a_share_is_judged_once_a_hundred_have_been_read() -> None:
    run = Limited("5 %", [-1] * 6 + [2] * 120 + [-1] * 10)
    run.read(6)
    run.read(126)
    with pytest.raises(DeadLettersExceeded, match=r"7 of 127 records.*allows 5 %"):
        run.read(127)
    assert run.seen == ([1.0] * 120, 7)


def test_a_limit_that_is_passed_by_the_last_mark_ends_the_run_with_it() -> None:
    run = Limited(0, [2, -1])
    run.live.feed(2)
    run.live.plane.settle(run.live.clock_us)
    with pytest.raises(DeadLettersExceeded, match="1 dead letters"):
        run.live.plane.end(run.live.clock_us)
    assert run.seen == ([1.0], 1)
