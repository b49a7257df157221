"""A Kafka broker, one process, for the tests in this folder; and producers that misbehave."""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)

from millrace_examples.kafka.broker import Broker

ROOT = Path(__file__).parents[4]


#: Who comes without a password may do all, and others what they have an ACL for.
SECURED = {
    "also": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        + " ".join(f'user_{name}="{name}\'s word"' for name in ("reader", "writer", "nobody"))
        + ";"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Kafka(Broker):
    """The broker, and what tests do to topics."""

    topic = Broker.make_topic
    delete = Broker.delete_topic

    def secured(self) -> str:
        """Return how users with a password reach it."""
        text = (self._folder / "server.properties").read_text()
        found = re.search(r"^advertised.listeners=.*SASL_PLAINTEXT://([\d.:]+)", text, re.MULTILINE)
        assert found is not None
        return found[1]

    def permit(self, user: str, operation: str, topic: str) -> None:
        """Let a user do something with a topic."""
        acl = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        (made,) = self.admin.create_acls([acl]).values()
        made.result(30)

    def make_again(self, name: str) -> None:
        """Make a topic that was deleted just now; the old one may be on its way out still."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self.topic(name, 1)
                return
            except KafkaException:
                assert time.monotonic() < deadline

    def add_partitions(self, name: str, partitions: int) -> None:
        (made,) = self.admin.create_partitions([NewPartitions(name, partitions)]).values()
        made.result(30)

    def truncate(self, name: str, partition: int, before: int) -> None:
        at = TopicPartition(name, partition, before)
        (gone,) = self.admin.delete_records([at]).values()
        gone.result(30)

    def send(self, topic: str, partition: int, *values: bytes, ids: Any = None) -> None:
        producer = Producer(self.client)
        for n, value in enumerate(values):
            headers = {} if ids is None else {"headers": {"millrace-id": ids[n]}}
            producer.produce(topic, value, partition=partition, **headers)
        assert producer.flush(30) == 0

    def transact(self, topic: str, partition: int, *values: bytes, commit: bool) -> None:
        """Send in one transaction, commit or abort it, and wait until its end has its offset."""
        transactional = self.client | {"transactional.id": f"{topic}-{partition}"}
        producer = Producer(transactional)
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(30) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        # The coordinator answers before it has written the end to the partition. A producer of
        # the same id begins only after it has.
        Producer(transactional).init_transactions(30)

    def messages(self, topic: str, partitions: int) -> list[Any]:
        """Return all messages that are in a topic, partition by partition."""
        consumer = Consumer(
            self.client
            | {
                "group.id": "test",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        found = []
        for number in range(partitions):
            consumer.assign([TopicPartition(topic, number, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None, "no answer from the broker"
                if message.error() is not None:
                    break  # the end
                found.append(message)
        consumer.close()
        return found


#: The broker, if it runs.
_RUNNING: list[Kafka] = []
_OPEN = contextlib.ExitStack()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Kafka:
    """A broker that lives as long as the tests of this folder do: an idle one takes time, too."""
    if not _RUNNING:
        subprocess.run([sys.executable, ROOT / "scripts" / "jars.py"], check=True)
        _RUNNING.append(
            _OPEN.enter_context(Kafka(tmp_path_factory.mktemp("kafka"), SECURED)).wait()
        )
    return _RUNNING[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        _RUNNING.clear()
        _OPEN.close()
