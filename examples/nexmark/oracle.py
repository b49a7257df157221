"""What Nexmark's queries should give: SQL over the same events, by DuckDB, which shares no code.

It is written from Flink's definitions of the queries, in the dialect of DuckDB, and where those
leave something open it says how that is meant. The names of columns are those of our results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from millrace_examples.nexmark.events import FORMATS, Event
from millrace_examples.nexmark.files import SCHEMAS, table
from millrace_examples.nexmark.joined import SIDE

# AT is a word of DuckDB's, so the column is quoted.
_BID = "auction, bidder, price"
_DAY = '"at" // 86400000000 AS day'
_RANKS = {
    "cheap": "price < 10000",
    "middling": "price >= 10000 AND price < 1000000",
    "dear": "price >= 1000000",
}


def _ranks(what: str, name: str) -> str:
    by_rank = (f"count({what}) FILTER (WHERE {w}) AS {rank}_{name}" for rank, w in _RANKS.items())
    return ", ".join([f"count({what}) AS total_{name}", *by_rank])


_STATISTICS = ", ".join(
    _ranks(*each)
    for each in (("*", "bids"), ("DISTINCT bidder", "bidders"), ("DISTINCT auction", "auctions"))
)
_TEN = "// 10000000 * 10000000"

# Of bids of one price, the first wins.
_WINNERS = """
    SELECT * FROM (
        SELECT a.id AS auction, a.seller, a.category, a.expires, b.bidder, b.price, b."at",
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b."at") AS place
        FROM auctions AS a JOIN bids AS b
        ON b.auction = a.id AND b."at" BETWEEN a."at" AND a.expires
    ) WHERE place = 1
