"""The one Spark session every Spark contender gets, and the clock all of them are timed by."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

_SETTLE_S = 30.0


def build_session(
    name: str,
    cores: int,
    *,
    heap: str = "4g",
    jars: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a local session with ``cores`` task slots and as many shuffle partitions.

    State lives in RocksDB with changelog checkpointing, which Spark's guide recommends for
    ``transformWithState``; Millrace and the empty epochs do not touch it. Arrow and worker reuse
    are on for both. Nothing else is tuned for anyone.

    Args:
        name: Of the application.
        cores: Task slots, and shuffle partitions.
        heap: Of the JVM.
        jars: On its class path besides: those of Spark's Kafka connector.
        settings: Further ones.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .appName(name)
        .config("spark.driver.memory", heap)
        .config("spark.driver.extraClassPath", os.pathsep.join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", cores)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.streaming.stateStore.providerClass", store)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config(map=dict(settings or {}))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def read_batches(spark: SparkSession, folder: str, schema: str, files: int) -> DataFrame:
    """Return the Parquet files of ``folder`` as a stream of batches of exactly ``files`` files."""
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files)
    return reader.parquet(folder)


@dataclass(frozen=True)
class Batch:
    """One Structured Streaming batch that read data: times in seconds of Unix time."""

    number: int
    started_s: float
    ended_s: float
    records: int


class BatchLog(StreamingQueryListener):
    """Collects the batches that read data, in the order that Spark reports them.

    What counts is rows of Spark's file source; or, where files are read by Millrace itself, the
    files that an epoch was given to read, of which there are two or more: a tick is one row.

    A batch lasts from the trigger (``timestamp``) for ``durationMs.triggerExecution``: planning,
    offset log, tasks and commit log, and the same for everyone who runs on Spark.
    """

    def __init__(self, *, by_millrace: bool = False) -> None:
        self._batches: list[Batch] = []
        self._by_millrace = by_millrace

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing: only progress counts."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing: only progress counts."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Keep the batch if a file was read in it."""
        progress = event.progress
        if self._by_millrace:
            records = max(source.numInputRows for source in progress.sources)
            read = records > 1
        else:
            records = sum(
                source.numInputRows
                for source in progress.sources
                if source.description.startswith("FileStreamSource")
            )
            read = records > 0
        if read:
            started_s = dt.datetime.fromisoformat(progress.timestamp).timestamp()
            lasted_s = progress.durationMs["triggerExecution"] / 1000
            self._batches.append(Batch(progress.batchId, started_s, started_s + lasted_s, records))

    def wait_for(self, batches: int) -> list[Batch]:
        """Return the batches once there are ``batches``; Spark reports them asynchronously.

        Raises:
            TimeoutError: Fewer arrived within half a minute of the query's end.
        """
        deadline_s = time.monotonic() + _SETTLE_S
        while len(self._batches) < batches:
            if time.monotonic() > deadline_s:
                raise TimeoutError(
                    f"Spark reported {len(self._batches)} batches with data, expected {batches}; "
                    "did the query stop early?"
                )
            time.sleep(0.05)
        return list(self._batches)
