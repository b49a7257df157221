"""A topic that has all records beforehand, in two parts: the second is an open transaction."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

_PATIENCE_S = 120
_TIMEOUT_MS = 900_000


class Backlog:
    """Makes a topic and fills it; who reads what is committed sees a part when it is released.

    Args:
        servers: The broker.
        topic: Name of the topic, which is made.
        partitions: Its partitions.
    """

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self._topic = topic
        admin = AdminClient({"bootstrap.servers": servers})
        (made,) = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
        made.result(_PATIENCE_S)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": topic,
                "transaction.timeout.ms": _TIMEOUT_MS,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._producer.init_transactions(_PATIENCE_S)

    def fill(self, chunks: Iterable[tuple[int, list[bytes]]]) -> None:
        """Write a part: pairs of partition and values, in order; nobody sees it yet."""
        self._producer.begin_transaction()
        for partition, values in chunks:
            batch = [{"value": value} for value in values]
            taken = self._producer.produce_batch(self._topic, batch, partition=partition)
            if taken != len(batch) or self._producer.flush(_PATIENCE_S):
                raise RuntimeError(f"the broker did not take {len(batch)} records")

    def release(self) -> None:
        """Let the part be seen."""
        self._producer.commit_transaction(_PATIENCE_S)
