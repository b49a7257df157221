"""KafkaSink: records to a topic of Kafka, with their ids in headers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from millrace.injectors.kafka_messages import ID_HEADER, require_client
from millrace.model.errors import PipelineError


class KafkaSink:
    """Sends each record to a topic of Kafka, once at the least, always with the same id.

    A message has the record's key (as text) for its key, its timestamp, and its id in the header
    ``millrace-id``. A retried epoch sends its messages again, with the ids they had. Who reads them
    counts each once by that: a pipeline with ``mr.Kafka(..., schema="..., kafka_id string")`` and
    ``inject(id="kafka_id")``.

    Args:
        servers: ``"host:port"`` of brokers, with commas between them.
        topic: The topic; it must be there.
        encode: Makes a message's value from a record's columns; by default a JSON object, or the
            only column as it is if it is text or bytes.
        config: Further settings of librdkafka.

    Raises:
        PipelineError: ``confluent-kafka`` is not installed.
    """

    single_pass = True

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
        self._encode = encode or encode_columns
        self._config = {
            "bootstrap.servers": servers,
            # A retry of librdkafka's own must not double or reorder what it sends.
            "enable.idempotence": True,
            "allow.auto.create.topics": False,
            "linger.ms": 5,
            "log_level": 2,
            **(config or {}),
        }

    def __call__(self, rows: Any, epoch: int) -> None:
        """Send the records of an epoch, and wait until the brokers have them."""
        from pyspark.sql import functions as F  # importing millrace imports no PySpark

        send = _Send(self._config, self.topic, self._encode)
        rows.mapInArrow(send, "sent long").agg(F.sum("sent")).collect()

    def __repr__(self) -> str:
        return f"KafkaSink({self._config['bootstrap.servers']!r}, {self.topic!r})"


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


class _Send:
    """The function of the stage that sends, one call a task."""

    def __init__(
        self, config: Mapping[str, Any], topic: str, encode: Callable[[dict[str, Any]], bytes]
    ) -> None:
        self.config = config
        self.topic = topic
        self.encode = encode

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Producer

        failed: list[str] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error.str())

        producer: Any = None
        sent = 0
        for batch in batches:
            for row in batch.to_pylist():
                if producer is None:
                    producer = Producer(dict(self.config))
                key, at, record = row.pop("_key"), row.pop("_timestamp"), row.pop("_id")
                while True:
                    try:
                        producer.produce(
                            self.topic,
                            key=None if key is None else key.encode(),
                            value=self.encode(row),
                            timestamp=int(at.timestamp() * 1000),
                            headers={ID_HEADER: record.hex()},
                            on_delivery=delivered,
                        )
                        break
                    except BufferError:  # librdkafka's queue is full: let it send some
                        producer.poll(0.5)
                sent += 1
        unsent = 0 if producer is None else producer.flush(60)
        if failed or unsent:
            raise ConnectionError(
                f"KafkaSink: topic {self.topic!r} did not take {len(failed) + unsent} of {sent} "
                f"messages: {failed[0] if failed else 'no answer within a minute'}. Is the topic "
                "there? Everything committed before is safe, and the retry sends them again."
            )
        yield pa.RecordBatch.from_pydict({"sent": pa.array([sent], pa.int64())})
