"""Users with a password and few permissions: what is enough, and what is said of too little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.model.errors import PipelineError, SinkError
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns

Z = np.array([0])


def _user(name: str, password: str | None = None) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": name,
        "sasl.password": password or f"{name}'s word",
    }


def _source(kafka: Any, topic: str, user: str) -> mr.sources.Kafka:
    return mr.sources.Kafka(kafka.secured(), topic, schema="n long", config=_user(user))


def _sink(kafka: Any, topic: str, user: str, **config: Any) -> mr.sinks.Kafka:
    return mr.sinks.Kafka(kafka.secured(), topic, config=_user(user) | config)


def _row() -> pa.RecordBatch:
    at = pa.array([mr.SECOND], pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_pydict(
        {"value": ["v"], "_key": ["k"], "_timestamp": at, "_id": [bytes(16)]}
    )


def _bind(sink: Any) -> None:
    sink.bind(Binding("p", "s", "owner", SinkColumns(str, None)))


def test_to_read_takes_the_topic_alone(kafka: Any) -> None:
    """No consumer group, which a client asks for all the same."""
    topic = kafka.topic("in.only_read", 1)
    kafka.send(topic, 0, *[b'{"n": %d}' % n for n in range(3)])
    kafka.permit("reader", "READ", topic)
    source = _source(kafka, topic, "reader")
    (process,) = source.processes()
    assert [n for (n,) in source.read(process, 0, source.advance(process, 0).offset)] == [0, 1, 2]

    follower, taken = source.follow({process: 0}), list[int]()
    try:
        for _ in range(20):  # the group is refused within a second, beside the messages
            taken += [n for one in follower.take(0.1) for n in one.rows.column("n").to_pylist()]
    finally:
        follower.close()
    assert taken == [0, 1, 2]


def test_who_may_not_read_is_told_of_the_topic_before_anything_is_read(kafka: Any) -> None:
    topic = kafka.topic("not-read", 1)
    with pytest.raises(PermissionError, match=r"user of config= to READ topic 'not-read'"):
        _source(kafka, topic, "nobody").processes()
    kafka.permit("nobody", "DESCRIBE", topic)
    with pytest.raises(PermissionError, match=r"user of config= to READ topic 'not-read'"):
        _source(kafka, topic, "nobody").processes()


def test_a_sink_is_told_at_its_start_what_it_may_not_write(kafka: Any) -> None:
    topic = kafka.topic("written", 1)
    with pytest.raises(SinkError, match="user of config= to WRITE topic 'written'"):
        _bind(_sink(kafka, topic, "nobody"))
    kafka.permit("writer", "DESCRIBE", topic)
    with pytest.raises(SinkError, match="user of config= to WRITE topic 'written'"):
        _bind(_sink(kafka, topic, "writer"))
    # Later too, where a permission is taken away: without one the client has no producer's id.
    writing = _sink(kafka, topic, "writer").live().begin(1, 1, 0)

    def write() -> None:
        for _ in range(2):
            writing.write(_row(), Z, Z)
            writing.flush()

    with pytest.raises(SinkError, match=r"WRITE topic 'written'|did not take 1 messages"):
        write()
    writing.close()

    kafka.permit("writer", "WRITE", topic)
    _bind(_sink(kafka, topic, "writer"))
    writing = _sink(kafka, topic, "writer").live().begin(1, 1, 0)
    writing.write(_row(), Z, Z)
    writing.flush()
    writing.close()
    assert len(kafka.messages(topic, 1)) == 1


def test_a_sink_without_a_topic_or_with_a_wrong_setting_does_not_start(kafka: Any) -> None:
    with pytest.raises(PipelineError, match="there is no topic 'nix'"):
        _bind(mr.sinks.Kafka(kafka.servers, "nix"))
    with pytest.raises(PipelineError, match=r"config= is wrong: .*nonsense"):
        _bind(mr.sinks.Kafka(kafka.servers, "nix", config={"nonsense": 1}))
    with pytest.raises(PipelineError, match=r"config= is wrong: .*nonsense"):
        mr.sources.Kafka(kafka.servers, "nix", config={"nonsense": 1}).processes()


def test_a_wrong_password_is_no_broker_that_is_away(
    kafka: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millrace.connectors.kafka.sink._START_S", 2.0)
    topic = kafka.topic("password", 1)
    with pytest.raises(SinkError, match=r"cannot be reached: .*SASL authentication error") as said:
        _bind(_sink(kafka, topic, "writer", **{"sasl.password": "hunter2"}))
    assert "hunter2" not in str(said.value)
    # One that is just away is waited for, by who writes.
    away = mr.sinks.Kafka("127.0.0.1:1", topic)
    _bind(away)
    assert "The run begins without it" in caplog.text


def test_a_message_that_is_too_large_is_named(kafka: Any) -> None:
    topic = kafka.topic("small", 1)
    at = pa.array([mr.SECOND], pa.timestamp("us", tz="UTC"))
    row = {"value": ["v" * 2_000_000], "_key": ["k"], "_timestamp": at, "_id": [bytes(16)]}
    rows = pa.RecordBatch.from_pydict(row)
    for most in (1_000_000, 5_000_000):  # the client refuses it, and the broker
        config = {"message.max.bytes": most}
        writing = mr.sinks.Kafka(kafka.servers, topic, config=config).live().begin(1, 1, 0)

        def write(writing: Any = writing) -> None:
            writing.write(rows, Z, Z)
            writing.flush()

        with pytest.raises(SinkError, match=r"a message of 2000000 bytes with key b?'k'.*max.mess"):
            write()
        writing.close()
