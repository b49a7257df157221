"""What a function chooses of an element, whose type nobody knows, is compared as state has it."""

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pytest

import millrace as mr


class Sale(msgspec.Struct, frozen=True):
    shop: str
    who: str
    price: Decimal


def results(bundles: Any, aggregated: Any) -> list[Any]:
    p = mr.Pipeline("best")
    aggregated(p.inject("sales", format=Sale).key_by("shop").window(mr.Sessions(10))).to("best")
    with mr.testing.Harness(p) as h:
        for bundle in bundles:
            h.inject("sales", bundle)
        h.advance_watermark("sales", 1_000)
        return [out.value for out in h.outputs("best")]


SALES = [(Sale("tea", who, Decimal(price)), at) for who, price, at in
         (("Bob", 9, 0), ("Ann", 10, 15), ("Bob", 1, 8))]  # fmt: skip


@pytest.mark.parametrize("bundles", [[SALES], [[sale] for sale in SALES]], ids=["one", "several"])
@pytest.mark.parametrize(
    ("aggregated", "best"),
    [
        (lambda sales: sales.max(lambda sale: (sale.who, len(sale.shop))), ["Bob", 3]),
        (lambda sales: sales.min(lambda sale: (sale.who, [sale.shop])), ["Ann", ["tea"]]),
        (lambda sales: sales.top(1, lambda sale: (sale.who, int(sale.price))), [["Bob", 9]]),
        (lambda sales: sales.top(1, lambda sale: {"who": sale.who}, key="who"), [{"who": "Bob"}]),
        (
            lambda sales: sales.aggregate(high=mr.agg.max(lambda sale: (sale.who, 1))),
            {"high": ["Bob", 1]},
        ),
        (lambda sales: sales.max("price"), Decimal(10)),
    ],
)
def test_a_result_does_not_depend_on_bundles(bundles: Any, aggregated: Any, best: Any) -> None:
    assert results(bundles, aggregated) == [best]


@pytest.mark.parametrize("fanout", [None, 2])
@pytest.mark.parametrize(
    "function", [lambda sale: sale.price, lambda sale: (dt.date(2026, 1, int(sale.price)), "on")]
)
def test_what_state_has_as_text_is_refused(fanout: Any, function: Any) -> None:
    with pytest.raises(mr.MillraceError, match=r"by a function.*max\('field'\).*format="):
        results([SALES], lambda sales: sales.max(function, fanout=fanout))
