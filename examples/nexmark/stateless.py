"""Nexmark's queries of one event at a time: each is a step, and costs no shuffle and no state.

All are expressions over the columns of the bids.
"""

from __future__ import annotations

from typing import Any

import narwhals as nw

import millrace as mr

_EUROS = 0.908
_CHANNELS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
_BID = ("auction", "bidder", "price")


def q0(bids: Any) -> Any:
    """Bids as they are: what it costs to bring a record in and out. A filter that keeps all."""
    return bids.filter(mr.lit(True))


def q1(bids: Any) -> Any:
    """Bids in euros: a column of which another is made."""
    return bids.select("auction", "bidder", "at", price=_EUROS * mr.col("price"))


def q2(bids: Any) -> Any:
    """What was bid for every 123rd auction: a filter, then two columns."""
    return bids.filter(mr.col("auction") % 123 == 0).select("auction", "price")


def q10(bids: Any) -> Any:
    """Bids with day and minute, the partitions of a log of files: a time as two texts."""
    happened = mr.col("at").cast(nw.Datetime("us", "UTC")).dt
    day, minute = happened.to_string("%Y-%m-%d"), happened.to_string("%H:%M")
    return bids.select(*_BID, "at", day=day, minute=minute)


def q14(bids: Any) -> Any:
    """Bids between one and fifty million, with the time of day and a count of letters."""
    euros, hour = _EUROS * mr.col("price"), mr.col("at") // mr.HOUR % 24
    by_day = (hour >= 8) & (hour <= 18)
    by_night = (hour <= 6) | (hour >= 20)
    time = (
        mr.when(by_day)
        .then(mr.lit("dayTime"))
        .otherwise(mr.when(by_night).then(mr.lit("nightTime")).otherwise(mr.lit("otherTime")))
    )
    text = mr.col("extra").str
    letters = text.len_chars() - text.replace_all("c", "", literal=True).str.len_chars()
    kept = bids.filter((euros > 1_000_000) & (euros < 50_000_000))
    return kept.select("auction", "bidder", price=euros, time=time, letters=letters)


def q21(bids: Any) -> Any:
    """Bids with the id of their channel, by name or from the URL, if they have any."""
    # An empty parameter behind every URL: what has no other has no id.
    behind = mr.concat_str(mr.col("url"), mr.lit("&channel_id=")).str.split("&channel_id=")
    id = behind.list.get(1).str.split("&").list.get(0)
    for name, number in _CHANNELS.items():
        known = mr.col("channel").str.to_lowercase() == name
        id = mr.when(known).then(mr.lit(number)).otherwise(id)
    made = bids.select(*_BID, "channel", channel_id=id)
    return made.filter(mr.col("channel_id") != "")


def q22(bids: Any) -> Any:
    """Bids with the directories of their URL."""
    parts = mr.col("url").str.split("/").list
    return bids.select(*_BID, dir1=parts.get(3), dir2=parts.get(4), dir3=parts.get(5))
