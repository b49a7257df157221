"""Polling: any injector is followed by asking it how far to read, and reading."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.injectors.advance import along
from millrace.injectors.follower import Polling
from millrace.model.errors import PipelineError, WatermarkRegression


class Clock:
    """A clock that moves when somebody sleeps, or is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Log(mr.sources.Injector):
    """Lists of numbers, each as far as it is written; a process promises its last number."""

    schema = "n long, at long"

    def __init__(self, processes, step=100, cost_s=0.0, clock=None, promises=True):
        self.written = {name: list(numbers) for name, numbers in processes.items()}
        self.step = step
        self.cost_s = cost_s
        self.clock = clock
        self.promises = promises
        self.asked = []

    def processes(self):
        return list(self.written)

    def advance(self, process, offset):
        self.asked.append(process)
        if self.clock is not None:
            self.clock.now += self.cost_s
        numbers, start = self.written[process], offset or 0
        end = min(start + self.step, len(numbers))
        if end == start:
            return mr.sources.Advance(offset)
        return mr.sources.Advance(end, numbers[end - 1] if self.promises else None)

    def read_arrow(self, process, start, end):
        numbers = self.written[process][start or 0 : end]
        for first in range(0, len(numbers), 7):
            some = np.array(numbers[first : first + 7])
            yield pa.RecordBatch.from_pydict({"at": some, "n": some, "more": some})


def follow(injector, places=None, *, most=1000, clock=None):
    clock = clock or Clock()
    places = dict.fromkeys(injector.written) if places is None else places
    return Polling(injector, places, most=most, clock=clock, sleep=clock.sleep)


def numbers(taken):
    return [n for one in taken for n in one.rows.column("n").to_pylist()]


def test_what_was_decided_comes_first_and_then_its_rows():
    follower = follow(Log({"a": range(10)}, step=8))

    (decision,) = follower.take(0)
    rows = follower.take(0)

    assert decision.rows.num_rows == 0
    assert decision.decided == [[8], 7]
    assert decision.low_watermark is None
    assert rows[0].rows.schema.names == ["n", "at"]
    assert numbers(rows) == list(range(8))
    assert [one.decided for one in rows] == [None, None]
    assert [one.low_watermark for one in rows] == [None, 7]
    assert rows[-1].offset == 8
    assert numbers(follower.take(0) + follower.take(0)) == [8, 9]
    assert follower.take(0) == []


def test_of_a_seamless_injector_nothing_is_decided_apart():
    log = Log({"a": range(10)}, step=8)
    log.seamless = True
    rows = follow(log).take(0)

    assert numbers(rows) == list(range(8))
    assert {one.decided for one in rows} == {None}
    assert (rows[-1].offset, rows[-1].low_watermark) == (8, 7)


def test_no_more_rows_are_taken_at_once_than_it_is_limited_to():
    follower = follow(Log({"a": range(20)}, step=20))
    follower.take(0)
    takes = []
    for most in (3, 5, 100):
        follower.limit(most)
        takes.append(numbers(follower.take(0)))
    assert takes == [[0, 1, 2], [3, 4, 5, 6, 7], list(range(8, 20))]


def test_an_offset_within_an_advance_is_where_another_follower_goes_on():
    log = Log({"a": range(20)}, step=20)
    follower = follow(log, most=5)
    follower.take(0)
    first = follower.take(0)
    log.step = 3  # it would decide otherwise now

    place = json.loads(json.dumps(first[-1].offset))
    again = follow(log, {"a": place}, most=100).take(0)

    assert numbers(first) == [0, 1, 2, 3, 4]
    assert numbers(again) == list(range(5, 20))
    assert (again[-1].offset, again[-1].low_watermark) == (20, 19)


def test_what_was_decided_after_an_offset_is_read_in_the_same_advances():
    log = Log({"a": range(9)}, step=3)
    follower = follow(log)
    takes = [follower.take(0) for _ in range(6)]
    decided = [one.decided for take in takes for one in take if one.decided]

    again = follow(log, {"a": along(None, json.loads(json.dumps(decided)))}).take(0)

    assert decided == [[[3], 2], [[6], 5], [[9], 8]]
    assert [numbers([one]) for one in again] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [one.low_watermark for one in again] == [2, 5, 8]


