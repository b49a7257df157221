"""A Kafka broker, one process, for the tests in this folder; and producers that misbehave."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

ROOT = Path(__file__).parents[4]
#: Starting a JVM on a busy machine.
PATIENCE_S = 120


class Broker:
    """A single node that is broker and controller."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(ROOT / "scripts" / "kafka_broker.py"), str(folder)]
        self._log = folder / "broker.log"
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        with self._process.stdout as said:
            self.servers = said.readline().strip()
        # librdkafka writes to stderr what it fails with while the broker is coming up.
        self.client = {"bootstrap.servers": self.servers, "log_level": 0}
        self.admin = AdminClient(self.client)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.admin.list_topics(timeout=2)
                return
            except KafkaException:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    pytest.fail(f"the Kafka broker did not start:\n{self._log.read_text()[-4000:]}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    # -- topics and messages -----------------------------------------------------------------------

    def topic(self, name: str, partitions: int) -> str:
        (made,) = self.admin.create_topics([NewTopic(name, partitions, 1)]).values()
        made.result(30)
        return name

    def add_partitions(self, name: str, partitions: int) -> None:
        (made,) = self.admin.create_partitions([NewPartitions(name, partitions)]).values()
        made.result(30)

    def delete(self, name: str) -> None:
        (gone,) = self.admin.delete_topics([name]).values()
        gone.result(30)

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
        """Send in one transaction, and commit or abort it."""
        producer = Producer(self.client | {"transactional.id": f"{topic}-{partition}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(30) == 0
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

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


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that lives as long as the tests do."""
    subprocess.run([sys.executable, ROOT / "scripts" / "jars.py"], check=True)
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    try:
        yield broker
    finally:
        broker.stop()
