"""Kafka as a door, in and out: what others send to a broker, and what it is asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from doors_in import NO_COLUMN, json_line, kinds_of, outcome, row_of
from doors_out import Door, Table, by_id
from field_types import Kind, Outcome, lettered, raised, refused

import millrace as mr

#: A consumer waits no longer than it must for the end of a partition.
AT_ONCE = {"fetch.wait.max.ms": 10}

#: Messages without a schema: what a producer gave, and what is known of it.
MESSAGES = (
    Kind("value", bytes | None, (b"tea", b"", bytes(range(256)))),
    Kind("value, null", bytes | None, (None,)),
    Kind("key", bytes | None, (b"tea", bytes(range(256)))),
    Kind("key, null", bytes | None, (None,)),
)


class Topics:
    """Topics of one broker, a message each, made all at once."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self._local = threading.local()
        self._consumers: list[Any] = []

    def send(self, messages: dict[str, Any]) -> None:
        """Make topics with a message each: topic -> its value, or (key, value)."""
        topics = [NewTopic(name, 1, 1) for name in messages]
        for future in self.broker.admin.create_topics(topics).values():
            future.result(60)
        producer = Producer(self.broker.client)
        for topic, message in messages.items():
            key, value = message if isinstance(message, tuple) else (None, message)
            producer.produce(topic, value, key=key, partition=0)
        assert producer.flush(30) == 0

    def values(self, topic: str) -> list[bytes | None]:
        """Return the values of a topic's messages."""
        consumer = self._consumer()
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while (message := consumer.poll(10)) is not None and message.error() is None:
            found.append(message.value())
        return found

    def _consumer(self) -> Any:
        """Return this thread's consumer."""
        if not hasattr(self._local, "consumer"):
            settings = {"group.id": "matrix", "enable.partition.eof": True}
            self._local.consumer = Consumer(self.broker.client | settings | AT_ONCE)
            self._consumers.append(self._local.consumer)
        return self._local.consumer

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()


def in_threads(function: Callable[[Kind], list[Outcome]], kinds: Sequence[Kind]) -> Any:
    """Return the outcomes by the name of the kind; most of the time is the broker's."""
    with ThreadPoolExecutor(16) as threads:
        outcomes = threads.map(function, kinds)
        return {kind.name: made for kind, made in zip(kinds, outcomes, strict=True)}


def topic_of(kind: Kind, n: int, way: str = "in") -> str:
    """Return the topic of a value."""
    kinds = [kind.name for kind in (*kinds_of("Kafka"), *MESSAGES)]
    return f"{way}-{kinds.index(kind.name)}-{n}"


def messages_in() -> dict[str, Any]:
    """Return what others send: topic -> message."""
    made: dict[str, Any] = {
        topic_of(kind, n): json_line(kind, n)
        for kind in kinds_of("Kafka")
        for n in range(len(kind.json))
    }
    for kind in MESSAGES:
        for n, value in enumerate(kind.values):
            pair = (None, value) if kind.name.startswith("value") else (value, b"tea")
            made[topic_of(kind, n)] = pair
    return made


def kafka_in(broker: Any, kind: Kind) -> list[Outcome]:
    """Return what becomes of each value of a kind that comes as JSON."""
    if not kind.json:
        return [NO_COLUMN]
    unit: Any = "s" if kind.name == "a fraction of a second" else None
    schema = f"x {kind.ddl or 'string'}, at long"
    made = []
    for n, value in enumerate(kind.values):
        topic = topic_of(kind, n)
        made.append(_read(broker, topic, value, kind.type, schema, unit))
    return made


def message_in(broker: Any, kind: Kind) -> list[Outcome]:
    """Return what becomes of parts of a message that is read without a schema."""
    made = []
    for n, value in enumerate(kind.values):
        topic = topic_of(kind, n)
        name = "value" if kind.name.startswith("value") else "kafka_key"
        made.append(_read(broker, topic, value, kind.type, None, None, name))
    return made


def _read(
    broker: Any, topic: str, value: Any, of: Any, schema: str | None, unit: Any, field: str = "x"
) -> Outcome:
    seen: list[Any] = []
    p = mr.Pipeline("matrix")
    p.dead_letter("letters")
    try:
        source = mr.sources.Kafka(broker.servers, topic, schema=schema, unit=unit)
        timestamp = "at" if schema is not None and "at long" in schema else "kafka_timestamp"
        p.inject("rows", source, timestamp=timestamp, format=row_of(of, field))
        p.add(_reads(seen, field))
        p.build()
    except Exception as error:
        return refused(error, "rows", "'x'", "Kafka", "timestamp_ntz")
    try:
        with mr.testing.Harness(p, intervals=1) as h:
            h.poll("rows")  # where the partition begins
            h.poll("rows")
            letters = [letter.value for letter in h.outputs("letters")]
    except Exception as error:
        return raised(error, "rows")
    return outcome(value, seen, letters)


def _reads(seen: list[Any], field: str) -> Any:
    class Reads(mr.Computation):
        inputs = {"rows": mr.by(lambda row: 0)}

        def process_record(self, record: Any) -> None:
            seen.append(getattr(record.value, field))

    return Reads


def out_door(topics: Topics) -> Door:
    """Return the sink; what there is, the client says, and JSON."""

    def sink(folder: Path, kinds: Sequence[Kind]) -> Any:
        topics.broker.topic(folder.name, 1)
        return mr.sinks.Kafka(topics.broker.servers, folder.name)

    def read(folder: Path) -> Table:
        values = topics.values(folder.name)
        return by_id(json.loads(value) for value in values if value is not None)

    return Door(sink, read)


def round_trip(topics: Topics) -> Door:
    """Return the sink; our own source reads what it wrote, a kind's column at a time."""

    def sink(folder: Path, kinds: Sequence[Kind]) -> Any:
        topics.broker.topic(folder.name, 1)
        return mr.sinks.Kafka(topics.broker.servers, folder.name)

    def judge(folder: Path, k: int, kind: Kind) -> list[Outcome]:
        return _read_back(topics.broker, folder.name, k, kind)

    return Door(sink, None, judge)


def _read_back(broker: Any, topic: str, k: int, kind: Kind) -> list[Outcome]:
    seen: dict[str, Any] = {}
    row = msgspec.defstruct("Row", [("id", str), (f"c{k}", kind.type | None, None)])

    class Reads(mr.Computation):
        inputs = {"rows": mr.by("id")}

        def process_record(self, record: Any) -> None:
            seen[self.key] = getattr(record.value, f"c{k}")

    p = mr.Pipeline("matrix")
    p.dead_letter("letters")
    schema = f"id string, c{k} {kind.ddl}, kafka_timestamp timestamp"
    try:
        source = mr.sources.Kafka(broker.servers, topic, schema=schema)
        p.inject("rows", source, timestamp="kafka_timestamp", format=row)
        p.add(Reads)
        p.build()
    except Exception as error:
        return [refused(error, "rows", f"c{k}", str(kind.ddl))] * len(kind.values)
    try:
        with mr.testing.Harness(p, intervals=1) as h:
            h.poll("rows")  # where the partition begins
            h.poll("rows")
            letters = [letter.value.reason for letter in h.outputs("letters")]
    except Exception as error:
        return [raised(error, "rows")] * len(kind.values)
    made = []
    for v, value in enumerate(kind.values):
        id = f"{k} {v}"
        own = letters.pop(0) if id not in seen and letters else None
        given = [seen[id]] if id in seen else []
        made.append(outcome(value, given, []) if own is None else lettered(own, f"c{k}"))
    return made
