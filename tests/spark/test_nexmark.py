"""Nexmark on Spark: all queries in a batch, and those with aggregates as a stream, against SQL."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace_examples.nexmark import bids, events, oracle, queries, results, sql, suite

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


def test_a_stream_gives_what_sql_gives(tools: Any, expected: Any) -> None:
    feed, by_query = expected
    p = queries.pipeline(
        feed.stream_one_by_one, timestamp="at", low_watermark=mr.BoundedDelay("5 s")
    )
    sinks = {name: mr.Memory() for name in queries.QUERIES}
    for name, sink in sinks.items():
        p.sink(name, sink)

    tools.run(p)

    for name, sink in sinks.items():
        assert len(by_query[name]) >= 2
        assert found(name, sink.rows) == by_query[name], name


def test_a_batch_of_all_queries_gives_what_sql_gives(spark: Any) -> None:
    start = events.MIDNIGHT_US - 150 * mr.SECOND
    of_events = events.Generator(rate=2, active=12, disorder=5 * mr.SECOND, start=start, first=1100)
    made = list(of_events.events(600))
    types = {int: "long", str: "string"}
    sources = {}
    for name, of in events.FORMATS.items():
        fields = msgspec.structs.fields(of)
        ddl = ", ".join(f"{field.name} {types[field.type]}" for field in fields)
        rows = [msgspec.structs.astuple(event) for stream, event in made if stream == name]
        sources[name] = spark.createDataFrame(rows, ddl)
    sources["arrivals"] = sources["bids"]
    p = suite.pipeline(sources, timestamp="at", unit="us", low_watermark=mr.BoundedDelay("5 s"))
    sinks = {name: mr.Memory() for name in suite.QUERIES}
    for name, sink in sinks.items():
        p.sink(name, sink)

    p.run_batch(spark)

    database = oracle.database((event, 0) for _, event in made)
    for name, sink in sinks.items():
        outputs = results.of_sink(name, (row.asDict() for row in sink.rows))
        # The processing time of a batch is one instant, whichever it is.
        rows = [
            {**row, "start": 0} if name == "q12" else row for row in results.rows(name, outputs)
        ]
        wanted = oracle.answer(name, database)
        assert len(wanted) >= 2
        assert sorted(map(by_name, rows)) == sorted(map(by_name, wanted)), name


def by_name(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))
