"""A hash join with a time-out, by a trigger that a user writes: docs/windows-and-triggers.md."""

from collections.abc import Iterator
from typing import Any

import pytest

import millrace as mr

HOUR = mr.HOUR


class HashJoin(mr.Trigger):
    finishes = True

    def on_element(self, ctx: Any) -> None:
        side, _ = ctx.element
        self._met(ctx, {side, *ctx.get("sides", [])})

    def on_merge(self, ctx: Any) -> None:
        self._met(ctx, {side for source in ctx.sources for side in source.get("sides", [])})

    def _met(self, ctx: Any, sides: set[int]) -> None:
        ctx.set("sides", sorted(sides))
        if len(sides) == 2:
            ctx.trigger()
            ctx.done()


class Joined:
    def __init__(self, timeout: mr.Trigger, window: mr.WindowFn, how: str) -> None:
        p = mr.Pipeline("join")
        left, right = p.inject("left", format=str), p.inject("right", format=str)
        trigger = mr.Repeat(mr.FirstOf(HashJoin(), timeout))
        lefts = left.key_by(first).window(window, trigger=trigger, mode=mr.DISCARDING)
        lefts.join(right.key_by(first), how).to("pairs")
        self.harness = mr.testing.Harness(p)
        self._seen = 0

    def new(self) -> list[Any]:
        outputs = self.harness.outputs("pairs")
        new, self._seen = outputs[self._seen :], len(outputs)
        return [out.value for out in new]

    def add(self, stream: str, *values: str, at: int = 0) -> list[Any]:
        self.harness.inject(stream, [(value, at) for value in values])
        return self.new()

    def clock(self, to: int) -> list[Any]:
        self.harness.advance_clock(to)
        return self.new()

    def watermark(self, to: int) -> list[Any]:
        for stream in ("left", "right"):
            self.harness.advance_watermark(stream, to)
        return self.new()


def first(value: str) -> str:
    return value[0]


@pytest.fixture
def join() -> Iterator[Any]:
    made: list[Joined] = []

    def make(
        timeout: mr.Trigger | None = None, window: mr.WindowFn | None = None, how: str = "left"
    ) -> Joined:
        made.append(Joined(timeout or mr.AfterDelay("1 h"), window or mr.GlobalWindow(), how))
        return made[-1]

    yield make
    for one in made:
        one.harness.close()


@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")])
def test_a_pair_is_emitted_when_its_second_half_comes(join: Any, order: Any) -> None:
    j = join()
    values = {"left": "a1", "right": "a2"}

    assert j.add(order[0], values[order[0]]) == []
    assert j.add(order[1], values[order[1]]) == [("a1", "a2")]
    assert j.clock(10 * HOUR) == []


def test_each_value_is_paired_once_and_the_next_round_begins(join: Any) -> None:
    j = join()
    j.add("left", "a1")
    assert j.add("right", "a2") == [("a1", "a2")]
    assert j.add("right", "a3") == []
    j.harness.crash()
    assert j.add("left", "a4") == [("a4", "a3")]


def test_keys_do_not_wait_for_each_other(join: Any) -> None:
    j = join()
    assert j.add("left", "a1", "b1") == []
    assert j.add("right", "b2") == [("b1", "b2")]
    assert j.clock(HOUR) == [("a1", None)]


@pytest.mark.parametrize(
    ("at", "emitted"), [(HOUR - 1, []), (HOUR, [("a1", None)])], ids=["before", "exact"]
)
def test_by_the_wall_clock_it_times_out_after_the_delay(join: Any, at: int, emitted: Any) -> None:
    j = join()
    j.add("left", "a1")
    j.watermark(100 * HOUR)  # that clock is not asked
    assert j.clock(at) == emitted


@pytest.mark.parametrize(
    ("at", "emitted"), [(2 * HOUR - 1, []), (2 * HOUR, [("a1", None)])], ids=["before", "exact"]
)
def test_by_the_low_watermark_it_times_out_when_event_time_is_over(
    join: Any, at: int, emitted: Any
) -> None:
    j = join(mr.AfterDelay("1 h", mr.LOW_WATERMARK))
    j.watermark(HOUR)
    j.add("left", "a1", at=HOUR)
    j.clock(100 * HOUR)  # that clock is not asked
    assert j.watermark(at) == emitted


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_what_comes_after_the_time_out_is_alone(join: Any, how: str) -> None:
    j = join(how=how)
    j.add("left", "a1")
    assert j.clock(HOUR) == ([] if how == "inner" else [("a1", None)])
    j.add("right", "a2")
    assert j.clock(2 * HOUR) == ([(None, "a2")] if how == "outer" else [])


def test_the_end_of_the_input_is_the_last_time_out(join: Any) -> None:
    j = join()
    j.add("left", "a1")
    assert j.watermark(mr.MAX_TIMESTAMP) == [("a1", None)]


def test_sessions_that_merge_bring_the_sides_together(join: Any) -> None:
    j = join(window=mr.Sessions(10), how="inner")
    assert j.add("left", "a1", at=0) == []
    assert j.add("right", "a2", at=15) == []
    # The element that joins the sessions is in the round that it ends.
    assert j.add("left", "a3", at=8) == [("a1", "a2"), ("a3", "a2")]
    assert j.add("right", "a4", at=9) == []
    assert j.add("left", "a5", at=10) == [("a5", "a4")]
