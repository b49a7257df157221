"""``spark.read.format("millrace")``: what a checkpoint keeps, as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as T

from millrace.inspect import Checkpoint, batches, columns_of, open_checkpoint
from millrace.model.errors import PipelineError
from millrace.spark.compat import DataSource, DataSourceReader, InputPartition
from millrace.spark.data_types import spark_schema

_OPTIONS: Final = ("checkpoint", "computation", "what", "epoch")


class CheckpointSource(DataSource):
    """What one computation keeps after one epoch; a partition a key interval.

    The epoch is chosen when a query is planned. See :func:`millrace.spark.register_source`.
    """

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return "millrace"

    def schema(self) -> T.StructType:
        """Return the columns, by the checkpoint's own schemas."""
        checkpoint, computation, table = self._opened()
        return spark_schema(columns_of(checkpoint[computation], table))

    def reader(self, schema: Any) -> DataSourceReader:
        """Return what reads it, at the epoch that is the last now."""
        checkpoint, computation, table = self._opened()
        location = str(self.options["checkpoint"])
        intervals = len(checkpoint[computation].intervals)
        return _Reader(location, computation, table, checkpoint.epoch, intervals)

    def _opened(self) -> tuple[Checkpoint, str, str]:
        options = {name.lower(): value for name, value in self.options.items()}
        unknown = sorted(options.keys() - {*_OPTIONS, "path"})
        missing = [name for name in _OPTIONS[:2] if name not in options]
        if missing or unknown:
            wrong = f"option {missing[0]!r} is missing" if missing else f"no option {unknown[0]!r}"
            raise PipelineError(
                f'spark.read.format("millrace"): {wrong}. Expected '
                '.option("checkpoint", path).option("computation", name), and, if need be, '
                '.option("what", "timers") and .option("epoch", 41).'
            )
        epoch = options.get("epoch")
        if epoch is not None and not epoch.isdecimal():
            raise PipelineError(
                f'spark.read.format("millrace"): epoch {epoch!r} is not a number. Expected one '
                "such as 41, or none for the last."
            )
        opened = open_checkpoint(options["checkpoint"], epoch=None if epoch is None else int(epoch))
        return opened, options["computation"], options.get("what", "cells")


class _Reader(DataSourceReader):
    def __init__(
        self, location: str, computation: str, what: str, epoch: int, intervals: int
    ) -> None:
        self._location = location
        self._computation = computation
        self._what = what
        self._epoch = epoch
        self._intervals = intervals

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(self._intervals)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not self._intervals:
            return
        checkpoint = open_checkpoint(self._location, epoch=self._epoch)
        yield from batches(checkpoint[self._computation].only(partition.value), self._what)
