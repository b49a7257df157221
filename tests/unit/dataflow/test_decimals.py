"""Aggregates of Decimals: exact Decimals, on every engine that may fold them."""

from decimal import Decimal, localcontext
from typing import Any

import msgspec
import numpy as np
import pytest

import millrace as mr
from millrace.dataflow.aggregations import Mean, Quantiles, Sum, combine
from millrace.model.errors import PipelineError

CENTS = [Decimal("0.10"), Decimal("0.20"), Decimal("1e27"), Decimal("0.01")]


class Sale(msgspec.Struct):
    shop: str
    amount: Decimal


def test_a_sum_of_decimals_is_exact_whatever_the_context_is() -> None:
    with localcontext() as context:
        context.prec = 3
        assert combine(Sum(), CENTS) == Decimal("1000000000000000000000000000.31")
        assert combine(Sum(), [Decimal("1234.5"), 1]) == Decimal("1235.5")
        taken = Sum().uncombine(combine(Sum(), CENTS), Decimal("1e27"))
    assert repr(taken) == "Decimal('0.31')"


def test_a_mean_of_decimals_has_28_digits() -> None:
    found = combine(Mean(), [Decimal("1.00"), Decimal("1.00"), Decimal("0")])

    assert found == Decimal("0.6666666666666666666666666667")
    assert combine(Mean(), [Decimal("0.10"), Decimal("0.20")]) == Decimal("0.15")


def test_quantiles_of_decimals_are_decimals() -> None:
    found = combine(Quantiles([0.5]), [Decimal("0.10"), Decimal("0.30"), Decimal("0.20")])

    assert repr(found) == "[Decimal('0.20')]"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([Decimal("1"), 1.5], "Decimals and floats"),
        ([1.5, Decimal("1")], "Decimals and floats"),
        ([Decimal("NaN")], "added exactly"),
        ([Decimal("Infinity")], "added exactly"),
        ([Decimal("1e2000"), Decimal("1")], "more than 1000 digits"),
        ([True], "count truths"),
        ([np.True_], "count truths"),
        (["1.0"], "Expected an int, a float or a Decimal"),
    ],
)
@pytest.mark.parametrize("fold", [Sum(), Mean()], ids=repr)
def test_what_has_no_exact_sum_is_refused(fold: Any, values: list[Any], why: str) -> None:
    with pytest.raises(PipelineError, match=why):
        combine(fold, values)


def test_ints_beyond_64_bits_are_added_exactly() -> None:
    assert combine(Sum(), [2**63, 2**63, 1]) == 2**64 + 1


@pytest.mark.parametrize("fanout", [None, 3])
def test_sums_of_decimals_go_through_state_windows_and_retractions(fanout: int | None) -> None:
    p = mr.Pipeline("cents")
    sales = p.inject("sales", format=Sale).key_by("shop")
    windowed = sales.window(
        mr.FixedWindows(10), mode=mr.ACCUMULATING_AND_RETRACTING, allowed_lateness=1_000
    )
    windowed.aggregate(
        **({} if fanout is None else {"fanout": fanout}),
        n=mr.agg.count(),
        total=mr.agg.sum("amount"),
        mean=mr.agg.mean("amount"),
        high=mr.agg.max("amount"),
        small=mr.agg.sum("amount", where=lambda sale: sale.amount < 0),
    ).to("totals")
    with mr.testing.Harness(p) as h:
        h.inject("sales", [(Sale("a", Decimal("0.10")), 1), (Sale("a", Decimal("0.20")), 2)])
        h.crash()
        h.advance_watermark("sales", 10)
        h.crash()
        h.inject("sales", [(Sale("a", Decimal("0.03")), 3)])
        found = [out.value for out in h.outputs("totals") if not out.pane.retraction]

    assert found[-1] == {
        "n": 3,
        "total": Decimal("0.33"),
        "mean": Decimal("0.11"),
        "high": Decimal("0.20"),
        "small": 0,
    }
    assert found[0]["total"] == Decimal("0.30")
    assert type(found[0]["total"]) is type(found[0]["mean"]) is Decimal


def test_a_decimal_of_a_type_that_is_not_known_is_refused_by_name() -> None:
    p = mr.Pipeline("cents")
    sales = p.inject("sales", format=Sale).key_by("shop")
    sales.window(mr.FixedWindows(10)).sum(lambda sale: sale.amount).to("totals")
    with mr.testing.Harness(p) as h, pytest.raises(mr.MillraceError, match="name of a field"):
        h.inject("sales", [(Sale("a", Decimal("0.10")), 1)])
