"""Nexmark's joins, Q3, Q13 and Q20, against SQL over the same events: stream and batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import millrace as mr

PERSONS = "id long, name string, state string, at long"
AUCTIONS = "id long, seller long, category long, at long"
BIDS = "auction long, bidder long, price long, at long"
TABLES = {"person": PERSONS, "auction": AUCTIONS, "bid": BIDS}
SECOND = mr.SECOND


class Person(msgspec.Struct, frozen=True):
    id: int
    name: str
    state: str


class Auction(msgspec.Struct, frozen=True):
    id: int
    seller: int
    category: int


class Bid(msgspec.Struct, frozen=True):
    auction: int
    bidder: int
    price: int


class Q3(msgspec.Struct):
    name: str
    state: str
    auction: int


class Q13(msgspec.Struct):
    auction: int
    bidder: int
    price: int
    word: str


class Q20(msgspec.Struct):
    auction: int
    bidder: int
    price: int
    seller: int


class Soon(msgspec.Struct):
    auction: int
    bidder: int | None


class Latest(msgspec.Struct):
    bidder: int
    price: int
    state: str | None


SQL = {
    "q3": """SELECT p.name, p.state, a.id AS auction FROM auction a JOIN person p
             ON a.seller = p.id WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q13": """SELECT b.auction, b.bidder, b.price, s.word FROM bid b JOIN side s
              ON b.auction % 5 = s.id""",
    "q20": """SELECT b.auction, b.bidder, b.price, a.seller FROM bid b JOIN auction a
              ON b.auction = a.id WHERE a.category = 10""",
    "soon": """SELECT a.id AS auction, b.bidder FROM auction a LEFT JOIN bid b
               ON a.id = b.auction AND b.at >= a.at AND b.at < a.at + 5000000""",
    "latest": """SELECT b.bidder, b.price,
                 (SELECT max_by(p.state, p.at) FROM person p WHERE p.id = b.bidder AND p.at <= b.at)
                 AS state FROM bid b""",
}


def events(seed: int) -> dict[str, list[tuple[Any, ...]]]:
    """Return rows of each table, in order of time."""
    chosen = random.Random(seed)
    rows: dict[str, list[tuple[Any, ...]]] = {"person": [], "auction": [], "bid": []}
    auctions, people = iter(range(1000)), 12
    for n in range(400):
        at = (1 + n) * SECOND // 4
        what = chosen.choices(["person", "auction", "bid"], [2, 3, 10])[0]
        if what == "person":
            id, state = chosen.randrange(people), chosen.choice(["OR", "ID", "CA", "NY"])
            rows[what].append((id, f"p{id}", state, at))
        elif what == "auction":
            rows[what].append(
                (next(auctions), chosen.randrange(people), chosen.choice([10, 11]), at)
            )
        else:
            made = max(1, len(rows["auction"]))
            late = chosen.randrange(made)
            rows[what].append((late, chosen.randrange(people), chosen.randrange(100), at))
    return rows


def pipeline(sources: dict[str, Any], side: Any, kept: dict[str, Any]) -> mr.Pipeline:
    p = mr.Pipeline("nexmark joins")
    of = {"person": Person, "auction": Auction, "bid": Bid}
    person, auction, bid = (
        p.inject(name, sources[name], timestamp="at", low_watermark=mr.BoundedDelay(0),
                 format=of[name], unit="us")
        for name in TABLES
    )  # fmt: skip
    west = person.filter(lambda one: one.state in ("OR", "ID", "CA"))
    ten = auction.filter(lambda one: one.category == 10)

    q3 = ten.key_by("seller").join(west.key_by("id"))
    q3.map(lambda pair: Q3(pair[1].name, pair[1].state, pair[0].id)).to("q3", Q3)

    q13 = bid.key_by(lambda one: one.auction % 5).lookup(side, "inner", key="id")
    q13.map(lambda pair: Q13(pair[0].auction, pair[0].bidder, pair[0].price, pair[1]["word"])).to(
        "q13", Q13
    )

    q20 = bid.key_by("auction").join(ten.key_by("id"))
    q20.map(lambda pair: Q20(pair[0].auction, pair[0].bidder, pair[0].price, pair[1].seller)).to(
        "q20", Q20
    )

    soon = auction.key_by("id").join(bid.key_by("auction"), "left", within=(0, "5 s"))
    soon.map(lambda pair: Soon(pair[0].id, pair[1] and pair[1].bidder)).to("soon", Soon)

    latest = bid.key_by("bidder").enrich(person.key_by("id"))
    latest.map(lambda pair: Latest(pair[0].bidder, pair[0].price, pair[1] and pair[1].state)).to(
        "latest", Latest
    )
    for name, sink in kept.items():
        p.sink(name, sink)
    return p


@pytest.fixture(scope="module")
def expected(spark: SparkSession) -> dict[str, list[tuple[Any, ...]]]:
    """What SQL says."""
    side = [(n, word) for n, word in enumerate(["nil", "one", "two"])]
    spark.createDataFrame(side, "id long, word string").createOrReplaceTempView("side")
    for name, rows in events(1).items():
        spark.createDataFrame(rows, TABLES[name]).createOrReplaceTempView(name)
    found = {name: sorted(map(tuple, spark.sql(query).collect()), key=str)
             for name, query in SQL.items()}  # fmt: skip
    assert all(len(rows) > 10 for rows in found.values()), "a join of nothing shows nothing"
    assert any(bidder is None for _, bidder in found["soon"])
    return found


@pytest.mark.parametrize("batch", [False, True], ids=["stream", "batch"])
def test_nexmarks_joins_are_what_sql_says(
    spark: SparkSession,
    tools: Any,
    tmp_path: Path,
    expected: dict[str, list[tuple[Any, ...]]],
    batch: bool,
) -> None:
    feeds = {name: tools.feed(ddl) for name, ddl in TABLES.items()}
    kept = {name: tools.Kept() for name in SQL}
    rows = events(1)
    side = spark.table("side")
    middle = 50 * SECOND
    halves = [
        {name: [row for row in rows[name] if (row[-1] < middle) is first] for name in rows}
        for first in (True, False)
    ]
    if batch:
        for half in halves:
            for name, some in half.items():
                feeds[name].add(*some)
        sources = {name: feed.bounded for name, feed in feeds.items()}
        pipeline(sources, side, kept).run_batch(spark)
    else:
        sources = {name: feed.stream for name, feed in feeds.items()}
        run = tools.start(pipeline(sources, side, kept))
        for half in halves:
            for name, some in half.items():
                feeds[name].add(*some)
            tools.step(run)
        tools.finish(run)

    for name, wanted in expected.items():
        found = sorted((tuple(row.values()) for row in kept[name].values), key=str)
        assert found == wanted, name
