"""What KafkaSink tells librdkafka, and what it makes of its answers; a fake in its place."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.model.errors import SinkError

REFUSED = confluent_kafka.KafkaError(
    confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, "Broker: Unknown topic or partition"
)
MESSAGE = confluent_kafka.Message(topic="t", key=b"k", value=b"v")


class Producer:
    """Takes two messages; the next has to wait until they are polled for."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.sent: list[dict[str, Any]] = []
        self.waiting: list[Callable[[Any, Any], None]] = []
        self.error: Any = None
        self.raises: Exception | None = None
        self.silent = False
        self.purged = False
        made.append(self)

    def produce(self, topic: str, *, on_delivery: Any, **message: Any) -> None:
        if self.raises is not None:
            raise self.raises
        if len(self.waiting) == 2:
            raise BufferError
        self.sent.append({"topic": topic, **message})
        self.waiting.append(on_delivery)

    def poll(self, _: float) -> None:
        if not self.silent:
            delivered, self.waiting = self.waiting, []
            for tell in delivered:
                tell(self.error, MESSAGE)

    def flush(self, _: float) -> int:
        self.poll(0)
        return len(self.waiting)

    def purge(self) -> None:
        self.purged = True


made: list[Producer] = []


@pytest.fixture(autouse=True)
def producers(monkeypatch: pytest.MonkeyPatch) -> list[Producer]:
    made.clear()
    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
    return made


def rows(*values: str) -> pa.RecordBatch:
    at = dt.datetime(2013, 2, 8, 1, 2, 3, 4000, tzinfo=dt.UTC)
    return pa.RecordBatch.from_pydict(
        {
            "value": list(values),
            "_key": [None if value == "a" else f"key of {value}".encode() for value in values],
            "_timestamp": pa.array([at for _ in values], pa.timestamp("us", "UTC")),
            "_id": [bytes([n]) * 16 for n, _ in enumerate(values)],
        }
    )


HALVES = (np.array([1]), np.array([1]))


def test_messages_and_their_ids(producers: list[Producer]) -> None:
    writing = mr.sinks.Kafka("host:1", "t").for_tasks().begin(7, 0)
    writing.write(rows("a", "b", "c"))
    assert writing.close() == b""

    (producer,) = producers
    assert producer.sent == [
        {
            "topic": "t",
            "key": None if value == "a" else f"key of {value}".encode(),
            "value": value.encode(),
            "timestamp": 1_360_285_323_004,
            "headers": {"millrace-id": bytes([n]).hex() * 16},
        }
        for n, value in enumerate("abc")
    ]
    assert producer.config["enable.idempotence"] is True
    assert producer.config["linger.ms"] == 5


