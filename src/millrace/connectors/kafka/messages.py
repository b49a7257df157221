"""Messages of Kafka: which there are between two offsets, and rows of them, many at once."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.connectors.files.lines import Parse, RowMaker, as_it_is, json_object
from millrace.injectors.columns import arrow_schema
from millrace.injectors.injector import Origin
from millrace.injectors.refusals import Refusal, with_refusals
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import MILLISECOND, TimeUnit

#: The header that carries a record's id, as :class:`~millrace.sinks.Kafka` writes it.
ID_HEADER: Final = "millrace-id"

#: What a row has besides the value where no schema is declared.
KAFKA_COLUMNS: Final = (
    "kafka_key binary, kafka_topic string, kafka_partition int, kafka_offset long, "
    "kafka_timestamp timestamp, kafka_id binary, "
    "kafka_headers array<struct<key: string, value: binary>>"
)

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

#: The timestamp of a message whose producer gave none (Kafka's ``NO_TIMESTAMP``).
_NO_TIMESTAMP: Final = -1

#: How long a broker may take to answer. Spark retries a task, and not a driver's question.
PATIENCE_S: Final = 60.0

#: Messages taken from librdkafka at once.
_CHUNK: Final = 10_000


def _timestamp(message: Any) -> int | None:
    kind, at_ms = message.timestamp()
    # A message of an old format has no kind; one of a newer format may have a kind and no time.
    return at_ms * MILLISECOND if kind and at_ms != _NO_TIMESTAMP else None


#: Of a message, names and values.
Headers = Sequence[tuple[str, bytes | None]]


def _read_headers(message: Any) -> Headers | None:
    """Return a message's headers; None if the name of one is not UTF-8.

    It must not be asked for them again then: confluent-kafka has a null pointer in their place.
    """
    try:
        headers: Headers | None = message.headers()
    except (SystemError, UnicodeDecodeError):
        return None
    return headers or ()


def _id(headers: Headers) -> bytes | None:
    # The last one counts, as in Kafka's Headers.lastHeader: who forwards a message appends.
    return next((value for name, value in reversed(headers) if name == ID_HEADER), None)


def _header_column(each: Sequence[Headers]) -> pa.Array:
    ends = np.cumsum([0, *map(len, each)], dtype=np.int32)
    pairs = list(itertools.chain.from_iterable(each))
    names = pa.array([name for name, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    pairs = pa.StructArray.from_arrays([names, values], fields=list(_HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=_HEADERS)


def _is_tombstone(message: Any) -> bool:
    return message.value() is None


#: What a schema may name besides the columns of a message's value, by the column's name.
_BESIDE: Final[dict[str, Callable[[Any], Any]]] = {
    "kafka_key": operator.methodcaller("key"),
    "kafka_topic": operator.methodcaller("topic"),
    "kafka_partition": operator.methodcaller("partition"),
    "kafka_offset": operator.methodcaller("offset"),
    "kafka_timestamp": _timestamp,
    "kafka_tombstone": _is_tombstone,
}


class MessageRows:
    """Makes rows of messages.

    Args:
        schema: As Spark writes it; None: the message as it is, and all that is known of it.
        parse: What is in a value; None: a JSON object, or, without a schema, bytes.
        unit: What an integer in a ``timestamp`` column counts.

        drops: Whether tombstones are dropped, and only counted.

    Attributes:
        schema: As Spark writes it.
    """

    def __init__(
        self,
        schema: str | None,
        parse: Parse | None,
        unit: TimeUnit | None,
        *,
        drops: bool = False,
    ) -> None:
        self._drops = drops
        if parse is None:
            parse = as_it_is if schema is None else json_object
        self.schema = f"value binary, {KAFKA_COLUMNS}" if schema is None else schema
        self._make = RowMaker(self.schema, parse, unit, "Kafka")
        columns = arrow_schema(self.schema)
        self._beside = [name for name in columns.names if name in _BESIDE]
        self._from_headers = {"kafka_id", "kafka_headers"}.intersection(columns.names)
        self._texts = [
            name
            for name in (*self._beside, *self._from_headers)
            if columns.field(name).type == pa.string()
        ]
        if "kafka_headers" in columns.names and columns.field("kafka_headers").type != _HEADERS:
            raise PipelineError(
                f"Kafka(schema={self.schema!r}): kafka_headers is "
                f"{columns.field('kafka_headers').type}. Expected array<struct<key: string, "
                "value: binary>>: a name may come more than once, and a value may be null."
            )

    def origins(self, process: str, messages: Sequence[Any]) -> Iterator[Origin]:
        """Yield what the rows of messages of a partition were."""
        rows = self.batch(process, messages)
        for n, message in enumerate(messages):
            place = _place(process, messages, n)
            yield Origin(message.offset(), place, message.value(), message.key(), rows.slice(n, 1))

    def batch(self, process: str, messages: Sequence[Any]) -> pa.RecordBatch:
        """Return a row for each message of a partition, whose process is named for refusals.

        A tombstone (a message whose value is null) has null in every column of the value, if
        tombstones are kept.
        """
        beside: dict[str, Any] = {name: list(map(_BESIDE[name], messages)) for name in self._beside}
        unnamed = set[int]()
        if self._from_headers:
            headers = list(map(_read_headers, messages))
            unnamed = {n for n, pairs in enumerate(headers) if pairs is None}
            known = [pairs or () for pairs in headers]
            if "kafka_id" in self._from_headers:
                beside["kafka_id"] = list(map(_id, known))
            if "kafka_headers" in self._from_headers:
                beside["kafka_headers"] = _header_column(known)
        for name in self._texts:
            # Bytes that are not UTF-8 stay what they are, and are refused where they are met.
            with suppress(pa.ArrowInvalid):
                beside[name] = pa.array(beside[name], pa.string())
        values = [message.value() for message in messages]
        place = partial(_place, process, messages)
        lines = values
        if unnamed:
            lines = [None if n in unnamed else value for n, value in enumerate(values)]
        batch = self._make.batch(lines, place, beside, lambda n: messages[n].key())
        refusals = {
            n: Refusal.of_bytes(
                "the name of a header is not UTF-8", place(n), values[n], messages[n].key()
            )
            for n in unnamed
        }
        if self._drops and None in values:
            dropped = Refusal("it is a tombstone", dropped=True)
            refusals |= {n: dropped for n, value in enumerate(values) if value is None}
        return with_refusals(batch, refusals)


def _place(process: str, messages: Sequence[Any], n: int) -> str:
    topic, _, partition = process.rpartition("-")
    return f"topic {topic!r}, partition {partition}, offset {messages[n].offset()}"


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
            "pip install 'millrace-spark[kafka]'."
        ) from missing


def partitions_of(
    client: Any, who: str, topic: str, patience_s: float, errors: BrokerErrors | None = None
) -> list[int]:
    """Return the numbers of a topic's partitions.

    Args:
        client: A consumer, or an administrator.
        who: Asks, for messages.
        topic: Its name.
        patience_s: How long the broker may take to answer.
        errors: Where an administrator's errors are reported.

    Raises:
        InputLost: There is no such topic.
        ConnectionError: No broker answers.
        PermissionError: The user may not read it.
    """
    from confluent_kafka import KafkaException

    try:
        listed = client.list_topics(topic, patience_s).topics[topic]
    except KafkaException as error:
        why = error.args[0].str()
        if errors is not None:
            client.poll(0)  # it reports what went wrong
            why = errors.explain(why)
        raise ConnectionError(f"{who} cannot be reached: {why}") from None
    if errors is not None:
        errors.clear()
    if listed.error is not None and listed.error.code() in unauthorized():
        raise forbidden(who, topic, "READ")
    if listed.error is not None or not listed.partitions:
        raise InputLost(
            f"Kafka topic {topic!r} is not there: {listed.error}. Was it deleted? What was read of "
            "it is safe in the checkpoint. Make it, or correct its name; to go on with a new topic "
            "of that name, start with a new checkpoint."
        )
    return sorted(listed.partitions)


#: What a broker before 2.8 tells, which knows no ids: zero, in base64.
_NO_ID: Final = "A" * 22


def topic_ids(admin: Any, who: str, topics: Sequence[str], patience_s: float) -> dict[str, str]:
    """Return topic -> the id that it was given when it was made; none where the broker tells none.

    Args:
        admin: An administrator.
        who: Asks, for messages.
        topics: Their names.
        patience_s: How long the broker may take to answer.

    Raises:
        PermissionError: The user may not read one.
    """
    ids = {}
    for topic, described in describe_topics(admin, topics, patience_s).items():
        refuse_forbidden(described, who, topic, "READ")
        if (id := str(described.topic_id)) != _NO_ID:
            ids[topic] = id
    return ids


def describe_topics(admin: Any, topics: Sequence[str], patience_s: float) -> dict[str, Any]:
    """Return topic -> its description, with what the user may do; not of those that have none.

    Who lists the partitions of a topic, or writes to it, learns why it has none.
    """
    from confluent_kafka import KafkaException, TopicCollection

    asked = admin.describe_topics(
        TopicCollection(list(topics)),
        include_authorized_operations=True,
        request_timeout=patience_s,
    )
    descriptions = {}
    for topic, future in asked.items():
        with suppress(KafkaException):
            descriptions[topic] = future.result()
    return descriptions


def refuse_forbidden(described: Any, who: str, topic: str, operation: str) -> None:
    """Refuse a user who may not do something with a topic, if the brokers tell what it may do.

    Raises:
        PermissionError: It may not.
    """
    permitted = {allowed.name for allowed in described.authorized_operations or ()}
    if permitted and permitted.isdisjoint({operation, "ALL", "ANY"}):
        raise forbidden(who, topic, operation)


def passing() -> set[int]:
    """Return the errors that a partition has while it is made or moved, and when it is gone."""
    from confluent_kafka import KafkaError

    return {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    }


def unreachable() -> set[int]:
    """Return the errors of a broker that cannot answer now."""
    from confluent_kafka import KafkaError

    return {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }


def unauthorized() -> set[int]:
    """Return the errors of a user without a permission."""
    from confluent_kafka import KafkaError

    return {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


def forbidden(who: str, topic: str, operation: str) -> PermissionError:
    """Return the error of a user whom the brokers do not permit an operation on a topic."""
    return PermissionError(
        f"{who}: the brokers do not permit the user of config= to {operation} topic {topic!r}. "
        f"Give it an ACL for {operation} on the topic."
    )


def is_of_group(message: Any) -> bool:
    """Return whether an error is of the consumer group, to which nothing is committed.

    A client asks for the coordinator of its group, and reads on where it may not.
    """
    return message.error() is not None and message.topic() is None


def offset_at(client: Any, topic: str, partition: int, us: int, end: int) -> int:
    """Return the offset of the first message of an instant or later; the end if there is none."""
    from confluent_kafka import TopicPartition

    # To the brokers, times below 0 are no times: -1 is the end of the partition.
    at_ms = max(0, -(-us // MILLISECOND))
    at = TopicPartition(topic, partition, at_ms)
    (offset,) = client.offsets_for_times([at], timeout=PATIENCE_S)
    return end if offset.offset < 0 else int(offset.offset)


def between(
    consumer: Any,
    topic: str,
    partition: int,
    start: int,
    end: int,
    patience_s: float = PATIENCE_S,
) -> Iterator[list[Any]]:
    """Yield the messages in a range of offsets, many at once.

    Some may be missing: aborted, or compacted away.
    """
    from confluent_kafka import KafkaError, TopicPartition

    waited_for = unreachable() | {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
    consumer.assign([TopicPartition(topic, partition, start)])
    heard, next_offset = time.monotonic(), start
    while True:
        some, done = list[Any](), False
        # Who asks for more than there are, waits for them in vain.
        for message in consumer.consume(max(1, min(_CHUNK, end - next_offset)), timeout=0.5):
            heard = time.monotonic()
            error = message.error()
            if error is None:
                if message.offset() < end:
                    some.append(message)
                next_offset = message.offset() + 1
                done = next_offset >= end
            elif error.code() == KafkaError._PARTITION_EOF:
                done = message.offset() >= end
            elif is_of_group(message) or error.code() in waited_for:
                continue
            elif error.code() in unauthorized():
                raise forbidden("Kafka", topic, "READ")
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
            heard = time.monotonic()  # who takes them may need long, such as for a slow parse=
        if done:
            return
        if time.monotonic() - heard > patience_s:
            raise TimeoutError(
                f"Kafka partition '{topic}-{partition}' gave nothing for {patience_s:g} s, "
                f"though offsets {start} to {end} are there. Is its broker reachable from the "
                "workers?"
            )


#: Consumers of this process that nobody reads with, by their settings: a worker process serves many
#: tasks, and to connect takes longer than to read a small epoch.
_IDLE: Final[dict[str, list[Any]]] = {}


@contextmanager
def idle_consumer(config: Mapping[str, Any]) -> Iterator[Any]:
    """Lend a consumer with these settings; until it is given back, nobody else reads with it.

    An assignment replaces the one before: two who shared a consumer would get each other's
    messages.
    """
    from confluent_kafka import Consumer

    # Offsets that are read are there: a broker that waited for more would hold up the next reader.
    settings = {"fetch.wait.max.ms": 10, **config}
    name = repr(sorted((key, str(value)) for key, value in settings.items() if key != "error_cb"))
    idle = _IDLE.setdefault(name, [])
    try:
        consumer = idle.pop()
    except IndexError:
        consumer = Consumer(settings)
    try:
        yield consumer
    finally:
        consumer.unassign()
        idle.append(consumer)


class BrokerErrors:
    """Takes what librdkafka reports of brokers, an ``error_cb``: much passes by itself.

    A call that fails says no more than that there is no connection. Why there is none was reported:
    a name that is not known, a certificate, a password that is refused.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget what was reported: a broker has answered."""
        self._last = ""
        self._is_lost_connection = True

    def __call__(self, error: Any) -> None:
        """Take a report."""
        from confluent_kafka import KafkaError

        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return
        lost = error.code() == KafkaError._TRANSPORT
        # After a refusal the connection is lost, too.
        if self._is_lost_connection or not lost:
            self._last, self._is_lost_connection = error.str(), lost

    @property
    def refusal(self) -> str:
        """What brokers refuse, or a name that is not known; "" if they are just not there."""
        return "" if self._is_lost_connection else self._last

    def explain(self, why: str) -> str:
        """Return why a call failed, and what was reported of that."""
        return f"{why} ({self._last})" if self._last else why
