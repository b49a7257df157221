"""Flink SQL: each query as Flink's Nexmark has it, but that its results are kept.

Statistics of a day are by window and not by a formatted date: then each day is told once, as here.
What Flink tells again when it changes is written as a changelog. State is in RocksDB, with
incremental checkpoints every second, exactly once.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.flink_session import open_session
from benchmarks.nexmark.job import Job

# As in ``workload``, which is Millrace's side and cannot be imported in Flink's environment.
_WHOLE, _SIDE = "whole", "side"
_TYPES = {
    "persons": "id BIGINT, name STRING, city STRING, state STRING, `at` BIGINT",
    "auctions": (
        "id BIGINT, item STRING, reserve BIGINT, expires BIGINT, seller BIGINT, "
        "category BIGINT, `at` BIGINT"
    ),
    "bids": (
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, extra STRING, "
        "`at` BIGINT"
    ),
}
_BID = "auction, bidder, price"
_RANKS = {
    "cheap": "price < 10000",
    "middling": "price >= 10000 AND price < 1000000",
    "dear": "price >= 1000000",
}
_START = (
    "CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) AS BIGINT) "
    "* 1000000 AS `start`"
)
_DAY = "CAST(TIMESTAMPDIFF(DAY, TIMESTAMP '1970-01-01 00:00:00', window_start) AS BIGINT) AS `day`"
_BY_DAY = "FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(happened), INTERVAL '1' DAY))"
_GROUPED = "GROUP BY window_start, window_end"


def _ten(stream: str) -> str:
    return f"TABLE(TUMBLE(TABLE {stream}, DESCRIPTOR(happened), INTERVAL '10' SECOND))"


def _ranks(what: str, name: str) -> str:
    by_rank = (f"COUNT({what}) FILTER (WHERE {w}) AS {rank}_{name}" for rank, w in _RANKS.items())
    return ", ".join([f"COUNT({what}) AS total_{name}", *by_rank])


_STATISTICS = ", ".join(
    _ranks(*each)
    for each in (("*", "bids"), ("DISTINCT bidder", "bidders"), ("DISTINCT auction", "auctions"))
)
_COUNTED = f"""
    SELECT auction, COUNT(*) AS bids, window_start, window_end FROM TABLE(
        HOP(TABLE bids, DESCRIPTOR(happened), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
    ) {_GROUPED}, auction
"""
_WINNERS = """
    SELECT * FROM (
        SELECT a.id AS auction, a.seller, a.category, b.bidder, b.price, b.`at`,
        ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.`at` ASC) AS place
        FROM auctions AS a, bids AS b
        WHERE a.id = b.auction AND b.`at` BETWEEN a.`at` AND a.expires
    ) WHERE place <= 1
