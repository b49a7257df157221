"""Where Spark keeps its own progress (offsets and commits), and how it is written on a local disk.

Which records an epoch has is written there, and only there; its outcome is in the checkpoint. So
before the epoch's manifest is durable, they must be, or a power cut could leave a manifest whose
records are not known any more. Spark itself does not fsync them.

By default Spark goes through Hadoop's FileContext, which without Hadoop's native library starts a
program for every question about a link or a mode: about 60 ms an epoch, more than all that
Millrace's driver does in it. The FileSystem implementation that Spark has beside it writes the same
files with half a dozen fewer questions. Neither is atomic between two drivers on a local disk;
Millrace's epoch log is, and decides.

What waits in sources that Spark reads itself follows from the same offsets, as its query reports
them.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millrace.compile.topology import Topology
from millrace.injectors.advance import Backlog
from millrace.injectors.injector import Injector
from millrace.model.errors import PipelineError
from millrace.spark.compat import FILE_MANAGER, lend
from millrace.store import BucketUrl, is_object_store, local_path
from millrace.store.durable_files import sync_directory, translated

_SETTING = "spark.sql.streaming.checkpointFileManagerClass"


def progress_location(checkpoint: str, given: str | None, *, base: int = 0) -> str:
    """Return the path or URL of Spark's progress, as Hadoop's file systems write it.

    Args:
        checkpoint: Where hard state is.
        given: What the user asked for, if anything.
        base: The epoch that is Spark's first batch there. Offsets begin anew, beside the old ones,
            after live tasks have gone on from those.

    Raises:
        PipelineError: It cannot be told from the checkpoint's.

    >>> progress_location("/ckpt", None), progress_location("s3://bucket/ckpt", None)
    ('/ckpt/spark', 's3a://bucket/ckpt/spark')
    >>> progress_location("/ckpt", "file:///offsets")  # whose files are synced, too
    '/offsets'
    >>> progress_location("/ckpt", None, base=12)
    '/ckpt/spark-from-12'
    """
    first = _first_location(checkpoint, given)
    return f"{first.rstrip('/')}-from-{base}" if base else first


def _first_location(checkpoint: str, given: str | None) -> str:
    if given is not None:
        given = os.fspath(given)
        local = "://" not in given or given.lower().startswith("file:")
        return str(local_path(given)) if local else given
    if not is_object_store(checkpoint):
        return str(local_path(checkpoint) / "spark")
    url = BucketUrl.parse(checkpoint)
    prefix = "/".join(part for part in (url.prefix, "spark") if part)
    if url.scheme != "az":
        scheme = "s3a" if url.scheme == "s3" else url.scheme
        return f"{scheme}://{url.bucket}/{prefix}"
    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise PipelineError(
            f"checkpoint {checkpoint!r}: Spark's name for it holds the storage account, which is "
            "not known here. Set AZURE_STORAGE_ACCOUNT_NAME, or give spark_checkpoint=, a "
            "directory or URL for Spark's own offsets."
        )
    return f"abfss://{url.bucket}@{account}.dfs.core.windows.net/{prefix}"


def for_spark(location: str | Path) -> str:
    """Return a path or URL as Spark takes it: a path without a scheme is one of ``fs.defaultFS``.

    On most clusters that is HDFS, or the host's own store, and Python's is a local or mounted disk.

    >>> for_spark("/ckpt/spark"), for_spark("s3a://bucket/ckpt/spark")
    ('file:///ckpt/spark', 's3a://bucket/ckpt/spark')
    """
    return str(location) if "://" in str(location) else f"file://{location}"


def has_progress(spark: SparkSession, location: str) -> bool:
    """Return whether Spark's offsets are at a location.

    Raises:
        PipelineError: Spark has no way to get there.
    """
    if "://" not in location:
        return (Path(location) / "offsets").is_dir()
    try:
        spark.read.text(f"{location.rstrip('/')}/offsets")
    except PySparkException as error:
        if "PATH_NOT_FOUND" in (error.getCondition() or ""):
            return False
        cause = str(error).splitlines()[0]
    except Exception as error:  # noqa: BLE001 - what a missing class comes as depends on the session
        cause = next((line for line in str(error).splitlines() if "Exception" in line), "no reason")
    else:
        return True
    raise PipelineError(
        f"Spark cannot reach {location!r}, where its own offsets would be: {cause.strip()}. Give "
        "the session the connector of that store, and its credentials (for s3a: the package "
        "org.apache.hadoop:hadoop-aws of Spark's own Hadoop version). Or keep Spark's offsets "
        "elsewhere: start(..., spark_checkpoint=), a durable directory of the driver, or a URL."
    )


class ProgressFiles:
    """Has Spark write its progress the quick way, and makes what it has written durable.

    Args:
        location: The query's checkpoint location. Where that is no local path nothing is done: what
            an object store or a distributed file system has acknowledged is durable.
        spark: The session in which the sources were made.
    """

    def __init__(self, location: str, spark: SparkSession) -> None:
        self._root = None if "://" in location else Path(location)
        self._spark = spark
        self._return: Callable[[], None] | None = None
        self._durable: set[Path] = set()

    def begin(self) -> None:
        """Set how a query writes that is started next, until :meth:`give_back`.

        Its own files go by a copy of the session's settings, which it takes when it starts. Those
        of its sources go by the session's, when it makes them: between its start and its first
        batch. A choice that the user made stands.
        """
        if self._root is None or self._return is not None:
            return
        # Another query of the session may have lent it, and give it back before this has begun.
        if self._spark.conf.get(_SETTING, None) in (None, FILE_MANAGER):
            self._return = lend(self._spark, {_SETTING: FILE_MANAGER})

    def give_back(self) -> None:
        """Set the session as the user had it."""
        give_back, self._return = self._return, None
        if give_back is not None:
            give_back()

    def sync(self) -> None:
        """Fsync what was written since the last call: offsets, and the sources' own logs.

        Raises:
            CheckpointUnwritable: The disk refuses.
        """
        if self._root is None:
            return
        with translated(self._root):
            logs = [self._root / "offsets", *sorted((self._root / "sources").glob("*"))]
            files = {path for log in logs if log.is_dir() for path in log.glob("[!.]*")}
            if not self._durable:
                for path in (self._root, self._root / "sources"):
                    if path.is_dir():
                        sync_directory(path)
            written = files - self._durable
            for path in written:
                with contextlib.suppress(FileNotFoundError):  # an old one that Spark removes
                    _sync_file(path)
            for log in {path.parent for path in written}:
                sync_directory(log)
        # What Spark has removed meanwhile need not be remembered.
        self._durable = files


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def asking_spark(
    topology: Topology, query: Callable[[], Any]
) -> dict[str, Callable[[], Backlog | None]]:
    """Return injected stream -> what asks how much waits in its DataFrame.

    Args:
        topology: The pipeline.
        query: Returns its query; None as long as there is none.
    """
    streams = [spec for spec in topology.injected() if spec.injection is not None]

    def asks(at: int) -> Callable[[], Backlog | None]:
        def ask() -> Backlog | None:
            running = query()
            progress = None if running is None else running.lastProgress
            # Besides theirs it has the source of ticks. Where there are more, or less, one of the
            # frames is of several sources, or two are of one: nobody could say whose is whose.
            if progress is None or len(progress.sources) != len(streams) + 1:
                return None
            source = progress.sources[at]
            return behind(source.endOffset, source.latestOffset)

        return ask

    return {
        spec.name: asks(at)
        for at, spec in enumerate(streams)
        if spec.injection is not None and not isinstance(spec.injection.source, Injector)
    }


def behind(read: str | None, latest: str | None) -> Backlog | None:
    """Return what lies between offsets of Spark's Kafka source; None for another source's.

    >>> behind('{"t":{"0":5,"1":7}}', '{"t":{"0":9,"1":7,"2":3}}')
    Backlog(records=4, files=None, size=None)
    >>> behind("41", "44")
    """
    try:
        begun, end = json.loads(read or ""), json.loads(latest or "")
        records = [
            last - begun[topic].get(partition, last)
            for topic, partitions in end.items()
            for partition, last in partitions.items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Backlog(records=sum(max(0, n) for n in records))
