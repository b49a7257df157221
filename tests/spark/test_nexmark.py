"""All of Nexmark's queries on Spark, as a batch and as a stream: the rows are those of DuckDB.

The stream's worker is killed on the way, and the run goes on.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace_examples.nexmark import events, files, oracle, results, suite

COUNT, EPOCHS = 20_000, 3
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


@pytest.fixture(scope="module")
def database() -> Any:
    return oracle.database((event, 0) for _, event in MADE)


class Trap(mr.Computation):
    """Kills the worker that runs it, once, in the second epoch."""

    inputs = {"auctions": mr.by("id")}
    outputs: dict[str, Any] = {}

    def __init__(self, trap: str) -> None:
        self.trap = trap

    def process_record(self, record: Any) -> None:
        if record.timestamp > MADE[COUNT // EPOCHS * 3 // 2][1].at and Path(self.trap).exists():
            Path(self.trap).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["batch", "stream"])
def test_the_rows_are_those_of_sql(
    how: str, tools: Any, spark: Any, database: Any, tmp_path: Path
) -> None:
    sources = {}
    for name, columns in files.COLUMNS.items():
        feed = tools.feed(columns)
        for first in range(0, COUNT, COUNT // EPOCHS):
            some = MADE[first : first + COUNT // EPOCHS]
            feed.add(*[msgspec.structs.astuple(event) for stream, event in some if stream == name])
        sources[name] = feed.bounded if how == "batch" else feed.stream_one_by_one
    sources["arrivals"] = sources["bids"]
    p = suite.pipeline(sources, timestamp="at", unit="us", low_watermark=mr.BoundedDelay("5 s"))
    sinks = {name: mr.sinks.Memory() for name in suite.QUERIES}
    for name, sink in sinks.items():
        p.sink(name, sink)

    if how == "batch":
        p.run_batch(spark)
    else:
        trap = tmp_path / "trap"
        trap.touch()
        p.add(Trap(str(trap)))
        tools.run(p)
        assert not trap.exists()

    for name, sink in sinks.items():
        found = pa.Table.from_pylist([row.asDict() for row in sink.rows])
        # Of query 12 nobody knows the windows, which are those of the machine's clock.
        verdict = results.compare(name, found, database, clock=False)
        assert verdict.agrees, (name, verdict)
        assert verdict.rows >= 2