"""

QUERIES = {
    "q0": f"SELECT {_BID}, channel, url, extra, `at` FROM bids",
    "q1": "SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price, `at` FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id AS auction FROM auctions AS a
        JOIN persons AS p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": """
        SELECT category, AVG(CAST(final AS DOUBLE)) AS mean FROM (
            SELECT MAX(b.price) AS final, a.category FROM auctions AS a, bids AS b
            WHERE a.id = b.auction AND b.`at` BETWEEN a.`at` AND a.expires
            GROUP BY a.id, a.category
        ) GROUP BY category
    """,
    "q5": f"""
        SELECT {_START.replace("window_start", "c.window_start")}, c.auction, c.bids
        FROM ({_COUNTED}) AS c JOIN (
            SELECT MAX(bids) AS most, window_start, window_end FROM ({_COUNTED}) {_GROUPED}
        ) AS m ON c.window_start = m.window_start AND c.window_end = m.window_end
        AND c.bids = m.most
    """,
    "q7": f"""
        SELECT b.auction, b.bidder, b.price, b.`at` FROM (SELECT * FROM {_ten("bids")}) AS b JOIN (
            SELECT MAX(price) AS most, window_start, window_end FROM {_ten("bids")} {_GROUPED}
        ) AS m ON b.window_start = m.window_start AND b.window_end = m.window_end
        AND b.price = m.most
    """,
    "q8": f"""
        SELECT {_START.replace("window_start", "p.window_start")}, p.person, p.name FROM (
            SELECT id AS person, name, window_start, window_end FROM {_ten("persons")}
            {_GROUPED}, id, name
        ) AS p JOIN (
            SELECT seller, window_start, window_end FROM {_ten("auctions")} {_GROUPED}, seller
        ) AS s ON p.person = s.seller AND p.window_start = s.window_start
        AND p.window_end = s.window_end
    """,
    "q9": f"SELECT auction, seller, category, bidder, price, `at` FROM ({_WINNERS})",
    "q10": f"""
        SELECT {_BID}, `at`, DATE_FORMAT(happened, 'yyyy-MM-dd') AS `day`,
        DATE_FORMAT(happened, 'HH:mm') AS `minute` FROM bids
    """,
    "q11": f"""
        SELECT bidder, CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start)
        AS BIGINT) * 1000000 + EXTRACT(MILLISECOND FROM window_start) * 1000 AS `start`,
        COUNT(*) AS bids FROM TABLE(SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(happened),
        INTERVAL '10' SECOND)) {_GROUPED}, bidder
    """,
    "q13": f"SELECT {_BID}, `value` FROM bids JOIN side ON MOD(auction, 10000) = rest",
    "q14": """
        SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price AS price,
        CASE WHEN HOUR(happened) >= 8 AND HOUR(happened) <= 18 THEN 'dayTime'
        WHEN HOUR(happened) <= 6 OR HOUR(happened) >= 20 THEN 'nightTime' ELSE 'otherTime'
        END AS `time`, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS letters
        FROM bids WHERE CAST(0.908 AS DOUBLE) * price > 1000000
        AND CAST(0.908 AS DOUBLE) * price < 50000000
    """,
    "q15": f"SELECT {_DAY}, {_STATISTICS} {_BY_DAY} {_GROUPED}",
    "q16": f"""
        SELECT {_DAY}, channel, {_STATISTICS}, MAX(MOD(`at`, 86400000000) / 60000000) AS `minute`
        {_BY_DAY} {_GROUPED}, channel
    """,
    "q17": f"""
        SELECT {_DAY}, auction, {_ranks("*", "bids")}, MIN(price) AS low, MAX(price) AS high,
        AVG(CAST(price AS DOUBLE)) AS mean, SUM(price) AS total {_BY_DAY} {_GROUPED}, auction
    """,
    "q18": """
        SELECT bidder, auction, price, `at` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY happened DESC)
            AS place FROM bids
        ) WHERE place <= 1
    """,
    "q19": """
        SELECT auction, place, bidder, price FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, `at` ASC)
            AS place FROM bids
        ) WHERE place <= 10
    """,
    "q20": """
        SELECT b.auction, b.bidder, b.price, a.item, a.seller FROM bids AS b
        JOIN auctions AS a ON b.auction = a.id WHERE a.category = 10
    """,
    "q21": f"""
        SELECT * FROM (
            SELECT {_BID}, channel, CASE LOWER(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bids
        ) WHERE channel_id IS NOT NULL
    """,
    "q22": f"""
        SELECT {_BID}, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
        SPLIT_INDEX(url, '/', 5) AS dir3 FROM bids
    """,
}

#: As PyFlink says them, and as SQL does.
_SQL_TYPES = {
    "BIGINT": "BIGINT",
    "INT": "INT",
    "DOUBLE": "DOUBLE",
    "CHAR": "STRING",
    "VARCHAR": "STRING",
}

#: Told again when they change.
UPDATED = ("q4", "q9", "q18", "q19")


def session(_: Job) -> None:
    """Give Flink's JVM as much heap as Spark's; there is nothing else to share."""
    os.environ["JVM_ARGS"] = "-Xmx4g"


def run(_: None, job: Job, folder: Path, name: str) -> None:
    """Run the query over all that is there."""
    (query,) = job.queries
    table = open_session(job.jars, job.cores, Path(job.checkpoint(name)))
    files = "'connector' = 'filesystem', 'format' = 'parquet'"
    for stream, columns in _TYPES.items():
        table.execute_sql(
            f"""
            CREATE TABLE {stream} ({columns}, happened AS TO_TIMESTAMP_LTZ(`at` / 1000, 3),
            WATERMARK FOR happened AS happened - INTERVAL '{job.disorder_us / 1e6}' SECOND)
            WITH ({files}, 'path' = '{folder / _WHOLE / stream}')"""
        )
    table.execute_sql(
        "CREATE TABLE side (rest BIGINT, `value` STRING) "
        f"WITH ({files}, 'path' = '{folder / _SIDE}')"
    )
    made = table.sql_query(QUERIES[query])
    schema = made.get_schema()
    columns = {
        name: _SQL_TYPES[str(of).partition("(")[0].upper()]
        for name, of in zip(schema.get_field_names(), schema.get_field_data_types(), strict=True)
    }
    chosen = ", ".join(f"`{name}`" for name in columns)
    table.create_temporary_view("made", made)
    source = "made"
    if query in UPDATED:
        chosen, source = f"op, {chosen}", "TO_CHANGELOG(input => TABLE made)"
        columns = {"op": "STRING", **columns}
    typed = ", ".join(f"`{name}` {of}" for name, of in columns.items())
    table.execute_sql(
        f"CREATE TABLE results ({typed}) WITH ({files}, 'path' = '{job.results(query, name)}')"
    )
    table.execute_sql(f"INSERT INTO results SELECT {chosen} FROM {source}").wait()
