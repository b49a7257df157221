"""Spark Structured Streaming: each query in Spark SQL, without any Python, where there are words.

State lives in RocksDB with changelog checkpointing. What has an end is written once, in append
mode; what tells a result again when it changes, in update mode, a file a batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.nexmark.job import Job
from benchmarks.nexmark.workload import BATCHES, FLUSH
from benchmarks.spark_session import build_session, read_batches
from millrace_examples.nexmark import files
from millrace_examples.nexmark.joined import SIDE

_BID = "auction, bidder, price"
_TEN = "window(time, '10 seconds')"
_DAY = "window(time, '1 day')"
_OF_DAY = "unix_micros(window.start) div 86400000000 AS day"
_RANKS = {
    "cheap": "price < 10000",
    "middling": "price >= 10000 AND price < 1000000",
    "dear": "price >= 1000000",
}
_BIDS = ", ".join(
    [
        "count(*) AS total_bids",
        *(f"count(*) FILTER (WHERE {which}) AS {rank}_bids" for rank, which in _RANKS.items()),
    ]
)


def _different(field: str) -> str:
    # There is no DISTINCT on a stream, so the sets are kept.
    made = [f"size(collect_set({field})) AS total_{field}s"]
    for rank, which in _RANKS.items():
        made.append(f"size(collect_set({field}) FILTER (WHERE {which})) AS {rank}_{field}s")
    return ", ".join(made)


_STATISTICS = f"{_BIDS}, {_different('bidder')}, {_different('auction')}"

#: Of one event at a time, and joins for ever: in append mode.
STATELESS = {
    "q0": f"SELECT {_BID}, channel, url, extra, at FROM bids",
    "q1": "SELECT auction, bidder, 0.908D * price AS price, at FROM bids",
    "q2": "SELECT auction, price FROM bids WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id AS auction FROM auctions AS a
        JOIN persons AS p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q10": f"""
        SELECT {_BID}, at, date_format(time, 'yyyy-MM-dd') AS day,
        date_format(time, 'HH:mm') AS minute FROM bids
    """,
    "q13": f"SELECT {_BID}, value FROM bids JOIN side ON auction % 10000 = rest",
    "q14": """
        SELECT auction, bidder, 0.908D * price AS price,
        CASE WHEN hour(time) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN hour(time) <= 6 OR hour(time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time,
        length(extra) - length(replace(extra, 'c', '')) AS letters
        FROM bids WHERE 0.908D * price > 1000000 AND 0.908D * price < 50000000
    """,
    "q20": """
        SELECT b.auction, b.bidder, b.price, a.item, a.seller FROM bids AS b
        JOIN auctions AS a ON b.auction = a.id WHERE a.category = 10
    """,
    "q21": f"""
        SELECT * FROM (
            SELECT {_BID}, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id
            FROM bids
        ) WHERE channel_id IS NOT NULL
    """,
    "q22": f"""
        SELECT {_BID}, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bids
    """,
}

#: By windows: in append mode, and ended by events that are nobody's. What leaves those out must be
#: said of an aggregate: of a key, Spark would say it of the input, and no watermark would move.
WINDOWED = {
    "q5": """
        SELECT start, one.auction, one.bids FROM (
            SELECT unix_micros(window.end) - 10000000 AS start,
            explode(filter(counts, each -> each.bids = most)) AS one FROM (
                SELECT window(window_time(window), '2 seconds') AS window,
                collect_list(struct(auction, bids)) AS counts, max(bids) AS most FROM (
                    SELECT window, auction, count(*) AS bids FROM bids
                    GROUP BY window(time, '10 seconds', '2 seconds'), auction
                ) GROUP BY window(window_time(window), '2 seconds')
            )
        ) WHERE one.auction >= 0
    """,
    "q7": f"""
        SELECT one.auction, one.bidder, one.price, one.at FROM (
            SELECT explode(filter(all_bids, each -> each.price = most)) AS one FROM (
                SELECT collect_list(struct({_BID}, at)) AS all_bids, max(price) AS most
                FROM bids GROUP BY {_TEN}
            )
        ) WHERE one.auction >= 0
    """,
    "q8": f"""
        SELECT start, person, name FROM (
            SELECT unix_micros(window.start) AS start, person, max(name) AS name, max(sold) AS sold
            FROM (
                SELECT time, id AS person, name, 0 AS sold FROM persons
                UNION ALL SELECT time, seller AS person, NULL AS name, 1 AS sold FROM auctions
            ) GROUP BY {_TEN}, person
        ) WHERE name <> '' AND sold = 1
    """,
    "q11": """
        SELECT bidder, unix_micros(session_window.start) AS start, count(*) AS bids FROM bids
        GROUP BY session_window(time, '10 seconds'), bidder
        HAVING max(price) >= 0
    """,
    "q15": f"SELECT {_OF_DAY}, {_STATISTICS} FROM bids GROUP BY {_DAY}",
    "q16": f"""
        SELECT {_OF_DAY}, channel, {_STATISTICS}, max(at % 86400000000 div 60000000) AS minute
        FROM bids GROUP BY {_DAY}, channel
    """,
    "q17": f"""
        SELECT {_OF_DAY}, auction, {_BIDS}, min(price) AS low, max(price) AS high,
        avg(price) AS mean, sum(price) AS total FROM bids GROUP BY {_DAY}, auction
    """,
}

#: Told again when they change: in update mode.
UPDATED = {
    "q12": """
        SELECT bidder, unix_micros(window.start) AS start, count(*) AS bids FROM bids
        GROUP BY window(current_timestamp(), '10 seconds'), bidder
    """,
    "q18": """
        SELECT bidder, auction, last.price, last.at FROM (
            SELECT bidder, auction, max(struct(at, price)) AS last FROM bids
            GROUP BY bidder, auction
        )
    """,
    # There are no top ten, so all bids of an auction are kept.
    "q19": """
        SELECT auction, place + 1 AS place, one.bidder, one.price FROM (
            SELECT auction, posexplode(slice(sort_array(all_bids, false), 1, 10)) AS (place, one)
            FROM (
                SELECT auction, collect_list(struct(price, -at AS age, bidder)) AS all_bids
                FROM bids GROUP BY auction
            )
        )
    """,
}


def session(job: Job) -> SparkSession:
    """Return a session of as many slots as there are cores."""
    return build_session(job.rival, job.cores)


def run(spark: SparkSession, job: Job, folder: Path, name: str) -> None:
    """Run the query over all that is there."""
    (query,) = job.queries
    place = folder / (FLUSH if query in WINDOWED else BATCHES)
    for stream, columns in files.COLUMNS.items():
        read = read_batches(spark, str(place / stream), columns, job.cores)
        timed = read.withColumn("time", F.timestamp_micros("at"))
        delayed = timed.withWatermark("time", f"{job.disorder_us // 1000} milliseconds")
        delayed.createOrReplaceTempView(stream)
    side = spark.createDataFrame([*SIDE.items()], "rest long, value string")
    side.createOrReplaceTempView("side")
    made = spark.sql({**STATELESS, **WINDOWED, **UPDATED}[query])
    results = str(job.results(query, name))
    if query in UPDATED:
        writing: Any = made.writeStream.outputMode("update").foreachBatch(_appending(results))
    else:
        writing = made.writeStream.outputMode("append").format("parquet").option("path", results)
    writing = writing.option("checkpointLocation", job.checkpoint(name))
    writing.trigger(availableNow=True).start().awaitTermination()


def _appending(results: str) -> Any:
    def write(rows: DataFrame, batch: int) -> None:
        rows.withColumn("batch", F.lit(batch)).write.mode("append").parquet(results)

    return write
