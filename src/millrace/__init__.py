"""Millrace: MillWheel's programming model on Apache Spark.

What every pipeline is written in stands here; what is of one subject is in a namespace: sources,
sinks, agg (aggregates), coders, ops (what is done to a checkpoint), plot, spark, testing.

A public name is imported when it is first used. Spark starts Python processes for a run, and forks
one for each task, which wait for their imports; most need a part of Millrace only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace import agg, coders, ops, plot, sinks, sources, spark, testing
    from millrace.connectors.parquet.sink import Parquet
    from millrace.dataflow.aggregations import CombineFn
    from millrace.dataflow.triggers import (
        AfterBytes,
        AfterCount,
        AfterDelay,
        AllOf,
        AtPeriod,
        AtWatermark,
        CompositeTrigger,
        FireMode,
        FirstOf,
        OnCall,
        OnSignal,
        Punctuation,
        Repeat,
        RepeatCount,
        RepeatUntil,
        SequenceOf,
        Trigger,
    )
    from millrace.dataflow.windowing import (
        ACCUMULATING,
        ACCUMULATING_AND_RETRACTING,
        DISCARDING,
        OutputTime,
        early,
    )
    from millrace.dataflow.windows import (
        FixedWindows,
        GlobalWindow,
        Sessions,
        SlidingWindows,
        WindowFn,
    )
    from millrace.injectors.watermark_policy import ArrivalTime, BoundedDelay, WatermarkColumn
    from millrace.model.async_computation import AsyncComputation
    from millrace.model.calls import BatchPolicy, CallPolicy
    from millrace.model.coder import Coder
    from millrace.model.column_computation import ColumnComputation, KeyBlock
    from millrace.model.columns import coalesce, col, concat_str, lit, when
    from millrace.model.computation import AT_LEAST_ONCE, EXACTLY_ONCE, STRONG, WEAK, Computation
    from millrace.model.declarations import INGRESS
    from millrace.model.errors import MillraceError
    from millrace.model.pane import EARLY, LATE, ON_TIME, Pane, Window
    from millrace.model.record import (
        LOW_WATERMARK,
        WALL_TIME,
        DeadLetter,
        LateRecord,
        Record,
        Timer,
    )
    from millrace.model.state import BagState, CombiningState, MapState, SideInput, ValueState
    from millrace.model.stream import Element, by, by_key, of_record
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
    from millrace.pipeline import Pipeline

__all__ = [
    "ACCUMULATING",
    "ACCUMULATING_AND_RETRACTING",
    "AT_LEAST_ONCE",
    "AfterBytes",
    "AfterCount",
    "AfterDelay",
    "AllOf",
    "ArrivalTime",
    "AsyncComputation",
    "AtPeriod",
    "AtWatermark",
    "BagState",
    "BatchPolicy",
    "BoundedDelay",
    "CallPolicy",
    "Coder",
    "ColumnComputation",
    "CombineFn",
    "CombiningState",
    "CompositeTrigger",
    "Computation",
    "DAY",
    "DISCARDING",
    "DeadLetter",
    "EARLY",
    "EXACTLY_ONCE",
    "Element",
    "FireMode",
    "FirstOf",
    "FixedWindows",
    "GlobalWindow",
    "HOUR",
    "INGRESS",
    "KeyBlock",
    "LATE",
    "LOW_WATERMARK",
    "LateRecord",
    "MAX_TIMESTAMP",
    "MICROSECOND",
    "MILLISECOND",
    "MINUTE",
    "MIN_TIMESTAMP",
    "MapState",
    "MillraceError",
    "ON_TIME",
    "OnCall",
    "OnSignal",
    "OutputTime",
    "Pane",
    "Parquet",
    "Pipeline",
    "Punctuation",
    "Record",
    "Repeat",
    "RepeatCount",
    "RepeatUntil",
    "SECOND",
    "STRONG",
    "SequenceOf",
    "Sessions",
    "SideInput",
    "SlidingWindows",
    "Timer",
    "Trigger",
    "UNBOUNDED_PAST",
    "ValueState",
    "WALL_TIME",
    "WEAK",
    "WatermarkColumn",
    "Window",
    "WindowFn",
    "agg",
    "by",
    "by_key",
    "coalesce",
    "coders",
    "col",
    "concat_str",
    "early",
    "lit",
    "of_record",
    "ops",
    "plot",
    "sinks",
    "sources",
    "spark",
    "testing",
    "when",
]

#: Module, below this package -> the public names that are there.
_PUBLIC = {
    "connectors.parquet.sink": "Parquet",
    "dataflow.aggregations": "CombineFn",
    "dataflow.triggers": (
        "AfterBytes AfterCount AfterDelay AllOf AtPeriod AtWatermark CompositeTrigger "
        "FireMode FirstOf OnCall OnSignal Punctuation Repeat RepeatCount RepeatUntil "
        "SequenceOf Trigger"
    ),
    "dataflow.windowing": "ACCUMULATING ACCUMULATING_AND_RETRACTING DISCARDING OutputTime early",
    "dataflow.windows": "FixedWindows GlobalWindow Sessions SlidingWindows WindowFn",
    "injectors.watermark_policy": "ArrivalTime BoundedDelay WatermarkColumn",
    "model.async_computation": "AsyncComputation",
    "model.calls": "BatchPolicy CallPolicy",
    "model.coder": "Coder",
    "model.computation": "AT_LEAST_ONCE Computation EXACTLY_ONCE STRONG WEAK",
    "model.declarations": "INGRESS",
    "model.errors": "MillraceError",
    "model.column_computation": "ColumnComputation KeyBlock",
    "model.columns": "coalesce col concat_str lit when",
    "model.pane": "EARLY LATE ON_TIME Pane Window",
    "model.record": "DeadLetter LOW_WATERMARK LateRecord Record Timer WALL_TIME",
    "model.state": "BagState CombiningState MapState SideInput ValueState",
    "model.stream": "Element by by_key of_record",
    "model.time": (
        "DAY HOUR MAX_TIMESTAMP MICROSECOND MILLISECOND MINUTE MIN_TIMESTAMP SECOND UNBOUNDED_PAST"
    ),
    "pipeline": "Pipeline",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

#: Modules that are reached through the package: `mr.sinks.Kafka(...)`.
_NAMESPACES = ("agg", "coders", "ops", "plot", "sinks", "sources", "spark", "testing")

#: Namespace -> names that stood here before, with what they are called there if otherwise.
_MOVED = {
    "sources": "Advance Backlog DeltaAppends=Delta Files IcebergAppends=Iceberg Injector Kafka",
    "sinks": "ArrowSink=Function Console Delta Iceberg KafkaSink=Kafka Memory PostgreSQL",
    "agg": (
        "Aggregate VectorFold count distinct group max mean min quantiles stddev sum top variance"
    ),
    "coders": (
        "BytesCoder=Bytes JsonCoder=Json MsgpackCoder=Msgpack PanedCoder=Paned PickleCoder=Pickle"
    ),
    "ops": (
        "Balance Merge Split add_savepoint copy_checkpoint open_checkpoint remap_checkpoint "
        "remove_savepoint restore_checkpoint savepoints send_dead_letters"
    ),
    "plot": "plot_panes=panes plot_watermarks=watermarks",
    "OutputTime": "EARLIEST END_OF_WINDOW LATEST",
}


if not TYPE_CHECKING:  # or a type checker would take any name for one of the package

    def __getattr__(name: str) -> Any:
        if name in _NAMESPACES:
            return import_module(f"millrace.{name}")
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(_unknown(name))
        value = globals()[name] = getattr(import_module(f"millrace.{module}"), name)
        return value


def _unknown(name: str) -> str:
    """Return why there is no such name, and what it is called now if it was here before."""
    for namespace, names in _MOVED.items():
        for one in names.split():
            old, _, new = one.partition("=")
            if old == name:
                return f"mr.{name} is mr.{namespace}.{new or old}"
    return f"module {__name__!r} has no attribute {name!r}"


def __dir__() -> list[str]:
    return __all__
