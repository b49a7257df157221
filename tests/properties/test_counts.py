"""Counts per (key, bucket) are those of a dictionary, however records are grouped and spread."""

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr

BUCKET = 10
event = st.tuples(st.sampled_from(["a", "b", "c", "d", "e"]), st.integers(0, 59))
INTERVALS = st.sampled_from([1, 2, 16])


class Buckets(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": list}
    buckets = mr.MapState(int)

    def process_record(self, record):
        bucket = record.timestamp // BUCKET
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.set_timer(bucket, at=(bucket + 1) * BUCKET)

    def process_timer(self, timer):
        count = self.buckets.pop(timer.tag)
        self.produce("counts", [timer.tag, count], timestamp=timer.at - 1)


class Totals(mr.Computation):
    """A second level, fed by the first one's timers."""

    inputs = {"counts": mr.by(lambda value: value[0])}
    outputs = {"totals": list}
    total = mr.CombiningState(int)

    def process_record(self, record):
        self.total.add(record.value[1])
        self.set_timer("end", at=(self.key + 1) * BUCKET)

    def process_timer(self, timer):
        self.produce("totals", [self.key, self.total.get()])
        self.total.clear()


def pipeline():
    p = mr.Pipeline("counts")
    p.inject("events")
    p.add(Buckets)
    p.add(Totals)
    return p


def value(key):
    return {"key": key}


def by_key(h, stream):
    """Return key -> its outputs in order; across keys there is no order."""
    found = {}
    for output in h.outputs(stream):
        found.setdefault(output.key, []).append((output.value, output.timestamp))
    return found


@given(st.lists(st.lists(event, max_size=6), max_size=6), INTERVALS)
def test_counts_are_those_of_a_dictionary(batches, intervals):
    with mr.testing.Harness(pipeline(), intervals=intervals) as h:
        for batch in batches:
            h.inject("events", [(value(key), at) for key, at in batch])
        h.advance_watermark("events", mr.MAX_TIMESTAMP)

        counted = {(o.key, o.value[0]): o.value[1] for o in h.outputs("counts")}
        totals = {o.key: o.value[1] for o in h.outputs("totals")}
    expected = Counter((key, at // BUCKET) for batch in batches for key, at in batch)
    assert counted == expected
    assert totals == Counter(at // BUCKET for batch in batches for _, at in batch)


@given(st.lists(event, max_size=20), st.lists(st.integers(1, 19), max_size=4), INTERVALS)
def test_grouping_and_intervals_change_nothing_for_a_key(events, cuts, intervals):
    def run(batches, intervals):
        with mr.testing.Harness(pipeline(), intervals=intervals) as h:
            for batch in batches:
                h.inject("events", [(value(key), at) for key, at in batch])
            h.advance_watermark("events", 35)
            h.advance_watermark("events", mr.MAX_TIMESTAMP)
            return [by_key(h, stream) for stream in ("counts", "totals")]

    edges = [0, *sorted(cuts), len(events)]
    batches = [events[i:j] for i, j in itertools.pairwise(edges)]
    assert run(batches, intervals) == run([events], 4)


@given(st.lists(event, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_the_order_across_keys_changes_nothing_for_a_key(events, random):
    """Shuffle while each key's own records keep their order: what a Spark shuffle may do."""

    def run(events):
        with mr.testing.Harness(pipeline()) as h:
            h.inject("events", [(value(key), at) for key, at in events])
            h.advance_watermark("events", mr.MAX_TIMESTAMP)
            return [by_key(h, stream) for stream in ("counts", "totals")]

    waiting = {}
    for key, at in events:
        waiting.setdefault(key, []).append((key, at))
    turns = [key for key, _ in events]
    random.shuffle(turns)
    assert run([waiting[key].pop(0) for key in turns]) == run(events)
