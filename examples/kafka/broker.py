"""A Kafka broker for an example: the one that a checkout can start, `scripts/kafka_broker.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kafka_broker.py"
_PATIENCE_S = 120.0


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Start a broker, give its ``host:port``, and end it; it answers some seconds later.

    Args:
        folder: Where it keeps everything; made if it is not there.

    Raises:
        SystemExit: This is no checkout, or its jars could not be fetched.
    """
    if not _SCRIPT.exists():
        raise SystemExit("Only a checkout has a Kafka broker: name yours with --kafka HOST:PORT.")
    folder.mkdir(parents=True, exist_ok=True)
    # In a session of its own Ctrl-C does not reach it, and what talks to it can end first.
    process = subprocess.Popen(
        [sys.executable, str(_SCRIPT), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        with process.stdout as said:
            servers = said.readline().strip()
        if not servers:
            raise SystemExit("the Kafka broker did not start, see above.")
        yield servers
    finally:
        process.kill()
        process.wait()


def make_topics(servers: str, partitions: Mapping[str, int]) -> None:
    """Make topics, given how many partitions each has, as soon as a broker answers."""
    # librdkafka says on stderr that nobody answers yet.
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    topics = [NewTopic(name, count, 1) for name, count in partitions.items()]
    for made in admin.create_topics(topics, request_timeout=_PATIENCE_S).values():
        made.result()