@pytest.mark.parametrize(
    ("at_us", "at_ms"), [(0, 1), (999, 1), (2_999, 2), (2**53 + 999, 2**53 // 1000 + 1)]
)
def test_timestamps_are_rounded_down_and_never_0(
    producers: list[Producer], at_us: int, at_ms: int
) -> None:
    """To librdkafka 0 is no time but the wish for the time of sending."""
    at = pa.array([at_us], pa.timestamp("us", "UTC"))
    writing = mr.sinks.Kafka("host:1", "t").for_tasks().begin(7, 0)
    writing.write(rows("a").set_column(2, "_timestamp", at))
    assert [message["timestamp"] for message in producers[0].sent] == [at_ms]


def test_a_function_may_send_a_tombstone(producers: list[Producer]) -> None:
    encode = {"a": None, "b": b"", "c": b"\xff"}.get
    writing = (
        mr.sinks.Kafka("host:1", "t", encode=lambda row: encode(row["value"])).live().begin(1, 1, 0)
    )
    writing.write(rows("a", "b", "c"), *HALVES)
    assert [message["value"] for message in producers[0].sent] == [None, b"", b"\xff"]


@pytest.mark.parametrize(
    ("encode", "words"),
    [
        (lambda row: {"a": b"1"}[row["value"]], "encode= fails with KeyError: 'b'"),
        (
            lambda row: row if row["value"] == "b" else b"",
            "encode= fails with TypeError",
        ),
    ],
)
def test_what_a_function_cannot_encode_is_named(encode: Any, words: str) -> None:
    writing = mr.sinks.Kafka("host:1", "t", encode=encode).for_tasks().begin(7, 0)
    record = f"topic 't', the record of key b'key of b', id {'01' * 16}: "
    with pytest.raises(SinkError, match=f"{record}{words}"):
        writing.write(rows("a", "b"))


def test_turns_do_not_linger_unless_told_to(producers: list[Producer]) -> None:
    for config in (None, {"linger.ms": 20}):
        writing = mr.sinks.Kafka("host:1", "t", config=config).live().begin(1, 1, 0)
        writing.write(rows("a"), *HALVES)
        writing.flush()
        writing.close()
    assert [producer.config["linger.ms"] for producer in producers] == [0, 20]
    assert [len(producer.sent) for producer in producers] == [1, 1]


def test_what_brokers_refuse_is_told_with_the_next_rows(producers: list[Producer]) -> None:
    writing = mr.sinks.Kafka("host:1", "t").live().begin(1, 1, 0)
    writing.write(rows("a"), *HALVES)
    producers[0].error = REFUSED
    with pytest.raises(SinkError, match=r"topic 't' did not take 1 messages: Broker: Unknown"):
        writing.write(rows("b"), *HALVES)


def test_what_is_refused_before_it_is_sent_is_told_likewise(producers: list[Producer]) -> None:
    """A topic that the client knows to be missing; a message that is longer than it may be."""
    writing = mr.sinks.Kafka("host:1", "t").live().begin(1, 1, 0)
    producers[0].raises = confluent_kafka.KafkaException(REFUSED)
    with pytest.raises(SinkError, match=r"topic 't' did not take 1 messages: Broker: Unknown"):
        writing.write(rows("a"), *HALVES)


def test_of_messages_that_are_refused_together_the_one_that_is_too_large_is_named(
    producers: list[Producer],
) -> None:
    """The broker refuses them all: they were one batch."""
    writing = mr.sinks.Kafka("host:1", "t").live().begin(1, 1, 0)
    producers[0].silent = True
    writing.write(rows("a", "b"), *HALVES)
    code = confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    refused = confluent_kafka.KafkaError(code, "Broker: Message size too large")
    sent = [
        confluent_kafka.Message(topic="t", key=key, value=value)
        for key, value in ((b"small", b"v"), (b"large", b"v" * 2000))
    ]
    first, second = producers[0].waiting
    producers[0].poll = lambda _: (first(refused, sent[0]), second(refused, sent[1]))  # type: ignore[method-assign]
    with pytest.raises(SinkError, match=r"message of 2000 bytes with key b'large'.*max.message"):
        writing.flush()


class Admin:
    """Tells of one topic, which takes so many bytes at once; None: nobody may know."""

    limit: int | None

    def __init__(self, config: dict[str, Any]) -> None:
        pass

    def list_topics(self, topic: str, _: float) -> Any:
        there = SimpleNamespace(error=None, partitions={0: None})
        return SimpleNamespace(topics={topic: there})

    def describe_topics(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Any]:
        def result() -> Any:
            if self.limit is None:
                raise confluent_kafka.KafkaException(REFUSED)
            return {"max.message.bytes": SimpleNamespace(value=str(self.limit))}

        return {resource: SimpleNamespace(result=result) for resource in resources}


@pytest.mark.parametrize(
    ("limit", "config", "size"),
    [
        (1_048_588, {}, None),
        (32_768, {}, 32_768),
        (None, {}, None),
        (32_768, {"batch.size": 8_192}, 8_192),
    ],
)
def test_messages_are_sent_in_batches_that_the_topic_takes(
    producers: list[Producer],
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    config: dict[str, Any],
    size: int | None,
) -> None:
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Admin)
    monkeypatch.setattr(Admin, "limit", limit, raising=False)
    sink: Any = mr.sinks.Kafka("host:1", "t", config=config)
    for _ in range(2):  # as after an update
        sink.bind(SimpleNamespace(stream="s"))
    sink.live().begin(1, 1, 0)
    assert producers[0].config.get("batch.size") == size


def test_a_producer_that_has_ended_says_why(producers: list[Producer]) -> None:
    """Its callbacks may fail with a SystemError then, beside the error."""
    fatal = confluent_kafka.KafkaError(confluent_kafka.KafkaError._FATAL, "out of order")

    def flush(_: float) -> int:
        ended = SystemError("returned a result with an exception set")
        raise ended from confluent_kafka.KafkaException(fatal)

    writing = mr.sinks.Kafka("host:1", "t").live().begin(1, 1, 0)
    writing.write(rows("a"), *HALVES)
    producers[0].flush = flush  # type: ignore[method-assign]
    with pytest.raises(SinkError, match="topic 't' did not take 1 messages: out of order"):
        writing.flush()


def test_a_key_s_partition_is_that_of_java_s_producer(producers: list[Producer]) -> None:
    mr.sinks.Kafka("host:1", "t").live().begin(1, 1, 0)
    mr.sinks.Kafka("host:1", "t", config={"partitioner": "random"}).live().begin(1, 1, 0)
    partitioners = [producer.config["partitioner"] for producer in producers]
    assert partitioners == ["murmur2_random", "random"]


def test_brokers_that_do_not_answer_before_a_mark(producers: list[Producer]) -> None:
    writing = mr.sinks.Kafka("host:1", "t").live().begin(1, 1, 0)
    producers[0].silent = True
    writing.write(rows(*"ab"), *HALVES)
    unreachable = confluent_kafka.KafkaError(confluent_kafka.KafkaError._SSL, "no certificate")
    producers[0].config["error_cb"](unreachable)
    no_answer = r"did not take 2 messages: no answer within 60 s \(no certificate\)"
    with pytest.raises(SinkError, match=no_answer):
        writing.flush()
    writing.close()
    assert producers[0].purged
