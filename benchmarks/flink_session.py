"""A session of Flink SQL, as every benchmark has it: RocksDB, a checkpoint a second, exactly once.

Millrace and Spark commit with every batch, which is about one a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment


def open_session(
    jars: Iterable[str], cores: int, checkpoint: Path, settings: dict[str, object] | None = None
) -> TableEnvironment:
    """Return an environment for streaming.

    Args:
        jars: Paths of connectors.
        cores: Slots, and the parallelism of every operator.
        checkpoint: A folder.
        settings: What is otherwise here, by Flink's names.
    """
    configuration = Configuration()
    for name, value in {
        "parallelism.default": cores,
        "pipeline.classpaths": ";".join(Path(jar).as_uri() for jar in jars),
        "table.local-time-zone": "UTC",
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": True,
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": checkpoint.as_uri(),
        "taskmanager.numberOfTaskSlots": cores,
        # Most of it is RocksDB's, outside the heap. Spark does not limit RocksDB.
        "taskmanager.memory.managed.size": "1 gb",
        **(settings or {}),
    }.items():
        configuration.set_string(name, str(value))
    mode = EnvironmentSettings.new_instance().in_streaming_mode()
    return TableEnvironment.create(mode.with_configuration(configuration).build())
