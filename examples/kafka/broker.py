"""A Kafka broker: the one that a checkout can start, `scripts/kafka_broker.py`, and its topics.

The examples, the tests and the benchmarks start it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kafka_broker.py"
#: Starting a JVM on a busy machine.
_PATIENCE_S = 120.0


class Broker:
    """A broker between ``with`` and its end; it answers some seconds later.

    Args:
        folder: Where it keeps everything; made if it is not there.
        settings: Of the broker, further ones.

    Attributes:
        servers: How to reach it, ``host:port``.
        client: Settings of a client that reaches it.
        admin: A client that makes topics.
        pid: Its process.

    Raises:
        SystemExit: On entering: this is no checkout, or its jars could not be fetched.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._settings = [f"{name}={value}" for name, value in (settings or {}).items()]

    def __enter__(self) -> Self:
        if not _SCRIPT.exists():
            raise SystemExit("Only a checkout has a Kafka broker: name yours with --kafka.")
        self._folder.mkdir(parents=True, exist_ok=True)
        # In a session of its own Ctrl-C does not reach it, and what talks to it can end first.
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(self._folder), *self._settings],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            self.servers = said.readline().strip()
        if not self.servers:
            self.__exit__()
            raise SystemExit("the Kafka broker did not start, see above.")
        self.pid = self._process.pid
        self.client = _settings(self.servers)
        self.admin = AdminClient(self.client)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> Self:
        """Return it when it answers.

        Raises:
            SystemExit: It has ended, or does not answer within two minutes; with what it logged.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                self.admin.list_topics(timeout=2)
            except KafkaException:
                if self._process.poll() is None and time.monotonic() < deadline:
                    continue
                log = (self._folder / "broker.log").read_text()[-4000:]
                raise SystemExit(f"the Kafka broker did not start:\n{log}") from None
            return self

    def make_topic(self, name: str, partitions: int) -> str:
        """Make a topic, and return its name."""
        make_topics(self.servers, {name: partitions})
        return name

    def delete_topic(self, name: str) -> None:
        """Give its space back."""
        (gone,) = self.admin.delete_topics([name]).values()
        gone.result(60)


def make_topics(servers: str, partitions: Mapping[str, int]) -> None:
    """Make topics, given how many partitions each has, as soon as a broker answers."""
    admin = AdminClient(_settings(servers))
    topics = [NewTopic(name, count, 1) for name, count in partitions.items()]
    for made in admin.create_topics(topics, request_timeout=_PATIENCE_S).values():
        made.result()


def _settings(servers: str) -> dict[str, str | int]:
    # librdkafka says on stderr what it fails with while a broker is coming up.
    return {"bootstrap.servers": servers, "log_level": 0}
