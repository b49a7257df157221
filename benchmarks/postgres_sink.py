"""What the PostgreSQL sink costs, without Spark around it: rows copied, merged and recorded.

    PGPASSWORD=... python -m benchmarks.postgres_sink "host=127.0.0.1 dbname=postgres user=me"

An epoch has so many partitions, copied one after the other by one process; Spark copies them side
by side. Rows have a text, an integer and a float, and their key, timestamp and id.
"""

from __future__ import annotations

import argparse
import struct
import time
from typing import Any

import msgspec
import pyarrow as pa

import millrace as mr
from millrace.model.coder import MsgpackCoder
from millrace.plane.formats import Columns
from millrace.spark.binding import Binding


class Row(msgspec.Struct):
    """A record of the stream."""

    name: str
    count: int
    ratio: float


class Partitions:
    """Stands for Spark's DataFrame."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = batches

    def mapInArrow(self, task: Any, ddl: str) -> Partitions:
        """Take the copying function."""
        self._task = task
        return self

    def collect(self) -> list[dict[str, Any]]:
        """Run it over each partition."""
        return [
            report
            for batch in self._batches
            for made in self._task(iter([batch]))
            for report in made.to_pylist()
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("conninfo")
    parser.add_argument("--rows", type=int, default=100_000, help="an epoch")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    columns, coder = Columns(Row, MsgpackCoder(Row)), MsgpackCoder(Row)
    size = options.rows // options.partitions
    batches = [
        pa.RecordBatch.from_struct_array(
            columns.array(
                [coder.encode(Row(f"name {start + n}", n, n / 7)) for n in range(size)],
                [f"name {start + n}" for n in range(size)],
                pa.array(range(size), pa.int64()),
                [struct.pack(">qq", 1, start + n) for n in range(size)],
            )
        )
        for start in range(0, options.rows, size)
    ]
    for key in ("", "name"):
        table = f"millrace_benchmark_{key or 'append'}"
        sink = mr.PostgreSQL(options.conninfo, table, key=key or ())
        owner = f"benchmark {time.time_ns()}"
        sink.bind(Binding(owner, "rows", owner, columns))
        sink.claim(1, -1)
        taken = []
        for epoch in range(options.epochs):
            started = time.perf_counter()
            sink(Partitions(batches), epoch)
            taken.append(time.perf_counter() - started)
        best = min(taken)
        print(
            f"{'upsert' if key else 'append'}: {options.rows} rows an epoch, first "
            f"{taken[0]:.2f} s, best {best:.2f} s, {options.rows / best:,.0f} rows/s"
        )


if __name__ == "__main__":
    main()
