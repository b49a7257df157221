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
    with pytest.raises(mr.MillraceError, match=r"by a function.*-> \w+.*max\('field'\)"):
        results([SALES], lambda sales: sales.max(function, fanout=fanout))


class Rank(msgspec.Struct, order=True):
    price: Decimal
    who: str


def price(sale: Sale) -> Decimal:
    return sale.price


def day(sale: Sale) -> "dt.date | None":
    return dt.date(2026, 1, int(sale.price))


def pair(sale: Sale) -> tuple[Decimal, str]:
    return sale.price, sale.who


class Ranked:
    def __call__(self, sale: Sale) -> Rank:
        return Rank(sale.price, sale.who)


@pytest.mark.parametrize("bundles", [[SALES], [[sale] for sale in SALES]], ids=["one", "several"])
@pytest.mark.parametrize(
    ("aggregated", "best"),
    [
        (lambda sales: sales.max(price), Decimal(10)),
        (lambda sales: sales.max(price, fanout=2), Decimal(10)),
        (lambda sales: sales.min(day), dt.date(2026, 1, 1)),
        (lambda sales: sales.max(pair), (Decimal(10), "Ann")),
        (lambda sales: sales.max(Ranked()), Rank(Decimal(10), "Ann")),
        (lambda sales: sales.top(2, price), [Decimal(10), Decimal(9)]),
        (lambda sales: sales.top(1, pair, key=lambda pair: pair[1]), [(Decimal(9), "Bob")]),
        (lambda sales: sales.sum(price), Decimal(20)),
        (
            lambda sales: sales.aggregate(
                high=mr.agg.max(price), all=mr.agg.sum(price), n=mr.agg.count()
            ),
            {"high": Decimal(10), "all": Decimal(20), "n": 3},
        ),
    ],
)
def test_a_function_that_says_its_type_gives_values_of_it(
    bundles: Any, aggregated: Any, best: Any
) -> None:
    assert results(bundles, aggregated) == [best]


def test_a_function_that_returns_another_type_than_it_says_is_named() -> None:
    def wrong(sale: Sale) -> Decimal:
        return sale.who  # type: ignore[return-value]

    said = r"wrong returned 'Bob' \(str\), and its annotation says Decimal"
    with pytest.raises(mr.MillraceError, match=said):
        results([SALES], lambda sales: sales.max(wrong))
