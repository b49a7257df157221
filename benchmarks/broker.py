"""Kafka for benchmarks: the broker that the tests start, too, and its topics."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

_SCRIPT = Path(__file__).parents[1] / "scripts" / "kafka_broker.py"
_PATIENCE_S = 120


@contextmanager
def broker_in(work_dir: Path) -> Iterator[Broker]:
    """Run a broker that leaves nothing behind.

    Args:
        work_dir: A temporary folder is made in it.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kafka-", dir=work_dir) as folder,
        Broker(Path(folder) / "broker") as broker,
    ):
        yield broker


@contextmanager
def servers_for(rivals: Iterable[str], work_dir: Path) -> Iterator[str]:
    """Run a broker if a rival reads from one, as those do whose names end with ``-kafka``.

    Yields:
        How to reach it; empty if nobody needs it.
    """
    if not any(rival.endswith("-kafka") for rival in rivals):
        yield ""
        return
    with broker_in(work_dir) as broker:
        yield broker.servers


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
