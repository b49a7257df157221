"""Partitions of Kafka followed: one consumer for all of a task, read on from given offsets."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np

from millrace.connectors.kafka.messages import (
    PATIENCE_S,
    BrokerErrors,
    MessageRows,
    forbidden,
    is_of_group,
    offset_at,
    partitions_of,
    passing,
    unauthorized,
    unreachable,
)
from millrace.injectors.advance import Advance, Advances, decision
from millrace.injectors.follower import ROOM, FetchedBatch, about_bytes
from millrace.model.errors import InputLost

log = logging.getLogger("millrace.injectors")

#: Settings of librdkafka: a message is there as soon as the broker has it, what waits in the
#: process is bounded, and a topic that is deleted is missed soon. What a user has set otherwise
#: goes before.
_LIVE: Final = {
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 500,
    "fetch.queue.backoff.ms": 1,
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 16 << 10,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.propagation.max.ms": 2_000,
    "topic.metadata.refresh.interval.ms": 5_000,
    "socket.nagle.disable": True,
}
#: Messages that are taken at once, at the most: with more, neither they nor their rows stay in the
#: caches of a core. A record of a backlog costs a fifth more with ten times as many.
_MOST: Final = 10_000
#: How long a broker may take to list the partitions of a topic that it seems not to know.
_LIST_S: Final = 5.0

#: How long to wait before a partition that is just made is asked for again.
_AGAIN_S: Final = 0.1
#: A partition may be listed for a while after it is gone. So long, and so often, it is looked for.
_DOUBT_S: Final = 15.0
_LOOK_EVERY_S: Final = 1.0

_error = operator.methodcaller("error")
_offset = operator.methodcaller("offset")


def _partition(message: Any) -> tuple[str, int]:
    return message.topic(), message.partition()


class KafkaFollower:
    """Reads partitions; nothing is committed to a consumer group.

    While no broker answers it waits, and logs that it does.

    Args:
        places: Process -> offset to go on at; None: the beginning.
        rows: Makes rows of messages.
        config: Settings of the consumer.
        who: Reads, for messages.
        most: Rows that are taken at once, at the most.
        since_us: The beginning of a partition is the first message of this time or later.
        consumer: Makes the consumer; by default that of ``confluent-kafka``.
        clock: Seconds; by default the machine's.
    """

    def __init__(
        self,
        places: Mapping[str, Any],
        rows: MessageRows,
        config: Mapping[str, Any],
        *,
        who: str,
        most: int,
        since_us: int | None = None,
        consumer: Callable[[dict[str, Any]], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._rows = rows
        self._who = who
        self._most = self._count = min(most, _MOST)
        self._clock = clock
        self._away = False
        self._errors = BrokerErrors()
        self._told = config.get("error_cb")
        self._full = False
        self._look_at = self._doubted_until = float("-inf")
        mine = {"enable.partition.eof": True, "error_cb": self._hear}
        self._consumer = (consumer or Consumer)({**_LIVE, **config, **mine})
        self._names: dict[tuple[str, int], str] = {}
        self._offsets: dict[str, int] = {}
        self._found: list[FetchedBatch] = []
        self._held: frozenset[str] = frozenset()
        try:
            for process, offset in places.items():
                topic, _, number = process.rpartition("-")
                self._names[topic, int(number)] = process
                self._offsets[process] = self._begin(process, offset, since_us)
            self._consumer.assign(
                [TopicPartition(*at, self._offsets[name]) for at, name in self._names.items()]
            )
        except BaseException:
            self._consumer.close()
            raise

    def take(self, wait_s: float) -> list[FetchedBatch]:
        """Return what was fetched; wait for one message if nothing was."""
        fetched, self._found = self._found, []
        if fetched:
            return fetched
        until = self._clock() + wait_s
        while True:
            # With a backlog there is nothing to wait for.
            messages = self._consumer.consume(self._count, 0) if self._full else []
            if not messages:
                messages = self._consumer.consume(1, max(0.0, until - self._clock()))
                if messages and self._count > 1:
                    messages += self._consumer.consume(self._count - 1, 0)
            self._full = len(messages) >= self._count
            fetched = self._taken(messages)
            self._look()
            if fetched or self._clock() >= until:
                return fetched

    def hold(self, processes: Collection[str]) -> None:
        """Fetch nothing of these partitions; of all others as before."""
        from confluent_kafka import TopicPartition

        held = frozenset(processes).intersection(self._offsets)
        for change, names in (
            (self._consumer.pause, held - self._held),
            (self._consumer.resume, self._held - held),
        ):
            if names:
                change([TopicPartition(*at) for at, name in self._names.items() if name in names])
        self._held = held

    def limit(self, most: int) -> None:
        """Take no more rows at once from now on."""
        self._most = min(most, _MOST)
        self._count = min(self._count, self._most)

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def _begin(self, process: str, offset: Any, since_us: int | None) -> int:
        """Return where a partition is read on; where one begins is a decision, and made here."""
        from confluent_kafka import KafkaException, TopicPartition

        offset = Advances.of(offset).last
        if offset is not None:
            return int(offset)
        topic, _, number = process.rpartition("-")
        until = self._clock() + PATIENCE_S
        while True:
            try:
                first, end = self._consumer.get_watermark_offsets(
                    TopicPartition(topic, int(number)), timeout=PATIENCE_S
                )
                if since_us is not None:
                    first = offset_at(self._consumer, topic, int(number), since_us, end)
                break
            except KafkaException as error:
                if error.args[0].code() in unauthorized():
                    raise forbidden(self._who, topic, "READ") from None
                partitions_of(self._consumer, self._who, topic, _LIST_S)
                if error.args[0].code() not in passing() or self._clock() > until:
                    raise ConnectionError(
                        f"{self._who}: the broker does not say where partition {process!r} begins: "
                        f"{error.args[0].str()}"
                    ) from None
                self._consumer.consume(1, _AGAIN_S)  # nothing is assigned: it only waits
        decided = decision(None, Advance(int(first)))
        self._found.append(
            FetchedBatch(process, self._rows.batch(process, []), first, decided=decided)
        )
        return int(first)

    def _taken(self, messages: list[Any]) -> list[FetchedBatch]:
        """Return messages as rows, by partition, and ends that have no message before them."""
        if not any(map(_error, messages)):
            return self._rows_of(messages)
        ends = [message for message in messages if self._is_end(message)]
        fetched = self._rows_of([message for message in messages if message.error() is None])
        return fetched + [taken for end in ends if (taken := self._at_end(end)) is not None]

    def _is_end(self, message: Any) -> bool:
        """Return whether it says that a partition was read to its end; raise what it says else."""
        from confluent_kafka import KafkaError

        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._fail(message)
            return False
        return error is not None

    def _at_end(self, end: Any) -> FetchedBatch | None:
        """Return how far a partition was read where offsets follow that have no message.

        A transaction ends with one, and what was aborted, or compacted away, leaves them. To stay
        before them would be never to reach the end, and to miss them when retention takes them.
        """
        process, offset = self._names[end.topic(), end.partition()], end.offset()
        if offset <= self._offsets[process]:
            return None
        self._offsets[process] = offset
        return FetchedBatch(process, self._rows.batch(process, []), offset)

    def _rows_of(self, messages: list[Any]) -> list[FetchedBatch]:
        if not messages:
            return []
        if self._away:
            log.warning("%s is there again.", self._who)
            self._away = False
            self._errors.clear()
        parts: dict[tuple[str, int], list[Any]] = {}
        if len(self._names) == 1:
            parts[next(iter(self._names))] = messages
        else:
            for at, some in groupby(messages, _partition):
                parts.setdefault(at, []).extend(some)
        fetched = [self._of(self._names[at], some) for at, some in parts.items()]
        # What comes next is about as large.
        size = sum(about_bytes(taken.rows) for taken in fetched) // len(messages)
        self._count = max(1, min(self._most, ROOM // max(1, size)))
        return fetched

    def _of(self, process: str, messages: Sequence[Any]) -> FetchedBatch:
        rows, count = self._rows.batch(process, messages), len(messages)
        first, last = messages[0].offset(), messages[-1].offset()
        self._offsets[process] = last + 1
        if last - first == count - 1:
            return FetchedBatch(process, rows, last + 1, first=first)
        # Some were aborted, or compacted away.
        numbers = np.fromiter(map(_offset, messages), np.int64, count)
        return FetchedBatch(process, rows, last + 1, numbers=numbers)

    def _fail(self, message: Any) -> None:
        """Raise what a partition's error means; return if it may pass."""
        error = message.error()
        if is_of_group(message):
            log.debug("%s: %s. It reads without a group.", self._who, error.str())
            return
        if error.code() in passing():
            self._doubt()
            return
        if error.retriable() or error.code() in unreachable():
            self._wait(error.str())
            return
        process = self._names.get((message.topic(), message.partition()), message.topic())
        if error.code() in unauthorized():
            raise forbidden(self._who, message.topic(), "READ")
        if error.code() in _gone():
            raise self._lost(process, error.str() + self._now(message))
        raise ConnectionError(
            f"{self._who}: the broker refuses partition {process!r}: {error.str()}"
        )

    def _hear(self, error: Any) -> None:
        """Take word of the client, while it is asked for messages: much passes by itself."""
        from confluent_kafka import KafkaError

        self._errors(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._wait(self._errors.explain(error.str()))
        elif error.code() in passing():
            self._doubt()  # it does not say of which topic
        if self._told is not None:
            self._told(error)

    def _doubt(self) -> None:
        self._doubted_until = self._clock() + _DOUBT_S

    def _look(self) -> None:
        """Raise an error if a partition that was doubted is not there any more."""
        now = self._clock()
        if not self._look_at <= now < self._doubted_until:
            return
        self._look_at = now + _LOOK_EVERY_S
        for topic, some in groupby(sorted(self._names), operator.itemgetter(0)):
            try:
                there = partitions_of(self._consumer, self._who, topic, _LIST_S)
            except ConnectionError as away:
                self._wait(away)
                return
            for at in some:
                if at[1] not in there:
                    raise self._lost(self._names[at], "there is no such partition")

    def _lost(self, process: Any, why: str) -> InputLost:
        return InputLost(
            f"Kafka partition {process!r} cannot be read on at offset "
            f"{self._offsets.get(process)}: {why}. Was the topic deleted or truncated, or were "
            "records removed before they were read? What was read before is safe in the "
            "checkpoint. Start with a new checkpoint to read what is there now."
        )

    def _now(self, message: Any) -> str:
        """Return between which offsets a partition can be read, if it is to be had."""
        from confluent_kafka import KafkaException, TopicPartition

        at = TopicPartition(message.topic(), message.partition())
        try:
            first, end = self._consumer.get_watermark_offsets(at, timeout=_LIST_S)
        except KafkaException:
            return ""
        return f", it begins at {first} now and ends at {end}"

    def _wait(self, why: Any) -> None:
        if not self._away:
            self._away = True
            log.warning("%s cannot be reached: %s. It is waited for.", self._who, why)


def _gone() -> set[int]:
    """Return the errors of an offset at which there is nothing to be read any more."""
    from confluent_kafka import KafkaError

    return {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}
