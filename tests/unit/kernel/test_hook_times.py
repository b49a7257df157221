"""How long calls of user code take: which are timed, and what is said of them."""

from collections.abc import Callable
from itertools import chain, repeat

from millrace.kernel.results import LONGEST, SHORTEST, HookTimer, HookTimes


class Clock:
    """A clock that hooks move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


def bundles(clock: Clock) -> tuple[HookTimer, Callable[..., HookTimes]]:
    def take(seconds: float) -> None:
        clock.now += seconds

    timer = HookTimer(take, take)  # type: ignore[arg-type]

    def run(*calls: float, fired: int = 0) -> HookTimes:
        timer.begin(clock)
        began = clock.now
        record, fire = timer.process_record, timer.process_timer
        hooks = chain(repeat(record, len(calls) - fired), repeat(fire, fired))
        for hook, seconds in zip(hooks, calls, strict=True):
            hook(seconds)  # type: ignore[operator]
        return timer.end(len(calls), clock.now - began)

    return timer, run


def test_each_long_call_is_timed_timers_included() -> None:
    _, run = bundles(Clock())

    found = run(0.003, 0.003, 1.5, fired=1).then(run(0.003))

    assert found.calls == {-8: 3, 1: 1}
    assert abs(found.seconds - 1.509) < 1e-9


def test_of_short_calls_some_bundles_are_timed_and_stand_for_the_others() -> None:
    clock = Clock()
    _, run = bundles(clock)

    found = HookTimes()
    for _ in range(1 + 63 * 4):
        found = found.then(run(3e-6, 3e-6))

    assert clock.looks == 2 * 2 * 5
    assert found.calls == {-18: 2 * (1 + 63 * 4)}
    assert abs(found.seconds - 3e-6 * sum(found.calls.values())) < 1e-9


def test_calls_that_become_long_are_timed_from_the_next_bundle_on() -> None:
    _, run = bundles(Clock())

    assert run(3e-6).calls == {-18: 1}
    assert run(0.2).calls == {}
    assert run(0.2).calls == {-2: 2}


def test_what_a_small_bundle_takes_besides_its_call_does_not_make_the_call_long() -> None:
    clock = Clock()
    timer, run = bundles(clock)
    run(3e-6)
    for _ in range(5):
        timer.begin(clock)
        timer.process_record(3e-6)  # type: ignore[arg-type]
        assert timer.end(1, 400e-6).calls == {}

    assert clock.looks == 2


def test_a_bundle_without_calls_is_not_the_one_that_is_timed() -> None:
    _, run = bundles(Clock())

    assert run().calls == {}
    assert run(3e-6).calls == {-18: 1}


def test_nothing_is_left_of_a_bundle_that_failed() -> None:
    clock = Clock()
    timer, run = bundles(clock)
    timer.begin(clock)
    timer.process_record(0.5)  # type: ignore[arg-type]

    assert run(3e-6).calls == {}


def test_calls_out_of_all_bounds_are_in_the_outer_buckets() -> None:
    _, run = bundles(Clock())

    assert run(0.0, 1000.0).calls == {SHORTEST: 1, LONGEST: 1}