def test_many_rows_come_in_slices_and_everybody_has_a_turn():
    follower = follow(Log({"a": range(30), "b": range(100, 130)}), most=10)
    follower.take(0)

    takes = [[(one.process, numbers([one])) for one in follower.take(0)] for _ in range(6)]

    flat = [[name for name, _ in take] for take in takes]
    assert {name for take in flat[:2] for name in take} == {"a", "b"}
    assert all(sum(len(some) for _, some in take) <= 10 for take in takes)
    got = {"a": [], "b": []}
    for take in takes:
        for name, some in take:
            got[name] += some
    assert got == {"a": list(range(30)), "b": list(range(100, 130))}


def test_large_rows_are_cut_by_their_bytes():
    class Large(Log):
        schema = "n long, at long, text binary"

        def read_arrow(self, process, start, end):
            some = np.arange(start or 0, end)
            text = pa.array([bytes(1 << 20)] * len(some))
            yield pa.RecordBatch.from_pydict({"n": some, "at": some, "text": text})

    follower = follow(Large({"a": range(12)}))
    follower.take(0)
    takes = [follower.take(0) for _ in range(4)]

    assert max(sum(one.rows.num_rows for one in take) for take in takes) <= 4
    assert numbers([one for take in takes for one in take]) == list(range(12))


def test_it_asks_at_once_then_ever_more_rarely():
    clock = Clock()
    log = Log({"a": []})
    follower = follow(log, clock=clock)

    assert follower.take(2.0) == []
    assert clock.slept[:16] == pytest.approx([0.000_25] * 16)
    assert max(clock.slept) == pytest.approx(0.1)
    assert clock.now == pytest.approx(2.0)
    asked_at = list(itertools.accumulate(clock.slept))
    for silent_s, pause_s in zip(asked_at, clock.slept[1:], strict=False):
        assert pause_s <= max(silent_s / 16, 0.000_25) + 1e-9
    assert len(log.asked) < 130

    log.written["a"] = [5]
    follower.take(0.2)
    assert numbers(follower.take(0)) == [5]
    asked = len(log.asked)
    follower.take(0)
    assert len(log.asked) == asked + 1


def test_who_takes_long_to_answer_is_asked_rarely():
    clock = Clock()
    log = Log({"a": []}, cost_s=0.02, clock=clock)
    follower = follow(log, clock=clock)

    for _ in range(10):
        follower.take(0.42)

    assert 8 <= len(log.asked) <= 12


def test_it_returns_at_once_when_there_is_something():
    clock = Clock()
    follow(Log({"a": [1]}), clock=clock).take(10)

    assert clock.now == 0


def test_a_held_process_is_neither_asked_nor_read():
    clock = Clock()
    log = Log({"a": range(10), "b": range(10)})
    follower = follow(log, clock=clock, most=5)
    follower.take(0)
    follower.hold({"a"})
    takes = [follower.take(0.01) for _ in range(4)]

    assert {one.process for take in takes for one in take} == {"b"}
    follower.hold({"a", "b"})
    assert follower.take(0.5) == []
    follower.hold(())
    assert numbers(follower.take(0)) == [0, 1, 2, 3, 4]


def test_a_promise_without_rows_is_told_once():
    class Promising(Log):
        def advance(self, process, offset):
            return mr.sources.Advance(offset, 40)

    follower = follow(Promising({"a": []}))

    assert [one.low_watermark for one in follower.take(0)] == [40]
    assert follower.take(0.01) == []


def test_an_advance_without_rows_moves_the_offset():
    class Empty(Log):
        def read_arrow(self, process, start, end):
            return []

    follower = follow(Empty({"a": [7]}))
    follower.take(0)
    (end,) = follower.take(0)

    assert (end.offset, end.rows.num_rows, end.low_watermark) == (1, 0, 7)


