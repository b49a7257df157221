"""What a pipeline that has nothing to do costs in requests and dollars, on an object store.

A run on local Spark, over an injector that has nothing. Its checkpoint is on an S3 server of this
machine, behind a proxy that counts requests: of the driver and of tasks. Counted is for a minute,
after some seconds for the start.

``epochs`` has the policy ``BoundedDelay``: the low watermark stands, so there is no epoch.
``epochs by the clock`` has ``ArrivalTime``: it follows the clock, and each of its moves, one a
second, is an epoch without a job. ``real time`` are live tasks, with ``BoundedDelay``.

Dollars are for a thousand such pipelines and a day, by the prices in ``commit_requests``.

Run it with ``python -m benchmarks.idle_run``. Other programs on the machine make no difference.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rich.console import Console
from rich.table import Table

import benchmarks.result as result
import millrace as mr
from benchmarks.commit_requests import USD
from benchmarks.spark_session import build_session
from tests.servers.s3_server import BUCKET, FaultyProxy, S3Server

_DAY_S = 86_400
_PIPELINES = 1_000
_RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "epochs": (mr.BoundedDelay("1 s"), {}),
    "epochs by the clock": (mr.ArrivalTime("1 s", every="1 s"), {}),
    "real time": (mr.BoundedDelay("1 s"), {"realtime": True, "tasks": 1}),
}


class Silent(mr.sources.Injector):
    """A source that has nothing."""

    schema = "n long, at long"

    def processes(self) -> list[str]:
        """Return its one process."""
        return ["one"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        """Read nothing."""
        return mr.sources.Advance(0)

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[int, int]]:
        """Return nothing."""
        return iter(())


class Count(mr.Computation):
    """Counts."""

    inputs = {"numbers": mr.by("n")}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        """Count it."""
        self.count.set(self.count.get(0) + 1)


def measured(name: str, seconds: float, proxy: FaultyProxy) -> dict[str, Any]:
    """Return what a run asked its store for."""
    policy, options = _RUNS[name]
    settings = mr.spark.realtime_settings(tasks=1) if "realtime" in options else {}
    spark = build_session("idle-run", cores=4, heap="512m", settings=settings)
    p = mr.Pipeline("idle")
    p.inject("numbers", Silent(), timestamp="at", low_watermark=policy)
    p.add(Count)
    place = f"s3://{BUCKET}/{name.replace(' ', '-')}"
    run = p.start(spark, checkpoint=place, progress=False, **options)
    run.process_available()
    time.sleep(seconds / 6)
    first, began = len(proxy.requests), time.monotonic()
    epoch = run.status().epoch
    time.sleep(seconds)
    took_s = time.monotonic() - began
    requests = Counter(_kind(*request) for request in proxy.requests[first:])
    epochs = run.status().epoch - epoch
    run.stop()
    spark.stop()
    usd = sum(USD.get(kind, 0.0) * n for kind, n in requests.items())
    return {
        "run": name,
        "epochs_a_minute": round(epochs * 60 / took_s, 1),
        "requests_a_minute": {kind: round(n * 60 / took_s, 1) for kind, n in requests.items()},
        "usd": round(usd / took_s * _DAY_S * _PIPELINES, 2),
    }


def _kind(method: str, path: str) -> str:
    """Return what a request is called in price lists."""
    listed = method == "GET" and "list-type" in parse_qs(urlsplit(path).query)
    return "list" if listed else method.lower()


def main() -> None:
    """Measure all, print a table, write a result if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--write", action="store_true", help="leave a result")
    parser.add_argument("--out", type=Path, help="the file")
    arguments = parser.parse_args()
    server = S3Server()
    try:
        proxy = FaultyProxy(server.port)
        os.environ.update(server.environment(proxy.port))
        costs = [measured(name, arguments.seconds, proxy) for name in _RUNS]
    finally:
        server.close()
    table = Table("run", "epochs a minute", "requests a minute", f"USD a day, {_PIPELINES:,}")
    for cost in costs:
        requests = ", ".join(f"{n:g} {kind}" for kind, n in cost["requests_a_minute"].items())
        table.add_row(cost["run"], f"{cost['epochs_a_minute']}", requests, f"{cost['usd']:,.2f}")
    Console().print(table)
    if arguments.write or arguments.out:
        Console().print(result.write("idle_run", out=arguments.out, costs=costs))


if __name__ == "__main__":
    main()
