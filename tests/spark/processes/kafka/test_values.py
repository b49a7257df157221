"""Nulls, bytes, headers, gaps and values of all types through a broker, read on both planes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import confluent_kafka
import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Producer

import millrace as mr
from millrace.connectors.kafka import messages
from millrace.model.keys import encode_key
from millrace.runtime.sink_writer import key_bytes
from millrace.runtime.values import SinkColumns

HEADERS = [("a", b"1"), ("a", b"\xff"), ("b", None), ("c", b""), ("millrace-id", b"\xff\x00")]


class Line(msgspec.Struct):
    number: int
    mean: float
    data: bytes
    at: dt.datetime
    maybe: float | None
    means: list[float]


NAN = float("nan")
BEFORE_1970 = dt.datetime(1907, 5, 4, 3, 2, 1, 123_456, dt.UTC)
LINES = [
    Line(-(1 << 63), NAN, bytes(range(256)), BEFORE_1970, None, [NAN, -0.0]),
    Line((1 << 63) - 1, float("-inf"), b"", BEFORE_1970, float("inf"), []),
]


def poll(source: mr.sources.Kafka) -> list[dict[str, Any]]:
    """Return the rows of the only partition: epoch by epoch, and followed; both must agree."""
    (process,) = source.processes()
    first, end = (advance.offset for advance in source.until_now(process))
    rows = [row for batch in source.read_arrow(process, first, end) for row in batch.to_pylist()]
    follower = source.follow({process: first})
    try:
        live = list[dict[str, Any]]()
        for _ in range(60):
            live += [row for taken in follower.take(1) for row in taken.rows.to_pylist()]
            if len(live) >= len(rows):
                break
        assert repr(live) == repr(rows)
    finally:
        follower.close()
    return rows


def send(kafka: Any, topic: str, messages: Sequence[dict[str, Any]]) -> None:
    producer = Producer(kafka.client)
    for message in messages:
        producer.produce(topic, partition=0, **message)
    assert producer.flush(30) == 0


def test_a_message_arrives_as_what_it_is(kafka: Any) -> None:
    topic = kafka.topic("what-it-is", 1)
    send(
        kafka,
        topic,
        [
            {"value": None, "key": b"\xff"},
            {"value": b"", "key": None},
            {"value": b"\xff", "key": b"", "headers": HEADERS, "timestamp": 5},
        ],
    )
    rows = poll(mr.sources.Kafka(kafka.servers, topic))

    assert [(row["value"], row["kafka_key"], row["kafka_id"]) for row in rows] == [
        (None, b"\xff", None),
        (b"", None, None),
        (b"\xff", b"", b"\xff\x00"),
    ]
    assert [[tuple(pair.values()) for pair in row["kafka_headers"]] for row in rows] == [
        [],
        [],
        HEADERS,
    ]
    assert rows[2]["kafka_timestamp"] == dt.datetime(1970, 1, 1, 0, 0, 0, 5000, dt.UTC)


def test_a_tombstone_among_json_is_nulls(kafka: Any) -> None:
    topic = kafka.topic("tombstones", 1)
    send(kafka, topic, [{"value": b'{"n": 1}', "key": b"a"}, {"value": None, "key": b"a"}])
    schema = "n long, kafka_key string, kafka_tombstone boolean"

    assert poll(mr.sources.Kafka(kafka.servers, topic, schema=schema)) == [
        {"n": 1, "kafka_key": "a", "kafka_tombstone": False},
        {"n": None, "kafka_key": "a", "kafka_tombstone": True},
    ]


def test_a_tombstone_is_a_dead_letter_where_its_format_has_no_null(kafka: Any) -> None:
    topic = kafka.topic("letters", 1)
    send(kafka, topic, [{"value": b'{"n": 1}'}, {"value": None}, {"value": b'{"n": 3}'}])
    p = mr.Pipeline("letters")
    source = mr.sources.Kafka(kafka.servers, topic, schema="n long, kafka_timestamp timestamp")
    p.inject("numbers", source, timestamp="kafka_timestamp", format=int)
    p.dead_letter("letters")
    p.sink("numbers", mr.sinks.Memory())
    with mr.testing.Harness(p) as h:
        h.poll("numbers")
        h.poll("numbers")

        assert [out.value for out in h.outputs("numbers")] == [1, 3]
        assert ["null" in out.value.reason for out in h.outputs("letters")] == [True]


def test_tombstones_that_are_dropped_are_counted(kafka: Any) -> None:
    topic = kafka.topic("dropped", 1)
    send(kafka, topic, [{"value": b'{"n": 1}'}, {"value": None}, {"value": b'{"n": 3}'}])
    p = mr.Pipeline("dropped")
    schema = "n long, kafka_timestamp timestamp"
    source = mr.sources.Kafka(kafka.servers, topic, schema=schema, tombstones="drop")
    p.inject("numbers", source, timestamp="kafka_timestamp", format=int)
    p.sink("numbers", mr.sinks.Memory())
    with mr.testing.Harness(p) as h:
        h.poll("numbers")
        h.poll("numbers")

        assert [out.value for out in h.outputs("numbers")] == [1, 3]
        assert h.checkpoint().overview.streams["numbers"].dropped == 1


def test_what_the_sink_sends_is_read_back(kafka: Any) -> None:
    topic = kafka.topic("read-back", 1)
    coder, keys = mr.coders.Msgpack(Line), [b"\xff\x00", "né🦀"]
    records = SinkColumns(Line, coder, bytes).array(
        [coder.encode(line) for line in LINES],
        key_bytes([encode_key(key) for key in keys]),
        pa.array([0, 2_999], pa.int64()),
        pa.array([bytes(16), bytes(range(16))]),
    )
    writing = mr.sinks.Kafka(kafka.servers, topic).for_tasks().begin(1, 0)
    writing.write(pa.RecordBatch.from_struct_array(records))
    writing.close()
    schema = (
        "number long, mean double, data binary, at timestamp, maybe double, means array<double>, "
        "kafka_key binary, kafka_id string, kafka_timestamp timestamp"
    )
    rows = poll(mr.sources.Kafka(kafka.servers, topic, schema=schema))

    got = [msgspec.convert(row, Line) for row in rows]
    assert repr(msgspec.to_builtins(got)) == repr(msgspec.to_builtins(LINES))
    assert [row["kafka_key"] for row in rows] == [b"\xff\x00", "né🦀".encode()]
    assert [row["kafka_id"] for row in rows] == [bytes(16).hex(), bytes(range(16)).hex()]
    assert [row["kafka_timestamp"].microsecond for row in rows] == [1_000, 2_000]


class Forwards(mr.Computation):
    """Sends on what it gets, by the key that it came with."""

    inputs = {"messages": mr.by("kafka_key")}
    outputs = {"sent": bytes | None}

    def process_record(self, record: mr.Record) -> None:
        self.produce("sent", record.value["value"])


@pytest.mark.parametrize("plane", ["batch", "epochs"])
def test_keys_and_tombstones_pass_a_pipeline_as_they_came(
    kafka: Any, spark: Any, tools: Any, plane: str
) -> None:
    source, target = kafka.topic(f"from-{plane}", 1), kafka.topic(f"to-{plane}", 1)
    messages = [(b"\xff", b"\xff"), (b"", None), (b"tea", b""), (b"tea", None)]
    send(kafka, source, [{"key": key, "value": value} for key, value in messages])
    p = mr.Pipeline("forwards")
    p.inject("messages", mr.sources.Kafka(kafka.servers, source), timestamp="kafka_timestamp")
    p.add(Forwards)
    p.sink("sent", mr.sinks.Kafka(kafka.servers, target))
    if plane == "batch":
        p.run_batch(spark)
    else:
        tools.finish(tools.start(p))
    sent = [(message.key(), message.value()) for message in kafka.messages(target, 1)]

    assert sorted(sent, key=repr) == sorted(messages, key=repr)
    assert [value for key, value in sent if key == b"tea"] == [b"", None]


def test_log_append_time_and_the_gaps_of_transactions(kafka: Any) -> None:
    topic = "appended"
    new = confluent_kafka.admin.NewTopic(
        topic, 1, 1, config={"message.timestamp.type": "LogAppendTime"}
    )
    for made in kafka.admin.create_topics([new]).values():
        made.result(30)
    kafka.transact(topic, 0, b"a", b"b", commit=True)
    kafka.transact(topic, 0, b"gone", commit=False)
    kafka.transact(topic, 0, b"c", commit=True)
    rows = poll(mr.sources.Kafka(kafka.servers, topic))

    assert [(row["value"], row["kafka_offset"]) for row in rows] == [
        (b"a", 0),
        (b"b", 1),
        (b"c", 5),
    ]
    assert all(row["kafka_timestamp"].year > 2020 for row in rows)


def test_who_read_at_the_same_time_in_one_process_get_their_own_messages(
    kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_CHUNK", 7)
    wanted, readings = dict[str, list[bytes]](), dict[str, Any]()
    for topic in ("values-tea", "values-milk"):
        kafka.topic(topic, 1)
        wanted[topic] = [f"{topic} {n}".encode() for n in range(80)]
        kafka.send(topic, 0, *wanted[topic])
        readings[topic] = mr.sources.Kafka(kafka.servers, topic).read_arrow(f"{topic}-0", 0, 80)
    given_up = mr.sources.Kafka(kafka.servers, "values-tea").read_arrow("values-tea-0", 0, 80)
    next(given_up)

    found = dict[str, list[bytes]]((topic, []) for topic in wanted)
    for both in zip(*readings.values(), strict=True):
        given_up.close()
        for topic, batch in zip(wanted, both, strict=True):
            found[topic] += batch.column("value").to_pylist()

    assert found == wanted
