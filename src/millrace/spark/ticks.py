"""The tick source: it makes Structured Streaming start an epoch when no data does.

A timer that waits for the wall clock, and a low watermark that can advance, need epochs without
data; an idle pipeline should have few. So the driver writes down when the next epoch is wanted at
the latest, and this source has a new offset from then on. Spark polls it in a process of its own,
which is why a file says when, and not a variable.

A new offset is enough to start an epoch, so there are no rows: to send some, that process would
import pandas at each start of a run, and each epoch would have a task that reads them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.spark.compat import DataSource, InputPartition, OffsetReader
from millrace.spark.failure import cannot_run_workers

NAME = "millrace_ticks"


class Alarm:
    """When the next epoch is wanted at the latest; shared through a file.

    It goes by the machine's clock, whatever clock the run's epochs are given.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def ring_in(self, delay_us: int) -> None:
        """Replace the time. A reader sees the old or the new one, never half of it.

        Any thread may call this at any time: each writes a file of its own, then renames it.
        """
        scratch = self.path.with_suffix(f".{threading.get_ident()}")
        scratch.write_text(str(time.time_ns() // 1000 + delay_us))
        scratch.replace(self.path)

    def due(self) -> bool:
        """Return whether the time has come. An alarm that cannot be read is due."""
        try:
            return time.time_ns() // 1000 >= int(self.path.read_text())
        except (OSError, ValueError):
            return True


class _Reader(OffsetReader):
    def __init__(self, alarm: Alarm) -> None:
        self._alarm = alarm

    def initialOffset(self) -> dict[str, int]:
        return {"tick": 0}

    def next_offset(self, start: dict[str, int]) -> dict[str, int]:
        return {"tick": start["tick"] + self._alarm.due()}

    def between(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        raise NotImplementedError("the tick source has no partitions")


class TickSource(DataSource):
    """``spark.readStream.format("millrace_ticks").option("alarm", path)``: no rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns: one, which is never filled."""
        return "tick bigint"

    def streamReader(self, schema: Any) -> OffsetReader:
        """Return the reader of the alarm named in the options."""
        return _Reader(Alarm(Path(self.options["alarm"])))


def ticks(spark: SparkSession, alarm: Alarm) -> DataFrame:
    """Return the streaming DataFrame of an alarm's ticks.

    Raises:
        PipelineError: Spark's Python workers cannot import Millrace. Every later stage would fail
            on it too, and say so less clearly.
    """
    spark.dataSource.register(TickSource)
    try:
        return spark.readStream.format(NAME).option("alarm", str(alarm.path)).load()
    except Exception as error:
        if (said := cannot_run_workers(error)) is not None:
            raise said from error
        raise
