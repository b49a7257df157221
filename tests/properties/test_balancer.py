"""The balancer: never a hole or an overlap, no going to and fro, and a load that becomes even."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.owners import Move, OwnerBalance, balance, carried_out
from millrace.balance.policy import Weight
from millrace.watermark.intervals import HASH_SPACE, IntervalMap
from millrace.watermark.map_change import Merge, Split


class World:
    """Keys with a constant load each, and tasks that own the intervals they are in."""

    def __init__(self, keys: dict[int, float], tasks: int, intervals: int) -> None:
        ordered = sorted(keys.items())
        self.hashes = [hash for hash, _ in ordered]
        self.loads = [load for _, load in ordered]
        self.until = [0.0, *accumulate(self.loads)]
        self.map = IntervalMap.uniform(intervals)
        self.owners = {n: n * tasks // intervals for n in range(intervals)}
        self.tasks = list(range(tasks))
        self.next_id = intervals
        self.how = OwnerBalance(intervals=intervals)
        self.remaps: list[object] = []

    def weights(self) -> dict[int, Weight]:
        found = {}
        for one in self.map.intervals:
            first, last = bisect_left(self.hashes, one.start), bisect_left(self.hashes, one.end)
            load = max(0.0, self.until[last] - self.until[first])
            keys = sorted(
                zip(self.loads[first:last], self.hashes[first:last], strict=True), reverse=True
            )[:4]
            hottest = tuple((hash, mine / load) for mine, hash in keys if load > 0)
            found[one.id] = Weight(load, hottest)
        return found

    def by_task(self) -> list[float]:
        found = dict.fromkeys(self.tasks, 0.0)
        for interval, weight in self.weights().items():
            found[self.owners[interval]] += weight.load
        return sorted(found.values())

    def turn(self) -> bool:
        """Run a round; return whether anything was asked for. A map with a hole raises."""
        asked = balance(self.map, self.owners, self.weights(), self.tasks, self.how)
        made, self.owners = carried_out(self.map, self.owners, asked.remaps, first_id=self.next_id)
        self.map = made.intervals
        self.next_id += len(made.parents)
        self.remaps += asked.remaps
        assert sum(isinstance(one, Split) for one in asked.remaps) <= self.how.splits
        assert sum(isinstance(one, Merge) for one in asked.remaps) <= self.how.splits
        assert len(self.map) <= 2 * self.how.intervals
        assert set(self.owners) == {one.id for one in self.map.intervals}
        self.one_key = asked.one_key
        return bool(asked.remaps)

    def rest(self, rounds: int) -> int:
        """Run rounds until nothing is asked for; return how many it took."""
        for n in range(rounds):
            if not self.turn():
                return n
        raise AssertionError(f"no rest after {rounds} rounds: {self.remaps[-20:]}")


def zipf(keys: int, exponent: float, seed: int) -> dict[int, float]:
    drawn = random.Random(seed)
    return {drawn.randrange(HASH_SPACE): (n + 1) ** -exponent for n in range(keys)}


def least_possible(world: World) -> float:
    """Return a bound: tasks share what keys that are too much for one leave."""
    left, tasks = sum(world.loads), len(world.tasks)
    for load in sorted(world.loads, reverse=True):
        if tasks < 2 or load <= left / tasks:
            break
        left, tasks = left - load, tasks - 1
    return left / tasks


@pytest.mark.parametrize("exponent", [0.0, 1.1, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_zipf_becomes_even_and_then_nothing_is_asked_for(exponent: float, seed: int) -> None:
    world = World(zipf(5_000, exponent, seed), tasks=8, intervals=64)
    before = world.by_task()[-1]
    world.rest(60)
    bound, loads = least_possible(world), world.by_task()

    hot = sum(load > bound for load in world.loads)
    assert loads[-1] <= max(1.35 * bound, 1.001 * max(world.loads))
    # An interval that is too small to be split, and too much to be moved, may be over it.
    assert loads[-1 - hot] <= 1.35 * bound
    assert loads[-1] <= before
    assert len(world.one_key) == sum(load > sum(world.loads) / 8 for load in world.loads)


def test_a_key_that_is_too_much_gets_an_interval_of_its_own_and_is_named() -> None:
    hot = 3 << 60
    world = World({n << 56: 1.0 for n in range(256)} | {hot: 200.0}, tasks=4, intervals=16)
    world.rest(40)

    [interval] = world.one_key
    alone = world.map.intervals[world.map.places[interval]]
    assert (alone.start, alone.end) == (hot, hot + 1)
    mates = [n for n, task in world.owners.items() if task == world.owners[interval]]
    assert sum(world.weights()[n].load for n in mates) <= 200.0 + 1.0


@given(
    st.dictionaries(
        st.integers(0, HASH_SPACE - 1) | st.integers(0, 40) | st.just(HASH_SPACE - 1),
        st.floats(0.0, 1e6) | st.just(1.0),
        max_size=60,
    ),
    st.integers(1, 9),
    st.sampled_from([1, 2, 16, 32]),
)
# Together they are as much as one of them, so that without both less than nothing is left.
@example({HASH_SPACE - 1: 1.0, 0: 1e-45}, 3, 2)
def test_any_constant_load_comes_to_rest(
    keys: dict[int, float], tasks: int, intervals: int
) -> None:
    world = World(keys, tasks, intervals)
    world.rest(150)


@given(st.randoms(use_true_random=False), st.integers(2, 6), st.data())
def test_any_load_that_changes_keeps_the_map_whole_and_bounded(
    drawn: random.Random, tasks: int, data: st.DataObject
) -> None:
    world = World({}, tasks, 16)
    for _ in range(12):
        hashes = sorted(drawn.randrange(HASH_SPACE) for _ in range(20))
        changed = World({hash: float(drawn.randint(0, 99) ** 3) for hash in hashes}, tasks, 16)
        world.hashes, world.loads, world.until = changed.hashes, changed.loads, changed.until
        world.tasks = data.draw(st.lists(st.integers(0, 8), min_size=1, unique=True))
        world.turn()
        assert set(world.owners.values()) <= set(world.tasks)


def test_what_splits_made_is_merged_when_the_load_is_even_again() -> None:
    world = World(zipf(5_000, 1.5, 1), tasks=8, intervals=64)
    world.rest(60)
    assert any(isinstance(one, Split) for one in world.remaps)
    even = World(zipf(5_000, 0.0, 2), tasks=8, intervals=64)
    world.hashes, world.loads, world.until = even.hashes, even.loads, even.until
    world.rest(60)

    assert len(world.map) <= 64 + 8
    assert world.by_task()[-1] <= 1.25 * sum(world.loads) / 8


def test_what_a_task_owned_that_is_gone_is_given_away_at_once_and_evenly() -> None:
    world = World({n << 52: 1.0 for n in range(4096)}, tasks=16, intervals=256)
    world.tasks.remove(3)
    world.turn()

    moved = [one for one in world.remaps if isinstance(one, Move)]
    assert len(moved) == 16
    assert world.by_task()[-1] <= 1.15 * 4096 / 15


def test_a_task_that_is_new_is_given_its_share_by_those_that_have_most() -> None:
    world = World({n << 52: 1.0 for n in range(4096)}, tasks=16, intervals=256)
    world.tasks.append(16)
    world.rest(10)

    assert world.by_task()[0] >= 0.5 * 4096 / 17
    assert not any(isinstance(one, Split) for one in world.remaps)


def test_who_gives_to_a_task_that_is_new_is_not_left_with_little() -> None:
    even = {n << 52: 0.5 for n in range(4096)}
    world = World(even | {(n << 60) + 5: 400.0 for n in range(16)}, tasks=16, intervals=256)
    world.how = OwnerBalance(intervals=256, moves=100)
    world.tasks += [16, 17]
    world.turn()

    moved = [one.interval for one in world.remaps if isinstance(one, Move)]
    assert moved
    assert not [interval for interval in moved if interval % 16 == 0], "that has 400"
    assert world.by_task()[0] >= 0.5 * sum(world.loads) / 18


def test_a_little_unevenness_is_left_as_it_is() -> None:
    world = World({n << 60: 1.2 if n < 4 else 1.0 for n in range(16)}, tasks=4, intervals=16)
    assert not world.turn()
