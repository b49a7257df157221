"""Keys that begin by themselves, and what stands beside inputs, on live tasks that crash."""

import datetime as dt
import random
from collections import defaultdict
from itertools import pairwise

import pytest
from tests.live import Kept, Live

import millrace as mr


class Beat(mr.Computation):
    outputs = {"beats": int}
    n = mr.CombiningState(int)

    def process_start(self):
        self.n.add(1000)
        self.set_timer("beat", at=self.wall_time + mr.SECOND // 10, domain=mr.WALL_TIME)

    def process_timer(self, timer):
        self.n.add(1)
        self.produce("beats", self.n.get())
        self.set_timer("beat", at=timer.at + mr.SECOND // 10, domain=mr.WALL_TIME)


@pytest.mark.parametrize("seed", range(4))
def test_keys_begin_once_and_miss_no_beat(seed):
    p, kept = mr.Pipeline("alive"), Kept()
    p.add(Beat, keys=["a", "b", "c"])
    p.sink("beats", kept)
    live = Live(p)
    live.boot()
    live.play(random.Random(seed), turns=400, crash=0.03, mark=0.1)
    live.boot()
    live.finish()

    beats = defaultdict(list)
    for row in kept.rows:
        beats[row["_key"]].append((row["value"], row["_timestamp"]))
    assert beats.keys() == {"a", "b", "c"}
    for found in map(sorted, beats.values()):
        assert [n for n, _ in found] == list(range(1001, 1001 + len(found)))
        apart = {later[1] - one[1] for one, later in pairwise(found)}
        assert apart == {dt.timedelta(seconds=0.1)}
