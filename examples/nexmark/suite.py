"""All of Nexmark's queries as one pipeline: a stream out for each, ``q0`` to ``q22``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import millrace as mr
from millrace_examples.nexmark import joined, stateless, windowed
from millrace_examples.nexmark.events import FORMATS, Bid

_OF_BIDS: dict[int, Any] = {
    **{n: getattr(stateless, f"q{n}") for n in (0, 1, 2, 10, 14, 21, 22)},
    **{n: getattr(windowed, f"q{n}") for n in (5, 7, 11, 15, 16, 17)},
    **{n: getattr(joined, f"q{n}") for n in (13, 18, 19)},
}

#: The streams of results.
QUERIES = [f"q{n}" for n in range(23)]


#: Which streams the others read; "won" is what ``WinningBids`` makes of auctions and bids.
_OF_MORE: dict[str, tuple[Any, ...]] = {
    "q3": (joined.q3, "persons", "auctions"),
    "q4": (joined.q4, "won"),
    "q8": (windowed.q8, "persons", "auctions"),
    "q9": (lambda won: won.filter(lambda _: True), "won"),
    "q12": (windowed.q12, "arrivals"),
    "q20": (joined.q20, "bids", "auctions"),
}
#: A computation, which says itself what it reads and makes.
_LAST_SALES = "q6"


def streams(queries: Iterable[str] = QUERIES) -> list[str]:
    """Return the streams that queries read: of people, auctions and bids, and ``arrivals``.

    The last is the bids again, for query 12.
    """
    read = {name for query in queries for name in _inputs(query)}
    if "won" in read:
        read |= {"auctions", "bids"}
    return [name for name in [*FORMATS, "arrivals"] if name in read]


def pipeline(
    sources: Mapping[str, Any] | None = None,
    queries: Collection[str] = QUERIES,
    **inject: Any,
) -> mr.Pipeline:
    """Return some of them, or all.

    Args:
        sources: By stream, those of :func:`streams`; ``arrivals`` are the same bids, by the time at
            which they are read. None for a test in the Harness.
        queries: Their names.
        **inject: How all streams but ``arrivals`` are injected.
    """
    sources = sources or {}
    p = mr.Pipeline("nexmark")
    made: dict[str, Any] = {}
    for name in streams(queries):
        how = {"timestamp": mr.INGRESS} if name == "arrivals" else inject
        made[name] = p.inject(name, sources.get(name), format=FORMATS.get(name, Bid), **how)
    if any("won" in _inputs(query) for query in queries):
        p.add(joined.WinningBids)
        made["won"] = p.stream("won")
    for query in queries:
        if query == _LAST_SALES:
            p.add(joined.LastSales)
            continue
        ask, *read = _OF_MORE.get(query) or (_OF_BIDS[int(query[1:])], "bids")
        ask(*(made[name] for name in read)).to(query)
    return p


def _inputs(query: str) -> tuple[str, ...]:
    if query == _LAST_SALES:
        return ("won",)
    return _OF_MORE[query][1:] if query in _OF_MORE else ("bids",)
