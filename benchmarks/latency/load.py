"""The load: a producer that sends what is due, in one call for so many milliseconds.

``python -m benchmarks.latency.load JSON``, with the fields of :class:`Load`. It says on its last
line of output, as JSON, how late it was, and leaves in ``log_path`` when each record was sent.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Producer

from benchmarks.latency.wire import pack_record, text_record

_SEED = 20130826
_MS_NS = 1_000_000


@dataclass(frozen=True)
class Load:
    """What is sent.

    Attributes:
        servers: The broker.
        topic: The topic.
        partitions: Its partitions, which get batches in turn.
        rate: Records a second.
        every_ms: How often what is due is sent.
        records: How many.
        keys: Keys are drawn uniformly below it.
        begin_ns: When to begin, in nanoseconds since 1970.
        text: Whether as text, and not as 16 bytes.
        log_path: Where send times are kept, as NumPy does.
    """

    servers: str
    topic: str
    partitions: int
    rate: int
    every_ms: int
    records: int
    keys: int
    begin_ns: int
    text: bool
    log_path: str


def draw_keys(records: int, keys: int) -> np.ndarray:
    """Return the keys of so many records, always the same."""
    return np.random.default_rng(_SEED).integers(0, keys, records)


def main(load: Load) -> None:
    producer = Producer(
        {
            "bootstrap.servers": load.servers,
            "linger.ms": 0,
            "queue.buffering.max.messages": 2_000_000,
            # The leader has it, and there is nobody else.
            "acks": 1,
        }
    )
    producer.list_topics(load.topic, timeout=30)
    encode = text_record if load.text else pack_record
    keys = draw_keys(load.records, load.keys).tolist()
    sent_ns = np.zeros(load.records, dtype=np.int64)
    late_ns = []
    cpu_s = time.process_time()
    done = batches = 0
    while done < load.records:
        # What is due within the time of a batch goes at its end.
        due_ms = -(-done * 1_000 // (load.rate * load.every_ms)) * load.every_ms
        wait_ns = load.begin_ns + due_ms * _MS_NS
        if (left_ns := wait_ns - time.time_ns()) > 0:
            time.sleep(left_ns / 1e9)
        now_ns = time.time_ns()
        due = min(load.records, (now_ns - load.begin_ns) * load.rate // 1_000_000_000 + 1)
        batch = [{"value": encode(now_ns, key)} for key in keys[done:due]]
        _send(producer, load.topic, batches % load.partitions, batch)
        sent_ns[done:due] = now_ns
        late_ns.append(now_ns - wait_ns)
        done, batches = due, batches + 1
    unsent = producer.flush(60)
    np.save(load.log_path, sent_ns)
    late_ms = np.array(late_ns) / 1e6
    said = {
        "unsent": unsent,
        "calls": batches,
        "cpu_s": time.process_time() - cpu_s,
        "late_ms_p50": float(np.percentile(late_ms, 50)),
        "late_ms_p99": float(np.percentile(late_ms, 99)),
        "late_ms_max": float(late_ms.max()),
    }
    print(json.dumps(said), flush=True)


def _send(producer: Producer, topic: str, partition: int, batch: list[dict[str, bytes]]) -> None:
    taken = producer.produce_batch(topic, batch, partition=partition)
    if taken != len(batch):
        raise RuntimeError(f"librdkafka took {taken} of {len(batch)} records; is the broker there?")
    producer.poll(0)


if __name__ == "__main__":
    main(Load(**json.loads(sys.argv[1])))
