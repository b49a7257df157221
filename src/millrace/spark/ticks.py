"""The tick source: it makes Structured Streaming start an epoch when no data does.

A timer that waits for the wall clock, and a low watermark that can advance, need epochs without
data; an idle pipeline should have few. Spark starts a batch when a source of its query has another
offset than before. So the query has one of which only the offset is used, and the driver sets it:
``MemoryStream``, which is in Spark's own jar, made for its tests. Nothing public makes one whose
offset can be set. A source in Python would be a process of its own for each run, with imports of
half a second, that Spark asks a hundred times a second.

There are no rows: each epoch would have a task that reads them.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.model.errors import PipelineError

_STREAM = "org.apache.spark.sql.execution.streaming.runtime.MemoryStream"
_ENCODERS = "org.apache.spark.sql.Encoders"


class Ticks:
    """The source, whose offset is the number of the epoch that is wanted, plus one.

    Spark writes offsets down and expects that they never fall. That of a batch is at most one above
    the number of its epoch, whatever drivers have begun it, and a driver that knows the last epoch
    sets a higher one.

    Args:
        stream: The JVM's.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @classmethod
    def of(cls, spark: SparkSession) -> Ticks:
        """Make one in the JVM of a session.

        Raises:
            PipelineError: This Spark has none.
        """
        session: Any = spark
        try:
            java: Any = session._jvm
            encoder = getattr(java, _ENCODERS).LONG()
            return cls(getattr(java, _STREAM).apply(session._jsparkSession, encoder))
        except Exception as error:
            raise PipelineError(
                f"{_STREAM}, with which Millrace starts epochs that have no data, could not be "
                f"made in Spark {spark.version}: {str(error).splitlines()[0]}. Millrace runs on "
                "the Sparks of its requirements (pip install millrace-spark)."
            ) from error

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return it as a streaming DataFrame of one column, ``value``, without rows."""
        return DataFrame(self._stream.toDF(), spark)

    def want(self, epoch: int) -> None:
        """Have Spark begin an epoch once those before it are over."""
        offset = self._stream.deserializeOffset(str(epoch + 1))
        getattr(self._stream, "currentOffset_$eq")(offset)  # Scala's name of the setter


class Alarm:
    """When the next epoch is wanted at the latest, by the machine's clock.

    Any thread may call any method at any time.

    Args:
        ticks: What it rings.
        begun: Number of the epoch that was begun last; -1 if there is none.
    """

    def __init__(self, ticks: Ticks, begun: int) -> None:
        self._ticks = ticks
        self._begun = begun
        self._due: float | None = None
        self._lock = threading.Lock()

    def epoch_begins(self, epoch: int) -> None:
        """Take it that an epoch begins: what is wanted from now on is the one after it."""
        with self._lock:
            self._begun = epoch

    def ring_in(self, delay_us: int) -> None:
        """Replace the time."""
        with self._lock:
            self._due = time.monotonic() + delay_us / 1e6
        self.look()

    def look(self) -> float | None:
        """Ring if the time has come; return in how many seconds it comes, None if it has.

        Having rung, it is silent until it is set again.
        """
        with self._lock:
            if self._due is None:
                return None
            left = self._due - time.monotonic()
            if left > 0:
                return left
            self._due = None
            self._ticks.want(self._begun + 1)
            return None
