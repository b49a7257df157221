"""Key intervals of live tasks that follow the load: decided by marks, carried out at rests."""

from __future__ import annotations

import random

import pytest

from millrace.balance.balancer import Balancer
from millrace.balance.policy import Balance
from millrace.balance.preparation import Preparation
from millrace.model.errors import ZombieWriter
from millrace.runtime.realtime.incarnation_start import to_other_intervals
from tests.live import Live, undisturbed
from tests.unit.runtime.test_live_remaps import counting, on, to_rest, values


def balancing_of(live: Live, *, every: int = 2) -> Balancer:
    return Balancer(
        live.run_log,
        live.loads,
        live.tasks,
        Balance(above=1.01, intervals=8),
        is_near=Preparation.is_near_a_mark,
        remap=to_other_intervals,
        every=every,
    )


def fed(live: Live, rows: int) -> None:
    live.feed(rows)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)


def until_prepared(live: Live, balancing: Balancer) -> int:
    """Feed rows until something is to be carried out; return how many."""
    rows = 0
    while not balancing.prepared(busy=True):
        rows += 2
        fed(live, rows)
    return rows


@pytest.mark.parametrize("seed", range(3))
def test_intervals_and_ranges_follow_the_load_and_no_output_changes(seed: int) -> None:
    expected = values(undisturbed(counting))
    pipeline, kept = counting()
    live, rng = Live(pipeline), random.Random(seed)
    live.boot()
    balancing, changed, ranges = balancing_of(live), 0, set()
    for rows in range(5, 60, 4):
        fed(live, rows)
        if not balancing.prepared(busy=True):
            continue
        to_rest(live)
        changed += balancing.carried_out()
        on(live, anew=rng.random() < 0.3)
        ranges.add(tuple(live.run_log.positions.maps["Counted"].owned(n, 2) for n in range(2)))
    # What live tasks cost is known from their marks.
    assert sum(live.loads["Counted"].lately(n).records for n in range(20)) > 0
    live.finish()
    assert changed > 1
    assert balancing.splits > 0
    assert len(ranges) > 1
    assert values(kept.rows) == expected


def test_what_is_prepared_is_carried_out_at_the_rest_however_far_the_tasks_have_come() -> None:
    live = Live(counting()[0])
    live.boot()
    balancing = balancing_of(live)
    rows = until_prepared(live, balancing)
    before = dict(live.run_log.positions.maps)
    for more in range(3):
        fed(live, rows + 5 * more)
        # Nothing else is decided, and nothing is read again.
        assert balancing.prepared(busy=True)
    to_rest(live)
    assert live.run_log.positions.maps == before
    assert balancing.carried_out()
    assert live.run_log.positions.maps != before


def test_a_newer_run_ends_what_would_be_carried_out() -> None:
    live = Live(counting()[0])
    live.boot()
    balancing = balancing_of(live)
    until_prepared(live, balancing)
    to_rest(live)
    Live(live.pipeline, state=live.state)
    with pytest.raises(ZombieWriter):
        balancing.carried_out()
