"""What benchmarks of the real-time plane share: a session for it, input in two parts, the clock.

On this plane nothing has batches. So that warm-up records come first and are timed for no one, the
measured ones are not there until those have been processed: then files get their names, or a Kafka
transaction is committed. The clock runs from the first read of them to the mark that has them all.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import millrace as mr
from benchmarks.file_batches import FileBatches
from benchmarks.kafka_backlog import Backlog
from benchmarks.spark_session import build_session
from millrace.spark import realtime_settings

#: A run is over with the first mark that has everything, so this is how exactly that is known.
MARKS = "250 ms"
_LOOK_EVERY_S = 0.05
_RECORD = struct.Struct("<qqq")


def realtime_session(name: str, *, tasks: int, levels: int, heap: str = "4g") -> SparkSession:
    """Return a local session in which all tasks of all levels, injectors' too, run at once."""
    slots = tasks * (levels + 1) + 1
    return build_session(name, slots, heap=heap, settings=realtime_settings(tasks=tasks))


class Parts(Protocol):
    """Input that comes in parts, each of them files with the columns key, value and time.

    Attributes:
        source: What reads it.
    """

    source: mr.sources.Injector

    def release(self, part: int) -> None:
        """Let a part be there; they come in order."""
        ...

    def read_since_s(self, since_s: float) -> float:
        """Return when something was read for the first time since, in Unix time."""
        ...


class FileParts:
    """Parts that are Parquet files.

    Args:
        folder: That is read; made, and empty at first.
        parts: The files of each part, in order.
        schema: The columns that are read.
        files: How many files are decided upon at once.
    """

    def __init__(
        self, folder: Path, parts: Sequence[Sequence[Path]], *, schema: str, files: int
    ) -> None:
        folder.mkdir()
        self._parts = parts
        self._stamps = folder.with_name(f"{folder.name}-read")
        self._stamps.mkdir()
        self.source = _StampedFiles(folder, self._stamps, schema=schema, files=files)

    def release(self, part: int) -> None:
        """Give the files their names, in order."""
        for file in self._parts[part]:
            os.link(file, self.source.path / file.name)

    def read_since_s(self, since_s: float) -> float:
        """Return when a file was read first."""
        return min(s for stamp in self._stamps.iterdir() if (s := int(stamp.name) / 1e9) >= since_s)


class _StampedFiles(FileBatches):
    """Notes when it is asked to read."""

    def __init__(self, path: Path, stamps: Path, *, schema: str, files: int) -> None:
        super().__init__(path, schema=schema, files=files)
        self._stamps = stamps

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        (self._stamps / str(time.time_ns())).touch()
        yield from super().read_arrow(process, start, end)


class TopicParts:
    """Parts that are transactions of a topic; each is in the broker before it can be seen.

    Args:
        servers: The broker.
        parts: The files of each part, in order; they go to the topic's partitions in turn.
        schema: The columns.
        partitions: So many.
    """

    def __init__(
        self, servers: str, parts: Sequence[Sequence[Path]], *, schema: str, partitions: int
    ) -> None:
        topic = f"parts-{time.time_ns()}"
        self._parts = parts
        self._partitions = partitions
        self._backlog = Backlog(servers, topic, partitions)
        self._fill(0)
        self.source = mr.sources.Kafka(servers, topic, schema=schema, parse=unpack)

    def release(self, part: int) -> None:
        """Commit the part, and fill in the next one."""
        self._backlog.release()
        if part + 1 < len(self._parts):
            self._fill(part + 1)

    def read_since_s(self, since_s: float) -> float:
        """Return the time itself: what is committed is on its way."""
        return since_s

    def _fill(self, part: int) -> None:
        self._backlog.fill(
            (number % self._partitions, _packed(file))
            for number, file in enumerate(self._parts[part])
        )


def _packed(file: Path) -> list[bytes]:
    table = pq.read_table(file)
    columns = [table["key"], table["value"], table["time"].cast("int64")]
    return [
        _RECORD.pack(*row) for row in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def unpack(value: bytes) -> tuple[int, int, int]:
    """Return key, value and time (microseconds) of a message.

    >>> unpack(_RECORD.pack(1, 2, 3))
    (1, 2, 3)
    """
    key, number, time_us = _RECORD.unpack(value)
    return key, number, time_us


def timed(running: Any, stream: str, parts: Parts, records: Sequence[int]) -> list[list[float]]:
    """Release part after part, each when the one before it was processed.

    Args:
        running: The run.
        stream: That is injected.
        parts: Its input.
        records: How many each part has.

    Returns:
        For each part when its first record was read, and when a mark was complete that has all.
    """
    found = []
    total = 0
    for part, count in enumerate(records):
        total += count
        since_s = time.time()
        parts.release(part)
        ended_s = _wait_until_read(running, stream, total)
        found.append([parts.read_since_s(since_s), ended_s])
    return found


def _wait_until_read(running: Any, stream: str, records: int, timeout_s: float = 900) -> float:
    deadline = time.monotonic() + timeout_s
    while running.status().injected.get(stream, 0) < records:
        if running.wait(0) or time.monotonic() > deadline:
            raise TimeoutError(f"{records:,} records were not read: {running.status()}")
        time.sleep(_LOOK_EVERY_S)
    return time.time()
