"""Nexmark's questions with aggregates, on Spark: the results are those of Spark's SQL."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace_examples.nexmark import bids, queries, sql

BIDS = bids.made_up(600)
DDL = "auction long, bidder long, price long, channel string, at timestamp"


@pytest.fixture
def expected(tools: Any, spark: Any) -> Any:
    feed = tools.feed(DDL)
    for first in range(0, len(BIDS), 300):
        rows = BIDS[first : first + 300]
        feed.add(*[(b.auction, b.bidder, b.price, b.channel, at) for b, at in rows])
    day = mr.DAY // mr.SECOND
    table = feed.bounded.selectExpr(
        "auction", "bidder", "price", "channel", "unix_micros(at) AS at",
        f"unix_seconds(at) div {day} AS day",
    )  # fmt: skip
    table.createOrReplaceTempView("bids")
    starts = range(bids.START_US - 6 * mr.HOUR, bids.START_US + 2 * mr.DAY, 2 * mr.HOUR)
    windows = [(start, start + 6 * mr.HOUR) for start in starts]
    spark.createDataFrame(windows, "start_us long, end_us long").createOrReplaceTempView("windows")
    rows = {name: spark.sql(query).collect() for name, query in sql.QUERIES.items()}
    return feed, {name: sorted(repr(row.asDict()) for row in of) for name, of in rows.items()}


def found(query: str, rows: list[Any]) -> list[str]:
    """Return rows of a sink as SQL has them."""
    made = []
    for row in rows:
        values = {name: value for name, value in row.asDict().items() if not name.startswith("_")}
        start_us = int(row["_window_start"].timestamp()) * mr.SECOND
        if query == "hot_items":
            values = {"start_us": start_us, **msgspec.json.decode(values["value"])}
        elif query == "bidding_statistics":
            values = {"day": start_us // mr.DAY, **values}
        else:
            key = row["_key"] if query == "channel_statistics" else int(row["_key"])
            values = {"day": start_us // mr.DAY, query.removesuffix("_statistics"): key, **values}
        made.append(repr(values))
    return sorted(made)


def test_a_stream_and_a_batch_give_what_sql_gives(tools: Any, spark: Any, expected: Any) -> None:
    feed, by_query = expected
    for source in (feed.stream_one_by_one, feed.bounded):
        p = queries.pipeline(source, timestamp="at", low_watermark=mr.BoundedDelay("5 s"))
        sinks = {name: mr.Memory() for name in queries.QUERIES}
        for name, sink in sinks.items():
            p.sink(name, sink)

        tools.run(p) if source.isStreaming else p.run_batch(spark)

        for name, sink in sinks.items():
            assert len(by_query[name]) >= 2
            assert found(name, sink.rows) == by_query[name], name
