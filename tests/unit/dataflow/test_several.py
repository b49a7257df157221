"""Several aggregates in one pass: their results, formats, fields, and what is refused."""

import dataclasses
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace.dataflow.aggregations import Distinct, Top
from millrace.dataflow.aggregations.several import Part, Several
from millrace.model.errors import PipelineError
from millrace.runtime.values import SinkColumns


class Bid(msgspec.Struct):
    item: str
    price: int
    big: bool = False


class Prices(msgspec.Struct):
    high: int | None
    n: int


@dataclasses.dataclass
class Dated:
    n: int
    high: int | None


class Longest(mr.CombineFn):
    accumulator = str

    def create(self) -> str:
        return ""

    def add(self, accumulator: str, value: Any) -> str:
        return max(accumulator, value, key=len)

    def merge(self, accumulator: str, other: str) -> str:
        return self.add(accumulator, other)

    def extract(self, accumulator: str) -> str:
        return accumulator


ALL: dict[str, Any] = {
    "n": mr.agg.count(), "total": mr.agg.sum("price"),
    "mean": mr.agg.mean("price"), "low": mr.agg.min("price"),
    "high": mr.agg.max("price"), "best": mr.agg.top(2, "price"), "kinds": mr.agg.distinct("price"),
    "middle": mr.agg.quantiles([0.5], "price"), "all": mr.agg.group("price"),
    "spread": mr.agg.variance("price", sample=False), "even": mr.agg.stddev("price", sample=False),
    "longest": mr.agg.Aggregate(Longest(), "item"),
}  # fmt: skip


def pipeline(
    aggregates: dict[str, Any], format: Any = Bid, to: Any = Any, fanout: Any = None, **how: Any
) -> mr.Pipeline:
    p = mr.Pipeline("bids")
    bids = p.inject("bids", format=format).key_by("item").window(mr.FixedWindows(10), **how)
    bids.aggregate(fanout=fanout, **aggregates).to("prices", to)
    return p


def results(p: mr.Pipeline, *batches: list[Any]) -> list[Any]:
    with mr.testing.Harness(p) as h:
        for bids in batches:
            h.inject("bids", [(bid, 3) for bid in bids])
        h.advance_watermark("bids", mr.MAX_TIMESTAMP)
        return [out.value for out in h.outputs("prices")]


@pytest.mark.parametrize("fanout", [None, 3])
def test_all_of_them_are_computed_in_one_pass(fanout: Any) -> None:
    aggregates = {k: v for k, v in ALL.items() if k != "all" or fanout is None}
    p = pipeline(aggregates, fanout=fanout)

    (found,) = results(p, [Bid("cup", 4), Bid("cup", 9)], [Bid("cup", 4)])

    assert {name: found[name] for name in ("n", "total", "low", "high", "kinds")} == {
        "n": 3, "total": 17, "low": 4, "high": 9, "kinds": 2,
    }  # fmt: skip
    assert (found["mean"], found["best"], found["middle"]) == (17 / 3, [9, 4], [4])
    assert found["spread"] == pytest.approx(50 / 9)
    assert found["even"] ** 2 == pytest.approx(found["spread"])
    assert found.get("all") == (None if fanout else [4, 9, 4])


def test_each_has_a_filter_of_its_own() -> None:
    p = pipeline(
        {
            "n": mr.agg.count(),
            "big": mr.agg.count(where="big"),
            "cheap": mr.agg.max("price", where=lambda bid: bid.price < 5),
            "none": mr.agg.min("price", where=lambda bid: bid.price > 100),
            "mean": mr.agg.mean("price", where=lambda bid: bid.price > 100),
        }
    )

    assert results(p, [Bid("cup", 4, True), Bid("cup", 9)], [Bid("cup", 3)]) == [
        {"n": 3, "big": 1, "cheap": 4, "none": None, "mean": None}
    ]


def test_a_value_is_looked_for_only_where_it_counts() -> None:
    asked = mr.agg.sum("price", where=lambda bid: "price" in bid)

    p = pipeline({"n": mr.agg.count(), "total": asked}, format=dict)

    assert results(p, [{"item": "cup"}, {"item": "cup", "price": 2}]) == [{"n": 2, "total": 2}]


@pytest.mark.parametrize("made", [Prices, Dated])
def test_a_result_is_of_the_declared_format(made: Any) -> None:
    p = pipeline({"n": mr.agg.count(), "high": mr.agg.max("price")}, to=made)

    assert results(p, [Bid("cup", 4)]) == [made(n=1, high=4)]


def test_a_result_is_a_record_with_typed_columns() -> None:
    topology = pipeline(
        {
            "n": mr.agg.count(),
            "mean": mr.agg.mean("price"),
            "high": mr.agg.max("price"),
            "all": mr.agg.group("item"),
        }
    ).build()
    stream = topology.streams["prices"]

    columns = SinkColumns(stream.format, stream.coder)

    assert columns.names == ["n", "mean", "high", "all"]
    assert [columns.arrow.field(n).type for n in range(4)] == [
        pa.int64(), pa.float64(), pa.int64(), pa.list_(pa.string()),
    ]  # fmt: skip


def test_values_are_taken_back_where_an_aggregate_cannot_do_it_itself() -> None:
    p = mr.Pipeline("again")
    bids = p.inject("bids", format=dict).key_by("item")
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": 100}
    totals = bids.window(mr.FixedWindows(10), **how).sum("price")  # type: ignore[arg-type]
    several = {"n": mr.agg.count(), "high": mr.agg.max(), "sum": mr.agg.sum(where=lambda n: n > 4)}
    totals.key_by(lambda _: "all").aggregate(**several).to("prices")

    with mr.testing.Harness(p) as h:
        h.inject("bids", [({"item": item, "price": n}, 3) for item, n in [("cup", 5), ("pot", 9)]])
        h.advance_watermark("bids", 10)
        h.inject("bids", [({"item": "pot", "price": -8}, 3)])
        last = h.outputs("prices")[-1]

    assert last.value == {"n": 2, "high": 5, "sum": 5}
    assert last.pane is not None
    assert last.pane.timing is mr.LATE


