"""All of Nexmark's queries on Spark, as a batch and as a stream: the rows are those of SQLite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace_examples.nexmark import events, oracle, results, suite

COUNT, EPOCHS = 600, 3
#: Over midnight, with enough quiet for sessions to end, and with auction 1107.
MADE = list(
    events.Generator(
        rate=2,
        active=12,
        disorder=5 * mr.SECOND,
        start=events.MIDNIGHT_US - 150 * mr.SECOND,
        first=1100,
    ).events(COUNT)
)
TYPES = {int: "long", str: "string"}


@pytest.fixture(scope="module")
def database() -> Any:
    return oracle.database((event, 0) for _, event in MADE)


@pytest.mark.parametrize("how", ["batch", "stream"])
def test_the_rows_are_those_of_sql(how: str, tools: Any, spark: Any, database: Any) -> None:
    sources = {}
    for name, of in events.FORMATS.items():
        feed = tools.feed(
            ", ".join(f"{f.name} {TYPES[f.type]}" for f in msgspec.structs.fields(of))
        )
        for first in range(0, COUNT, COUNT // EPOCHS):
            some = MADE[first : first + COUNT // EPOCHS]
            feed.add(*[msgspec.structs.astuple(event) for stream, event in some if stream == name])
        sources[name] = feed.bounded if how == "batch" else feed.stream_one_by_one
    sources["arrivals"] = sources["bids"]
    p = suite.pipeline(sources, timestamp="at", unit="us", low_watermark=mr.BoundedDelay("5 s"))
    sinks = {name: mr.Memory() for name in suite.QUERIES}
    for name, sink in sinks.items():
        p.sink(name, sink)

    if how == "batch":
        p.run_batch(spark)
    else:
        tools.run(p)

    for name, sink in sinks.items():
        outputs = results.of_sink(name, (row.asDict() for row in sink.rows))
        found, wanted = results.rows(name, outputs), oracle.answer(name, database)
        assert len(wanted) >= 2
        if name == "q12":  # in whichever windows of the processing clock
            assert bids_of(found) == bids_of(wanted)
        else:
            assert sorted(map(by_name, found)) == sorted(map(by_name, wanted)), name


def by_name(row: Mapping[str, Any]) -> str:
    return repr(sorted(row.items()))


def bids_of(rows: list[dict[str, Any]]) -> Counter[int]:
    found = Counter[int]()
    for row in rows:
        found[row["bidder"]] += row["bids"]
    return found
