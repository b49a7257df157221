"""The same questions in SQL, of a table ``bids`` with the day of each as a column.

They are for Spark and for SQLite: windows that overlap are a table of their own, ``windows``.
"""

from __future__ import annotations

_RANKS = {
    "cheap": "price < 10000",
    "middling": "price >= 10000 AND price < 1000000",
    "dear": "price >= 1000000",
}


def _by_rank(what: str, name: str) -> str:
    filtered = (
        f"count({what}) FILTER (WHERE {where}) AS {rank}_{name}" for rank, where in _RANKS.items()
    )
    return ", ".join([f"count({what}) AS total_{name}", *filtered])


_STATISTICS = ", ".join(
    [
        _by_rank("*", "bids"),
        _by_rank("DISTINCT bidder", "bidders"),
        _by_rank("DISTINCT auction", "auctions"),
    ]
)

QUERIES = {
    "hot_items": """
        WITH counted AS (
            SELECT auction, start_us, count(*) AS bids FROM bids
            JOIN windows ON at >= start_us AND at < end_us GROUP BY auction, start_us
        )
        SELECT start_us, auction, bids FROM counted
        JOIN (SELECT start_us AS of, max(bids) AS most FROM counted GROUP BY start_us) AS highest
        ON of = start_us AND bids = most
    """,
    "bidding_statistics": f"SELECT day, {_STATISTICS} FROM bids GROUP BY day",
    "channel_statistics": f"SELECT day, channel, {_STATISTICS} FROM bids GROUP BY day, channel",
    "auction_statistics": f"""
        SELECT day, auction, {_by_rank("*", "bids")}, min(price) AS low, max(price) AS high,
        avg(price) AS mean, sum(price) AS total FROM bids GROUP BY day, auction
    """,
}
