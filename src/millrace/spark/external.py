"""External: what an epoch, or a batch, reads of an injector, as a source of Spark.

In a stream ``next_offset`` is where an injector decides how far an epoch reads, in a process
beside the driver; the end is in Spark's offset log before any worker reads. Its rows stand for
pieces of that, which the first stage reads (:mod:`millrace.runtime.piece_reader`): no record is a
row of Spark's here. A batch reads what there is when it begins, decided in the driver.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.injectors.columns import arrow_schema
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import (
    PIECE_DDL,
    Piece,
    advanced,
    packed_piece,
    pieces,
    pieces_until_now,
)
from millrace.injectors.rate_limit import Gate
from millrace.model.errors import PipelineError
from millrace.model.time import Instant
from millrace.runtime.by_value import pickle_by_value
from millrace.spark.compat import DataSource, InputPartition, OffsetReader, partitioned

NAME = "millrace_injector"
#: The option with the pickled injector, passwords and all: Spark keeps what is so named out of its
#: plans and web page (``spark.redaction.regex``).
_INJECTOR = "injector_secret"
#: Partitions for each task that can run at once: where there are more pieces, some share one, since
#: to start a task takes as long as to read thousands of records; with a few for each, a large piece
#: does not keep one core busy while the others wait.
_PARTITIONS_A_TASK = 4


class _Reader(OffsetReader):
    def __init__(
        self, stream: str, injector: Injector, gate: Gate, tasks: int, begin: Path
    ) -> None:
        self._stream = stream
        self._injector = injector
        self._gate = gate
        self._tasks = tasks
        self._begin = begin

    def initialOffset(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._begin.read_bytes())
        return found

    def next_offset(self, start: dict[str, Any]) -> dict[str, Any]:
        return advanced(self._stream, self._injector, start, self._gate.waiting())

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found = pieces(self._injector, start, end)
        return [
            InputPartition([packed_piece(self._stream, piece) for piece in lot])
            for lot in _lots(found, self._tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        return ((piece,) for piece in partition.value)


def _lots(found: Sequence[Piece], tasks: int) -> list[list[Piece]]:
    """Return pieces by the partition that they are in."""
    # What is only a promise needs no task of its own.
    to_read = [piece for piece in found if piece.between is not None]
    count = min(len(to_read), _PARTITIONS_A_TASK * tasks)
    lots = [to_read[first::count] for first in range(count)]
    lots.append([piece for piece in found if piece.between is None])
    return [lot for lot in lots if lot]


class InjectorSource(DataSource):
    """``spark.readStream.format("millrace_injector")``: the injector travels in an option."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns of a row that stands for a piece."""
        return PIECE_DDL

    def streamReader(self, schema: Any) -> OffsetReader:
        """Return the reader."""
        # Written by the driver of this very run, never read from anywhere else.
        injector: Injector = pickle.loads(base64.b64decode(self.options[_INJECTOR]))
        gate = Gate(Path(self.options["gate"]))
        begin = Path(self.options["begin"])
        return _Reader(self.options["stream"], injector, gate, int(self.options["tasks"]), begin)


def external(
    spark: SparkSession, stream: str, injector: Injector, gate: Gate, *, tasks: int, begin: Path
) -> DataFrame:
    """Return what is read of an injector as a streaming DataFrame: a row a piece.

    Args:
        spark: The session.
        stream: Name of the injected stream.
        injector: Its injector.
        gate: Says who is held back.
        tasks: How many tasks can read at once.
        begin: File of this host with the offsets at which Spark's own begin, as JSON; it may be
            written later, before the query is started.

    Raises:
        PipelineError: The injector cannot be sent to workers, or its schema is none.
    """
    pickled = _pickled(stream, injector)
    spark.dataSource.register(InjectorSource)
    options = {
        _INJECTOR: base64.b64encode(pickled).decode(),
        "stream": stream,
        "gate": str(gate.path),
        "tasks": str(tasks),
        "begin": str(begin),
    }
    return spark.readStream.format(NAME).options(**options).load()


def pieces_there(stream: str, injector: Injector, *, before: Instant | None) -> list[Piece]:
    """Return the pieces of what there is to read of an injector.

    Args:
        stream: Name of the injected stream.
        injector: Its injector.
        before: To read only what was written before this instant.

    Raises:
        PipelineError: The injector cannot be sent to workers, has no end, or cannot tell the
            instant, or its schema is none.
        InputLost: Some of it is gone.
    """
    # A copy is asked, as by the other planes: the user's own opens no connection.
    asked: Injector = pickle.loads(_pickled(stream, injector))
    return list(pieces_until_now(stream, asked, before))


def external_pieces(
    spark: SparkSession, stream: str, pieces: Sequence[Piece], *, tasks: int
) -> DataFrame:
    """Return pieces as a bounded DataFrame: a row a piece.

    Args:
        spark: The session.
        stream: Name of the injected stream.
        pieces: Of it.
        tasks: How many tasks can read at once.
    """
    lots = _lots(pieces, tasks)
    rows = [
        (number, packed_piece(stream, piece)) for number, lot in enumerate(lots) for piece in lot
    ]
    there = spark.createDataFrame(rows, f"lot int, {PIECE_DDL}")
    return partitioned(there, max(1, len(lots)), "lot").drop("lot")


def _pickled(stream: str, injector: Injector) -> bytes:
    arrow_schema(injector.schema)
    try:
        return pickle_by_value(injector)
    except (TypeError, AttributeError, pickle.PicklingError) as refused:
        raise PipelineError(
            f"stream {stream!r}: its injector {injector!r} cannot be sent to Spark's workers: "
            f"{refused}. Open connections where they are used, and leave them out of __getstate__."
        ) from refused
