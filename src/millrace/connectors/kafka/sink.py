"""The Kafka sink: records to a topic of Kafka, with their ids in headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millrace.connectors.function_sink import ByEpoch, ByTurn
from millrace.connectors.kafka.messages import ID_HEADER, BrokerErrors, require_client
from millrace.model.errors import PipelineError, SinkError
from millrace.model.time import MILLISECOND
from millrace.runtime.values import JSON_FIELD, to_json

#: How long the brokers may take for what is on its way when an epoch or a mark ends.
_PATIENCE_S = 60.0
#: The earliest time that a message can have: librdkafka takes 0 for "now".
_FIRST_MS = 1


#: Takes a record's columns by name; returns a message's value, or None.
Encode = Callable[[dict[str, Any]], bytes | None]


class KafkaSink:
    """Sends each record to a topic of Kafka, at least once, always with the same id.

    A message has the record's timestamp in milliseconds, rounded down, and its id in the header
    ``millrace-id``. The earliest is 1 ms after the beginning of 1970, as librdkafka takes 0 for the
    time of sending. Its key is the record's: bytes as they are, text as UTF-8, and JSON of anything
    else. The tasks send them: in their epoch, or, on the real-time plane, in every turn. What was
    sent since the last epoch or mark that completed is sent again after a failure, with the ids it
    had. Who reads them counts each once by that: a pipeline with ``mr.sources.Kafka(...,
    schema="..., kafka_id string")`` and ``inject(id="kafka_id")``.

    Args:
        servers: ``"host:port"`` of brokers, with commas between them.
        topic: The topic; it must be there.
        encode: Makes a message's value from a record's columns; None, a null message, deletes a key
            of a compacted topic. By default a stream of ``str`` or ``bytes`` is sent as it is, its
            None as a null message. All else is a JSON object: bytes as base64, times as ISO 8601, a
            Decimal as text, NaN and the infinities as ``"NaN"``, ``"Infinity"`` and
            ``"-Infinity"``. With a function, columns without a type of Spark's own are JSON text.
        config: Further settings of librdkafka. Where ``linger.ms`` is not among them, it is 5 by
            epoch, and 0 in turns.

    Raises:
        PipelineError: ``confluent-kafka`` is not installed.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        encode: Encode | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        require_client()
        if not topic:
            raise PipelineError("sinks.Kafka(topic=''): expected the name of a topic.")
        self.topic = topic
        self.function = encode
        settings = {
            "bootstrap.servers": servers,
            # A retry of librdkafka's own must not double or reorder what it sends.
            "enable.idempotence": True,
            "allow.auto.create.topics": False,
            "log_level": 2,
            **(config or {}),
        }
        self._open = _Open(settings, topic, self.function)

    def for_tasks(self) -> ByEpoch:
        """Return what the tasks of an epoch send with."""
        return ByEpoch(self._open.lingering(5), key_type=bytes)

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Do nothing: what was sent is seen."""

    def live(self) -> ByTurn:
        """Return what tasks send with in every turn."""
        return ByTurn(self._open.lingering(0), key_type=bytes)

    def __repr__(self) -> str:
        return f"sinks.Kafka({self._open.config['bootstrap.servers']!r}, {self.topic!r})"


def encode_rows(rows: pa.RecordBatch) -> list[bytes | None]:
    """Return the values of messages: JSON objects, or the only column if it is text or bytes.

    >>> encode_rows(pa.RecordBatch.from_pydict({"query": ["tea"], "count": [2]}))
    [b'{"query":"tea","count":2}']
    >>> encode_rows(pa.RecordBatch.from_pydict({"value": ["tea", "", None]}))
    [b'tea', b'', None]
    """
    json = [rows.schema.field(name).metadata == JSON_FIELD for name in rows.schema.names]
    if rows.schema.names == ["value"] and not json[0]:
        kind = rows.schema.field("value").type
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            return rows.column("value").cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
    columns = [
        [
            None if text is None else msgspec.Raw(text)
            for text in column.cast(pa.binary()).to_pylist()
        ]
        if is_json
        else column.to_pylist()
        for column, is_json in zip(rows.columns, json, strict=True)
    ]
    return [
        to_json(dict(zip(rows.schema.names, row, strict=True)))
        for row in zip(*columns, strict=True)
    ]


@dataclass(frozen=True)
class _Open:
    """Makes a task's producer."""

    # A password may be among the settings, and what tasks are given is shown where it fails.
    config: Mapping[str, Any] = field(repr=False)
    topic: str
    encode: Encode | None

    def lingering(self, ms: int) -> _Open:
        """Return it with a time that messages wait for others, unless the user has said one."""
        return replace(self, config={"linger.ms": ms, **self.config})

    def __call__(self) -> _Messages:
        from confluent_kafka import Producer

        errors = BrokerErrors()
        producer = Producer({"error_cb": errors, **self.config})
        return _Messages(producer, self.topic, self.encode, errors)


class _Messages:
    """A task's messages to a topic."""

    def __init__(
        self, producer: Any, topic: str, encode: Encode | None, errors: BrokerErrors
    ) -> None:
        from confluent_kafka import KafkaException

        self._producer = producer
        self._topic = topic
        self._encode = encode
        self._errors = errors
        self._refused: list[str] = []
        self._refusal = KafkaException

    def take(self, rows: pa.RecordBatch) -> None:
        columns = rows.drop_columns(["_key", "_timestamp", "_id"])
        encode = self._encode
        values = encode_rows(columns) if encode is None else map(encode, columns.to_pylist())
        at_us = rows.column("_timestamp").cast(pa.int64()).to_numpy()
        for key, value, at_ms, record in zip(
            rows.column("_key").to_pylist(),
            values,
            np.maximum(at_us // MILLISECOND, _FIRST_MS).tolist(),
            rows.column("_id").to_pylist(),
            strict=True,
        ):
            headers = {ID_HEADER: record.hex()}
            self._produce(key=key, value=value, timestamp=at_ms, headers=headers)
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        unsent = self._producer.flush(_PATIENCE_S)
        self._check(unsent)

    def leave(self) -> None:
        self._producer.purge()

    def _produce(self, **message: Any) -> None:
        while True:
            try:
                self._producer.produce(self._topic, on_delivery=self._delivered, **message)
            except BufferError:  # librdkafka's queue is full: let it send some
                self._producer.poll(0.5)
                self._check()
            except self._refusal as refused:  # known before it is sent: no such topic, too long
                self._delivered(refused.args[0], None)
                self._check()
            else:
                return

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._refused.append(error.str())

    def _check(self, unsent: int = 0) -> None:
        if not self._refused and not unsent:
            return
        no_answer = self._errors.explain(f"no answer within {_PATIENCE_S:g} s")
        said = self._refused[0] if self._refused else no_answer
        raise SinkError(
            f"sinks.Kafka: topic {self._topic!r} did not take {len(self._refused) + unsent} "
            f"messages: {said}. Is the topic there, and are the brokers up? Everything committed "
            "before is safe; what the topic did not take is sent when the epoch is tried again."
        )
