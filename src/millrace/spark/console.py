"""The console of a local session: a failure is told on it once, by Millrace.

In a local session Spark's log shares the console with the user's program. There Spark tells of one
failed task some eight times, with a Java trace each, and what user code raised is lost among
them. So the loggers that do are silent while a run goes on, and the failure names a log with every
traceback (:mod:`millrace.spark.failure`). On a cluster nothing is changed: a driver's
log is read by others there.
"""

from __future__ import annotations

import logging
import threading

from pyspark.sql import SparkSession

from millrace.spark.parallelism import is_local

#: What these say of a failed task or query is said again by the exception that it ends in. That an
#: epoch took longer than a trigger's time, which nobody asked for, is said better by the progress.
_LOGGERS = (
    "org.apache.spark.util.Utils",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.FileFormatWriter",
    "org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask",
    "org.apache.spark.sql.execution.datasources.v2.OverwriteByExpressionExec",
    "org.apache.spark.sql.execution.datasources.v2.AppendDataExec",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.AsyncProgressTrackingMicroBatchExecution",
    "org.apache.spark.sql.execution.streaming.runtime.RealTimeModeAllowlist",
    "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor",
    "org.apache.spark.sql.execution.python",
    # It warns of every row that is larger than its buffer, which all packets are made to be.
    "org.apache.spark.shuffle.streaming",
    "org.apache.spark.util.ErrorNotifier",
    "org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec",
    "org.apache.spark.storage.BlockManager",
    "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter",
    # A query that is stopped may be waiting for a `chmod` of its log.
    "org.apache.hadoop.util.Shell",
)

#: Set to ``false`` in the session, it leaves Spark's log as it is.
SETTING = "spark.millrace.quiet"

_log = logging.getLogger("millrace")


class Quiet:
    """Spark's loggers of failures, silent from :meth:`begin` to :meth:`end`; made once a run."""

    _lock = threading.Lock()
    _runs = 0
    _levels: dict[str, str] = {}  # of the one JVM that a process has

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._held = False

    def begin(self) -> None:
        """Silence the loggers, if the session is local and does not say otherwise.

        The first time in a program it takes a second.
        """
        if not is_local(self.spark) or self.spark.conf.get(SETTING, "true") == "false":
            return
        with self._lock:
            if self._held:
                return
            if not Quiet._levels:
                levels = _call(self.spark, [_level_of(name) for name in _LOGGERS])
                # Of a logger, its text says "name:LEVEL in context".
                Quiet._levels = {
                    name: _at_most_warn(text.rpartition(":")[2].split(" ")[0])
                    for name, text in zip(_LOGGERS, levels, strict=False)
                }
                _call(self.spark, [_set_level(name, "OFF") for name in Quiet._levels])
            Quiet._runs += 1
            self._held = True

    def end(self, *, failed: bool = False) -> None:
        """Let them speak again, once no run wants them silent.

        Args:
            failed: Whether the run did. Then tasks that it left behind are still to be killed, each
                with a trace, so the loggers stay silent until a run ends well.
        """
        with self._lock:
            if not self._held:
                return
            self._held = False
            Quiet._runs -= 1
            if not Quiet._runs and not failed:
                levels = Quiet._levels.items()
                _call(self.spark, [_set_level(name, level) for name, level in levels])
                Quiet._levels = {}


def _at_most_warn(level: str) -> str:
    # A shell's log, and so a program's that made its session itself, shows nothing below warnings,
    # but says that its level is INFO; a logger that has been given a level of its own would show
    # that.
    return level if level in ("ERROR", "FATAL", "OFF") else "WARN"


def _level_of(logger: str) -> str:
    return f"java_method('org.apache.logging.log4j.LogManager', 'getLogger', '{logger}')"


def _set_level(logger: str, level: str) -> str:
    configurator = "org.apache.logging.log4j.core.config.Configurator"
    return f"java_method('{configurator}', 'setLevel', '{logger}', '{level}')"


def _call(spark: SparkSession, calls: list[str]) -> list[str]:
    """Call static methods of Java; SQL is the one public way into a JVM that runs already.

    Workers and driver are one JVM here, so it is the driver's log wherever the query runs.
    """
    try:
        columns = (f"{call} AS c{n}" for n, call in enumerate(calls))
        row = spark.sql(f"SELECT {', '.join(columns)}").first() if calls else None
    except Exception as problem:  # noqa: BLE001  # a log that says too much must not stop a run
        _log.debug("Spark's log is left as it is: %s", problem)
        return []
    return [str(value) for value in row] if row is not None else []
