"""Millrace: MillWheel's programming model on Apache Spark."""

from millrace import testing
from millrace.injectors.policy import ArrivalTime, BoundedDelay, WatermarkColumn
from millrace.model.coder import BytesCoder, Coder, JsonCoder, MsgpackCoder, PickleCoder
from millrace.model.computation import Computation
from millrace.model.errors import MillraceError
from millrace.model.guarantees import AT_LEAST_ONCE, EXACTLY_ONCE, STRONG, WEAK
from millrace.model.pipeline import Pipeline
from millrace.model.record import (
    LOW_WATERMARK,
    WALL_TIME,
    DeadLetter,
    LateRecord,
    Record,
    Timer,
)
from millrace.model.state import BagState, CombiningState, MapState, ValueState
from millrace.model.stream import by, by_key
from millrace.model.time import (
    DAY,
    HOUR,
    MAX_TIMESTAMP,
    MICROSECOND,
    MILLISECOND,
    MIN_TIMESTAMP,
    MINUTE,
    SECOND,
    UNBOUNDED_PAST,
)
from millrace.spark.postgres import PostgreSQL
from millrace.spark.sinks import Console, Memory, Parquet

__all__ = [
    "AT_LEAST_ONCE",
    "DAY",
    "EXACTLY_ONCE",
    "HOUR",
    "LOW_WATERMARK",
    "MAX_TIMESTAMP",
    "MICROSECOND",
    "MILLISECOND",
    "MINUTE",
    "MIN_TIMESTAMP",
    "SECOND",
    "UNBOUNDED_PAST",
    "STRONG",
    "WALL_TIME",
    "WEAK",
    "ArrivalTime",
    "BagState",
    "BoundedDelay",
    "BytesCoder",
    "Coder",
    "CombiningState",
    "Computation",
    "Console",
    "DeadLetter",
    "JsonCoder",
    "LateRecord",
    "MapState",
    "Memory",
    "MillraceError",
    "MsgpackCoder",
    "Parquet",
    "PickleCoder",
    "Pipeline",
    "PostgreSQL",
    "Record",
    "Timer",
    "ValueState",
    "WatermarkColumn",
    "by",
    "by_key",
    "testing",
]
