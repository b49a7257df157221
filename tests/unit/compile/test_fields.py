"""Fields chosen by name: those that a format or a source surely lacks are refused at build."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import PipelineError

MINUTE = mr.FixedWindows("1 min")


class Bid(msgspec.Struct, frozen=True):
    auction: int
    price: int
    time: int = 0

    @property
    def euros(self) -> float:
        return self.price / 100


@dataclass
class BidData:
    auction: int
    price: int
    time: int = 0


class BidDict(TypedDict):
    auction: int
    price: int
    time: int


class BidTuple(NamedTuple):
    auction: int
    price: int
    time: int = 0


class Frame:
    """As much of a DataFrame as a pipeline asks for."""

    columns = ["auction", "price", "at"]
    isStreaming = True  # noqa: N815


class Keep(mr.Computation):
    def __init__(self, extractor):
        self.inputs = {"bids": extractor}

    def process_record(self, record):
        pass


def bids(format=Bid):
    p = mr.Pipeline("auctions")
    return p, p.inject("bids", format=format)


MISTAKES = {
    "key_by": (
        lambda s: s.key_by("auctoin").window(MINUTE).count().to("out"),
        "computation 'out' takes its key from field 'auctoin' of stream 'bids'",
        "auction",
    ),
    "several keys": (
        lambda s: s.key_by("auction", "tim").window(MINUTE).count().to("out"),
        "takes its key from field 'tim'",
        "time",
    ),
    "a key_by that is named": (
        lambda s: s.key_by("auctoin").to("keyed"),
        "key_by takes keys from field 'auctoin' of stream 'bids'",
        "auction",
    ),
    "sum": (
        lambda s: s.key_by("auction").window(MINUTE).sum("prise").to("sums"),
        "the aggregation 'sums' takes its values from field 'prise' of stream 'bids'",
        "price",
    ),
    "sum with fanout": (
        lambda s: s.key_by("auction").window(MINUTE).sum("prise", fanout=3).to("sums"),
        "takes its values from field 'prise'",
        "price",
    ),
    "min": (
        lambda s: s.key_by("auction").window(MINUTE).min("prise").to("low"),
        "field 'prise'",
        "price",
    ),
    "top by": (
        lambda s: s.key_by("auction").window(MINUTE).top(3, key="prise").to("highest"),
        "field 'prise'",
        "price",
    ),
    "with_timestamps": (
        lambda s: s.with_timestamps("tme").to("timed"),
        "with_timestamps takes event times from field 'tme'",
        "time",
    ),
    "by": (lambda s: s.pipeline.add(Keep(mr.by("auctoin"))), "computation 'Keep'", "auction"),
    "join": (
        lambda s: (
            s.key_by("auction")
            .window(MINUTE)
            .join(s.filter(bool).key_by("auctoin"), name="pairs")
            .to("out")
        ),
        "computation 'pairs' takes its key from field 'auctoin'",
        "auction",
    ),
    "through steps": (
        lambda s: s.filter(bool).to("some").key_by("auctoin").window(MINUTE).count().to("out"),
        "of stream 'some'",
        "auction",
    ),
}


def refusal(p):
    p.sink("bids", print)
    with pytest.raises(PipelineError) as refused:
        p.build()
    return str(refused.value)


@pytest.mark.parametrize("format", [Bid, BidData, BidDict, BidTuple, Bid | None])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_field_that_the_format_lacks_is_refused_with_what_was_meant(mistake, format):
    mistaken, who, meant = MISTAKES[mistake]
    p, stream = bids(format)
    mistaken(stream)

    message = refusal(p)
    assert who in message
    assert f"Did you mean {meant!r}? It has: auction, price, time." in message


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("format", [Any, dict])
def test_of_untyped_values_nothing_is_known(mistake, format):
    p, stream = bids(format)
    MISTAKES[mistake][0](stream)
    p.sink("bids", print)
    p.build()


def test_an_untyped_stream_has_the_columns_of_its_source():
    p = mr.Pipeline("auctions")
    stream = p.inject("bids", Frame(), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    stream.filter(bool).key_by("auctoin").window(MINUTE).sum("prise").to("out")
    p.add(Keep(mr.by("at")))  # it is in record.timestamp, and not in the value

    message = refusal(p)
    assert "has 3 problems" in message
    said = "which its source does not have. Did you mean 'auction'? It has: auction, price."
    assert said in message


def test_what_a_function_makes_of_a_source_is_not_known():
    p = mr.Pipeline("auctions")
    stream = p.inject("bids", Frame(), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    stream.map(dict).key_by("anything").window(MINUTE).sum("else").to("out")
    p.build()


def test_the_result_of_a_grouping_has_fields_too():
    p, stream = bids()
    best = stream.key_by("auction").window(MINUTE).max("price").to("best")
    best.key_by("price").window(MINUTE).count().to("out")

    message = refusal(p)
    assert (
        "field 'price' of stream 'best', whose values are int | None and have no fields" in message
    )


def test_a_property_may_be_chosen_and_a_declared_format_counts():
    p, stream = bids()
    stream.key_by("euros").window(MINUTE).sum("price").to("out")
    stream.map(str).to("texts", format=BidData).key_by("auction").window(MINUTE).count().to("n")
    p.build()


@pytest.mark.parametrize("format", [Any, Bid])
def test_windows_without_keys_are_refused(format):
    p, stream = bids(format)
    stream.filter(bool).window(MINUTE).count().to("out")

    message = refusal(p)
    assert "the grouping 'out' groups stream 'bids.filter-1' by key" in message
    assert 'key_by("field").window(...)' in message


def test_keys_may_come_from_anywhere_before_the_windows():
    p, stream = bids()
    keyed = stream.key_by("auction").filter(bool)
    keyed.window(MINUTE).count().to("counts").window(MINUTE).sum().to("sums")
    p.build()
