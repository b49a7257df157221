"""External: an injector as a streaming source of Spark, which writes its offsets down.

``latestOffset`` is where an injector decides how far an epoch reads, in a process beside the
driver; the end is in Spark's offset log before any worker reads.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from millrace.injectors.injector import Injector
from millrace.injectors.offsets import COLUMNS_DDL, Piece, advanced, pieces, rows
from millrace.injectors.skew import Gate
from millrace.model.errors import PipelineError
from millrace.spark.pickling import pickle_by_value

NAME = "millrace_injector"
#: The option with the pickled injector, passwords and all: Spark keeps what is so named out of its
#: plans and web page (``spark.redaction.regex``).
_INJECTOR = "injector_secret"


class _Reader(DataSourceStreamReader):
    def __init__(self, stream: str, injector: Injector, gate: Gate) -> None:
        self._stream = stream
        self._injector = injector
        self._gate = gate

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return advanced(self._stream, self._injector, start, self._gate.waiting())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found = pieces(self._injector, start, end)
        # What is only a promise needs no task of its own.
        reading = [[piece] for piece in found if piece.between is not None]
        promises = [piece for piece in found if piece.between is None]
        return [InputPartition(some) for some in [*reading, promises] if some]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        some: list[Piece] = partition.value
        for piece in some:
            yield from rows(self._injector, piece)


class InjectorSource(DataSource):
    """``spark.readStream.format("millrace_injector")``: the injector travels in an option."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the injector's columns and what tells of its processes."""
        return f"{self._injector().schema}, {COLUMNS_DDL}"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader."""
        gate = Gate(Path(self.options["gate"]))
        return _Reader(self.options["stream"], self._injector(), gate)

    def _injector(self) -> Injector:
        # Written by the driver of this very run, never read from anywhere else.
        injector: Injector = pickle.loads(base64.b64decode(self.options[_INJECTOR]))
        return injector


def external(spark: SparkSession, stream: str, injector: Injector, gate: Gate) -> DataFrame:
    """Return an injector's rows as a streaming DataFrame.

    Raises:
        PipelineError: The injector cannot be sent to workers.
    """
    try:
        pickled = pickle_by_value(injector)
    except (TypeError, AttributeError, pickle.PicklingError) as refused:
        raise PipelineError(
            f"stream {stream!r}: its injector {injector!r} cannot be sent to Spark's workers: "
            f"{refused}. Open connections where they are used, and leave them out of __getstate__."
        ) from refused
    spark.dataSource.register(InjectorSource)
    reader = spark.readStream.format(NAME).option("stream", stream)
    reader = reader.option(_INJECTOR, base64.b64encode(pickled).decode())
    return reader.option("gate", str(gate.path)).load()