def test_a_promise_that_goes_back_is_an_error():
    log = Log({"a": [5, 4]}, step=1)
    follower = follow(log)
    for _ in range(3):
        follower.take(0)

    with pytest.raises(WatermarkRegression, match="process 'a' reported 4 us after 5 us"):
        follower.take(0)


def test_columns_that_are_not_as_declared_are_an_error():
    class Wrong(Log):
        schema = "n long, at long, price double"

    follower = follow(Wrong({"a": [5]}))
    follower.take(0)

    with pytest.raises(PipelineError, match=r"Wrong.read_arrow\('a'\) has no column 'price'"):
        follower.take(0)


def test_closing_ends_what_is_being_read():
    ended = []

    class Ending(Log):
        def read_arrow(self, process, start, end):
            try:
                yield from super().read_arrow(process, start, end)
            finally:
                ended.append(process)

    follower = follow(Ending({"a": range(50)}), most=3)
    follower.take(0)
    follower.take(0)
    follower.close()

    assert ended == ["a"]


def test_every_injector_can_be_followed():
    follower = Log({"a": [1, 2]}).follow({"a": None})
    follower.take(0)

    assert numbers(follower.take(0)) == [1, 2]


def test_files_are_followed_one_by_one_and_large_ones_in_slices(tmp_path):
    clock = Clock()
    files = mr.sources.Files(tmp_path, schema="n long", created=lambda path: int(path.stem[-1]))
    follower = Polling(files, {"all": None}, most=10, clock=clock, sleep=clock.sleep)
    assert [one.rows.num_rows for one in follower.take(0.5)] == [0]  # that there are none

    (tmp_path / "_a-1").write_text("".join(f'{{"n": {n}}}\n' for n in range(25)))
    (tmp_path / "_a-1").rename(tmp_path / "a-1")
    table = pa.table({"n": range(25, 50), "more": range(25)})
    pq.write_table(table, tmp_path / "a-2.parquet", row_group_size=10)
    asked = clock.now
    follower.take(0.2)
    assert clock.now - asked <= 0.1

    takes = [follower.take(0.2) for _ in range(12)]
    taken = [one for take in takes for one in take]
    assert max(len(numbers(take)) for take in takes) <= 10
    assert numbers(taken) == list(range(50))

    place = json.loads(json.dumps(taken[1].offset))
    again = Polling(files, {"all": place}, most=100, clock=Clock())
    assert numbers(taken[:2] + again.take(0)) == list(range(50))


def test_a_file_that_appears_late_does_not_change_the_numbers_of_others(tmp_path):
    files = mr.sources.Files(tmp_path, schema="n long", created=lambda path: int(path.name[-1]))
    (tmp_path / "b2").write_text('{"n": 2}\n{"n": 3}')
    follower = Polling(files, {"all": None}, most=100, clock=Clock())
    (decision,) = follower.take(0)
    assert numbers(follower.take(0)) == [2, 3]
    (tmp_path / "a1").write_text('{"n": 1}')

    again = Polling(files, {"all": along(None, [decision.decided])}, most=100, clock=Clock())
    assert numbers(again.take(0)) == [2, 3]
    again.take(0)
    assert numbers(again.take(0)) == [1]


def test_rows_of_several_files_have_the_order_in_which_they_come_again(tmp_path):
    """A decision is kept as a change, and a new name is put last when it is applied."""
    files = mr.sources.Files(tmp_path, schema="n long", grows="1 h", created=lambda _: 0)
    (tmp_path / "b").write_text('{"n": 1}\n')
    clock = Clock()
    follower = follow(files, {"all": None}, clock=clock)
    mark = [*follower.take(0), *follower.take(0)][-1].offset
    for name, number in ("a", 2), ("b", 3):
        with (tmp_path / name).open("a") as file:
            file.write(f'{{"n": {number}}}\n')
    clock.now += 1
    (decision,) = follower.take(0)

    again = follow(files, {"all": along(mark, json.loads(json.dumps([decision.decided])))})
    assert numbers(follower.take(0)) == numbers(again.take(0))
