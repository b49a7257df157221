"""The tick source and its alarm, which the run's thread and the user's write at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.spark.ticks import Alarm, TickSource


def test_two_threads_may_set_it_at_once(tmp_path: Path) -> None:
    alarm = Alarm(tmp_path / "alarm")

    def set_often(delay_us: int) -> None:
        for _ in range(500):
            alarm.ring_in(delay_us)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(set_often, [0, 3_600_000_000]))

    assert [file.name for file in tmp_path.iterdir()] == ["alarm"]


def test_it_is_due_when_the_time_has_come_and_when_it_cannot_be_read(tmp_path: Path) -> None:
    alarm = Alarm(tmp_path / "alarm")
    assert alarm.due()
    alarm.ring_in(3_600_000_000)
    assert not alarm.due()
    alarm.ring_in(0)
    assert alarm.due()


def test_a_tick_has_no_row_that_a_task_would_have_to_read(tmp_path: Path) -> None:
    alarm = Alarm(tmp_path / "alarm")
    reader = TickSource({"alarm": str(alarm.path)}).streamReader(None)
    start = reader.initialOffset()

    alarm.ring_in(3_600_000_000)
    assert reader.next_offset(start) == start
    alarm.ring_in(0)
    end = reader.next_offset(start)

    assert end != start
    assert reader.between(start, end) == []
