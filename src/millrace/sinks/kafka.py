"""KafkaSink: records to a topic of Kafka, with their ids in headers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from millrace.injectors.kafka_messages import ID_HEADER, require_client
from millrace.model.errors import PipelineError, SinkError
from millrace.sinks.taking import ByEpoch, ByTurn

#: How long the brokers may take for what is on its way when an epoch or a mark ends.
_PATIENCE_S = 60.0


class KafkaSink:
    """Sends each record to a topic of Kafka, once at the least, always with the same id.

    A message has the record's key (as text) for its key, its timestamp, and its id in the header
    ``millrace-id``. The tasks send them: in their epoch, or, on the real-time plane, in every turn.
    What was sent since the last epoch or mark that completed is sent again after a failure, with
    the ids it had. Who reads them counts each once by that: a pipeline with ``mr.Kafka(...,
    schema="..., kafka_id string")`` and ``inject(id="kafka_id")``.

    Args:
        servers: ``"host:port"`` of brokers, with commas between them.
        topic: The topic; it must be there.
        encode: Makes a message's value from a record's columns; by default a JSON object, or the
            only column as it is if it is text or bytes.
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
        encode: Callable[[dict[str, Any]], bytes] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        require_client()
        if not topic:
            raise PipelineError("KafkaSink(topic=''): expected the name of a topic.")
        self.topic = topic
        self.function = encode or encode_columns
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
        return ByEpoch(self._open.lingering(5))

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Do nothing: what was sent is seen."""

    def live(self) -> ByTurn:
        """Return what tasks send with in every turn."""
        return ByTurn(self._open.lingering(0))

    def __repr__(self) -> str:
        return f"KafkaSink({self._open.config['bootstrap.servers']!r}, {self.topic!r})"


def encode_columns(columns: dict[str, Any]) -> bytes:
    """Return a message's value: JSON, or the only column if it is text or bytes.

    >>> encode_columns({"query": "tea", "count": 2}), encode_columns({"value": "tea"})
    (b'{"query":"tea","count":2}', b'tea')
    """
    if list(columns) == ["value"]:
        value = columns["value"]
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
    return msgspec.json.encode(columns)


@dataclass(frozen=True)
class _Open:
    """Makes a task's producer."""

    # A password may be among the settings, and what tasks are given is shown where it fails.
    config: Mapping[str, Any] = field(repr=False)
    topic: str
    encode: Callable[[dict[str, Any]], bytes]

    def lingering(self, ms: int) -> _Open:
        """Return it with a time that messages wait for others, unless the user has said one."""
        return replace(self, config={"linger.ms": ms, **self.config})

    def __call__(self) -> _Messages:
        from confluent_kafka import Producer

        return _Messages(Producer(dict(self.config)), self.topic, self.encode)


class _Messages:
    """A task's messages to a topic."""

    def __init__(
        self, producer: Any, topic: str, encode: Callable[[dict[str, Any]], bytes]
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._encode = encode
        self._refused: list[str] = []

    def take(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            key, at, record = row.pop("_key"), row.pop("_timestamp"), row.pop("_id")
            self._produce(
                key=None if key is None else key.encode(),
                value=self._encode(row),
                timestamp=int(at.timestamp() * 1000),
                headers={ID_HEADER: record.hex()},
            )
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
            else:
                return

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._refused.append(error.str())

    def _check(self, unsent: int = 0) -> None:
        if not self._refused and not unsent:
            return
        said = self._refused[0] if self._refused else f"no answer within {_PATIENCE_S:g} s"
        raise SinkError(
            f"KafkaSink: topic {self._topic!r} did not take {len(self._refused) + unsent} "
            f"messages: {said}. Is the topic there, and are the brokers up? Everything committed "
            "before is safe; what the topic did not take is sent when the epoch is tried again."
        )
