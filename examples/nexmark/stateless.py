"""Nexmark's queries of one event at a time: each is a step, and costs no shuffle and no state."""

from __future__ import annotations

import re
from typing import Any

from millrace.model.time import datetime_of

_EUROS = 0.908
_CHANNELS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
_CHANNEL_ID = re.compile("(?:&|^)channel_id=([^&]*)")


def q0(bids: Any) -> Any:
    """Bids as they are: what it costs to bring a record in and out. A filter that keeps all."""
    return bids.filter(lambda _: True)


def q1(bids: Any) -> Any:
    """Bids in euros: a map."""
    return bids.map(
        lambda b: {"auction": b.auction, "bidder": b.bidder, "price": _EUROS * b.price, "at": b.at}
    )


def q2(bids: Any) -> Any:
    """What was bid for every 123rd auction: a filter, then a map."""
    chosen = bids.filter(lambda b: b.auction % 123 == 0)
    return chosen.map(lambda b: {"auction": b.auction, "price": b.price})


def q10(bids: Any) -> Any:
    """Bids with day and minute, the partitions of a log of files: a map, and a sink of Parquet."""
    return bids.map(_partitioned)


def q14(bids: Any) -> Any:
    """Bids between one and fifty million, with the time of day and a count of letters.

    A user-defined function is any Python function; here it is ``str.count``.
    """
    return bids.filter(lambda b: 1_000_000 < _EUROS * b.price < 50_000_000).map(_calculated)


def q21(bids: Any) -> Any:
    """Bids with the id of their channel, by name or from the URL: a flat map, of one or none."""
    return bids.flat_map(_with_channel)


def q22(bids: Any) -> Any:
    """Bids with the directories of their URL: a map."""
    return bids.map(_with_directories)


def _partitioned(bid: Any) -> dict[str, Any]:
    at = datetime_of(bid.at)
    return {
        "auction": bid.auction,
        "bidder": bid.bidder,
        "price": bid.price,
        "at": bid.at,
        "day": f"{at:%Y-%m-%d}",
        "minute": f"{at:%H:%M}",
    }


def _calculated(bid: Any) -> dict[str, Any]:
    hour = datetime_of(bid.at).hour
    by_day, by_night = 8 <= hour <= 18, hour <= 6 or hour >= 20
    return {
        "auction": bid.auction,
        "bidder": bid.bidder,
        "price": _EUROS * bid.price,
        "time": "dayTime" if by_day else "nightTime" if by_night else "otherTime",
        "letters": bid.extra.count("c"),
    }


def _with_channel(bid: Any) -> list[dict[str, Any]]:
    found = _CHANNEL_ID.search(bid.url)
    id = _CHANNELS.get(bid.channel.lower(), found and found[1])
    if id is None:
        return []
    made = {"auction": bid.auction, "bidder": bid.bidder, "price": bid.price}
    return [{**made, "channel": bid.channel, "channel_id": id}]


def _with_directories(bid: Any) -> dict[str, Any]:
    first, second, third = bid.url.split("/")[3:6]
    made = {"auction": bid.auction, "bidder": bid.bidder, "price": bid.price}
    return {**made, "dir1": first, "dir2": second, "dir3": third}
