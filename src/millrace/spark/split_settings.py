"""How Spark cuts the files of an epoch into partitions, written down so that a retry does it again.

A record's id is its place in its source: the partition of the scan, and the row in it. Spark's file
sources choose the partitions by the settings here, those of the session in which the source was
made. So an epoch's manifest holds them, and an epoch that is run again is read under those that it
was begun with, whatever the session is set to by then.

Source: MillWheel 6.1.1: the id of a record is the same whenever it is delivered again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from pyspark.sql import SparkSession

from millrace.spark.parallelism import tasks_for

_LEAST = "spark.sql.files.minPartitionNum"
_SETTINGS = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    _LEAST,
    "spark.sql.files.maxPartitionNum",
)
#: What Spark takes for the least number of partitions if that is not set; else its cores.
_INSTEAD = "spark.sql.leafNodeDefaultParallelism"


class SplitSettings:
    """The settings of a session by which files are split.

    The least number of partitions is set, if the user has not, to what it is by default: how many
    tasks the session can run at once. Left to Spark, it would be looked up for each scan, and be
    another when executors have come or gone.

    Args:
        spark: The session in which the sources were made.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._users: dict[str, str] | None = None
        if spark.conf.get(_LEAST, None) is None:
            spark.conf.set(_LEAST, spark.conf.get(_INSTEAD, None) or str(tasks_for(spark)))

    def settings(self) -> dict[str, str]:
        """Return them; one that has no value is left out."""
        values = {name: self._spark.conf.get(name, None) for name in _SETTINGS}
        return {name: value for name, value in values.items() if value is not None}

    def repeat(self, wanted: Mapping[str, str]) -> None:
        """Split as an epoch was split before, until :meth:`give_back`.

        Args:
            wanted: Its settings; nothing of a checkpoint that is older than they are.
        """
        values = self.settings()
        if wanted and values != wanted:
            self._users = self._users or values
            self._set(wanted)

    def give_back(self) -> None:
        """Set the session as the user had it."""
        if self._users is not None:
            users, self._users = self._users, None
            with contextlib.suppress(Exception):  # a session that was stopped has no settings
                self._set(users)

    def _set(self, wanted: Mapping[str, str]) -> None:
        for name in _SETTINGS:
            if name in wanted:
                self._spark.conf.set(name, wanted[name])
            else:
                self._spark.conf.unset(name)
