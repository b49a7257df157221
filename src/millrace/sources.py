"""Sources: where records come from, for ``p.inject``; a Spark DataFrame is one, too."""

from millrace.connectors.files.source import Files
from millrace.connectors.kafka.source import Kafka
from millrace.connectors.lakes.delta_source import DeltaAppends as Delta
from millrace.connectors.lakes.iceberg_source import IcebergAppends as Iceberg
from millrace.injectors.advance import Advance, Backlog
from millrace.injectors.injector import Injector

__all__ = ["Advance", "Backlog", "Delta", "Files", "Iceberg", "Injector", "Kafka"]
