"""Kafka: the records of topics, with a low watermark for each topic partition.

Millrace reads Kafka by itself and not through Spark's connector: it must know which partitions
there are before they have a record, and hold one back that is too far ahead of the others, and a
source of Spark's own does neither. (That connector's DataFrame can be injected too, see
docs/injectors.md.) It needs ``confluent-kafka``: ``pip install 'millrace[kafka]'``.

Source: MillWheel, "Injector and Low Watermark API" (5.2): pubsub service feeds.
"""

from __future__ import annotations

import datetime as dt
import importlib
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from millrace.injectors.advance import Advance
from millrace.injectors.injector import Injector
from millrace.injectors.lines import Parse, RowMaker, as_it_is, json_object
from millrace.injectors.schema import column_names
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import MILLISECOND, Instant, TimeUnit, timestamp_us

#: The header that carries a record's id, as :class:`~millrace.KafkaSink` writes it.
ID_HEADER: Final = "millrace-id"

#: What may stand in a schema besides what ``parse`` gives.
KAFKA_COLUMNS: Final = (
    "kafka_key binary, kafka_topic string, kafka_partition int, kafka_offset long, "
    "kafka_timestamp timestamp, kafka_id string"
)

_UNIX_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: How long a broker may take to answer. Spark retries a task, and not a driver's question.
_PATIENCE_S: Final = 60.0
#: How often to ask which partitions there are. They are rarely added, and a record waits so long.
_PARTITIONS_EVERY_S: Final = 2.0
#: Messages taken from librdkafka at once.
_CHUNK: Final = 10_000


