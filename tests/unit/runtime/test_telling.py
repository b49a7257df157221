"""Which tasks of the next level are told of low watermarks, and when."""

from __future__ import annotations

from millrace.model.time import MAX_TIMESTAMP
from millrace.runtime.packets import Telling
from millrace.runtime.realtime.task import TaskStats
from millrace.watermark.percentiles import Ahead
from millrace.watermark.propagation import Message

ALONE_US, WITH_ROWS_US = 15_000, 2_000


def message(us: int) -> Message:
    return Message({"injector:orders": us}, {}, {})


def telling(receivers: int = 3) -> Telling:
    """A telling whose receivers were all told 1 at 0."""
    made = Telling(receivers, alone_us=ALONE_US, with_rows_us=WITH_ROWS_US)
    assert made.tell(message(1), 0, (), everyone=False) == set(range(receivers))
    return made


def test_what_has_not_moved_is_told_to_nobody_and_wakes_nobody() -> None:
    made = telling()
    assert made.tell(message(1), 10 * ALONE_US, {0, 1}, everyone=False) == set()
    assert made.wake_us == MAX_TIMESTAMP


def test_word_goes_with_rows_to_who_gets_them_and_to_the_others_after_a_while() -> None:
    made = telling()
    assert made.tell(message(2), WITH_ROWS_US, {1}, everyone=False) == {1}
    assert made.wake_us == ALONE_US
    assert made.tell(message(2), ALONE_US - 1, {1}, everyone=False) == set()
    assert made.tell(message(2), ALONE_US, (), everyone=False) == {0, 2}
    assert made.wake_us == MAX_TIMESTAMP


def test_a_task_that_gets_rows_all_the_time_is_not_told_with_each_of_them() -> None:
    made = telling(1)
    told = [us for us in range(500, 6_500, 500) if made.tell(message(us), us, {0}, everyone=False)]
    assert told == [2_000, 4_000, 6_000]


def test_rows_that_came_too_soon_for_word_leave_it_to_the_clock() -> None:
    made = telling(1)
    assert made.tell(message(2), WITH_ROWS_US - 1, {0}, everyone=False) == set()
    assert made.wake_us == ALONE_US
    assert made.tell(message(3), ALONE_US, (), everyone=False) == {0}


def test_with_a_mark_everyone_is_told_though_nothing_has_moved() -> None:
    made = telling()
    assert made.tell(message(1), 1, (), everyone=True) == {0, 1, 2}


def test_without_a_wait_all_are_told_at_once() -> None:
    made = Telling(2, alone_us=0)
    assert made.tell(message(1), 7, (), everyone=False) == {0, 1}
    assert made.tell(message(2), 7, {0}, everyone=False) == {0, 1}


def test_what_counts_records_is_told_to_all_and_what_it_says_besides_not_again() -> None:
    made = telling()
    counting = Message({"injector:orders": 2}, {}, {}, {"injector:orders": Ahead({0: 1})})
    assert made.tell(counting, 1, (), everyone=False) == {0, 1, 2}
    assert made.tell(message(2), 10 * ALONE_US, {0}, everyone=False) == set()


def test_word_does_not_wait_until_a_clock_that_was_set_back_is_there_again() -> None:
    made = Telling(1, alone_us=ALONE_US, with_rows_us=WITH_ROWS_US)
    assert made.tell(message(1), 3_600_000_000, (), everyone=False) == {0}
    assert made.tell(message(2), 0, (), everyone=False) == {0}
    assert made.tell(message(3), 1, (), everyone=False) == set()
    assert made.wake_us == ALONE_US


def test_how_a_task_is_doing_is_told_though_the_clock_was_set_back() -> None:
    stats = TaskStats(1, 0)
    stats.status(3_600_000_000, {})
    assert stats.due(0)
    stats.status(0, {})
    assert not stats.due(1)
