"""What a table of the latest row by key costs in Delta: merge against append.

Without Spark: an epoch's rows are written as a task writes them, and published as a driver does.
``append`` adds them to the table, ``merge`` puts each in the place of the row of its key, of so
many keys that are all there before. Figures are medians of the epochs after the first: CPU time and
time of the process, and how often what they are of ``append`` those of ``merge`` are.

Run it with ``python -m benchmarks.delta_merge``. It takes a minute or two.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.arguments import integers
from benchmarks.machine import describe
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns


class Row(msgspec.Struct):
    """A record's value."""

    user: int
    n: int


@dataclass
class Cost:
    """Medians of one case, in milliseconds an epoch."""

    case: str
    keys: int
    records: int
    cpu_ms: float
    wall_ms: float


def main() -> None:
    """Measure all cases, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=integers, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--records", type=integers, default=[1_000, 100_000], help="an epoch")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    machine = describe()
    costs = [
        _measure(case, keys, records, arguments.epochs)
        for keys in arguments.keys
        for records in arguments.records
        for case in ("append", "merge")
        if records <= keys
    ]
    Console().print(_table(costs))
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"delta-merge-{started:%Y-%m-%d-%H%M}.json"
    results = {"benchmark": "delta_merge", "machine": machine, "costs": [*map(asdict, costs)]}
    (arguments.out or named).write_text(json.dumps(results, indent=1) + "\n")


def _measure(case: str, keys: int, records: int, epochs: int) -> Cost:
    columns = SinkColumns(Row, mr.coders.Msgpack(Row))
    random = np.random.default_rng(keys)
    cpu_s, wall_s = list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="millrace-delta-") as folder:
        sink = mr.sinks.Delta(folder) if case == "append" else mr.sinks.Delta(folder, key="user")
        sink.bind(Binding("delta", "rows", "benchmark", columns))
        for epoch in range(epochs + 1):
            users = random.permutation(keys)[: None if epoch == 0 else records]
            batch = _rows(pa.schema(list(columns.arrow)), users, epoch)
            started, cpu = time.perf_counter(), time.process_time()
            file = sink.for_tasks().begin(epoch, 0)
            file.write(batch)
            sink.publish(epoch, [file.close()])
            wall_s.append(time.perf_counter() - started)
            cpu_s.append(time.process_time() - cpu)
    cpu_ms, wall_ms = (statistics.median(took[1:]) * 1e3 for took in (cpu_s, wall_s))
    return Cost(case, keys, records, cpu_ms, wall_ms)


def _rows(schema: pa.Schema, users: np.ndarray, epoch: int) -> pa.RecordBatch:
    count = len(users)
    found = {
        "user": users,
        "n": np.full(count, epoch),
        "_key": [str(user) for user in users.tolist()],
        "_timestamp": np.full(count, epoch, "datetime64[us]"),
        "_id": [int(user).to_bytes(16, "big") for user in users.tolist()],
    }
    columns = [pa.array(found[field.name]).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _table(costs: list[Cost]) -> Table:
    table = Table(title="An epoch into a Delta table")
    for column in ("keys", "records", "case", "CPU ms", "of append", "ms", "of append"):
        table.add_column(column, justify="right")
    append = costs[0]
    for cost in costs:
        if cost.case == "append":
            append = cost
        table.add_row(
            f"{cost.keys:,}",
            f"{cost.records:,}",
            cost.case,
            f"{cost.cpu_ms:,.1f}",
            f"{cost.cpu_ms / append.cpu_ms:.1f}",
            f"{cost.wall_ms:,.1f}",
            f"{cost.wall_ms / append.wall_ms:.1f}",
        )
    return table


if __name__ == "__main__":
    main()
