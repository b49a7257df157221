"""Sinks: where streams go, for ``p.sink``; any callable ``(DataFrame, epoch)`` is one, too."""

from millrace.connectors.console import Console
from millrace.connectors.function_sink import ArrowSink as Function
from millrace.connectors.kafka.sink import KafkaSink as Kafka
from millrace.connectors.lakes.delta_sink import Delta
from millrace.connectors.lakes.iceberg_sink import Iceberg
from millrace.connectors.parquet.sink import Parquet
from millrace.connectors.postgres import PostgreSQL
from millrace.spark.memory import Memory

__all__ = ["Console", "Delta", "Function", "Iceberg", "Kafka", "Memory", "Parquet", "PostgreSQL"]