def test_results_are_grouped_again_by_their_names() -> None:
    p = mr.Pipeline("twice")
    bids = p.inject("bids", format=dict).key_by("item").window(mr.FixedWindows(10))
    prices = bids.aggregate(n=mr.agg.count(), high=mr.agg.max("price"))
    prices.key_by("n").aggregate(items=mr.agg.count(), high=mr.agg.max("high")).to("by count")

    with mr.testing.Harness(p) as h:
        bid = [("cup", 5), ("cup", 2), ("pot", 7), ("pan", 3)]
        h.inject("bids", [({"item": item, "price": price}, 3) for item, price in bid])
        h.advance_watermark("bids", 10)
        found = {out.key: out.value for out in h.outputs("by count")}

    assert found == {2: {"items": 1, "high": 5}, 1: {"items": 2, "high": 7}}


def test_they_are_lifted_and_kept_as_columns_as_single_ones_are() -> None:
    aggregates = {
        "n": mr.agg.count(),
        "high": mr.agg.max("price", where="big"),
        "mean": mr.agg.mean("price"),
    }
    text = str(pipeline(aggregates).explain())
    with_distinct = str(pipeline({**aggregates, "kinds": mr.agg.distinct("price")}).explain())
    with_own = str(pipeline({**aggregates, "name_": ALL["longest"]}).explain())

    assert "lifted: values" in text
    assert "as columns, all keys together" in text
    assert "lifted: values" in with_distinct
    assert "as columns" not in with_distinct
    assert "name_: Longest() folds values one by one" in with_own


def test_a_refused_value_refuses_its_record_and_nothing_of_it_stays() -> None:
    p = mr.Pipeline("refused")
    p.dead_letter("letters")
    bids = p.inject("bids", format=dict).key_by("item").window(mr.FixedWindows(10))
    bids.aggregate(n=mr.agg.count(), total=mr.agg.sum("price")).to("prices")

    with mr.testing.Harness(p) as h:
        h.inject("bids", [({"item": "cup", "price": price}, 3) for price in (1, "two", 3)])
        h.advance_watermark("bids", 10)
        (letter,) = h.outputs("letters")
        assert [out.value for out in h.outputs("prices")] == [{"n": 2, "total": 4}]

    assert "sum was given 'two'" in letter.value.reason


@pytest.mark.parametrize(
    ("aggregates", "refused"),
    [
        ({"n": 3}, r"aggregate\(n=3\): expected an aggregate, such as n=mr.agg.count\(\)"),
        ({"_key": mr.agg.count()}, "'_key' cannot name a result.*underscore"),
        ({"my n": mr.agg.count()}, "'my n' cannot name a result"),
        ({"class": mr.agg.count()}, "'class' cannot name a result"),
        ({"name": mr.agg.count()}, "'name' is an argument of aggregate itself"),
        ({"combine": mr.agg.count()}, "'combine' is an argument of aggregate itself"),
        ({"value": "price", "n": mr.agg.count()}, "one aggregation.*or several by name"),
        ({}, r"aggregate\(\): expected a mr.CombineFn.*or aggregates by name"),
    ],
)
def test_what_is_no_aggregate_is_refused(aggregates: Any, refused: str) -> None:
    with pytest.raises(PipelineError, match=refused):
        pipeline(aggregates)


@pytest.mark.parametrize(
    ("aggregates", "field"),
    [
        ({"high": mr.agg.max("prize")}, "'prize'.*Did you mean 'price'"),
        ({"n": mr.agg.count(where="bigg")}, "'bigg'.*Did you mean 'big'"),
    ],
)
def test_a_field_that_is_not_there_is_refused(aggregates: Any, field: str) -> None:
    with pytest.raises(PipelineError, match=field):
        pipeline(aggregates).build()


@pytest.mark.parametrize(
    ("made", "why"), [(Bid, "Bid, which has item, price, big"), (int, "int, which is no record")]
)
def test_a_format_with_other_fields_is_refused(made: Any, why: str) -> None:
    with pytest.raises(PipelineError, match=f"the aggregates n, high cannot become a {why}"):
        pipeline({"n": mr.agg.count(), "high": mr.agg.max("price")}, to=made).build()


@pytest.mark.parametrize("wrong", [lambda: mr.agg.Aggregate(max), lambda: mr.agg.max(3)])
def test_an_aggregate_of_something_else_is_refused(wrong: Any) -> None:
    with pytest.raises(PipelineError, match=r"expected a mr\.CombineFn|chooses nothing"):
        wrong()


def test_what_is_merged_stays_as_it_was() -> None:
    # A bundle in which a record is refused runs again, over the values that were decoded once.
    several = Several((Part("kinds", Distinct(), 0, None), Part("best", Top(2), 0, None)))
    one, two = (several.add(several.create(), (n,)) for n in (1, 2))

    merged = several.merge(several.merge(several.create(), one), two)

    assert several.extract(merged) == {"kinds": 2, "best": [2, 1]}
    assert several.extract(one) == {"kinds": 1, "best": [1]}


def test_two_of_one_name_are_refused() -> None:
    bids = mr.Pipeline("bids").inject("bids", format=Bid).key_by("item").window()
    with pytest.raises(TypeError, match="multiple values for keyword argument 'n'"):
        bids.aggregate(n=mr.agg.count(), **dict.fromkeys(["n"], mr.agg.max("price")))
