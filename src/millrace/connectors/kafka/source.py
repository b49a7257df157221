"""Kafka: the records of topics, with a low watermark for each topic partition.

Millrace reads Kafka by itself and not through Spark's connector: it must know which partitions
there are before they have a record, and hold one back that is too far ahead of the others, and a
source of Spark's own does neither. (That connector's DataFrame can be injected too, see
docs/injectors.md.) It needs ``confluent-kafka``: ``pip install 'millrace-spark[kafka]'``.

Source: MillWheel, "Injector and Low Watermark API" (5.2): pubsub service feeds.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from millrace.connectors.files.lines import Parse
from millrace.connectors.kafka.follower import KafkaFollower
from millrace.connectors.kafka.messages import (
    PATIENCE_S,
    BrokerErrors,
    MessageRows,
    between,
    idle_consumer,
    offset_at,
    partitions_of,
    passing,
    require_client,
    topic_ids,
)
from millrace.injectors.advance import Advance, Backlog
from millrace.injectors.follower import Follower
from millrace.injectors.injector import BoundInjector, NumberedInjector, Origin
from millrace.model.declarations import names
from millrace.model.errors import InputLost, PipelineError
from millrace.model.time import Instant, TimeUnit, timestamp_us
from millrace.store import is_object_store, local_path, mailbox_at

#: How often to ask which partitions there are. They are rarely added, and a record waits so long.
_PARTITIONS_EVERY_S: Final = 2.0
#: How often to ask whether a partition has a leader, where none has one.
_LEADER_EVERY_S: Final = 0.1
#: What brokers take as the name of a topic.
_TOPIC: Final = re.compile(r"[\w.-]{1,249}", re.ASCII)
#: How long the broker may take to give a refused record's message once more.
_ORIGINS_S: Final = 5.0


def _message(stream: str) -> str:
    """Return the name of the message in a mailbox with the ids of a stream's topics."""
    return f"{hashlib.sha256(stream.encode()).hexdigest()[:16]}.kafka-topics"


