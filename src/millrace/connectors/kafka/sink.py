"""The Kafka sink: records to a topic of Kafka, with their ids in headers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millrace.connectors.function_sink import ByEpoch, ByTurn
from millrace.connectors.kafka.messages import (
    ID_HEADER,
    BrokerErrors,
    describe_topics,
    forbidden,
    partitions_of,
    refuse_forbidden,
    require_client,
    unauthorized,
)
from millrace.model.errors import InputLost, PipelineError, SinkError, brief, brief_error
from millrace.model.time import MILLISECOND
from millrace.runtime.values import JSON_FIELD, to_json

if TYPE_CHECKING:
    from millrace.runtime.sink_contract import Binding

_log = logging.getLogger("millrace")

#: How long the brokers may take to say, before a run begins, whether the topic is there.
_START_S = 10.0
#: How long the brokers may take for what is on its way when an epoch or a mark ends.
_PATIENCE_S = 60.0
#: Bytes of messages that librdkafka sends together where nothing else is said.
_BATCH_BYTES = 1_000_000
#: The earliest time that a message can have: librdkafka takes 0 for "now".
_FIRST_MS = 1


#: Columns that a message has in its own places.
_OWN: Final = ["_key", "_timestamp", "_id"]

#: Takes a record's columns by name; returns a message's value, or None.
Encode = Callable[[dict[str, Any]], bytes | None]


class KafkaSink:
    """Sends each record to a topic of Kafka, at least once, always with the same id.

    A message has the record's timestamp in milliseconds, rounded down, and its id in the header
    ``millrace-id``. The earliest is 1 ms after the beginning of 1970, as librdkafka takes 0 for the
    time of sending. Its key is the record's: bytes as they are, text as UTF-8, and JSON of anything
    else. The key chooses the partition, the same that Java's producer chooses. The tasks send them:
    in their epoch, or, on the real-time plane, in every turn. What was
    sent since the last epoch or mark that completed is sent again after a failure, with the ids it
    had. Who reads them counts each once by that: a pipeline with ``mr.sources.Kafka(...,
    schema="..., kafka_id string")`` and ``inject(id="kafka_id")``.

    A message that is too large for the topic stops the run. The error has its key and size, and the
    settings to raise; then the run goes on with it. It is no dead letter, as its record was
    committed before it was encoded for Kafka.

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
            # As Java's producer does it: whoever joins topics by partition finds a key in one.
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,
            "log_level": 2,
            **(config or {}),
        }
        self._given = self._open = _Open(settings, topic, self.function)

    def bind(self, binding: Binding) -> None:
        """Look whether the topic is there, and may be written.

        Brokers that do not answer are left to the tasks, which wait for them.

        Raises:
            PipelineError: There is no such topic, or a setting is wrong.
            SinkError: The brokers refuse the user, or that it writes.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        errors = BrokerErrors()
        try:
            settings: dict[str, Any] = {"error_cb": errors, **self._open.config}
            admin = AdminClient(settings)
        except KafkaException as wrong:
            raise PipelineError(f"{self!r}: config= is wrong: {wrong.args[0].str()}") from None
        try:
            partitions_of(admin, repr(self), self.topic, _START_S, errors)
            for described in describe_topics(admin, [self.topic], _START_S).values():
                refuse_forbidden(described, repr(self), self.topic, "WRITE")
            self._open = self._given.in_batches_of(_largest_batch(admin, self.topic))
        except InputLost:
            if str(self._open.config["allow.auto.create.topics"]).lower() != "true":
                raise PipelineError(
                    f"{self!r}: there is no topic {self.topic!r}. Make it, or correct its name."
                ) from None
        except PermissionError:
            raise SinkError(str(forbidden(repr(self), self.topic, "WRITE"))) from None
        except ConnectionError as away:
            if errors.refusal:
                raise SinkError(str(away)) from None
            _log.warning("%s. The run begins without it.", away)

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


def _largest_batch(admin: Any, topic: str) -> int | None:
    """Return how many bytes of messages a topic takes at once; None if the brokers do not say."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        (asked,) = admin.describe_configs([resource], request_timeout=_START_S).values()
        return int(asked.result()["max.message.bytes"].value)
    except (KafkaException, KeyError):  # who writes need not be allowed to ask
        return None


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

    def in_batches_of(self, size: int | None) -> _Open:
        """Return it with batches that the topic takes, unless the user has said how large.

        The broker refuses a batch above the topic's limit with all messages in it.
        """
        if size is None or size >= _BATCH_BYTES:
            return self
        return replace(self, config={"batch.size": size, **self.config})

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
        self._refused: list[tuple[Any, dict[str, Any]]] = []
        self._refusal = KafkaException

    def take(self, rows: pa.RecordBatch) -> None:
        if self._encode is None:
            values = encode_rows(rows.drop_columns(_OWN))
        else:
            values = self._encoded(self._encode, rows)
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
        self._serve(self._producer.poll, 0)
        self._check()

    def _encoded(self, encode: Encode, rows: pa.RecordBatch) -> list[bytes | None]:
        """Return what the user's function makes of records."""
        values = list[bytes | None]()
        for n, record in enumerate(rows.drop_columns(_OWN).to_pylist()):
            try:
                value = encode(record)
                if not (value is None or isinstance(value, bytes | str)):
                    raise TypeError(f"expected bytes or None, got a {type(value).__name__}")
            except Exception as error:
                key, record_id = rows.column("_key")[n].as_py(), rows.column("_id")[n].as_py()
                raise SinkError(
                    f"sinks.Kafka: topic {self._topic!r}, the record of key {brief(key)}, id "
                    f"{record_id.hex()}: encode= fails with {brief_error(error)}. Mend it, and "
                    "start again: everything committed before is safe, and the record is sent then."
                ) from error
            values.append(value)
        return values

    def flush(self) -> None:
        unsent = self._serve(self._producer.flush, _PATIENCE_S)
        self._check(unsent or 0)

    def leave(self) -> None:
        self._producer.purge()

    def _produce(self, **message: Any) -> None:
        while True:
            try:
                self._producer.produce(self._topic, on_delivery=self._delivered, **message)
            except BufferError:  # librdkafka's queue is full: let it send some
                self._serve(self._producer.poll, 0.5)
                self._check()
            except self._refusal as refused:  # known before it is sent: no such topic, too long
                self._refused.append((refused.args[0], message))
                self._check()
            else:
                return

    def _serve(self, call: Callable[[float], Any], wait_s: float) -> Any:
        """Have librdkafka report what became of messages.

        After an error by which its producer has ended, callbacks may fail with a SystemError.
        """
        try:
            return call(wait_s)
        except (self._refusal, SystemError) as ended:
            error = ended if isinstance(ended, self._refusal) else ended.__cause__
            if not isinstance(error, self._refusal):
                raise
            self._refused.insert(0, (error.args[0], {}))
            return None

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            return
        self._refused.append((error, {"key": message.key(), "value": message.value()}))

    def _check(self, unsent: int = 0) -> None:
        from confluent_kafka import KafkaError

        if not self._refused and not unsent:
            return
        count = len(self._refused) + unsent
        error, message = self._refused[0] if self._refused else (None, {})
        code = None if error is None else error.code()
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            # With it the broker refuses all messages that were sent together.
            refused = [message for error, message in self._refused if error.code() == code]
            message = max(refused, key=lambda message: len(message.get("value") or b""))
            size = len(message.get("value") or b"")
            raise SinkError(
                f"sinks.Kafka: topic {self._topic!r} does not take a message of {size} bytes with "
                f"key {brief(message.get('key'))}. Raise the topic's max.message.bytes and "
                'config={"message.max.bytes": ...}, or give encode= that makes it smaller. Until '
                "then the run cannot go on. Everything committed before is safe."
            )
        if code in unauthorized():
            raise SinkError(str(forbidden("sinks.Kafka", self._topic, "WRITE")))
        if error is None:
            reason = self._errors.explain(f"no answer within {_PATIENCE_S:g} s")
        elif code == KafkaError._FATAL:
            reason = self._errors.explain(error.str())
        else:
            reason = error.str()
        raise SinkError(
            f"sinks.Kafka: topic {self._topic!r} did not take {count} messages: {reason}. Is the "
            "topic there, and are the brokers up? Everything committed before is safe; what the "
            "topic did not take is sent when the epoch is tried again."
        )
