"""Millrace: MillWheel's programming model on Apache Spark.

A public name is imported when it is first used. Spark starts Python processes for a run, and forks
one for each task, which wait for their imports; most need a part of Millrace only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace import testing
    from millrace.connectors.console import Console
    from millrace.connectors.files.source import Files
    from millrace.connectors.function_sink import ArrowSink
    from millrace.connectors.kafka.sink import KafkaSink
    from millrace.connectors.kafka.source import Kafka
    from millrace.connectors.lakes.delta_sink import Delta
    from millrace.connectors.lakes.delta_source import DeltaAppends
    from millrace.connectors.lakes.iceberg_sink import Iceberg
    from millrace.connectors.lakes.iceberg_source import IcebergAppends
    from millrace.connectors.parquet.sink import Parquet
    from millrace.connectors.postgres import PostgreSQL
    from millrace.dataflow.aggregations import CombineFn, VectorFold
    from millrace.dataflow.aggregations.catalog import (
        Aggregate,
        count,
        distinct,
        group,
        max,
        mean,
        min,
        quantiles,
        stddev,
        sum,
        top,
        variance,
    )
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
        EARLIEST,
        END_OF_WINDOW,
        LATEST,
    )
    from millrace.dataflow.windows import (
        FixedWindows,
        GlobalWindow,
        Sessions,
        SlidingWindows,
        WindowFn,
    )
    from millrace.injectors.advance import Advance, Backlog
    from millrace.injectors.injector import Injector
    from millrace.injectors.watermark_policy import ArrivalTime, BoundedDelay, WatermarkColumn
    from millrace.inspect import (
        add_savepoint,
        copy_checkpoint,
        open_checkpoint,
        remap_checkpoint,
        remove_savepoint,
        restore_checkpoint,
        savepoints,
        send_dead_letters,
    )
    from millrace.model.coder import BytesCoder, Coder, JsonCoder, MsgpackCoder, PickleCoder
    from millrace.model.computation import AT_LEAST_ONCE, EXACTLY_ONCE, STRONG, WEAK, Computation
    from millrace.model.declarations import INGRESS
    from millrace.model.errors import MillraceError
    from millrace.model.pane import EARLY, LATE, ON_TIME, Pane, PanedCoder, Window
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
    from millrace.observe.pane_plot import plot_panes
    from millrace.observe.watermark_plot import plot_watermarks
    from millrace.pipeline import Pipeline
    from millrace.spark.memory import Memory
    from millrace.watermark.map_change import Merge, Split
    from millrace.windmill.balance_policy import Balance

__all__ = [
    "ACCUMULATING",
    "ACCUMULATING_AND_RETRACTING",
    "AT_LEAST_ONCE",
    "DAY",
    "DISCARDING",
    "EARLIEST",
    "EARLY",
    "END_OF_WINDOW",
    "EXACTLY_ONCE",
    "HOUR",
    "INGRESS",
    "LATE",
    "LATEST",
    "LOW_WATERMARK",
    "MAX_TIMESTAMP",
    "MICROSECOND",
    "MILLISECOND",
    "MINUTE",
    "MIN_TIMESTAMP",
    "ON_TIME",
    "SECOND",
    "STRONG",
    "UNBOUNDED_PAST",
    "WALL_TIME",
    "WEAK",
    "Aggregate",
    "AfterBytes",
    "AfterCount",
    "AfterDelay",
    "AllOf",
    "Advance",
    "ArrivalTime",
    "ArrowSink",
    "AtPeriod",
    "AtWatermark",
    "BagState",
    "Backlog",
    "Balance",
    "BoundedDelay",
    "BytesCoder",
    "Coder",
    "CombineFn",
    "CombiningState",
    "CompositeTrigger",
    "Computation",
    "Console",
    "DeadLetter",
    "Delta",
    "DeltaAppends",
    "Element",
    "FireMode",
    "FirstOf",
    "FixedWindows",
    "GlobalWindow",
    "Files",
    "Iceberg",
    "IcebergAppends",
    "Injector",
    "JsonCoder",
    "Kafka",
    "KafkaSink",
    "LateRecord",
    "MapState",
    "Memory",
    "Merge",
    "MillraceError",
    "MsgpackCoder",
    "OnCall",
    "OnSignal",
    "Pane",
    "PanedCoder",
    "Parquet",
    "PickleCoder",
    "Pipeline",
    "PostgreSQL",
    "Punctuation",
    "Record",
    "Repeat",
    "RepeatCount",
    "RepeatUntil",
    "SequenceOf",
    "Sessions",
    "SideInput",
    "SlidingWindows",
    "Split",
    "Timer",
    "Trigger",
    "ValueState",
    "VectorFold",
    "WatermarkColumn",
    "Window",
    "WindowFn",
    "by",
    "by_key",
    "of_record",
    "open_checkpoint",
    "plot_panes",
    "plot_watermarks",
    "count",
    "distinct",
    "group",
    "max",
    "mean",
    "min",
    "quantiles",
    "stddev",
    "sum",
    "top",
    "variance",
    "testing",
    "add_savepoint",
    "copy_checkpoint",
    "remap_checkpoint",
    "remove_savepoint",
    "restore_checkpoint",
    "savepoints",
    "send_dead_letters",
]

#: Module, below this package -> the public names that are there.
_PUBLIC = {
    "dataflow.aggregations": "CombineFn VectorFold",
    "dataflow.aggregations.catalog": (
        "Aggregate count distinct group max mean min quantiles stddev sum top variance"
    ),
    "dataflow.triggers": (
        "AfterBytes AfterCount AfterDelay AllOf AtPeriod AtWatermark CompositeTrigger FireMode "
        "FirstOf OnCall OnSignal Punctuation Repeat RepeatCount RepeatUntil SequenceOf Trigger"
    ),
    "dataflow.windowing": (
        "ACCUMULATING ACCUMULATING_AND_RETRACTING DISCARDING EARLIEST END_OF_WINDOW LATEST"
    ),
    "dataflow.windows": "FixedWindows GlobalWindow Sessions SlidingWindows WindowFn",
    "injectors.advance": "Advance Backlog",
    "connectors.lakes.delta_source": "DeltaAppends",
    "connectors.files.source": "Files",
    "connectors.lakes.iceberg_source": "IcebergAppends",
    "injectors.injector": "Injector",
    "connectors.kafka.source": "Kafka",
    "injectors.watermark_policy": "ArrivalTime BoundedDelay WatermarkColumn",
    "inspect": (
        "add_savepoint copy_checkpoint open_checkpoint remap_checkpoint remove_savepoint "
        "restore_checkpoint savepoints send_dead_letters"
    ),
    "model.coder": "BytesCoder Coder JsonCoder MsgpackCoder PickleCoder",
    "model.computation": "AT_LEAST_ONCE Computation EXACTLY_ONCE STRONG WEAK",
    "model.declarations": "INGRESS",
    "model.errors": "MillraceError",
    "model.pane": "EARLY LATE ON_TIME Pane PanedCoder Window",
    "model.record": "DeadLetter LOW_WATERMARK LateRecord Record Timer WALL_TIME",
    "model.state": "BagState CombiningState MapState SideInput ValueState",
    "model.stream": "Element by by_key of_record",
    "model.time": (
        "DAY HOUR MAX_TIMESTAMP MICROSECOND MILLISECOND MINUTE MIN_TIMESTAMP SECOND UNBOUNDED_PAST"
    ),
    "observe.pane_plot": "plot_panes",
    "observe.watermark_plot": "plot_watermarks",
    "pipeline": "Pipeline",
    "connectors.function_sink": "ArrowSink",
    "connectors.console": "Console",
    "connectors.lakes.delta_sink": "Delta",
    "connectors.lakes.iceberg_sink": "Iceberg",
    "connectors.kafka.sink": "KafkaSink",
    "connectors.parquet.sink": "Parquet",
    "connectors.postgres": "PostgreSQL",
    "spark.memory": "Memory",
    "watermark.map_change": "Merge Split",
    "windmill.balance_policy": "Balance",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

#: Folders that are reached through the package: `mr.spark.realtime_settings()`.
_FOLDERS = ("spark", "testing")


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return import_module(f"millrace.{name}")
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"millrace.{module}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
