"""Nexmark's questions with aggregates, in the Harness: the results are those of SQLite."""

import sqlite3
from typing import Any

import pytest

import millrace as mr
from millrace_examples.nexmark import bids, queries, sql

KEYED = {"channel_statistics": "channel", "auction_statistics": "auction"}
BIDS = bids.made_up(400)


@pytest.fixture(scope="module")
def database() -> Any:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE bids (auction, bidder, price, channel, at, day)")
    rows = [(b.auction, b.bidder, b.price, b.channel, at, at // mr.DAY) for b, at in BIDS]
    connection.executemany("INSERT INTO bids VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.execute("CREATE TABLE windows (start_us, end_us)")
    starts = range(bids.START_US - 6 * mr.HOUR, bids.START_US + 2 * mr.DAY, 2 * mr.HOUR)
    connection.executemany(
        "INSERT INTO windows VALUES (?, ?)", [(s, s + 6 * mr.HOUR) for s in starts]
    )
    return connection


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "lifted"])
def harness(request: Any) -> Any:
    with mr.testing.Harness(queries.pipeline(), lift=request.param) as h:
        for first in range(0, len(BIDS), 100):
            batch = BIDS[first : first + 100]
            h.inject("bids", batch)
            h.advance_watermark("bids", batch[-1][1])
            if first == 200:
                h.crash()
        h.advance_watermark("bids", mr.MAX_TIMESTAMP)
        yield h


@pytest.mark.parametrize("query", queries.QUERIES)
def test_the_results_are_those_of_sql(query: str, harness: Any, database: Any) -> None:
    found = [row(query, output) for output in harness.outputs(query)]
    asked = database.execute(sql.QUERIES[query])
    names = [column[0] for column in asked.description]
    expected = [dict(zip(names, values, strict=True)) for values in asked]

    assert len(expected) >= 2
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def row(query: str, output: Any) -> Any:
    """Return an output as a row of SQL has it."""
    start = output.pane.window.start
    if query == "hot_items":
        return {"start_us": start, **output.value}
    key = {KEYED[query]: output.key} if query in KEYED else {}
    return {"day": start // mr.DAY, **key, **output.value}
