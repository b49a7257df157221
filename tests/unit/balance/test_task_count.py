"""How many tasks there are to be: more when all are busy, fewer when none is, then no others."""

from __future__ import annotations

from collections.abc import Callable
from math import isclose

from hypothesis import assume, given
from hypothesis import strategies as st

from millrace.balance.task_count import (
    BUSY,
    EpochTaskCount,
    LiveTaskCount,
    TaskRange,
)


def watched(
    count: LiveTaskCount, busy: Callable[[int], dict[tuple[int, int], float]], seconds: int
) -> tuple[int, int | None]:
    """Look each second; return when there were to be others, and how many."""
    total: dict[tuple[int, int], float] = {}
    for second in range(seconds):
        wanted = count.look(second, dict(total))
        if wanted is not None:
            return second, wanted
        for where, share in busy(second).items():
            total[where] = total.get(where, 0.0) + share
    return seconds, None


def busy_by(
    share: float, tasks: int, level: int = 1
) -> Callable[[int], dict[tuple[int, int], float]]:
    return lambda _: {(level, task): share for task in range(tasks)}


def test_busy_tasks_become_more_after_ten_seconds() -> None:
    count = LiveTaskCount(TaskRange(1, 16), 4)
    assert watched(count, busy_by(0.9, 4), 60) == (11, 6)


def test_tasks_that_never_rest_become_twice_as_many_but_not_more_than_may_be() -> None:
    assert watched(LiveTaskCount(TaskRange(1, 16), 4), busy_by(1.0, 4), 60) == (11, 8)
    assert watched(LiveTaskCount(TaskRange(1, 5), 4), busy_by(1.0, 4), 60) == (11, 5)
    assert watched(LiveTaskCount(TaskRange(1, 4), 4), busy_by(1.0, 4), 60) == (60, None)


def test_idle_tasks_become_fewer_after_a_minute() -> None:
    assert watched(LiveTaskCount(TaskRange(1, 16), 6), busy_by(0.2, 6), 120) == (61, 2)
    assert watched(LiveTaskCount(TaskRange(3, 16), 6), busy_by(0.2, 6), 120) == (61, 3)
    assert watched(LiveTaskCount(TaskRange(6, 16), 6), busy_by(0.2, 6), 120) == (120, None)


def look_each_second(
    busy: float,
    reads: int,
    waiting: Callable[[int], int | None],
    done: Callable[[int], int] = lambda second: second,
) -> tuple[int, int | None]:
    """Look each second at two tasks that read so many records in one; return as `watched` does."""
    count = LiveTaskCount(TaskRange(1, 16), 2)
    for second in range(120):
        busy_s = {(0, task): busy * second for task in range(2)}
        wanted = count.look(
            second, busy_s, records=reads * second, done=done(second), waiting=waiting(second)
        )
        if wanted is not None:
            return second, wanted
    return 120, None


def test_tasks_that_are_not_busy_and_fall_behind_become_more_by_what_comes() -> None:
    # 150 records come in a second, and 100 are read.
    assert look_each_second(0.5, 100, lambda second: 5_000 + 50 * second) == (60, 3)
    # Twenty times as many come: not more than twice the tasks at a time.
    assert look_each_second(0.1, 100, lambda second: 5_000 + 1_900 * second) == (60, 4)
    # What waits was less than is read in a minute until then.
    assert look_each_second(0.5, 100, lambda second: 70 * second) == (86, 3)
    # They read nothing, as they have much under way.
    assert look_each_second(0.1, 0, lambda second: 5_000 + 50 * second) == (60, 4)
    # It does not grow, or hardly; nothing is done, or nobody knows.
    assert look_each_second(0.5, 100, lambda second: 9_000 - 50 * second) == (120, None)
    assert look_each_second(0.5, 100, lambda second: 9_000 + 9 * second) == (120, None)
    assert look_each_second(0.5, 0, lambda second: second) == (120, None)
    assert look_each_second(0.5, 0, lambda second: 50 * second, lambda _: 7) == (120, None)
    assert look_each_second(0.5, 100, lambda _: None) == (120, None)


