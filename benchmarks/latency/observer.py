"""The consumer of the sink topic: notes when it has each row.

``python -m benchmarks.latency.observer SERVERS TOPIC PARTITIONS OUT``: it says ``ready``, reads
from the beginning, says on a line how many it has, ten times a second, and leaves rows and arrival
times in OUT when it is told to end by SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from benchmarks.latency.wire import parse_rows

_SAY_EVERY_S = 0.1


def main(servers: str, topic: str, partitions: int, out: Path) -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "observer",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            # What arrives is handed over at once.
            "fetch.min.bytes": 1,
            "fetch.queue.backoff.ms": 1,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    print("ready", flush=True)
    values: list[bytes] = []
    arrived_ns: list[int] = []
    counts: list[int] = []
    reported_s = 0.0
    while not told:
        # It waits for the first and takes what is there besides: for more, it would wait longer.
        first = consumer.poll(_SAY_EVERY_S)
        if first is not None:
            now_ns = time.time_ns()
            found = [first, *consumer.consume(10_000, 0)]
            rows = [message.value() or b"" for message in found if message.error() is None]
            values += rows
            arrived_ns.append(now_ns)
            counts.append(len(rows))
        if time.monotonic() > reported_s + _SAY_EVERY_S:
            reported_s = time.monotonic()
            print(len(values), flush=True)
    consumer.close()
    np.savez(out, rows=parse_rows(values), arrived_ns=np.repeat(arrived_ns, counts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
