"""A pipeline of computations in a row that hand on what they get: all overhead, no work."""

from __future__ import annotations

import msgspec
import millrace as mr
from pyspark.sql import DataFrame


class Row(msgspec.Struct):
    """What travels: the columns of the input."""

    key: int
    value: int


class Relay(mr.Computation):
    """Produces each record to the next level's stream.

    Args:
        level: 1 for the first; it reads ``level-1`` and writes ``level-2``.
    """

    def __init__(self, level: int) -> None:
        self.inputs = {f"level-{level}": mr.by("key")}
        self.outputs = {f"level-{level + 1}": Row}
        self._target = f"level-{level + 1}"

    def process_record(self, record: mr.Record) -> None:
        """Hand the record on."""
        self.produce(self._target, record.value)


def relay_pipeline(source: DataFrame, depth: int) -> mr.Pipeline:
    """Return a pipeline of ``depth`` relays over ``source``; the last one's stream has no reader."""
    pipeline = mr.Pipeline("relay")
    pipeline.inject(
        "level-1", source, timestamp="time", low_watermark=mr.BoundedDelay("5 s"), format=Row
    )
    for level in range(1, depth + 1):
        pipeline.add(Relay(level), name=f"relay-{level}")
    return pipeline