def test_idle_tasks_do_not_become_fewer_while_more_waits_than_they_read_in_a_minute() -> None:
    assert look_each_second(0.1, 100, lambda _: 6_001) == (120, None)
    assert look_each_second(0.1, 100, lambda _: 6_000) == (60, 1)
    assert look_each_second(0.1, 100, lambda _: None) == (60, 1)


def test_a_burst_of_five_seconds_changes_nothing() -> None:
    count = LiveTaskCount(TaskRange(1, 16), 2)
    burst = watched(count, lambda s: busy_by(1.0 if s in range(5) else 0.5, 2)(s), 120)
    assert burst == (120, None)


def test_the_level_with_most_to_do_decides() -> None:
    count = LiveTaskCount(TaskRange(1, 16), 2)
    levels = watched(count, lambda s: busy_by(0.1, 2, level=0)(s) | busy_by(0.9, 2, level=2)(s), 60)
    assert levels == (11, 3)


def test_one_hot_task_is_not_helped_by_more() -> None:
    count = LiveTaskCount(TaskRange(1, 16), 4)
    assert watched(count, lambda s: busy_by(0.4, 4)(s) | {(1, 0): 1.0}, 120) == (120, None)


def test_other_tasks_are_watched_from_their_beginning() -> None:
    count = LiveTaskCount(TaskRange(1, 16), 1)
    for second in range(9):
        assert count.look(second, {(1, 0): float(second)}) is None
    for second in range(9, 19):  # an incarnation began: its task counts from zero
        assert count.look(second, {(1, 0): second - 9.0}) is None
    assert count.look(19, {(1, 0): 10.0}) == 2


@given(st.floats(0.01, 30.0), st.integers(1, 16))
def test_an_even_load_comes_to_rest_with_tasks_that_are_enough(work: float, tasks: int) -> None:
    allowed = TaskRange(1, 16)
    for _ in range(6):
        share = min(1.0, work / tasks)
        assume(not isclose(share, BUSY))  # busy seconds are summed up
        _, wanted = watched(LiveTaskCount(allowed, tasks), busy_by(share, tasks), 90)
        if wanted is None:
            break
        assert wanted in range(1, 17)
        assert (wanted > tasks) == (share > BUSY), "it goes where the load is"
        tasks = wanted
    assert wanted is None
    assert work / tasks <= BUSY + 1e-6 or tasks == 16


@given(st.lists(st.floats(0.0, 1e4), min_size=1), st.integers(1, 8), st.integers(0, 40))
def test_an_epoch_has_a_number_that_may_be(seconds: list[float], least: int, more: int) -> None:
    allowed = TaskRange(least, least + more)
    count = EpochTaskCount(allowed, least, levels=2)
    for one in seconds:
        count.ran(one)
        assert least <= count.tasks <= least + more


def test_an_epoch_has_as_many_tasks_as_make_it_shortest() -> None:
    found = []
    for work in (0.0, 0.1, 0.13, 0.15, 0.5, 2.0, 8.0):
        count = EpochTaskCount(TaskRange(1, 40), 1, levels=1)
        count.ran(2 * work)  # of the level, and of what is in front of it
        took = {n: work / n + 0.02 * n + 0.05 * (n > 1) for n in range(1, 41)}
        assert took[count.tasks] <= 1.02 * min(took.values())
        found.append(count.tasks)
    assert found == [1, 1, 1, 3, 5, 10, 20]


def test_epochs_without_work_come_to_the_least_number() -> None:
    count = EpochTaskCount(TaskRange(1, 16), 16, levels=1)
    found = []
    for _ in range(20):
        count.ran(0.0 if found else 4.0)
        found.append(count.tasks)
    assert found[0] == 10
    assert found == sorted(found, reverse=True)
    assert found[-1] == 1
