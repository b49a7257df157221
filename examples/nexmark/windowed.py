"""Nexmark's queries by windows: sliding, fixed, sessions, and of processing time."""

from __future__ import annotations

from typing import Any

import millrace as mr

_TEN = mr.FixedWindows("10 s")
_DAY = mr.FixedWindows("1 day")


def _cheap(bid: Any) -> bool:
    return bid.price < 10_000


def _middling(bid: Any) -> bool:
    return 10_000 <= bid.price < 1_000_000


def _dear(bid: Any) -> bool:
    return bid.price >= 1_000_000


def _bids() -> dict[str, Any]:
    return {
        "total_bids": mr.agg.count(),
        "cheap_bids": mr.agg.count(where=_cheap),
        "middling_bids": mr.agg.count(where=_middling),
        "dear_bids": mr.agg.count(where=_dear),
    }


def _different(field: str) -> dict[str, Any]:
    return {
        f"total_{field}s": mr.agg.distinct(field),
        f"cheap_{field}s": mr.agg.distinct(field, where=_cheap),
        f"middling_{field}s": mr.agg.distinct(field, where=_middling),
        f"dear_{field}s": mr.agg.distinct(field, where=_dear),
    }


_STATISTICS = {**_bids(), **_different("bidder"), **_different("auction")}


class Dearest(mr.CombineFn):
    """The bids of the highest price, several if they are equal, whatever their order."""

    def create(self) -> Any:
        """Return no bids."""
        return []

    def add(self, accumulator: Any, value: Any) -> Any:
        """Keep a bid if none is dearer."""
        return self.merge(accumulator, [(value.price, value.auction, value.bidder, value.at)])

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Keep the dearest of both."""
        both = [tuple(one) for one in (*accumulator, *other)]
        most = max((price for price, *_ in both), default=0)
        return sorted(one for one in both if one[0] == most)

    def extract(self, accumulator: Any) -> Any:
        """Return them by name."""
        names = ("price", "auction", "bidder", "at")
        return [dict(zip(names, one, strict=True)) for one in accumulator]


def q5(bids: Any) -> Any:
    """Which auctions had the most bids of the last ten seconds, told every two.

    A sliding window counts, and what it says is grouped again by the window that it was said of:
    all counts of one window come together, and those that equal the highest go on.
    """
    counts = bids.key_by("auction").window(mr.SlidingWindows("10 s", "2 s")).count()
    named = counts.map(mr.of_record(lambda r: {"auction": r.key, "bids": r.value}))
    return named.key_by("_window_end").group().flat_map(_most)


def q7(bids: Any) -> Any:
    """The highest bids of each ten seconds.

    An aggregate of our own, as those of equal prices are all asked for: the SQL joins the bids with
    their maximum, so it keeps all bids of a window; this keeps the highest.
    """
    highest = bids.key_by(lambda _: "all").window(_TEN).aggregate(Dearest())
    return highest.flat_map(list)


def q8(persons: Any, auctions: Any) -> Any:
    """Who came within ten seconds, and began to sell in the same ten.

    One stream of both, by person: the definition asks whether there are auctions, not which, so a
    join, which has a pair for each, would say too much.
    """
    people = persons.map(lambda p: {"person": p.id, "name": p.name})
    sellers = auctions.map(lambda a: {"person": a.seller, "name": None})
    both = people.flatten(sellers).key_by("person").window(_TEN)
    return both.group().flat_map(_came_and_sold)


def q11(bids: Any) -> Any:
    """How many bids somebody made in each session, which ten seconds without a bid end."""
    return bids.key_by("bidder").window(mr.Sessions("10 s")).count()


def q12(bids: Any) -> Any:
    """How many bids somebody made in each ten seconds of the processing clock.

    The stream is injected with ``timestamp=mr.INGRESS``, which is fixed with the epoch, so that a
    crash does not move a bid to another window; then it is a fixed window as any.
    """
    return bids.key_by("bidder").window(_TEN).count()


def q15(bids: Any) -> Any:
    """How many bids, bidders and auctions a day, by rank of price: several aggregates at once."""
    return bids.key_by(lambda _: "all").window(_DAY).aggregate(**_STATISTICS)


def q16(bids: Any) -> Any:
    """The same by channel, and the last minute in which there was a bid."""
    daily = bids.key_by("channel").window(_DAY)
    return daily.aggregate(**_STATISTICS, minute=mr.agg.max(lambda b: b.at % mr.DAY // mr.MINUTE))


def q17(bids: Any) -> Any:
    """How many bids an auction had a day, and at what prices."""
    prices = {"low": mr.agg.min("price"), "high": mr.agg.max("price"), "mean": mr.agg.mean("price")}
    daily = bids.key_by("auction").window(_DAY)
    return daily.aggregate(**_bids(), **prices, total=mr.agg.sum("price"))


def _came_and_sold(both: list[Any]) -> list[Any]:
    came = [one for one in both if one["name"] is not None]
    return came[:1] if len(came) < len(both) else []


def _most(counted: list[Any]) -> list[Any]:
    most = max(each["bids"] for each in counted)
    return [each for each in counted if each["bids"] == most]
