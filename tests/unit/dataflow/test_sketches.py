"""Approximate aggregations: how far off they are, and what of them is exact."""

import random

import pytest

import millrace as mr
from millrace.dataflow.aggregations import (
    ApproximateDistinct,
    ApproximateQuantiles,
    Distinct,
    Quantiles,
    combine,
)


def test_approximate_distinct_is_within_a_few_percent() -> None:
    values = [n % 20_000 for n in range(50_000)]

    assert combine(ApproximateDistinct(), values) == pytest.approx(20_000, rel=0.05)


def test_approximate_quantiles_are_near_the_exact_ones_in_rank() -> None:
    values = [random.Random(seed).expovariate(1) for seed in range(20_000)]
    ranked = sorted(values)

    for share, found in zip(
        (0.01, 0.5, 0.99), combine(ApproximateQuantiles([0.01, 0.5, 0.99]), values), strict=True
    ):
        rank = sum(value <= found for value in ranked) / len(ranked)
        assert rank == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(
    "function", [ApproximateDistinct(), ApproximateQuantiles([0.5]), Distinct(), Quantiles([0.5])]
)
def test_parts_merge_to_the_whole(function: mr.CombineFn) -> None:
    left, right = function.create(), function.create()
    for n in range(100):
        left = function.add(left, n)
        right = function.add(right, n + 50)

    whole = combine(function, [*range(100), *range(50, 150)])
    merged = function.extract(function.merge(left, right))
    assert merged == pytest.approx(whole, rel=0.05)


@pytest.mark.parametrize("at", [[], [2], [-0.1], ["median"], 95])
def test_shares_are_from_0_to_1(at: object) -> None:
    with pytest.raises(mr.MillraceError, match="shares from 0 to 1"):
        Quantiles(at)  # type: ignore[arg-type]
