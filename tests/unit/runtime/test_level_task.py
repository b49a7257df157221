"""A level task runs all that there is to do in a turn, and then commits it, whoever hosts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.compile.topology import ComputationSpec
from millrace.epochlog.fence import EpochFence
from millrace.epochlog.positions import Followed, Positions
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import Attempt, Bundle, KeyedRecords, ReceivedRecords
from millrace.kernel.execution import Attempted, Execution
from millrace.kernel.results import Produced
from millrace.model.keys import encode_key, hash_key
from millrace.runtime.level_task import LevelTask
from millrace.runtime.rows import NO_ROWS
from millrace.store import MemoryCaches, MemoryHardState
from millrace.watermark.intervals import IntervalMap

INTERVALS = IntervalMap.uniform(4)


class First(mr.Computation):
    inputs = {"numbers": mr.by(lambda n: n)}
    outputs = {"firsts": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("firsts", record.value)


class Second(First):
    outputs = {"seconds": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("seconds", record.value)


class Given:
    """An admission of records that are given."""

    def __init__(self, spec: ComputationSpec, numbers: Sequence[int]) -> None:
        self.spec, self.intervals, self._numbers = spec, INTERVALS, numbers

    def records(self, *_: Any) -> Mapping[int, KeyedRecords]:
        keys = [encode_key(n) for n in self._numbers]
        count = len(keys)
        return ReceivedRecords(
            np.array([hash_key(key) for key in keys], np.uint64),
            keys,
            list(self._numbers),
            np.zeros(count, np.int64),
            "numbers",
            np.ones(count, np.int64),
            np.arange(count),
        ).of_intervals(INTERVALS)

    def consumed(self, bundles: Sequence[Bundle]) -> Mapping[int, Mapping[bytes, bytes]]:
        return {bundle.interval.id: {b"Q": b"far"} for bundle in bundles}


class Watched:
    """A commit writer that says what it was asked for, and commits nothing."""

    def __init__(self, execution: Execution, fence: EpochFence) -> None:
        self.execution, self._fence = execution, fence
        self.asked: list[tuple[str, list[int]]] = []

    def run(
        self, spec: ComputationSpec, bundles: Sequence[Bundle], consumed: Mapping[int, Any]
    ) -> list[Attempted]:
        intervals = [bundle.interval.id for bundle in bundles]
        assert sorted(consumed) == intervals
        self.asked.append((spec.name, intervals))
        return [
            self.execution.attempted(one, spec.name, *self.execution.run(spec, one, self._fence))
            for one in bundles
        ]

    def commit(self, attempted: Sequence[Attempted]) -> list[Produced]:
        self.asked.append(("commit", [one.result.interval for one in attempted]))
        return [(one.result, one.productions) for one in attempted]

    def earlier(self, positions: Positions) -> Iterator[Produced]:
        return iter(())

    def after_turn(self) -> None:
        pass

    def end(self) -> str:
        return ""

    def close(self) -> None:
        pass


@pytest.fixture
def hosted() -> tuple[Any, Watched]:
    """What makes task 1 of 2 of a level of two computations, and its writer."""
    p = mr.Pipeline("two")
    p.inject("numbers", format=int)
    p.add(First)
    p.add(Second)
    topology, state = p.build(), MemoryHardState()
    run_log = RunLog(topology, state, intervals=4)
    manifest = run_log.begin(0, wall_time_us=0, injectors={"numbers": 0}, draining=False)
    assert manifest is not None
    writer = Watched(Execution(topology, state, MemoryCaches()), EpochFence(state.epochs, manifest))

    def attempt(spec: ComputationSpec) -> Attempt:
        return Attempt(0, manifest.generation, 0, mr.MIN_TIMESTAMP, {100: 0})

    def made(*numbers: Sequence[int]) -> LevelTask:
        specs = topology.computations
        given = [Given(spec, some) for spec, some in zip(specs, numbers, strict=True)]
        positions = Followed(topology, state.epochs).at(manifest)
        return LevelTask(1, 2, positions, writer, given, attempt)

    return made, writer


def ids(numbers: Sequence[int]) -> list[int]:
    """Return the intervals of some keys, in order."""
    return sorted(
        {INTERVALS.intervals[INTERVALS.place_of(hash_key(encode_key(n)))].id for n in numbers}
    )


def turn(task: LevelTask) -> list[tuple[str, int]]:
    """Return computation, and how many productions may leave, of each interval that ran."""
    produced = task.turn(NO_ROWS, {}, None, {})
    return [(result.computation, len(productions)) for result, productions in produced]


def test_all_computations_run_before_anything_is_committed(hosted: Any) -> None:
    made, writer = hosted
    task = made(range(20), [3])
    left = turn(task)
    assert writer.asked == [
        ("First", ids(range(20))), ("Second", ids([3])), ("commit", ids(range(20)) + ids([3]))
    ]  # fmt: skip
    assert [name for name, _ in left] == ["First"] * len(ids(range(20))) + ["Second"]
    assert left[-1] == ("Second", 0)


def test_what_has_nothing_to_do_is_neither_run_nor_committed(hosted: Any) -> None:
    made, writer = hosted
    assert turn(made([], [])) == []
    assert writer.asked == []
    turn(made([], [7]))
    assert writer.asked == [("Second", ids([7])), ("commit", ids([7]))]


def test_records_and_their_keys_are_counted_turn_after_turn(hosted: Any) -> None:
    made, _ = hosted
    task = made([1, 2, 3, 1, 2, 1], [5])
    turn(task)
    assert (task.records, task.keys) == (7, 4)
    turn(task)
    assert (task.records, task.keys) == (14, 8)


def test_it_owns_its_share_of_the_intervals_of_each_computation(hosted: Any) -> None:
    made, _ = hosted
    assert made([], []).owned == {"First": range(2, 4), "Second": range(2, 4)}
