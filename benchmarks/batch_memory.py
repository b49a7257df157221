"""A batch larger than memory: what the process tree takes as the input grows.

``run_batch`` over rows that Spark makes, a million keys, sums per key and hour with two kinds of
state: windows that are kept as columns, and the same with allowed lateness, which are kept key by
key. The JVM has a heap of half a gigabyte, in which the larger input would not fit. Spark sorts and
spills; Millrace's part streams through, so its Python workers must not grow with the input.

    python -m benchmarks.batch_memory --rows 5000000,40000000
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil

import millrace as mr
from benchmarks import result

_HEAP = "512m"
_KEYS = 1_000_000
_HOURS = 3


def main() -> None:
    """Run a batch of each size, and print rates and peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="5000000,40000000")
    parser.add_argument("--out", type=Path, help="results file (default: below results/)")
    arguments = parser.parse_args()
    print("| rows | GB as rows | state | s | records/s | peak of the Python workers, MiB |")
    print("|---:|---:|---|---:|---:|---:|")
    cases = []
    for lateness, kept in ((0, "columns"), (1, "by key")):
        for rows in map(int, arguments.rows.split(",")):
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                seconds, total, peak = pool.submit(run, rows, lateness).result()
            if total != rows:
                raise SystemExit(f"{rows:,} rows were counted as {total:,}")
            gigabytes = rows * 72 / 1e9
            rate = rows / seconds
            line = f"{rows:,} | {gigabytes:.1f} | {kept} | {seconds:.0f} | {rate:,.0f}"
            print(f"| {line} | {peak >> 20:,} |", flush=True)
            cases.append(
                {"rows": rows, "state": kept, "seconds": seconds, "worker_bytes_max": peak}
            )
    result.write("batch_memory", out=arguments.out, cases=cases)


def run(rows: int, lateness: int) -> tuple[float, int, int]:
    """Return seconds, what the panes add up to, and the most that the Python workers took."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # the name all of Spark's documentation uses

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", _HEAP)
        .config("spark.sql.shuffle.partitions", 8)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    events = spark.range(0, rows, 1, 16).select(
        F.pmod(F.hash("id"), F.lit(_KEYS)).cast("long").alias("key"),
        (F.pmod(F.hash("id", F.lit(1)), F.lit(_HOURS * 3_600)).cast("long") * mr.SECOND).alias(
            "at"
        ),
        F.lit(1).cast("long").alias("value"),
    )
    with tempfile.TemporaryDirectory() as folder:
        p = mr.Pipeline("batch")
        p.inject("events", events, timestamp="at", unit="us", low_watermark=mr.BoundedDelay("1 h"))
        windows = (
            p.stream("events")
            .key_by("key")
            .window(mr.FixedWindows("1 h"), allowed_lateness=lateness, lift=False)
        )
        windows.sum("value").to("sums")
        p.sink("sums", mr.sinks.Parquet(f"{folder}/sums"))
        peak = _Peak()
        started = time.perf_counter()
        with peak:
            p.run_batch(spark)
        seconds = time.perf_counter() - started
        total = spark.read.parquet(f"{folder}/sums").agg(F.sum("value")).first()
    spark.stop()
    assert total is not None, "an aggregate has one row"
    return seconds, int(total[0]), peak.bytes


class _Peak:
    """Samples the Python workers below this process, four times a second."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stop.wait(0.25):
            used: Counter[str] = Counter()
            for process in psutil.Process().children(recursive=True):
                try:
                    name = "python" if process.name().startswith("python") else "java"
                    used[name] += process.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
            self.bytes = max(self.bytes, used["python"])


if __name__ == "__main__":
    main()
