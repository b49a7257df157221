"""Calls to a service of 20 ms, 200 in flight: records a second, beside others on the same cores.

The service is a process of its own that answers over HTTP after 20 ms (``http_service``). So 10,000
a second is what the concurrency allows, and less is what two cores do with client and server:

    server      200 connections that ask again when they are answered: what the service does alone

All others ask from one process, each with aiohttp, and with a client as small as can be
(``http_client``). What aiohttp does for a call takes more than all that is around it:

    client      200 coroutines in one loop, and nothing around them: what there is to share
    pool        the call pool of Millrace, fed and emptied by a thread
    task        ``map_async`` in an epoch of a level task, in the process itself: the steady state
    millrace    ``map_async`` in a batch on Spark, one task, keys in order, with its start
    bytewax     ``flat_map_batch`` with a loop in a thread beside it, one worker
    flink       asynchronous I/O of PyFlink, one slot, from the first call to the last answer, with
                the small client only: its environment has no aiohttp (``flink_calls``)

They take turns. What counts is each one's share of what the same client does in the same round, and
of what the service does alone; and of those that are one process, the CPU time of a record, which
the service has no part in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from rich.console import Console
from rich.table import Table

import benchmarks.result as result
from benchmarks import environments
from benchmarks.http_client import HttpClient, load
from benchmarks.http_service import HttpService

SECONDS = 0.02
CONCURRENCY = 200


class Cost(NamedTuple):
    """What all calls took.

    Attributes:
        seconds: By the clock.
        cpu_s: CPU time of this process, the service's not included; None if others had a part.
    """

    seconds: float
    cpu_s: float | None = None


class Client(NamedTuple):
    """What asks the service.

    Attributes:
        open: Opens it, in a loop.
        ask: Asks once; called with the client and a URL.
    """

    open: Callable[[], Any]
    ask: Callable[[Any, str], Awaitable[str]]


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def _ask(client: aiohttp.ClientSession, url: str) -> str:
    async with client.get(url) as response:
        return await response.text()


CLIENTS = {"small": Client(HttpClient, HttpClient.get), "aiohttp": Client(_session, _ask)}


def server(url: str, records: int, _: Client) -> Cost:
    """Return what the service takes."""
    return Cost(*asyncio.run(load(url, records, CONCURRENCY)))


def client(url: str, records: int, http: Client) -> Cost:
    """Return what the calls take with nothing around them."""

    async def all_of_them() -> Cost:
        numbers = iter(range(records))

        async def some(client: Any) -> None:
            for _ in numbers:
                await http.ask(client, url)

        client = http.open()
        began, cpu_s = time.monotonic(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(some(client))
        cost = Cost(time.monotonic() - began, time.process_time() - cpu_s)
        await client.close()
        return cost

    return asyncio.run(all_of_them())


def pool(url: str, records: int, http: Client) -> Cost:
    """Return what a call pool takes."""
    from millrace.model.calls import Call, CallPolicy
    from millrace.runtime.call_pool import CallPool

    async def opened() -> Any:
        return http.open()

    async def call(client: Any, request: str) -> str:
        return await http.ask(client, request)

    calls = CallPool(call, CallPolicy(concurrency=CONCURRENCY, timeout="10 s"), setup=opened)
    began, cpu_s = time.monotonic(), time.process_time()
    calls.submit(Call(b"%d" % n, n, url) for n in range(records))
    done = 0
    while done < records:
        outcomes = calls.completed(None)
        assert all(outcome.response == "ok" for outcome in outcomes)
        done += len(outcomes)
    cost = Cost(time.monotonic() - began, time.process_time() - cpu_s)
    calls.close()
    return cost


def task(url: str, records: int, http: Client) -> Cost:
    """Return what a level task takes for an epoch of records that have been encoded."""
    import millrace as mr
    from millrace.epochlog.entries import Manifest
    from millrace.epochlog.run_log import RunLog
    from millrace.injectors.watermark_publisher import WatermarkPublisher
    from millrace.kernel.execution import Execution
    from millrace.runtime.epoch.driver import EpochDriver
    from millrace.runtime.exchange import LocalExchange, through_levels
    from millrace.runtime.reports import TaskReport, reports_in
    from millrace.runtime.worker_process import Task, WorkerProcess
    from millrace.store import MemoryCaches, MemoryHardState
    from millrace.testing.feed import Feed, Read

    async def opened() -> Any:
        return http.open()

    async def call(client: Any, _: object) -> str:
        return await http.ask(client, url)

    p = mr.Pipeline("calls")
    numbers = p.inject("numbers", format=dict).key_by("card")
    answers = numbers.map_async(call, setup=opened, concurrency=CONCURRENCY, timeout="10 s")
    answers.to("answers", format=str)
    state = MemoryHardState()
    run_log = RunLog(p.build(), state, intervals=8)
    execution = Execution(run_log.topology, state, MemoryCaches())
    runtime = WorkerProcess(run_log.topology, tasks=1, execution=execution)
    costs = list[Cost]()

    def stages(manifest: Manifest) -> tuple[TaskReport, float]:
        reads = [Read({"id": n, "card": n % 1000}, n, "all") for n in range(records)]
        sent = list(Feed("numbers", reads, {}).rows(Task(runtime, manifest, 0)))
        began, cpu_s = time.monotonic(), time.process_time()
        left = list(through_levels(LocalExchange(runtime, manifest), sent, 1))
        costs.append(Cost(time.monotonic() - began, time.process_time() - cpu_s))
        return TaskReport.together(reports_in(left)), 0.0

    EpochDriver(run_log.topology, run_log, WatermarkPublisher({})).run(0, stages, wall_time_us=0)
    runtime.call_pools.close()
    return costs[0]


def millrace(url: str, records: int, http: Client) -> Cost:
    """Return what a batch on Spark takes; a short one before it starts the workers."""
    import millrace as mr
    from benchmarks.spark_session import build_session

    async def opened() -> Any:
        return http.open()

    async def call(client: Any, _: object) -> str:
        return await http.ask(client, url)

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
    return Cost(taken)


def bytewax(url: str, records: int, http: Client) -> Cost:
    """Return what bytewax takes, with a loop in a thread."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, TestingSource, run_main

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def opened() -> tuple[Any, asyncio.Semaphore]:
        return http.open(), asyncio.Semaphore(CONCURRENCY)

    client, free = asyncio.run_coroutine_threadsafe(opened(), loop).result()

    async def one(record: tuple[str, int]) -> tuple[str, str]:
        async with free:
            return record[0], await http.ask(client, url)

    async def several(batch: list[tuple[str, int]]) -> list[tuple[str, str]]:
        return list(await asyncio.gather(*map(one, batch)))

    def call(batch: list[tuple[str, int]]) -> Iterable[tuple[str, str]]:
        return asyncio.run_coroutine_threadsafe(several(batch), loop).result()

    flow = Dataflow("calls")
    source = TestingSource([(str(n % 1000), n) for n in range(records)], batch_size=1000)
    answers = list[tuple[str, str]]()
    stream = op.input("records", flow, source)
    op.output("answers", op.flat_map_batch("call", stream, call), TestingSink(answers))
    began, cpu_s = time.monotonic(), time.process_time()
    run_main(flow)
    cost = Cost(time.monotonic() - began, time.process_time() - cpu_s)
    assert len(answers) == records
    asyncio.run_coroutine_threadsafe(client.close(), loop).result()
    return cost


