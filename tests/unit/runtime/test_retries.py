"""When attempts of calls begin, and what follows one that failed."""

from __future__ import annotations

import math

from millrace.model.calls import CallPolicy
from millrace.runtime.retries import Again, Retries

DOWN = ConnectionError("down")


def retries(random: float = 0.999999, **policy: object) -> Retries:
    return Retries(CallPolicy(backoff="1 s", **policy), lambda: random)  # type: ignore[arg-type]


def pause(again: Again | None) -> float:
    assert again is not None
    return round(again.pause_s, 3)


def test_pauses_double_up_to_the_longest() -> None:
    calls = retries(retries=6, max_backoff="10 s")
    pauses = [pause(calls.failed(DOWN, retried=n, now_s=0.0)) for n in range(6)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_pause_is_drawn_from_nought_on() -> None:
    assert pause(retries(random=0.0).failed(DOWN, retried=2, now_s=0.0)) == 0.0
    assert pause(retries(random=0.25).failed(DOWN, retried=2, now_s=0.0)) == 1.0


def test_after_a_thousand_retries_a_pause_is_still_a_number() -> None:
    assert pause(retries(retries=2000).failed(DOWN, retried=1999, now_s=0.0)) == 10.0


def test_the_last_retry_is_the_last() -> None:
    calls = retries(retries=2)
    assert calls.failed(DOWN, retried=1, now_s=0.0)
    assert calls.failed(DOWN, retried=2, now_s=0.0) is None


def test_errors_that_are_not_named_are_not_retried() -> None:
    assert retries().failed(KeyError("card"), retried=0, now_s=0.0) is None


def test_without_a_breaker_attempts_may_always_begin() -> None:
    calls = retries()
    for _ in range(1000):
        calls.failed(DOWN, retried=0, now_s=0.0)
    assert calls.wait_s(0.0) == 0.0
    assert calls.begin() is False


def test_failures_in_a_row_open_the_breaker() -> None:
    calls = retries(breaker=3, random=0.0)
    assert calls.failed(DOWN, retried=0, now_s=0.0) == Again(0.0, counts=True)
    calls.failed(DOWN, retried=0, now_s=0.0)
    calls.answered()
    for _ in range(2):
        calls.failed(DOWN, retried=0, now_s=0.0)
    assert calls.wait_s(0.0) == 0.0
    assert calls.failed(DOWN, retried=0, now_s=5.0) == Again(0.0, counts=False)
    assert calls.wait_s(5.0) == 0.5
    assert calls.open_s(6.0) == 1.0


def test_a_refused_request_is_an_answer() -> None:
    calls = retries(breaker=2)
    calls.failed(DOWN, retried=0, now_s=0.0)
    calls.failed(ValueError("no such card"), retried=0, now_s=0.0)
    calls.failed(DOWN, retried=0, now_s=0.0)
    assert calls.open_s(0.0) == 0.0


def test_one_trial_at_a_time_and_longer_pauses() -> None:
    calls = retries(breaker=1, retries=0, max_backoff="3 s")
    now_s, pauses = 0.0, []
    assert calls.begin() is False
    calls.failed(DOWN, retried=0, now_s=now_s)
    for _ in range(4):
        pauses.append(round(calls.wait_s(now_s), 3))
        now_s += calls.wait_s(now_s)
        assert calls.wait_s(now_s) == 0.0
        assert calls.begin() is True
        assert calls.wait_s(now_s) == math.inf
        assert calls.failed(DOWN, retried=0, now_s=now_s, trial=True) == Again(0.0, counts=False)
    assert pauses == [1.0, 2.0, 3.0, 3.0]
    now_s += calls.wait_s(now_s)
    assert calls.begin() is True
    calls.answered()
    assert calls.wait_s(now_s) == calls.open_s(now_s) == 0.0
    assert calls.begin() is False
    calls.failed(DOWN, retried=0, now_s=now_s)
    assert round(calls.wait_s(now_s), 3) == 1.0


def test_failures_of_attempts_from_before_lengthen_nothing() -> None:
    calls = retries(breaker=1, random=0.0)
    calls.failed(DOWN, retried=0, now_s=0.0)
    assert calls.failed(DOWN, retried=3, now_s=0.1) == Again(0.0, counts=False)
    assert calls.wait_s(0.1) == 0.4


def test_a_trial_that_nobody_waits_for_makes_room_for_another() -> None:
    calls = retries(breaker=1, random=0.0)
    calls.failed(DOWN, retried=0, now_s=0.0)
    assert calls.begin() is True
    calls.dropped(trial=False)
    assert calls.wait_s(9.0) == math.inf
    calls.dropped(trial=True)
    assert calls.wait_s(9.0) == 0.0
