"""External: what an epoch, or a batch, reads of injectors beside sources of Spark's own.

Rows stand for pieces, which the first stage reads (:mod:`millrace.runtime.piece_reader`): no record
is a row of Spark's here.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from millrace.compile.topology import Topology
from millrace.injectors.columns import arrow_schema
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import PIECE_DDL, Piece
from millrace.model.errors import PipelineError
from millrace.runtime.by_value import pickle_by_value
from millrace.runtime.epoch.input import lots_of
from millrace.spark.compat import partitioned


def injectors_of(topology: Topology) -> dict[str, Injector]:
    """Return injected stream -> a copy of its injector, which the driver asks.

    A copy, as workers have one: the user's own opens no connection.

    Raises:
        PipelineError: One cannot be sent to workers, or its schema is none.
    """
    return {
        spec.name: _copy(spec.name, injection.source)
        for spec in topology.injected()
        if (injection := spec.injection) is not None and isinstance(injection.source, Injector)
    }


def external_pieces(
    spark: SparkSession, pieces: Mapping[str, Sequence[Piece]], *, tasks: int
) -> DataFrame:
    """Return pieces as a bounded DataFrame: a row a piece.

    Args:
        spark: The session.
        pieces: Injected stream -> pieces of it.
        tasks: How many tasks can read at once.
    """
    lots = lots_of(pieces, tasks)
    rows = [(number, packed) for number, lot in enumerate(lots) for packed in lot]
    there = spark.createDataFrame(rows, f"lot int, {PIECE_DDL}")
    return partitioned(there, max(1, len(lots)), "lot").drop("lot")


def together(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of several frames, by the names of their columns."""
    return reduce(lambda one, more: one.unionByName(more, allowMissingColumns=True), frames)


def _copy(stream: str, injector: Injector) -> Injector:
    arrow_schema(injector.schema)
    try:
        copied: Injector = pickle.loads(pickle_by_value(injector))
    except (TypeError, AttributeError, pickle.PicklingError) as refused:
        raise PipelineError(
            f"stream {stream!r}: its injector {injector!r} cannot be sent to Spark's workers: "
            f"{refused}. Open connections where they are used, and leave them out of __getstate__."
        ) from refused
    return copied