CONTENDERS: dict[str, Callable[[str, int, Client], Cost]] = {
    "server": server,
    "client": client,
    "pool": pool,
    "task": task,
    "millrace": millrace,
    "bytewax": bytewax,
}


def _apart(contender: str, http: str, url: str, records: int) -> Cost:
    """Run a contender in a process of its own."""
    environment = dict(os.environ)
    if contender == "flink":
        python, _ = environments.flink()
        command = [python, "-m", "benchmarks.flink_calls", url, str(records), str(CONCURRENCY)]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}  # of its workers
    else:
        command = [sys.executable, "-m", "benchmarks.calls", "--contender", contender]
        command += ["--clients", http, "--url", url, "--records", str(records)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def measure(
    records: int, rounds: int, clients: Iterable[str], contenders: Iterable[str]
) -> dict[str, Any]:
    """Return records a second by contender and round, and shares: of the client's, of the server's.

    Of the CPU time of a record it is the least of all rounds: what the machine does besides only
    adds to it.
    """
    asking = {
        f"{name}, {http}": (name, http)
        for http in clients
        for name in ("client", *contenders)
        if http == "small" or name != "flink"
    }
    asking = {"server": ("server", "small"), **asking}
    rates: dict[str, list[float]] = {title: [] for title in asking}
    cpu_us: dict[str, float] = {}
    with HttpService(SECONDS) as service:
        for _ in range(rounds):
            for title, (name, http) in asking.items():
                cost = _apart(name, http, service.url, records)
                rates[title].append(round(records / cost.seconds))
                if cost.cpu_s is not None:
                    us = round(cost.cpu_s / records * 1e6, 1)
                    cpu_us[title] = min(us, cpu_us.get(title, us))

    def share(title: str, of: str) -> float:
        pairs = zip(rates[title], rates[of], strict=True)
        return round(statistics.median(rate / whole for rate, whole in pairs), 3)

    shares = {
        title: share(title, f"client, {http}")
        for title, (name, http) in asking.items()
        if name != "server"
    }
    return {
        "records": records,
        "rates": rates,
        "shares": shares,
        "of_server": {title: share(title, "server") for title in asking},
        "cpu_us": cpu_us,
    }


def main() -> None:
    """Measure, show, and write a result if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", default="pool,task,millrace,bytewax,flink", help="contenders beside the client"
    )
    parser.add_argument("--clients", default="small,aiohttp", help="what they ask with")
    parser.add_argument("--write", action="store_true", help="leave a result")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        http = CLIENTS[arguments.clients]
        cost = CONTENDERS[arguments.contender](arguments.url, arguments.records, http)
        sys.stdout.write(f"{json.dumps(cost)}\n")
        return
    figures = measure(
        arguments.records, arguments.rounds, arguments.clients.split(","),
        arguments.only.split(","),
    )  # fmt: skip
    table = Table("", "records/s", "of the client", "of the server", "CPU us a record")
    for name, rates in figures["rates"].items():
        rate = statistics.median(rates)
        cpu = figures["cpu_us"].get(name)
        share = figures["shares"].get(name)
        table.add_row(
            name,
            f"{rate:,.0f}",
            "" if share is None else f"{share:.0%}",
            f"{figures['of_server'][name]:.0%}",
            "" if cpu is None else f"{cpu:,.0f}",
        )
    Console().print(table)
    if arguments.write:
        Console().print(result.write("calls", command=sys.argv[1:], **figures))


if __name__ == "__main__":
    main()
