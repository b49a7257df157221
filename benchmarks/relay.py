"""A pipeline of computations in a row that hand on what they get: all overhead, no work."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame

import millrace as mr


class Row(msgspec.Struct):
    """What travels: the columns of the input."""

    key: int
    value: int


def relay_pipeline(source: DataFrame | mr.sources.Injector, depth: int) -> mr.Pipeline:
    """Return a pipeline of ``depth`` relays over ``source``; nobody reads the last one's stream."""
    pipeline = mr.Pipeline("relay")
    pipeline.inject(
        "level-1", source, timestamp="time", low_watermark=mr.BoundedDelay("5 s"), format=Row
    )
    for level in range(1, depth + 1):
        pipeline.add(_relay(f"level-{level}", f"level-{level + 1}"), name=f"relay-{level}")
    return pipeline


def _relay(stream: str, target: str) -> type[mr.Computation]:
    class Relay(mr.Computation):
        inputs = {stream: mr.by("key")}
        outputs = {target: Row}

        def process_record(self, record: mr.Record) -> None:
            self.produce(target, record.value)

    return Relay
