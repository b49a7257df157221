"""Kafka for benchmarks: the broker that the tests start, too."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace_examples.kafka.broker import Broker


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
        yield broker.wait()


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
