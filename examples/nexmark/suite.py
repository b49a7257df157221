"""All of Nexmark's queries as one pipeline: a stream out for each, ``q0`` to ``q22``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import millrace as mr
from millrace_examples.nexmark import joined, stateless, windowed
from millrace_examples.nexmark.events import FORMATS, Bid

_OF_BIDS = {
    **{n: getattr(stateless, f"q{n}") for n in (0, 1, 2, 10, 14, 21, 22)},
    **{n: getattr(windowed, f"q{n}") for n in (5, 7, 11, 15, 16, 17)},
    **{n: getattr(joined, f"q{n}") for n in (13, 18, 19)},
}

#: The streams of results.
QUERIES = [f"q{n}" for n in range(23)]


def pipeline(sources: Mapping[str, Any] | None = None, **inject: Any) -> mr.Pipeline:
    """Return all of them.

    Args:
        sources: By stream, ``persons``, ``auctions`` and ``bids``; and ``arrivals``, the same bids
            by the time at which they are read. None for a test in the Harness.
        **inject: How the first three are injected.
    """
    sources = sources or {}
    p = mr.Pipeline("nexmark")
    persons, auctions, bids = (
        p.inject(name, sources.get(name), format=of, **inject) for name, of in FORMATS.items()
    )
    arrivals = p.inject("arrivals", sources.get("arrivals"), format=Bid, timestamp=mr.INGRESS)
    for n, query in _OF_BIDS.items():
        query(bids).to(f"q{n}")
    joined.q3(persons, auctions).to("q3")
    p.add(joined.WinningBids)
    p.add(joined.LastSales)
    won = p.stream("won")
    joined.q4(won).to("q4")
    won.filter(lambda _: True).to("q9")
    windowed.q8(persons, auctions).to("q8")
    windowed.q12(arrivals).to("q12")
    joined.q20(bids, auctions).to("q20")
    return p
