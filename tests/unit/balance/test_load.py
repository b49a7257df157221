"""Load: what intervals cost, and which keys are hot, by looking at one record in many."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import millrace as mr
from millrace.balance.load import Loads
from millrace.balance.policy import Weight, where
from millrace.inspect import load_of_run
from millrace.kernel.bundle import KeyedRecords, ReceivedRecords
from millrace.kernel.results import (
    HOTTEST,
    CommitSizes,
    Counters,
    HookTimes,
    IntervalResult,
    KeySampler,
    Load,
    StateSizes,
)
from millrace.model.keys import encode_key, hash_key
from millrace.runtime.reports import MarkReport, decode, encode
from millrace.store import NOTHING, Commit, MemoryCache, Repair, Size, View
from millrace.testing import Harness
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.map_change import Merge, Split, remapped
from millrace.watermark.report import NOTHING_PENDING


def keyed(counts: dict[bytes, int], weights: dict[bytes, int] | None = None) -> KeyedRecords:
    """Return a bundle of one interval with so many records of each key."""
    keys = [key for key, n in counts.items() for _ in range(n)]
    length = len(keys)
    numbers = np.arange(length, dtype=np.int64)
    arrived = ReceivedRecords(
        np.repeat(np.arange(len(counts), dtype=np.uint64), list(counts.values())),
        keys,
        range(length),
        numbers,
        "s",
        numbers,
        numbers,
        weights=None if weights is None else np.array([weights[key] for key in keys]),
    )
    [(_, records)] = arrived.by_interval(IntervalMap.uniform(1))
    return records


def names(count: int) -> list[bytes]:
    return [b"s%05d" % n for n in range(count)]


@pytest.mark.parametrize("bundle", [1, 7, 61, 127, 128, 129, 1_000, 50_000])
def test_a_key_with_a_third_of_the_records_is_found_whatever_the_bundles_length(
    bundle: int,
) -> None:
    sampler, epoch = KeySampler(), Load()
    cold = names(bundle)
    for n in range(max(1, 50_000 // bundle)):
        hot = bundle // 3 if bundle > 1 else int(n % 3 == 0)
        counts = dict.fromkeys(cold[: bundle - hot], 1) | {b"shot": hot}
        records = keyed({key: k for key, k in counts.items() if k})
        found = sampler.hottest(records, records.count())
        epoch = epoch.then(Load(records=records.count(), hottest=found))
    said = epoch.reported().hottest

    share = bundle // 3 / bundle if bundle > 1 else 1 / 3
    assert len(said) <= HOTTEST
    assert said[b"shot"] / epoch.records == pytest.approx(share, abs=0.05)


def test_the_share_of_a_hot_key_is_about_right() -> None:
    sampler = KeySampler()
    counts = dict.fromkeys(names(700), 100) | {b"shot": 30_000}

    found = sampler.hottest(keyed(counts), 100_000)
    assert found[b"shot"] == pytest.approx(30_000, abs=100_000 / 16)


def test_what_partials_stand_for_counts() -> None:
    sampler = KeySampler()
    counts = dict.fromkeys(names(50), 1) | {b"shot": 1}
    weights = dict.fromkeys(counts, 1) | {b"shot": 10_000}

    found = sampler.hottest(keyed(counts, weights), 10_050)
    assert found[b"shot"] == pytest.approx(10_000, abs=2 * 10_050 / 16)


def test_small_bundles_after_a_large_one_are_looked_at_soon() -> None:
    sampler = KeySampler()
    sampler.hottest(keyed({b"sbig": 1_000_000}), 1_000_000)

    looked_at = [sampler.hottest(keyed({b"ssmall": 10}), 10) for _ in range(20)]
    assert any(looked_at)


def test_of_many_keys_the_heaviest_are_kept_and_the_rest_costs_no_memory() -> None:
    loads = Loads()
    for n in range(200):
        others = {b"s%d" % (1_000 * n + k): 1 for k in range(40)}
        loads.add({0: Load(100, hottest=others | {b"shot": 60})})

    found = loads.hottest(100)
    assert len(found) <= 64
    assert found[0].encoded == b"shot"
    assert 0.6 - 1 / 65 - 0.01 <= found[0].share <= 0.6


def test_of_few_records_no_key_is_named_and_of_enough_at_any_rate_about_the_right_share() -> None:
    """One in 128 is looked at: of a hundred records one, whose key would have all of them."""
    sampler, loads = KeySampler(), Loads()
    rng = np.random.default_rng(7)
    for epoch in range(120):
        keys = [b"s%d" % n for n in rng.integers(10, size=100)]
        records = keyed({key: keys.count(key) for key in sorted(set(keys))})
        loads.add({0: Load(100, hottest=sampler.hottest(records, 100))})
        if epoch < 25:
            assert loads.hottest() == [], epoch
    assert loads.hottest()
    assert all(0.0 < key.share < 0.35 for key in loads.hottest(10))

    # What was hot is forgotten by records, where epochs have few.
    for _ in range(120):
        loads.add({0: Load(100, hottest=sampler.hottest(keyed({b"shot": 100}), 100))})
    assert loads.hottest(1)[0].encoded == b"shot"
    assert loads.hottest(1)[0].share > 0.9


def test_the_state_of_an_interval_counts_once_and_not_after_it_is_forgotten() -> None:
    loads = Loads()
    loads.add({0: Load(rows=5, state_bytes=50), 1: Load(rows=7, state_bytes=70)})
    loads.add({0: Load(rows=6, state_bytes=60)})
    assert (loads.rows, loads.state_bytes) == (13, 130)

    loads.forget([1, 2])
    assert (loads.rows, loads.state_bytes, loads.intervals()) == (6, 60, [0])


def test_an_interval_that_does_nothing_fades() -> None:
    loads = Loads()
    loads.add({0: Load(seconds=1.0), 1: Load(seconds=1.0)})
    assert loads.busiest() == 0.5
    for _ in range(10):
        loads.add({1: Load(seconds=1.0)})

    assert loads.lately(1).seconds == pytest.approx(1.0)
    assert loads.lately(0).seconds == pytest.approx(0.8**10)
    assert loads.busiest() > 0.9


def test_a_memory_cache_knows_its_size_through_puts_deletes_and_snapshots() -> None:
    cache = MemoryCache("count", 0)
    one = [(b"Sa", b"1"), (b"Sb", b"22")]
    two = [(b"Sa", None), (b"Sb", b"333"), (b"Sc", None)]
    cache.apply(Commit("count", 0, 1, 1, 1, one, chain=1))
    with cache.view() as before:
        cache.apply(Commit("count", 0, 2, 1, 1, two, previous=1, chain=2))
        assert before.size == (2, 7)
    with cache.view() as after:
        assert after.size == (1, 5)
    cache.load(2, 2, [[(b"Sz", b"1")]])
    assert cache.size_bytes == 3
    cache.clear()
    assert cache.size_bytes == 0


class Counter(mr.Computation):
    inputs = {"words": mr.by(str)}
    n = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.n.set(self.n.get(0) + 1)


class CountedByValue(mr.Computation):
    inputs = {"words": mr.by(lambda value: value)}
    outputs = {}

    def process_record(self, record: mr.Record) -> None:
        pass


def test_a_run_names_its_hottest_keys_by_computation() -> None:
    p = mr.Pipeline("words")
    p.inject("words")
    p.add(Counter)
    h = Harness(p)
    for n in range(7):
        h.advance_watermark("words", n)
        h.inject("words", [("tea", 9)] * 300 + [(f"w{k}", 9) for k in range(100)])
    load = load_of_run(h._process.loads)["Counter"]

    assert load.hottest[0].key == "tea"
    assert load.hottest[0].share == pytest.approx(0.75, abs=0.15)
    assert load.state_rows == 101
    assert load.committed_bytes > 0


def test_a_late_record_of_a_long_key_is_told_briefly() -> None:
    p = mr.Pipeline("words")
    p.inject("words", format=Any)
    p.add(CountedByValue)
    with Harness(p) as h:
        h.advance_watermark("words", 100)
        h.inject("words", [("<b>" + "x" * 1_000_000, 9)])
        late = h._run_log.counters["CountedByValue"].first_late

    assert late is not None
    assert late.key.startswith("'<b>xxx")
    assert len(late.key) == 400


def test_children_of_a_split_have_what_is_known_of_their_parent_by_key_and_by_width() -> None:
    hot = encode_key("tea")
    at = hash_key(hot)
    loads, whole = Loads(), IntervalMap.uniform(1)
    loads.add({0: Load(10_000, 50, 2.0, 10, 1000, {hot: 6_000})})
    made = remapped(whole, [Split(0, 1 << 63)], first_id=1)
    loads.remap(made)
    weights = loads.weights(made.intervals)
    mine, other = (1, 2) if at < 1 << 63 else (2, 1)

    assert loads.intervals() == [1, 2]
    assert weights[mine].load == pytest.approx(2.0 * 0.8)
    assert weights[mine].hottest == ((at, pytest.approx(0.75)),)
    assert weights[other] == Weight(pytest.approx(2.0 * 0.2), ())
    assert (loads.rows, loads.state_bytes) == (10, 1000)

    back = remapped(made.intervals, [Merge(1, 2)], first_id=3)
    loads.remap(back)
    assert loads.weights(back.intervals)[3].load == pytest.approx(2.0)


def test_what_was_not_timed_weighs_by_records() -> None:
    loads = Loads()
    loads.add({0: Load(records=30)})
    weights = loads.weights(IntervalMap.uniform(2))
    assert [weights[n].load for n in (0, 1)] == [30, 0]


def test_a_live_task_reports_the_load_of_all_its_bundles_since_the_last_mark() -> None:
    def result(load: Load) -> IntervalResult:
        return IntervalResult("Counter", 0, 1, NOTHING_PENDING, Counters(), load=load)

    gathered, times = MarkReport(), HookTimes({-3: 2, 1: 1}, 1.5)
    for n in range(6):
        gathered.add(result(Load(10, 5, 0.25, n, 10 * n, {b"s%d" % n: n, b"shot": 3}, times)))
    [one] = decode(encode(gathered.take())).results

    hottest = {b"shot": 18, b"s5": 5, b"s4": 4, b"s3": 3}
    assert one.load == Load(60, 30, 1.5, 5, 50, hottest, HookTimes({-3: 12, 1: 6}, 9.0))
    assert gathered.take().results == []


@pytest.mark.parametrize("rows", [0, 1, 8, 9, 1_000])
def test_what_is_committed_is_counted_or_estimated(rows: int) -> None:
    # Rows of one kind come before those of another; nothing is kept of every tenth.
    mutations = [
        (b"S" * 10, None if n % 10 == 9 else b"v" * (2 + 8 * n // rows)) for n in range(rows)
    ]
    exact = sum(len(row) + len(value or b"") for row, value in mutations) + 5
    of = CommitSizes()
    sizes = [
        of.of(Commit("count", 0, n, 1, 1, mutations, b"abc", b"de"))
        for n in range(1, 1 + max(1, 10 * rows))
    ]

    assert sum(sizes) / len(sizes) == pytest.approx(exact, rel=0.03)
    if rows <= 8:
        assert set(sizes) == {exact}


def test_rows_of_one_small_commit_in_seven_stand_for_those_that_follow() -> None:
    of = CommitSizes()

    def size(rows: int, value: int, rest: int = 0) -> int:
        rows_of = [(b"row", b"v" * value)] * rows
        return of.of(Commit("count", 0, 1, 1, 1, rows_of, b"p" * rest))

    assert [size(2, 7) for _ in range(2)] == [20, 20]
    # Rows and productions are counted; only how large a row is is of the first.
    assert [size(n, 97, rest=5) for n in (1, 2, 3, 0, 4)] == [15, 25, 35, 5, 45]
    assert size(1, 97) == 10
    assert size(1, 97) == 100, "the seventh after it is measured"
    assert size(100, 1) == 400, "and whatever is large"


def test_the_state_is_sized_in_the_first_bundles_and_then_in_some() -> None:
    asked: list[int] = []

    class Seen:
        @property
        def size(self) -> Size:
            asked.append(bundle)
            return Size(bundle, 10 * bundle)

    sizes, view = StateSizes(), cast(View, Seen())
    for bundle in range(1, 193):  # noqa: B007  what is asked notes it
        assert sizes.of(0, 5, view, 2) == (asked[-1], 10 * asked[-1])
    assert asked == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    bundle = 193
    assert sizes.of(0, 2_016, view, 2) == (193, 1930)
    assert sizes.of(1, 5, view, 2) == (193, 1930), "another interval's is another"


def test_a_cache_that_stood_where_an_interval_began_is_a_hit() -> None:
    loads = Loads()
    for repair in (NOTHING, Repair(damaged=1), Repair(deltas_applied=2), Repair(rebuilt=True)):
        loads.open(repair)
    assert (loads.cache_hits, loads.cache_misses) == (2, 2)


@pytest.mark.parametrize(
    ("records", "sampled", "share"), [(20, 128, 0.25), (400, 128, 0.25), (1_000, 600, 0.6)]
)
def test_a_single_sample_is_no_hot_key_to_part_an_interval_by(
    records: int, sampled: int, share: float
) -> None:
    loads, whole = Loads(), IntervalMap.uniform(1)
    loads.add({0: Load(records, seconds=1.0, hottest={b"sa": sampled})})
    weight = loads.weights(whole)[0]
    assert weight.hottest == ((hash_key(b"sa"), pytest.approx(share)),)
    # A key of its own it gets by 40 %, and else the middle is near.
    (interval,) = whole.intervals
    assert (where(interval, weight.hottest) == hash_key(b"sa")) == (share > 0.4)


def test_shares_of_hot_keys_are_never_more_than_all() -> None:
    loads = Loads()
    # Samples among few records: each stands for 128 of them.
    loads.add({0: Load(2_560, hottest={b"sa": 1_408, b"sb": 1_408})})

    assert [(hot.encoded, hot.share) for hot in loads.hottest()] == [(b"sa", 0.5), (b"sb", 0.5)]
    weight = loads.weights(IntervalMap.uniform(1))[0]
    assert [share for _, share in weight.hottest] == [0.5, 0.5]
