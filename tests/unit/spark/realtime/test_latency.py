"""Where the time of a record goes in real time: counted in tasks, put together in the driver."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.runtime.realtime.messages import Stepped, decode_to_driver, encode
from millrace.spark.realtime.latency import StepsSeen, StepTimer, StepTimes, below_s, bucket


class Clock:
    """Seconds, as a test says."""

    def __init__(self) -> None:
        self.now = 1_795_165_200.0

    def __call__(self) -> float:
        return self.now


@given(st.floats(0, 1_000))
def test_a_bucket_says_at_most_a_fifth_too_much(seconds: float) -> None:
    assert seconds <= below_s(bucket(seconds)) + 1e-6
    assert below_s(bucket(seconds)) <= max(seconds, 1e-6) * 2**0.25 + 1e-6


def test_packets_are_timed_from_task_to_task() -> None:
    clock = Clock()
    before, after = StepTimer(clock), StepTimer(clock)
    first, second = before.stamped(b"first"), before.stamped(b"second")
    clock.now += 0.004
    assert after.arrived(first) == b"first"
    clock.now += 0.008
    assert after.arrived(second) == b"second"
    clock.now += 0.016
    assert after.due_report(2, 7) is None  # there is nothing yet
    after.begun(2)
    after.ended(0.032)
    told = after.due_report(2, 7)
    assert told == Stepped(
        2,
        7,
        {
            "on the way": {bucket(0.004): 1, bucket(0.012): 1},
            "before its turn": {bucket(0.024): 1, bucket(0.016): 1},
            "turn": {bucket(0.032): 1},
        },
    )
    assert decode_to_driver(encode(told)) == told
    after.ended(0.064)
    clock.now += 0.9
    assert after.due_report(2, 7) is None  # it was told lately
    clock.now += 0.2
    assert after.due_report(2, 7) == Stepped(2, 7, {"turn": {bucket(0.064): 1}})
    clock.now += 2.0
    assert after.due_report(2, 7) is None  # there is nothing new


def test_only_what_a_turn_takes_has_waited_for_it() -> None:
    clock = Clock()
    steps = StepTimer(clock)
    for _ in range(2):
        steps.arrived(steps.stamped(b""))
    steps.begun(1)
    clock.now += 2.0
    steps.begun(1)
    told = steps.due_report(1, 0)
    assert told is not None
    assert told.times["before its turn"] == {bucket(0.0): 1, bucket(2.0): 1}


def test_a_clock_that_is_behind_the_senders_is_no_error() -> None:
    ahead, clock = Clock(), Clock()
    ahead.now += 60.0
    steps = StepTimer(clock)
    assert steps.arrived(StepTimer(ahead).stamped(b"a")) == b"a"
    steps.begun(1)
    clock.now += 1.0
    told = steps.due_report(1, 0)
    assert told is not None
    assert told.times["on the way"] == {0: 1}


def test_a_clock_that_is_set_back_does_not_end_what_is_told() -> None:
    clock = Clock()
    steps = StepTimer(clock)
    steps.ended(0.001)
    assert steps.due_report(1, 0) is not None
    clock.now -= 3_600.0
    steps.ended(0.001)
    assert steps.due_report(1, 0) is not None


def test_the_driver_has_percentiles_of_the_last_half_minute_by_level() -> None:
    clock = Clock()
    seen = StepsSeen(clock)
    seen.receive(Stepped(1, 0, {"turn": {bucket(9.0): 1_000}}))
    clock.now += 31.0
    seen.receive(Stepped(1, 0, {"turn": {bucket(0.001): 60}}))
    seen.receive(Stepped(1, 1, {"turn": {bucket(0.001): 30, bucket(0.1): 8, bucket(2.0): 2}}))
    seen.receive(Stepped(0, 0, {"turn": {bucket(0.002): 1}}))
    seen.receive(Stepped(1, 0, {"on the way": {bucket(0.004): 1}}))
    times = seen.times()
    assert list(times) == ["injectors, turn", "level 1, on the way", "level 1, turn"]
    expected = StepTimes(*(below_s(bucket(s)) for s in (0.001, 0.1, 2.0)))
    assert times["level 1, turn"] == expected
    assert times["level 1, turn"].p50 == pytest.approx(0.001, rel=0.19)
    clock.now += 31.0
    assert seen.times() == {}
