"""Kafka for benchmarks: the broker that the tests start, too, and its topics."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

_SCRIPT = Path(__file__).parents[2] / "scripts" / "kafka_broker.py"
_PATIENCE_S = 120


class Broker:
    """A broker between ``with`` and its end; see ``scripts/kafka_broker.py``.

    Args:
        folder: Where it keeps everything; made if it is not there.

    Attributes:
        servers: How to reach it.
        pid: Its process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(_SCRIPT), str(self._folder)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            self.servers = said.readline().strip()
        self.pid = self._process.pid
        # librdkafka writes to stderr what it fails with while the broker is coming up.
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def make_topic(self, name: str, partitions: int) -> str:
        """Make a topic, and return its name."""
        (made,) = self._admin.create_topics([NewTopic(name, partitions, 1)]).values()
        made.result(60)
        return name

    def delete_topic(self, name: str) -> None:
        """Give its space back."""
        (gone,) = self._admin.delete_topics([name]).values()
        gone.result(60)

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self._admin.list_topics(timeout=2)
                return
            except KafkaException:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__()
                    log = (self._folder / "broker.log").read_text()[-4000:]
                    raise RuntimeError(f"the Kafka broker did not start:\n{log}") from None
