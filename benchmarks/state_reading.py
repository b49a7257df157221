"""Reading state back: a million keys as a DataFrame, beside Spark's own reader of its state.

Both have counted the same records by key: Millrace with a ``ValueState``, Spark with ``groupBy``
over RocksDB. Then both are read in one session, in turns: ``spark.read.format("millrace")`` and
``spark.read.format("statestore")``, each for the number of keys and the sum of their counts, which
must be right. Beside them, in this process and without Spark, ``mr.ops.open_checkpoint(...)`` and a
walk over all keys. The first round warms up; of the others the median stands.

Run it with ``python -m benchmarks.state_reading``. It takes a few minutes.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.machine import describe
from benchmarks.measure import TreeSampler
from benchmarks.spark_session import build_session, read_batches

_SCHEMA_DDL = "key BIGINT, time TIMESTAMP"
_BATCHES = 5


class Count(mr.Computation):
    """Counts the records of a key."""

    inputs = {"rows": mr.by("key")}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count it."""
        self.count.set(self.count.get(0) + 1)


@dataclass(frozen=True)
class Reading:
    """What one way to read all keys costs.

    Attributes:
        way: Which.
        seconds: Median of the rounds.
        slowest: Of them.
        keys_a_second: By the median.
        cpu_s: Of the process tree, the mean of a round.
    """

    way: str
    seconds: float
    slowest: float
    keys_a_second: float
    cpu_s: float


def main() -> None:
    """Make both states, read them, print a table, write the results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.state_reading",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4, help="the first warms up")
    arguments = parser.parse_args()
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="state-reading-") as folder:
        found = measure(Path(folder), arguments.keys, arguments.rounds)
    table = Table("way", "s", "slowest", "keys/s", "CPU s")
    for one in found:
        table.add_row(
            one.way, f"{one.seconds:.2f}", f"{one.slowest:.2f}", f"{one.keys_a_second:,.0f}",
            f"{one.cpu_s:.1f}",
        )  # fmt: skip
    Console().print(table)
    started = dt.datetime.fromisoformat(machine["at"])
    named = Path(__file__).parent / "results" / f"state-reading-{started:%Y-%m-%d-%H%M}.json"
    results = {
        "benchmark": "state_reading",
        "machine": machine,
        "keys": arguments.keys,
        "readings": [*map(asdict, found)],
    }
    named.write_text(json.dumps(results, indent=1) + "\n")


def measure(folder: Path, keys: int, rounds: int) -> list[Reading]:
    """Return what each way costs."""
    spark = build_session("state-reading", cores=os.cpu_count() or 2)
    mr.spark.register_source(spark)
    _write(folder / "input", keys)
    _count_by_millrace(spark, folder)
    _count_by_spark(spark, folder)
    ways: dict[str, Callable[[], tuple[int, int]]] = {
        "millrace": lambda: _totals(_kept(spark, folder), "count"),
        "statestore": lambda: _totals(_stored(spark, folder), "value.count"),
        "open_checkpoint": lambda: _walked(folder),
    }
    spans: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    expected = keys, keys * _BATCHES
    with TreeSampler(os.getpid()) as sampler:
        for _ in range(rounds):
            for way, read in ways.items():
                began_s = time.time()
                totals = read()
                spans[way].append((began_s, time.time()))
                assert totals == expected, f"{way} found {totals}, expected {expected}"
    spark.stop()
    return [_reading(way, keys, measured[1:], sampler) for way, measured in spans.items()]


def _reading(
    way: str, keys: int, spans: list[tuple[float, float]], sampler: TreeSampler
) -> Reading:
    seconds = [end - began for began, end in spans]
    cpu_s = sum(sum(sampler.cpu_s_between(*span).values()) for span in spans) / len(spans)
    middle = statistics.median(seconds)
    return Reading(way, middle, max(seconds), keys / middle, cpu_s)


def _write(folder: Path, keys: int) -> None:
    """Write each key once a batch."""
    folder.mkdir()
    random = np.random.default_rng(1)
    for n in range(_BATCHES):
        times = pa.array(np.full(keys, (1_700_000_000 + n) * mr.SECOND))
        columns = {
            "key": pa.array(random.permutation(keys)),
            "time": times.cast(pa.timestamp("us", tz="UTC")),
        }
        path = folder / f"{n:05}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (n, n))


def _count_by_millrace(spark: SparkSession, folder: Path) -> None:
    p = mr.Pipeline("counts")
    rows = read_batches(spark, str(folder / "input"), _SCHEMA_DDL, files=1)
    p.inject("rows", rows, timestamp="time", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Count)
    run = p.start(spark, checkpoint=str(folder / "millrace"))
    run.process_available()
    run.stop()


def _count_by_spark(spark: SparkSession, folder: Path) -> None:
    rows = read_batches(spark, str(folder / "input"), _SCHEMA_DDL, files=1)
    writer = rows.groupBy("key").count().writeStream.outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", str(folder / "spark"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _kept(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.read.format("millrace").option("checkpoint", str(folder / "millrace"))
    return reader.option("computation", "Count").load()


def _stored(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.format("statestore").load(str(folder / "spark"))


def _totals(rows: DataFrame, count: str) -> tuple[int, int]:
    found = rows.agg(F.count("key"), F.sum(F.col(count))).first()
    assert found is not None
    return int(found[0]), int(found[1])


def _walked(folder: Path) -> tuple[int, int]:
    keys = total = 0
    for state in mr.ops.open_checkpoint(folder / "millrace")["Count"].scan():
        keys += 1
        total += state.cells["count"]
    return keys, total


if __name__ == "__main__":
    main()