class Kafka(Injector):
    """Reads topics of Kafka from their beginning, or from an instant on.

    Each partition is a process of the injector: name ``inject(low_watermark=)``, what a partition
    promises, such as ``mr.BoundedDelay("5 s")``. A partition without a record holds the low
    watermark; ``inject(idle=)`` lets it go. New partitions are found within seconds and read from
    their beginning. Offsets are in the checkpoint; no consumer group is committed to.

    Args:
        servers: ``"host:port"`` of brokers, with commas between them.
        topics: A topic's name, or several.
        schema: Columns of a row. Those that ``parse`` does not give may be ``kafka_key``,
            ``kafka_topic``, ``kafka_partition``, ``kafka_offset``, ``kafka_timestamp`` and
            ``kafka_id`` (the text of the header ``millrace-id``). By default these and ``value
            binary``.
        parse: Takes a message's value (bytes), returns the columns by name or in order; by default
            it is a JSON object, or, without a schema, left as it is.
        unit: What an integer in a ``timestamp`` column counts: ``"s"``, ``"ms"``, ``"us"`` or
            ``"ns"``. By default microseconds, and a number that is a time up to now in seconds or
            milliseconds is refused. For a column that is an integer itself: ``inject(unit=)``.
        since: Read only what was written at this instant or later.
        records_per_epoch: The most that an epoch reads of a partition.
        config: Further settings of librdkafka, such as ``{"security.protocol": "SSL"}``.

    Raises:
        PipelineError: An argument is wrong, or ``confluent-kafka`` is not installed.
    """

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str],
        *,
        schema: str | None = None,
        parse: Parse | None = None,
        unit: TimeUnit | None = None,
        since: Instant | None = None,
        records_per_epoch: int = 100_000,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        require_client()
        if records_per_epoch < 1:
            raise PipelineError(
                f"Kafka(records_per_epoch={records_per_epoch}): expected 1 or more."
            )
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        if not self.topics:
            raise PipelineError("Kafka(topics=()): expected the name of a topic, or several.")
        self.schema = f"value binary, {KAFKA_COLUMNS}" if schema is None else schema
        if parse is None:
            parse = json_object if schema is not None else as_it_is
        self._make = RowMaker(self.schema, parse, unit, "Kafka")
        self._beside = [name for name in column_names(self.schema) if name in _BESIDE]
        self._since_us = None if since is None else timestamp_us(since)
        self._records = records_per_epoch
        self._config = {
            "bootstrap.servers": servers,
            "group.id": "millrace",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "error_cb": _quiet,
            "log_level": 2,
            **(config or {}),
        }
        self._forget()

    def __repr__(self) -> str:
        return f"Kafka({self._config['bootstrap.servers']!r}, {list(self.topics)!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_consumer": None, "_admin": None, "_partitions": []}
        return state | {"_asked": float("-inf"), "_bounds": {}}

    def _forget(self) -> None:
        self._consumer: Any = None
        self._admin: Any = None
        self._partitions: list[tuple[str, int]] = []
        self._asked = float("-inf")
        self._bounds: dict[str, tuple[int, int]] = {}

    # -- in the driver -----------------------------------------------------------------------------

    def processes(self) -> Iterable[str]:
        """Return the topics' partitions, ``"topic-0"``, having asked how far each one goes."""
        if time.monotonic() - self._asked > _PARTITIONS_EVERY_S:
            self._partitions = self._list_partitions()
            self._asked = time.monotonic()
        first, last = self._list_offsets("earliest"), self._list_offsets("latest")
        both = [process for process in first if process in last]
        self._bounds = {process: (first[process], last[process]) for process in both}
        return list(self._bounds)

    def advance(self, process: str, offset: Any) -> Advance:
        """Return the end of the partition, or as far as one epoch may go."""
        first, last = self._bounds[process]
        if offset is None:
            # Where it begins is written down before anything is read: retention moves the start.
            return Advance(first if self._since_us is None else self._offset_at(process, last))
        if last < offset:
            raise InputLost(
                f"Kafka partition {process!r} was read up to offset {offset}, and ends at {last}: "
                "the topic was deleted and made again, or truncated. Start with a new checkpoint "
                "to read what is there now."
            )
        if first > offset:
            raise InputLost(
                f"Kafka partition {process!r} was read up to offset {offset}, and begins at "
                f"{first}: {first - offset} records were removed before they were read. Was the "
                "run stopped for longer than the topic's retention? Start with a new checkpoint "
                "to go on without them."
            )
        return Advance(min(last, offset + self._records))

    def split(self, process: str, start: Any, end: Any) -> Iterable[tuple[Any, Any]]:
        """Return one piece; none where a partition was only found."""
        return [] if start is None else [(start, end)]

    def _list_partitions(self) -> list[tuple[str, int]]:
        from confluent_kafka import KafkaException

        found = []
        for topic in self.topics:
            try:
                listed = self._administrator().list_topics(topic, _PATIENCE_S).topics[topic]
            except KafkaException as error:
                raise ConnectionError(
                    f"{self!r} cannot be reached: {error.args[0].str()}"
                ) from None
            if listed.error is not None or not listed.partitions:
                raise InputLost(
                    f"Kafka topic {topic!r} is not there: {listed.error}. Was it deleted? What was "
                    "read of it is safe in the checkpoint. Make it, or correct its name; to go on "
                    "with a new topic of that name, start with a new checkpoint."
                )
            found += [(topic, number) for number in listed.partitions]
        return sorted(found)

    def _list_offsets(self, which: str) -> dict[str, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        admin: Any = importlib.import_module("confluent_kafka.admin")  # it is hardly typed
        spec = getattr(admin.OffsetSpec, which)()
        wanted = {TopicPartition(*partition): spec for partition in self._partitions}
        asked = self._administrator().list_offsets(
            wanted,
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_PATIENCE_S,
        )
        found = {}
        for partition, future in asked.items():
            try:
                found[f"{partition.topic}-{partition.partition}"] = future.result().offset
            except KafkaException as error:
                if error.args[0].code() not in _passing():
                    raise ConnectionError(
                        f"{self!r}: the broker refuses topic {partition.topic!r}, partition "
                        f"{partition.partition}: {error.args[0].str()}"
                    ) from None
                # It is being made, moved, or deleted: the list of partitions will tell. Until then
                # it stays where it is, and holds the low watermark.
                self._asked = float("-inf")
        return found

    def _offset_at(self, process: str, last: int) -> int:
        from confluent_kafka import TopicPartition

        topic, _, number = process.rpartition("-")
        assert self._since_us is not None, "only asked for an instant"
        at = TopicPartition(topic, int(number), self._since_us // MILLISECOND)
        (found,) = self._client().offsets_for_times([at], timeout=_PATIENCE_S)
        return last if found.offset < 0 else int(found.offset)

    def _administrator(self) -> Any:
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            consumers = ("group.id", "enable.", "auto.", "isolation.")
            config = {k: v for k, v in self._config.items() if not k.startswith(consumers)}
            self._admin = AdminClient(config)
        return self._admin

    def _client(self) -> Any:
        if self._consumer is None:
            from confluent_kafka import Consumer

            self._consumer = Consumer(self._config)
        return self._consumer

    # -- in a worker -------------------------------------------------------------------------------

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        """Yield a row for each message between two offsets, as many at once as come together."""
        topic, _, number = process.rpartition("-")
        consumer = _consumer_for(self._config)
        for messages in _messages(consumer, topic, int(number), start, end):
            yield self._make.batch(
                [message.value() or b"" for message in messages],
                partial(_place, process, messages),
                {name: [_BESIDE[name](message) for message in messages] for name in self._beside},
            )


def _place(process: str, messages: Sequence[Any], n: int) -> str:
    return f"Kafka {process}, offset {messages[n].offset()}"


def _timestamp(message: Any) -> dt.datetime | None:
    kind, at_ms = message.timestamp()
    return _UNIX_EPOCH + dt.timedelta(milliseconds=at_ms) if kind else None


def _id(message: Any) -> str | None:
    for name, value in message.headers() or ():
        if name == ID_HEADER:
            return str(value.decode("utf-8", "replace"))
    return None


#: What may stand beside a message's value, by the column's name.
_BESIDE: Final[dict[str, Callable[[Any], Any]]] = {
    "kafka_key": operator.methodcaller("key"),
    "kafka_topic": operator.methodcaller("topic"),
    "kafka_partition": operator.methodcaller("partition"),
    "kafka_offset": operator.methodcaller("offset"),
    "kafka_timestamp": _timestamp,
    "kafka_id": _id,
}


def _passing() -> set[int]:
    """Return the errors that a partition has while it is made or moved, and when it is gone."""
    from confluent_kafka import KafkaError

    return {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }


def require_client() -> None:
    """Refuse to go on without ``confluent-kafka``.

    Raises:
        PipelineError: It is not installed.
    """
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as missing:
        raise PipelineError(
            "Kafka needs the package confluent-kafka, on the driver and the workers: "
            "pip install 'millrace[kafka]'."
        ) from missing


def _messages(
    consumer: Any, topic: str, partition: int, start: int, end: int
) -> Iterator[list[Any]]:
    """Yield the messages in a range of offsets, many at once.

    Some may be missing: aborted, or compacted away.
    """
    from confluent_kafka import KafkaError, TopicPartition

    consumer.assign([TopicPartition(topic, partition, start)])
    try:
        heard = time.monotonic()
        while True:
            some, done = list[Any](), False
            for message in consumer.consume(_CHUNK, timeout=0.5):
                heard = time.monotonic()
                error = message.error()
                if error is None:
                    if message.offset() < end:
                        some.append(message)
                    done = message.offset() >= end - 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    done = message.offset() >= end
                else:
                    raise InputLost(
                        f"Kafka partition '{topic}-{partition}' cannot be read from offset {start} "
                        f"to {end}: {error.str()}. Was the topic deleted, or were records removed "
                        "before they were read? What was read before is safe in the checkpoint."
                    )
                if done:
                    break
            if some:
                yield some
            if done:
                return
            if time.monotonic() - heard > _PATIENCE_S:
                raise TimeoutError(
                    f"Kafka partition '{topic}-{partition}' gave nothing for {_PATIENCE_S:g} s, "
                    f"though offsets {start} to {end} are there. Is its broker reachable from the "
                    "workers?"
                )
    finally:
        consumer.unassign()


#: A worker process serves many tasks, and to connect takes longer than to read a small epoch.
_CONSUMERS: dict[str, Any] = {}


def _consumer_for(config: Mapping[str, Any]) -> Any:
    from confluent_kafka import Consumer

    name = repr(sorted((key, str(value)) for key, value in config.items() if key != "error_cb"))
    if name not in _CONSUMERS:
        _CONSUMERS[name] = Consumer(dict(config))
    return _CONSUMERS[name]


def _quiet(error: Any) -> None:
    """Pass over librdkafka's notices: what matters fails a call, which says so."""
