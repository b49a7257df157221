"""How Spark writes its own progress (offsets and commits) on a local disk.

By default it goes through Hadoop's FileContext, which without Hadoop's native library starts a
program for every question about a link or a mode: about 60 ms an epoch, more than all that
Millrace's driver does in it. The FileSystem implementation that Spark has beside it writes the same
files with half a dozen fewer questions. Neither is atomic between two drivers on a local disk;
Millrace's epoch log is, and decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_SETTING = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
#: The first Spark known to have it under this name.
_SINCE = (4, 2)


@contextmanager
def local_progress_files(spark: SparkSession) -> Iterator[None]:
    """Let a query that is started within write its progress the quick way.

    A choice that the user made stands. The setting is taken back, as the query keeps a copy of the
    session's settings.

    Args:
        spark: The session; the query's checkpoint location must be a local path.
    """
    version = tuple(int(part) for part in spark.version.split(".")[:2])
    if version < _SINCE or spark.conf.get(_SETTING, None) is not None:
        yield
        return
    spark.conf.set(_SETTING, _BY_FILE_SYSTEM)
    try:
        yield
    finally:
        spark.conf.unset(_SETTING)