class Kafka(NumberedInjector, BoundInjector):
    """Reads topics of Kafka from their beginning, or from an instant on.

    Each partition is a process of the injector: name ``inject(low_watermark=)``, what a partition
    promises, such as ``mr.BoundedDelay("5 s")``. A partition without a record holds the low
    watermark; ``inject(idle=)`` lets it go. New partitions are found within seconds and read from
    their beginning. Offsets are in the checkpoint; no consumer group is committed to.

    Args:
        servers: ``"host:port"`` of brokers, with commas between them.
        topics: A topic's name, or several.
        schema: Columns of a row. Those that ``parse`` does not give may be ``kafka_key``,
            ``kafka_topic``, ``kafka_partition``, ``kafka_offset``, ``kafka_timestamp`` (null if the
            producer gave none) and ``kafka_headers``. Two more are ``kafka_id`` (of the last header
            ``millrace-id``) and ``kafka_tombstone`` (whether the value is null). By default all but
            the last, and ``value binary``. Keys and ids are bytes; where one is declared as
            ``string``, one that is not UTF-8 is refused.
        parse: Takes a message's value (bytes), returns the columns by name or in order; by default
            it is a JSON object, or, without a schema, left as it is. It is not called for a null
            value (a tombstone): that has null in every column of the value. What it raises refuses
            the message; a ``ConnectionError`` or ``TimeoutError`` has it read again.
        unit: What an integer in a ``timestamp`` column counts: ``"s"``, ``"ms"``, ``"us"`` or
            ``"ns"``. By default microseconds, and a number that is a time up to now in seconds or
            milliseconds is refused. For a column that is an integer itself: ``inject(unit=)``.
        tombstones: What becomes of messages whose value is null: ``"keep"`` makes a record of
            each, ``"drop"`` counts them in ``status().dropped`` and the metric
            ``millrace_dropped_records_total``. One that is dropped moves no low watermark.
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
        tombstones: Literal["keep", "drop"] = "keep",
        since: Instant | None = None,
        records_per_epoch: int = 100_000,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        require_client()
        if records_per_epoch < 1:
            raise PipelineError(
                f"Kafka(records_per_epoch={records_per_epoch}): expected 1 or more."
            )
        self.topics = names(topics, "Kafka(topics")
        if not self.topics:
            raise PipelineError("Kafka(topics=()): expected the name of a topic, or several.")
        for topic in self.topics:
            if not _TOPIC.fullmatch(topic):
                raise PipelineError(
                    f"Kafka(topics={topic!r}): that is no name of a topic. Name each topic; a "
                    "pattern is not supported."
                )
        if tombstones not in ("keep", "drop"):
            raise PipelineError(f'Kafka(tombstones={tombstones!r}): expected "keep" or "drop".')
        self._rows = MessageRows(schema, parse, unit, drops=tombstones == "drop")
        self.schema = self._rows.schema
        since_us = None if since is None else timestamp_us(since)
        # Brokers find no time before 1970, and messages may have one: all are read.
        self._since_us = None if since_us is None or since_us < 0 else since_us
        self._records = records_per_epoch
        self._errors = BrokerErrors()
        self._config = {
            "bootstrap.servers": servers,
            "group.id": "millrace",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            # An administrator would make a topic whose name is misspelled, or that was deleted.
            "allow.auto.create.topics": False,
            "error_cb": self._errors,
            "log_level": 2,
            **(config or {}),
        }
        self._forget()

    def __repr__(self) -> str:
        return f"Kafka({self._config['bootstrap.servers']!r}, {list(self.topics)!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__ | {"_consumer": None, "_admin": None, "_partitions": []}
        return state | {"_asked": float("-inf"), "_bounds": {}, "_made": None}

    def bind(self, location: str, stream: str, was: Sequence[str] = ()) -> None:
        """Keep in the mailbox of a checkpoint which topics its offsets are of."""
        self._forget()
        self._location = location if is_object_store(location) else str(local_path(location))
        self._message, self._earlier = _message(stream), [_message(name) for name in was]

    def _forget(self) -> None:
        self._consumer: Any = None
        self._admin: Any = None
        self._partitions: list[tuple[str, int]] = []
        self._asked = float("-inf")
        self._bounds: dict[str, tuple[int, int]] = {}
        self._location = self._message = ""
        self._earlier = []
        self._made: dict[str, str] | None = None

    # -- in the driver -----------------------------------------------------------------------------

    def processes(self) -> Iterable[str]:
        """Return the topics' partitions, ``"topic-0"``, having asked how far each one goes.

        One that has no leader now is left out. Where none has one, it is waited for.

        Raises:
            ConnectionError: That took too long, or no broker answers.
        """
        until = time.monotonic() + PATIENCE_S
        while True:
            if time.monotonic() - self._asked > _PARTITIONS_EVERY_S:
                self._partitions = self._list_partitions()
                self._asked = time.monotonic()
            first, last = self._list_offsets("earliest"), self._list_offsets("latest")
            both = [process for process in first if process in last]
            self._bounds = {process: (first[process], last[process]) for process in both}
            if self._bounds or not self._partitions:
                return list(self._bounds)
            if time.monotonic() > until:
                raise self._leaderless()
            time.sleep(_LEADER_EVERY_S)

    def _leaderless(self) -> ConnectionError:
        names = [f"{topic}-{number}" for topic, number in self._partitions]
        left_out = [name for name in names if name not in self._bounds]
        return ConnectionError(
            f"{self!r}: partitions {left_out} have no leader now, so nobody knows how far they go. "
            "Start again when they have one."
        )

    def advance(self, process: str, offset: Any) -> Advance:
        """Return the end of the partition, or as far as one epoch may go."""
        first, last = self._bounds[process]
        if offset is None:
            # Where it begins is written down before anything is read: retention moves the start.
            if self._since_us is None:
                return Advance(first)
            return Advance(self._offset_at(process, self._since_us, last))
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

    def until_now(self, process: str, before: Instant | None = None) -> Iterable[Advance]:
        """Yield advances to where the partition ended when :meth:`processes` was called.

        Raises:
            ConnectionError: Another one had no leader then: a batch reads all of them.
        """
        if len(self._bounds) < len(self._partitions):
            raise self._leaderless()
        advance = self.advance(process, None)
        yield advance
        last, offset = self._bounds[process][1], advance.offset
        if before is not None:
            last = self._offset_at(process, timestamp_us(before), last)
        while offset < last:
            offset = min(last, offset + self._records)
            yield Advance(offset)

    def backlog(self, process: str, offset: Any) -> Backlog | None:
        """Return how many offsets there are up to the end of the partition.

        With ``since=``, what was written before counts as long as nothing was read. Where messages
        were compacted away, or transactions end, there are less records than offsets.
        """
        first, last = self._bounds[process]
        return Backlog(records=max(0, last - max(first, offset or 0)))

    def _offset_at(self, process: str, us: int, last: int) -> int:
        topic, _, number = process.rpartition("-")
        return offset_at(self._client(), topic, int(number), us, end=last)

    def split(self, process: str, start: Any, end: Any) -> Iterable[tuple[Any, Any]]:
        """Return one piece; none where a partition was only found."""
        return [] if start is None else [(start, end)]

    def _list_partitions(self) -> list[tuple[str, int]]:
        admin = self._administrator()
        partitions = sorted(
            (topic, number)
            for topic in self.topics
            for number in partitions_of(admin, repr(self), topic, PATIENCE_S, self._errors)
        )
        self._compare(topic_ids(admin, repr(self), self.topics, PATIENCE_S))
        return partitions

    def _compare(self, ids: Mapping[str, str]) -> None:
        """Refuse a topic that was made again since the checkpoint knows it.

        Of one that is long enough by now, offsets do not show that they are another's.

        Args:
            ids: Topic -> the id that it was given when it was made.
        """
        if self._made is None:
            self._made = self._known()
        for topic, topic_id in ids.items():
            if self._made.get(topic, topic_id) != topic_id:
                linked = (
                    " If offsets are those of the old topic, as of a linked cluster, remove "
                    f"mailbox/{self._message} from the checkpoint."
                )
                raise InputLost(
                    f"Kafka topic {topic!r} was deleted and made again since it was first read. "
                    "What was read of the old one is safe in the checkpoint; its offsets are none "
                    "of the new one's. Start with a new checkpoint to read what is there now."
                    + (linked if self._location else "")
                )
        if not ids.keys() <= self._made.keys():
            self._made |= ids
            if self._location:
                message = msgspec.json.encode(self._made)
                mailbox_at(self._location).replace(self._message, message)

    def _known(self) -> dict[str, str]:
        """Return the ids that the checkpoint knows, under a former name of the stream if need be.

        Of that they are copied: a later version of the program need not tell it any more.
        """
        if not self._location:
            return {}
        mailbox = mailbox_at(self._location)
        for message in (self._message, *self._earlier):
            if (known := mailbox.read(message)) is not None:
                if message != self._message:
                    mailbox.replace(self._message, known)
                return msgspec.json.decode(known, type=dict[str, str])
        return {}

    def _list_offsets(self, which: str) -> dict[str, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        admin: Any = importlib.import_module("confluent_kafka.admin")  # it is hardly typed
        spec = getattr(admin.OffsetSpec, which)()
        # As far as the consumers read: with "read_uncommitted", beyond an open transaction.
        levels = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
        level = levels[self._config["isolation.level"] == "read_committed"]
        wanted = {TopicPartition(*partition): spec for partition in self._partitions}
        asked = self._administrator().list_offsets(
            wanted,
            isolation_level=level,
            request_timeout=PATIENCE_S,
        )
        offsets = {}
        for partition, future in asked.items():
            try:
                offsets[f"{partition.topic}-{partition.partition}"] = future.result().offset
            except KafkaException as error:
                if error.args[0].code() not in passing():
                    raise ConnectionError(
                        f"{self!r}: the broker refuses topic {partition.topic!r}, partition "
                        f"{partition.partition}: {error.args[0].str()}"
                    ) from None
                # It is being made, moved, or deleted: the list of partitions will tell. Until then
                # it stays where it is, and holds the low watermark.
                self._asked = float("-inf")
        return offsets

    def _administrator(self) -> Any:
        if self._admin is None:
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient

            consumers = ("group.id", "enable.", "auto.", "isolation.")
            config = {k: v for k, v in self._config.items() if not k.startswith(consumers)}
            try:
                self._admin = AdminClient(config)
            except KafkaException as wrong:
                raise PipelineError(f"{self!r}: config= is wrong: {wrong.args[0].str()}") from None
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
        with idle_consumer(self._config) as consumer:
            for messages in between(consumer, topic, int(number), start, end):
                yield self._rows.batch(process, messages)

    def origins(self, process: str, offset: Any, count: int) -> Iterator[Origin]:
        """Yield the place, value and key of so many messages from an offset on."""
        topic, _, number = process.rpartition("-")
        start = int(offset or 0)
        with idle_consumer(self._config) as consumer:
            while count > 0:
                end = start + count
                for messages in between(consumer, topic, int(number), start, end, _ORIGINS_S):
                    count -= len(messages)
                    yield from self._rows.origins(process, messages)
                start = end

    def follow(self, places: Mapping[str, Any], *, most: int = 100_000) -> Follower:
        """Return one consumer of these partitions; it never commits."""
        return KafkaFollower(
            places, self._rows, self._config, who=repr(self), most=most, since_us=self._since_us
        )
