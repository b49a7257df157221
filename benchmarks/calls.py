"""Calls to a service of 20 ms, 200 in flight: records a second, beside others on the same cores.

The service is a process of its own that answers over HTTP after 20 ms (``http_service``). All ask
it with the same client, aiohttp, from one process. So 10,000 a second is what the concurrency
allows, and less is what two cores do with client and server:

    client      200 coroutines in one loop, and nothing around them: what there is to share
    pool        the call pool of Millrace, fed and emptied by a thread
    millrace    ``map_async`` in a batch on Spark, one task, keys in order, with its start
    bytewax     ``flat_map_batch`` with a loop in a thread beside it, one worker

They take turns. What counts is each one's share of what the client does in the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

import benchmarks.result as result
from benchmarks.http_service import HttpService

SECONDS = 0.02
CONCURRENCY = 200


def session() -> aiohttp.ClientSession:
    """Return the client that all use."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def ask(client: aiohttp.ClientSession, url: str) -> str:
    """Ask the service once."""
    async with client.get(url) as response:
        return await response.text()


def client(url: str, records: int) -> float:
    """Return how many seconds the calls take with nothing around them."""

    async def all_of_them() -> float:
        numbers = iter(range(records))

        async def some(client: aiohttp.ClientSession) -> None:
            for _ in numbers:
                await ask(client, url)

        async with session() as client:
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(some(client))
            return time.monotonic() - began

    return asyncio.run(all_of_them())


def pool(url: str, records: int) -> float:
    """Return how many seconds a call pool takes."""
    from millrace.model.calls import Call, CallPolicy
    from millrace.runtime.call_pool import CallPool

    async def opened() -> aiohttp.ClientSession:
        return session()

    async def call(client: aiohttp.ClientSession, request: str) -> str:
        return await ask(client, request)

    calls = CallPool(call, CallPolicy(concurrency=CONCURRENCY, timeout="10 s"), setup=opened)
    began = time.monotonic()
    calls.submit(Call(b"%d" % n, n, url) for n in range(records))
    done = 0
    while done < records:
        outcomes = calls.completed(None)
        assert all(outcome.response == "ok" for outcome in outcomes)
        done += len(outcomes)
    took = time.monotonic() - began
    calls.close()
    return took


def millrace(url: str, records: int) -> float:
    """Return how many seconds a batch on Spark takes; a short one before it starts the workers."""
    import millrace as mr
    from benchmarks.spark_session import build_session

    async def opened() -> aiohttp.ClientSession:
        return session()

    async def call(client: aiohttp.ClientSession, _: object) -> str:
        return await ask(client, url)

    spark = build_session("calls", 1)
    taken = 0.0
    for count in (100, records):
        p = mr.Pipeline("calls")
        frame = spark.range(count).selectExpr("id", "id % 1000 AS card", "id AS at")
        numbers = p.inject("numbers", frame, timestamp="at").key_by("card")
        answers = numbers.map_async(call, setup=opened, concurrency=CONCURRENCY, timeout="10 s")
        answers.to("answers", format=str)
        sink = mr.sinks.Memory()
        p.sink("answers", sink)
        began = time.monotonic()
        p.run_batch(spark, progress=False)
        taken = time.monotonic() - began
        assert len(sink.rows) == count
    spark.stop()
    return taken


def bytewax(url: str, records: int) -> float:
    """Return how many seconds bytewax takes, with a loop in a thread."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def opened() -> tuple[aiohttp.ClientSession, asyncio.Semaphore]:
        return session(), asyncio.Semaphore(CONCURRENCY)

    client, free = asyncio.run_coroutine_threadsafe(opened(), loop).result()

    async def one(record: tuple[str, int]) -> tuple[str, str]:
        async with free:
            return record[0], await ask(client, url)

    async def several(batch: list[tuple[str, int]]) -> list[tuple[str, str]]:
        return list(await asyncio.gather(*map(one, batch)))

    def call(batch: list[tuple[str, int]]) -> Iterable[tuple[str, str]]:
        return asyncio.run_coroutine_threadsafe(several(batch), loop).result()

    flow = Dataflow("calls")
    source = TestingSource([(str(n % 1000), n) for n in range(records)], batch_size=1000)
    answers = list[tuple[str, str]]()
    stream = op.input("records", flow, source)
    op.output("answers", op.flat_map_batch("call", stream, call), TestingSink(answers))
    began = time.monotonic()
    run_main(flow)
    took = time.monotonic() - began
    assert len(answers) == records
    asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    return took


CONTENDERS: dict[str, Callable[[str, int], float]] = {
    "client": client,
    "pool": pool,
    "millrace": millrace,
    "bytewax": bytewax,
}


def _apart(contender: str, url: str, records: int) -> float:
    """Run a contender in a process of its own; return records a second."""
    command = [sys.executable, "-m", "benchmarks.calls", "--contender", contender]
    command += ["--url", url, "--records", str(records)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return records / json.loads(done.stdout.splitlines()[-1])


def measure(records: int, rounds: int, contenders: Iterable[str]) -> dict[str, Any]:
    """Return records a second by contender and round, and each one's share of the client's."""
    rates: dict[str, list[float]] = {name: [] for name in ("client", *contenders)}
    with HttpService(SECONDS) as service:
        for _ in range(rounds):
            for name in rates:
                rates[name].append(round(_apart(name, service.url, records)))
    shares = {
        name: round(statistics.median(a / b for a, b in zip(rate, rates["client"], strict=True)), 3)
        for name, rate in rates.items()
    }
    return {"records": records, "rates": rates, "shares": shares}


def main() -> None:
    """Measure, show, and write a result if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", default="pool,millrace,bytewax", help="contenders beside the client"
    )
    parser.add_argument("--write", action="store_true", help="leave a result")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        took = CONTENDERS[arguments.contender](arguments.url, arguments.records)
        sys.stdout.write(f"{json.dumps(took)}\n")
        return
    figures = measure(arguments.records, arguments.rounds, arguments.only.split(","))
    table = Table("", "records/s", "of the client")
    for name, rates in figures["rates"].items():
        rate = statistics.median(rates)
        table.add_row(name, f"{rate:,.0f}", f"{figures['shares'][name]:.0%}")
    Console().print(table)
    if arguments.write:
        Console().print(result.write("calls", command=sys.argv[1:], **figures))


if __name__ == "__main__":
    main()
