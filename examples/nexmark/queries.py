"""Nexmark's questions with aggregates: each a stream of bids in, a stream of results out."""

from __future__ import annotations

from typing import Any

import millrace as mr


def _cheap(bid: Any) -> bool:
    return bid.price < 10_000


def _middling(bid: Any) -> bool:
    return 10_000 <= bid.price < 1_000_000


def _dear(bid: Any) -> bool:
    return bid.price >= 1_000_000


def _bids() -> dict[str, Any]:
    return {
        "total_bids": mr.count(),
        "cheap_bids": mr.count(where=_cheap),
        "middling_bids": mr.count(where=_middling),
        "dear_bids": mr.count(where=_dear),
    }


def _different(field: str) -> dict[str, Any]:
    return {
        f"total_{field}s": mr.distinct(field),
        f"cheap_{field}s": mr.distinct(field, where=_cheap),
        f"middling_{field}s": mr.distinct(field, where=_middling),
        f"dear_{field}s": mr.distinct(field, where=_dear),
    }


STATISTICS = {**_bids(), **_different("bidder"), **_different("auction")}


def hot_items(bids: Any, size: str = "6 h", period: str = "2 h") -> Any:
    """Q5: which auctions had the most bids of the last six hours, told every two."""
    counts = bids.key_by("auction").window(mr.SlidingWindows(size, period)).count()
    named = counts.map(mr.of_record(lambda r: {"auction": r.key, "bids": r.value}))
    return named.key_by("_window_end").group().flat_map(_most)


def _most(counted: list[Any]) -> list[Any]:
    most = max(each["bids"] for each in counted)
    return [each for each in counted if each["bids"] == most]


def bidding_statistics(bids: Any) -> Any:
    """Q15: how many bids, bidders and auctions a day, by rank of the price."""
    daily = bids.key_by(lambda _: "all").window(mr.FixedWindows("1 day"))
    return daily.aggregate(**STATISTICS)


def channel_statistics(bids: Any) -> Any:
    """Q16: the same by channel."""
    return bids.key_by("channel").window(mr.FixedWindows("1 day")).aggregate(**STATISTICS)


def auction_statistics(bids: Any) -> Any:
    """Q17: how many bids an auction had a day, and at what prices."""
    prices = {"low": mr.min("price"), "high": mr.max("price"), "mean": mr.mean("price")}
    daily = bids.key_by("auction").window(mr.FixedWindows("1 day"))
    return daily.aggregate(**_bids(), **prices, total=mr.sum("price"))


QUERIES = {
    "hot_items": hot_items,
    "bidding_statistics": bidding_statistics,
    "channel_statistics": channel_statistics,
    "auction_statistics": auction_statistics,
}


def pipeline(bids: Any = None, **inject: Any) -> mr.Pipeline:
    """Return all of them as one pipeline: stream ``bids`` in, a stream for each query out."""
    from millrace_examples.nexmark.bids import Bid

    p = mr.Pipeline("nexmark")
    stream = p.inject("bids", bids, format=Bid, **inject)
    for name, query in QUERIES.items():
        query(stream).to(name)
    return p
