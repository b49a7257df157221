"""The Bloom filter: how often it errs, what it takes, and when its parts come and go."""

import numpy as np
import pytest

from millrace.kernel.source_dedup import BloomFilter, RotatingFilter


def ids(count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


def test_a_full_filter_takes_one_of_two_hundred_strangers_for_known():
    seen = BloomFilter(1 << 14)
    seen.add(ids(seen.capacity))
    assert seen.bytes == 2 * seen.capacity
    assert seen.may_hold(ids(200_000, seed=1)).mean() == pytest.approx(1 / 230, rel=0.2)


def test_an_empty_filter_knows_nothing():
    assert not BloomFilter(10).may_hold(ids(1000)).any()


def test_an_overfull_filter_errs_more_and_denies_nothing():
    seen = BloomFilter(256)
    seen.add(ids(10_000))
    assert seen.may_hold(ids(10_000)).all()
    assert seen.may_hold(ids(1000, seed=1)).mean() > 0.5


class TestRotation:
    def test_one_filter_takes_what_expires_within_a_span(self):
        seen = RotatingFilter(span_us=10, bytes_max=1 << 20)
        for first in (100, 105, 109):
            seen.add(ids(10, seed=first), first, first + 50)
        assert len(seen) == 1
        seen.add(ids(10, seed=110), 110, 110)
        assert len(seen) == 2

    def test_a_filter_leaves_when_the_last_of_it_has_expired(self):
        seen = RotatingFilter(span_us=10, bytes_max=1 << 20)
        seen.add(ids(10), 100, 150)
        seen.expire(149)
        assert len(seen) == 1
        seen.expire(150)
        assert len(seen) == 0
        assert not seen.may_hold(ids(10)).any()

    def test_a_full_one_is_followed_by_a_larger_one(self):
        seen = RotatingFilter(span_us=10, bytes_max=1 << 20)
        for seed in range(20):
            seen.add(ids(200, seed), 100, 100)
        assert len(seen) <= 4
        assert seen.count == 4000

    def test_memory_is_bounded_and_then_the_newest_takes_more_than_it_is_made_for(self):
        seen = RotatingFilter(span_us=10, bytes_max=4096)
        for seed in range(50):
            seen.add(ids(500, seed), 100 * seed, 100 * seed)
        assert seen.bytes <= 4096
        assert all(seen.may_hold(ids(500, seed)).all() for seed in range(50))
