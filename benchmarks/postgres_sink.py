"""What the PostgreSQL sink costs, without Spark around it: rows copied, merged and recorded.

    PGPASSWORD=... python -m benchmarks.postgres_sink "host=127.0.0.1 dbname=postgres user=me"

Without a server to connect to it starts one of its own.

An epoch has so many partitions, copied one after the other by one process; Spark copies them side
by side. Rows have a text, an integer and a float, and their key, timestamp and id.
"""

from __future__ import annotations

import argparse
import contextlib
import struct
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import millrace as mr
from benchmarks import result
from benchmarks.postgres import postgres
from millrace.model.coder import MsgpackCoder
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns


class Row(msgspec.Struct):
    """A record of the stream."""

    name: str
    count: int
    ratio: float


def written(sink: mr.sinks.PostgreSQL, batches: list[pa.RecordBatch], epoch: int) -> list[bytes]:
    """Write each batch as a task of its own does, one after the other; return the receipts."""
    receipts = []
    for task, batch in enumerate(batches):
        writing = sink.for_tasks().begin(epoch, task)
        writing.write(batch)
        receipts.append(writing.close())
    return receipts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("conninfo", nargs="?")
    parser.add_argument("--rows", type=int, default=100_000, help="an epoch")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="results file (default: below results/)")
    options = parser.parse_args()
    server = contextlib.nullcontext(options.conninfo) if options.conninfo else postgres()
    with server as conninfo:
        costs = measure(conninfo, options)
    result.write("postgres_sink", out=options.out, costs=costs)


def measure(conninfo: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Append and upsert; print what it took, and return it."""
    costs = []
    columns, coder = SinkColumns(Row, MsgpackCoder(Row)), MsgpackCoder(Row)
    size = options.rows // options.partitions
    batches = [
        pa.RecordBatch.from_struct_array(
            columns.array(
                [coder.encode(Row(f"name {start + n}", n, n / 7)) for n in range(size)],
                [f"name {start + n}" for n in range(size)],
                pa.array(range(size), pa.int64()),
                pa.array([struct.pack(">qq", 1, start + n) for n in range(size)], pa.binary()),
            )
        )
        for start in range(0, options.rows, size)
    ]
    for key in ("", "name"):
        table = f"millrace_benchmark_{key or 'append'}"
        sink = mr.sinks.PostgreSQL(conninfo, table, key=key or ())
        owner = f"benchmark {time.time_ns()}"
        sink.bind(Binding(owner, "rows", owner, columns))
        sink.claim(1, -1)
        taken, used = [], []
        for epoch in range(options.epochs):
            started, cpu = time.perf_counter(), time.process_time()
            sink.publish(epoch, written(sink, batches, epoch))
            taken.append(time.perf_counter() - started)
            used.append(time.process_time() - cpu)
        best = min(taken)
        print(
            f"{'upsert' if key else 'append'}: {options.rows} rows an epoch, first "
            f"{taken[0]:.2f} s, best {best:.2f} s, {options.rows / best:,.0f} rows/s, "
            f"{min(used) / options.rows * 1e6:.2f} CPU us a row here, beside the server's"
        )
        costs.append(
            {
                "way": "upsert" if key else "append",
                "epoch_s": best,
                "cpu_us": min(used) / options.rows * 1e6,
            }
        )
    return costs


if __name__ == "__main__":
    main()
