"""What simulated processes deliver is late only where it is to be."""

from random import Random

import pytest

from simulation.realtime.feeds import Feeds


class Numbers:
    """A program, as far as feeds know of one."""

    def value(self, random):
        return {"n": random.randrange(10)}


@pytest.mark.parametrize("late", [False, True])
def test_rows_are_late_only_where_they_are_to_be(late):
    found = 0
    for seed in range(300):
        feeds = Feeds()
        feeds.fill(Random(seed), Numbers(), late=late)
        found += feeds.late()
        rows = {}
        for row in feeds.records:
            assert rows.setdefault(row.value["id"], row) == row
    assert bool(found) == late
