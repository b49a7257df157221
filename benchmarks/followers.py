"""What it costs an injector task to take records and to make rows of them, in CPU microseconds.

Taking, from a real broker: JSON objects of two numbers, the same as 16 bytes that a function
unpacks, and 16 bytes as they are, with all that Kafka knows of a message:

    lone      one record a take, 200 a second: CPU of the thread that takes, by take
    backlog   as many as there are, from a full topic: CPU by record, of that thread, and of the
              whole process (librdkafka fetches and unpacks in threads of its own)

Making rows of what was taken (:class:`~millrace.runtime.row_encoder.LiveRows`), of 1, 100 and
10,000 records, with and without source ids: for keys in a column, which are made in Arrow, and for
keys that a function takes from each record. ``columns`` is the part before either.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

import millrace as mr
from benchmarks.broker import broker_in
from benchmarks.machine import describe
from millrace.epochlog.entries import Manifest
from millrace.injectors.columns import column_names
from millrace.injectors.follower import Follower
from millrace.runtime.reports import TaskReport
from millrace.runtime.row_encoder import LiveRows, injected
from millrace.runtime.values import value_columns
from millrace.runtime.worker_process import SourceColumns, Task, WorkerProcess
from millrace.watermark.propagation import LowWatermarks

SIZES = (1, 100, 10_000)
RATE = 200
PARTITIONS = 2
_PAIR = struct.Struct(">qq")
_SCHEMA = "sent long, key long"

#: How a value is written, and the arguments by which it is read.
VALUES: dict[str, tuple[Callable[[int], bytes], dict[str, Any]]] = {
    "JSON": (lambda n: b'{"sent": %d, "key": %d}' % (n, n % 1000), {"schema": _SCHEMA}),
    "16 bytes, parsed": (
        lambda n: _PAIR.pack(n, n % 1000),
        {"schema": _SCHEMA, "parse": _PAIR.unpack},
    ),
    "16 bytes, and all that is known": (lambda n: _PAIR.pack(n, n % 1000), {}),
}


class Event(msgspec.Struct):
    """A record."""

    key: int
    value: int


class ByColumn(mr.Computation):
    """Takes its key from a column."""

    inputs = {"events": mr.by("key")}

    def process_record(self, record):
        """Do nothing."""


class ByFunction(ByColumn):
    """Takes its key from the record."""

    inputs = {"events": mr.by(lambda event: event.key)}


class Nothing(mr.sources.Injector):
    """Says what its columns are."""

    schema = "key long, value long, at timestamp, id string"

    def processes(self):
        """Return none."""
        return []

    def advance(self, process, offset):
        """Stay there."""
        return mr.sources.Advance(offset)

    def read(self, process, start, end):
        """Return nothing."""
        return []


def take_lone(servers: str, topic: str, kind: str, records: int) -> dict[str, float]:
    """Return what a take of one record costs."""
    encode, how = VALUES[kind]
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    follower = _follow(servers, topic, how, begin=False)
    done = threading.Event()

    def send() -> None:
        for n in range(records):
            producer.produce(topic, encode(n), partition=n % PARTITIONS)
            producer.flush()
            done.wait(1 / RATE)

    sender = threading.Thread(target=send)
    sender.start()
    spent, taken = list[float](), 0
    while taken < records:
        began = time.thread_time()
        found = follower.take(1.0)
        cpu_s = time.thread_time() - began
        count = sum(one.rows.num_rows for one in found)
        taken += count
        if count == 1:
            spent.append(cpu_s)
    done.set()
    sender.join()
    follower.close()
    return {
        "take_us": statistics.median(spent) * 1e6,
        "take_us_mean": statistics.fmean(spent) * 1e6,
        "takes": len(spent),
    }


def take_backlog(servers: str, topic: str, kind: str, records: int) -> dict[str, float]:
    """Return what a record costs where many wait."""
    encode, how = VALUES[kind]
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 2_000_000})
    for n in range(records):
        producer.produce(topic, encode(n), partition=n % PARTITIONS)
    producer.flush()
    del producer
    follower = _follow(servers, topic, how)
    taken, thread_s, process_s = 0, time.thread_time(), time.process_time()
    while taken < records:
        taken += sum(one.rows.num_rows for one in follower.take(1.0))
    thread_s, process_s = time.thread_time() - thread_s, time.process_time() - process_s
    follower.close()
    return {"record_us": thread_s / records * 1e6, "process_us": process_s / records * 1e6}


def _follow(servers: str, topic: str, how: dict[str, Any], *, begin: bool = True) -> Follower:
    source = mr.sources.Kafka(servers, topic, config={"log_level": 0}, **how)
    places: dict[str, Any] = {f"{topic}-{n}": 0 if begin else None for n in range(PARTITIONS)}
    follower = source.follow(places)
    follower.take(0)
    return follower


def rows_case(kind: str, size: int, *, ids: bool, rounds: int) -> dict[str, float]:
    """Return what a take of so many records costs on its way to rows of the wire."""
    p = mr.Pipeline("rows")
    p.inject(
        "events",
        Nothing(),
        timestamp="at",
        format=Event,
        id="id" if ids else None,
        low_watermark=mr.BoundedDelay("1 s"),
    )
    p.add(ByColumn if kind == "column" else ByFunction, name="keyed")
    topology = p.build()
    stream = topology.streams["events"]
    columns = value_columns(
        "events", Event, column_names(Nothing.schema), "at", ("id",) if ids else ()
    )
    source = SourceColumns(0, "events", columns, kind == "column", False, "id" if ids else None)
    runtime = WorkerProcess(topology, tasks=2, sources=[source], live=True)
    manifest = Manifest(
        epoch=0,
        generation=1,
        wall_time_us=mr.HOUR,
        injectors={"events": 0},
        draining=False,
        before=LowWatermarks({}, {}),
        intervals={"keyed": 64},
        entry=1,
    )
    numbers = np.arange(size)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(np.random.default_rng(1).integers(0, 1000, size)),
            pa.array(numbers),
            pa.array(numbers, pa.timestamp("us", "UTC")),
            pa.array([f"id-{n}" for n in range(size)]),
        ],
        ["key", "value", "at", "id"],
    )
    made = LiveRows(runtime)

    def run() -> None:
        task = Task(runtime, manifest, 0)
        for _ in made.on_edges(task, source, batch, numbers, 0, TaskReport()):
            pass

    times = max(3, 2_000 // size)
    return {
        "us": _cpu_us(run, times, rounds),
        "columns_us": _cpu_us(lambda: injected(source, stream, batch, "here"), times, rounds),
    }


def _cpu_us(run: Callable[[], object], times: int, rounds: int) -> float:
    """Return CPU microseconds a call, of the least disturbed of several rounds."""
    found = []
    for _ in range(rounds + 1):
        began = time.process_time()
        for _ in range(times):
            run()
        found.append((time.process_time() - began) / times * 1e6)
    return min(found[1:])


def main() -> None:
    """Measure all cases, print the tables, write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=500_000, help="of a backlog")
    parser.add_argument("--lone", type=int, default=2_000, help="records that come one by one")
    parser.add_argument("--rounds", type=int, default=5, help="of each case of rows")
    parser.add_argument("--no-kafka", action="store_true", help="rows only")
    parser.add_argument("--out", type=Path, help="where the results go, as JSON")
    arguments = parser.parse_args()
    machine, taking, rows = describe(), [], []
    if not arguments.no_kafka:
        with broker_in(Path(tempfile.gettempdir())) as broker:
            for n, kind in enumerate(VALUES):
                lone = broker.make_topic(f"lone-{n}", PARTITIONS)
                full = broker.make_topic(f"full-{n}", PARTITIONS)
                taking.append(
                    {
                        "values": kind,
                        **take_lone(broker.servers, lone, kind, arguments.lone),
                        **take_backlog(broker.servers, full, kind, arguments.records),
                    }
                )
    for kind in ("column", "function"):
        for ids in (False, True):
            for size in SIZES:
                case = rows_case(kind, size, ids=ids, rounds=arguments.rounds)
                rows.append({"keys": kind, "ids": ids, "size": size, **case})
    console = Console(width=120)
    if taking:
        console.print(_taking(taking))
    console.print(_rows(rows))
    if arguments.out:
        results = {"benchmark": "followers", "machine": machine, "taking": taking, "rows": rows}
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


def _taking(found: list[dict[str, Any]]) -> Table:
    table = Table(title="Taking from Kafka: CPU us")
    for name in ("values", "a lone take", "mean", "a record of a backlog", "whole process"):
        table.add_column(name, justify="left" if name == "values" else "right")
    for case in found:
        figures = [case[name] for name in ("take_us", "take_us_mean", "record_us", "process_us")]
        table.add_row(case["values"], *(f"{figure:.2f}" for figure in figures))
    return table


def _rows(found: list[dict[str, Any]]) -> Table:
    table = Table(title="Rows of what was taken: CPU us a take, and a record")
    for name in ("keys", "ids", "records", "a take", "columns", "a record"):
        table.add_column(name, justify="left" if name in ("keys", "ids") else "right")
    for case in found:
        table.add_row(
            case["keys"],
            "yes" if case["ids"] else "",
            f"{case['size']:,}",
            f"{case['us']:,.0f}",
            f"{case['columns_us']:,.0f}",
            f"{case['us'] / case['size']:.2f}",
        )
    return table


if __name__ == "__main__":
    main()
