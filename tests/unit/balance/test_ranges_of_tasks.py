"""Evening: a load comes to rest, and tasks with neighbouring intervals share it."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

import millrace as mr
from millrace.balance.balancer import Balancer
from millrace.balance.policy import Balance, Weight, cut_by_load, evened, uneven, weights_after
from millrace.balance.preparation import Preparation
from millrace.watermark.intervals import HASH_SPACE, IntervalMap
from millrace.watermark.map_change import remapped

TASKS, INTERVALS = 4, 32


class Keys:
    """Keys of constant load, each at a hash, and intervals that follow them."""

    def __init__(self, loads: list[float]) -> None:
        drawn = random.Random(7)
        self.keys = {drawn.randrange(HASH_SPACE): load for load in loads}
        self.map = IntervalMap.uniform(INTERVALS)
        self.next_id = INTERVALS

    def weights(self) -> dict[int, Weight]:
        found = {}
        for one in self.map.intervals:
            inside = {h: load for h, load in self.keys.items() if one.start <= h < one.end}
            total = sum(inside.values())
            hottest = sorted(inside.items(), key=lambda key: -key[1])[:4]
            found[one.id] = Weight(total, tuple((h, load / total) for h, load in hottest))
        return found

    def turn(self, how: Balance) -> int:
        before, weights = self.map, self.weights()
        asked = evened(before, weights, TASKS, how)
        made = remapped(before, asked, first_id=self.next_id)
        self.next_id += len(made.parents)
        if uneven(before, weights, TASKS, how):
            self.map = cut_by_load(made.intervals, weights_after(made, weights), TASKS)
        return len(asked) + (self.map != before)

    def busiest(self) -> float:
        """Return the most that a task has, in shares."""
        weights = self.weights()
        loads = [
            sum(weights[one.id].load for one in self.map.intervals[places.start : places.stop])
            for places in (self.map.owned(task, TASKS) for task in range(TASKS))
        ]
        return max(loads) * TASKS / sum(loads)


@pytest.mark.parametrize(
    ("loads", "most"),
    [
        ([n**-1.1 for n in range(1, 400)], 1.3),
        # A key with more than a task's share cannot be divided; the rest can.
        ([n**-1.5 for n in range(1, 400)], 1.7),
        ([1.0] * 400, 1.3),
    ],
    ids=["Zipf 1.1", "Zipf 1.5", "even"],
)
def test_a_constant_load_is_shared_and_comes_to_rest(loads: list[float], most: float) -> None:
    keys, how = Keys(loads), Balance(intervals=INTERVALS)
    for _ in range(100):
        if not keys.turn(how):
            break
    else:
        pytest.fail("it goes to and fro")
    assert keys.busiest() <= most
    assert len(keys.map) <= 2 * INTERVALS
    for low, high in pairwise(keys.map.intervals):
        assert low.end == high.start


def test_nothing_is_done_where_no_task_has_much_more_than_its_share() -> None:
    keys = Keys([1.0] * 4000)
    assert keys.busiest() < 1.25
    assert keys.turn(Balance(intervals=INTERVALS)) == 0
    assert evened(keys.map, {}, TASKS, Balance(intervals=INTERVALS)) == []


class Busy(mr.Computation):
    inputs = {"numbers": mr.by(lambda value: value)}
    outputs = {"seen": int}
    n = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.n.set(self.n.get(0) + 1)
        self.produce("seen", self.n.get())


def test_intervals_of_a_run_follow_its_load() -> None:
    p = mr.Pipeline("busy")
    p.inject("numbers", format=int)
    p.add(Busy)
    with mr.testing.Harness(p, intervals=4) as h:
        balancing: Any = Balancer(h._run_log, h._process.loads, 2, Balance(intervals=4))
        changed = []
        # A third of the records are of one key.
        for epoch in range(60):
            h.inject("numbers", [(0 if n % 3 == 0 else n, epoch) for n in range(90)])
            changed.append(balancing.after_epoch(busy=True))
            # One without records is no time to look; what was decided may take effect after it.
            changed.append(balancing.after_epoch(busy=False))
        found = h.outputs("seen")
        assert sum(one.value == 1 for one in found) == 61
        assert max(one.value for one in found if one.key == 0) == 30 * 60
        assert any(changed)
        assert not any(changed[-20:])
        assert balancing.splits > 0


def test_a_load_is_followed_though_state_changes_its_shape_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Changed(Busy):
        more = mr.ValueState(int)

    def pipeline(computation: Any) -> mr.Pipeline:
        p = mr.Pipeline("busy")
        p.inject("numbers", format=int)
        p.add(computation, name="Busy")
        return p

    with mr.testing.Harness(pipeline(Busy), intervals=32) as h:
        h.inject("numbers", [(n, 0) for n in range(400)])
        h.update(pipeline(Changed))
        balancing = Balancer(h._run_log, h._process.loads, 2, Balance(intervals=32), every=2)
        for epoch in range(12):
            h.inject("numbers", [(8 + n % 4, epoch) for n in range(90)])
            balancing.after_epoch(busy=True)
        assert balancing.merges > 0
        assert "no more" not in caplog.text


def test_what_the_balancer_decides_takes_effect_when_it_is_read() -> None:
    p = mr.Pipeline("busy")
    p.inject("numbers", format=int)
    p.add(Busy)
    asked: list[Preparation] = []
    with mr.testing.Harness(p, intervals=4) as h:
        how = Balance(intervals=4)
        balancing = Balancer(h._run_log, h._process.loads, 2, how, beside=asked.append, every=2)

        def epoch(n: int) -> bool:
            h.inject("numbers", [(0 if i % 3 == 0 else i, n) for i in range(90)])
            return balancing.after_epoch(busy=True)

        before = h._run_log.positions.maps["Busy"]
        turns = 0
        while not asked:
            turns += 1
            assert not epoch(turns)
        # Until it is read nothing happens, and nothing else is decided.
        assert not any(epoch(turns + n) for n in (1, 2))
        assert (len(asked), h._run_log.positions.maps["Busy"]) == (1, before)
        asked[0].read()
        # Epochs went on meanwhile: what they committed is read beside others.
        assert not epoch(turns + 3)
        assert asked == [asked[0], asked[0]]
        asked[0].read()
        assert epoch(turns + 4)
        assert h._run_log.positions.maps["Busy"] != before
        assert asked[0].ready == {"Busy": {}}


def test_the_balancer_drops_what_it_decided_by_a_map_that_is_no_more(caplog: Any) -> None:
    p = mr.Pipeline("busy")
    p.inject("numbers", format=int)
    p.add(Busy)
    asked: list[Preparation] = []
    with mr.testing.Harness(p, intervals=4) as h, caplog.at_level("INFO"):
        balancing = Balancer(
            h._run_log, h._process.loads, 2, Balance(intervals=4), beside=asked.append
        )
        while not asked:
            h.inject("numbers", [(0 if i % 3 == 0 else i, 0) for i in range(90)])
            balancing.after_epoch(busy=True)
        h.remap("Busy", [mr.ops.Split(3)])
        asked[0].read()
        assert not balancing.after_epoch(busy=False)
        assert "not balanced now: its key intervals were remapped meanwhile" in caplog.text
        assert (balancing.splits, balancing.merges) == (0, 0)