"""

QUERIES = {
    "q0": f'SELECT {_BID}, channel, url, extra, "at" FROM bids',
    "q1": 'SELECT auction, bidder, 0.908::DOUBLE * price AS price, "at" FROM bids',
    "q2": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id AS auction FROM auctions AS a
        JOIN persons AS p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"SELECT category, avg(price) AS mean FROM ({_WINNERS}) GROUP BY category",
    # Windows that overlap: each bid is in five, by the number of the two seconds in which they end.
    "q5": """
        WITH counted AS (
            SELECT auction, ("at" // 2000000 + n - 5) * 2000000 AS start, count(*) AS bids
            FROM bids, range(1, 6) AS ends(n) GROUP BY 1, 2
        )
        SELECT start, auction, bids FROM counted
        QUALIFY bids = max(bids) OVER (PARTITION BY start)
    """,
    # "Their last 10 closed auctions": by when they closed. (Flink's SQL, which Flink does not run,
    # takes eleven, by the time of the bid.)
    "q6": f"""
        SELECT seller, auction, avg(price) OVER (
            PARTITION BY seller ORDER BY expires, auction ROWS BETWEEN 9 PRECEDING AND CURRENT ROW
        ) AS mean FROM ({_WINNERS})
    """,
    # A bid is in one window. (Flink's BETWEEN takes that of the instant of its end in as well.)
    "q7": f"""
        SELECT {_BID}, "at" FROM bids QUALIFY price = max(price) OVER (PARTITION BY "at" {_TEN})
    """,
    "q8": f"""
        SELECT DISTINCT p."at" {_TEN} AS start, p.id AS person, p.name FROM persons AS p
        JOIN auctions AS a ON p.id = a.seller AND p."at" {_TEN} = a."at" {_TEN}
    """,
    "q9": f'SELECT auction, seller, category, bidder, price, "at" FROM ({_WINNERS})',
    "q10": f"""
        SELECT {_BID}, "at", strftime(make_timestamp("at"), '%Y-%m-%d') AS day,
        strftime(make_timestamp("at"), '%H:%M') AS minute FROM bids
    """,
    "q11": """
        WITH begun AS (
            SELECT bidder, "at", coalesce(("at" - lag("at") OVER one >= 10000000)::INT, 1) AS begins
            FROM bids WINDOW one AS (PARTITION BY bidder ORDER BY "at")
        ), numbered AS (
            SELECT *, sum(begins) OVER (PARTITION BY bidder ORDER BY "at") AS session FROM begun
        )
        SELECT bidder, min("at") AS start, count(*) AS bids FROM numbered GROUP BY bidder, session
    """,
    "q12": f"""
        SELECT bidder, arrived {_TEN} AS start, count(*) AS bids FROM bids GROUP BY 1, 2
    """,
    "q13": f"SELECT {_BID}, value FROM bids JOIN side ON auction % 10000 = rest",
    "q14": """
        WITH hours AS (SELECT *, "at" // 3600000000 % 24 AS hour FROM bids)
        SELECT auction, bidder, 0.908::DOUBLE * price AS price,
        CASE WHEN hour >= 8 AND hour <= 18 THEN 'dayTime'
        WHEN hour <= 6 OR hour >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time,
        length(extra) - length(replace(extra, 'c', '')) AS letters
        FROM hours WHERE 0.908::DOUBLE * price > 1000000 AND 0.908::DOUBLE * price < 50000000
    """,
    "q15": f"SELECT {_DAY}, {_STATISTICS} FROM bids GROUP BY day",
    "q16": f"""
        SELECT {_DAY}, channel, {_STATISTICS}, max("at" % 86400000000 // 60000000) AS minute
        FROM bids GROUP BY day, channel
    """,
    "q17": f"""
        SELECT {_DAY}, auction, {_ranks("*", "bids")}, min(price) AS low, max(price) AS high,
        avg(price) AS mean, sum(price)::BIGINT AS total FROM bids GROUP BY day, auction
    """,
    "q18": """
        SELECT bidder, auction, price, "at" FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY "at" DESC) AS place
            FROM bids
        ) WHERE place = 1
    """,
    "q19": """
        SELECT auction, place, bidder, price FROM (
            SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, "at") AS place
            FROM bids
        ) WHERE place <= 10
    """,
    "q20": """
        SELECT b.auction, b.bidder, b.price, a.item, a.seller FROM bids AS b
        JOIN auctions AS a ON b.auction = a.id WHERE a.category = 10
    """,
    "q21": f"""
        WITH named AS (
            SELECT *, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE
            CASE WHEN instr(url, '&channel_id=') > 0 THEN
            substr(url, instr(url, '&channel_id=') + 12) END END AS channel_id FROM bids
        )
        SELECT {_BID}, channel, channel_id FROM named WHERE channel_id IS NOT NULL
    """,
    "q22": f"""
        WITH a AS (SELECT *, substr(url, length('https://www.nexmark.com/') + 1) AS x FROM bids),
        b AS (SELECT *, substr(x, instr(x, '/') + 1) AS y FROM a),
        c AS (SELECT *, substr(y, instr(y, '/') + 1) AS z FROM b)
        SELECT {_BID}, substr(x, 1, instr(x, '/') - 1) AS dir1,
        substr(y, 1, instr(y, '/') - 1) AS dir2, substr(z, 1, instr(z, '/') - 1) AS dir3 FROM c
    """,
}


def database(events: Iterable[tuple[Event, int]]) -> duckdb.DuckDBPyConnection:
    """Return a database of events, each with the microsecond of the clock at which it arrived."""
    made: dict[str, list[Event]] = {name: [] for name in FORMATS}
    arrived: dict[str, list[int]] = {name: [] for name in FORMATS}
    names = {of: name for name, of in FORMATS.items()}
    for event, at in events:
        made[names[type(event)]].append(event)
        arrived[names[type(event)]].append(at)
    return _database(
        {
            name: table(name, made[name]).append_column(
                "arrived", pa.array(arrived[name], pa.int64())
            )
            for name in FORMATS
        }
    )


def database_of_files(folder: Path) -> duckdb.DuckDBPyConnection:
    """Return a database of events that :func:`~millrace_examples.nexmark.files.write` wrote.

    When they arrived is not known; see ``clock`` of
    :func:`~millrace_examples.nexmark.results.compare`.
    """
    opened = duckdb.connect()
    for name in SCHEMAS:
        files = [str(file) for file in sorted((folder / name).iterdir())]
        read = opened.read_parquet if files[0].endswith(".parquet") else opened.read_json
        read(files).project("*, NULL::BIGINT AS arrived").to_table(name)
    return _with_side(opened)


def answer(query: str, database: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Return the rows of a query, in no order."""
    return database.sql(QUERIES[query]).to_arrow_table().to_pylist()


def _database(tables: Mapping[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    opened = duckdb.connect()
    for name, rows in tables.items():
        opened.from_arrow(rows).to_table(name)
    return _with_side(opened)


def _with_side(opened: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    rows = pa.table({"rest": pa.array(SIDE, pa.int64()), "value": list(SIDE.values())})
    opened.from_arrow(rows).to_table("side")
    return opened
