"""What differs between the versions of Spark that Millrace runs on, each choice made once.

Nothing else asks which Spark this is. The exception is real time, which refuses Sparks by version.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # the name all of Spark's documentation uses
from pyspark.sql import types as T

from millrace.model.errors import PipelineError
from millrace.spark.connect import is_connect

_log = logging.getLogger("millrace")

#: Major and minor version of the installed PySpark.
SPARK: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

if TYPE_CHECKING or SPARK >= (4, 0):
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
else:
    # What has these for a parent is refused before it is used, see `need_python_sources`.
    DataSource = DataSourceReader = DataSourceStreamReader = InputPartition = object

__all__ = [
    "FILE_MANAGER",
    "SPARK",
    "TIME_TYPES",
    "VARIANT_TYPES",
    "DataSource",
    "DataSourceReader",
    "InputPartition",
    "OffsetReader",
    "clone_session",
    "close_session",
    "hashed_to",
    "interrupt_jobs",
    "is_stopped",
    "lend",
    "need_python_sources",
    "partitioned",
    "quoted_name",
    "session_for_jobs",
    "set_if_allowed",
    "share_views",
    "tag_jobs",
]


def need_python_sources(call: str) -> None:
    """Raise if this Spark has no data sources in Python.

    Args:
        call: What needs them.

    Raises:
        PipelineError: It is Spark 3.5.
    """
    if SPARK < (4, 0):
        raise PipelineError(
            f"{call}: this is Spark {pyspark.__version__}, which has no data sources in Python. "
            "Install a newer one (pip install 'pyspark>=4.0'). On this one, run pipelines whose "
            "sources are injectors, such as mr.sources.Kafka, or bounded input by "
            "p.run_batch(spark); mr.ops.open_checkpoint(path) reads a checkpoint."
        )


# -- types of columns ------------------------------------------------------------------------------

#: Types of a time of day, and of a variant, where Spark has them.
TIME_TYPES: Final[tuple[type[T.DataType], ...]] = (T.TimeType,) if SPARK >= (4, 1) else ()
VARIANT_TYPES: Final[tuple[type[T.DataType], ...]] = (T.VariantType,) if SPARK >= (4, 0) else ()

# -- names -----------------------------------------------------------------------------------------


def quoted_name(name: str) -> str:
    """Return a name as Spark takes it, whatever it consists of.

    >>> quoted_name("my-view"), quoted_name("a`b")
    ('`my-view`', '`a``b`')
    """
    return f"`{name.replace('`', '``')}`"


# -- rows to partitions ----------------------------------------------------------------------------


def partitioned(rows: DataFrame, count: int, name: str) -> DataFrame:
    """Return rows in so many partitions, each in the partition whose number a column has."""
    if SPARK >= (4, 1):
        return rows.repartitionById(count, name)
    return rows.repartition(count, hashed_to(count, name))


def hashed_to(count: int, name: str) -> Column:
    """Return a column whose hash sends a row to the partition whose number a column has.

    Spark 4.0 has no ``repartitionById``, only partitions by hash.

    Args:
        count: Number of partitions.
        name: Of the column with the number.
    """
    senders = F.array(*(F.lit(sender) for sender in _senders(count)))
    return F.element_at(senders, F.col(name) + 1)


@cache
def _senders(count: int) -> tuple[int, ...]:
    """Return for each partition an integer that Spark's hash sends there.

    >>> _senders(4)
    (12, 6, 2, 0)
    """
    senders: dict[int, int] = {}
    candidate = 0
    while len(senders) < count:
        senders.setdefault(_murmur3(candidate) % count, candidate)
        candidate += 1
    return tuple(senders[partition] for partition in range(count))


def _murmur3(value: int) -> int:
    """Return what ``hash(value)`` of Spark's SQL returns for an ``int`` that is not negative."""
    mixed = value * 0xCC9E2D51 & 0xFFFFFFFF
    mixed = (mixed << 15 | mixed >> 17) & 0xFFFFFFFF
    hashed = 42 ^ mixed * 0x1B873593 & 0xFFFFFFFF
    hashed = (hashed << 13 | hashed >> 19) & 0xFFFFFFFF
    hashed = (hashed * 5 + 0xE6546B64 & 0xFFFFFFFF) ^ 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


# -- sessions and their jobs -----------------------------------------------------------------------


def session_for_jobs(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of the same application, set as another is but for some settings.

    The user's own stays as it is: it is used for other things while a run goes on. Only Connect on
    Spark 4.0 has no way to make another, and there the user's own is set.

    Args:
        spark: The user's.
        settings: What differs.
    """
    session = clone_session(spark)
    if not is_connect(spark):
        settings = {**_settings(spark), **settings}
    there = _settings(session)
    for name, value in settings.items():
        if there.get(name) != value and session.conf.isModifiable(name):
            set_if_allowed(session, name, value)
    return session


def set_if_allowed(spark: SparkSession, name: str, value: str | None) -> None:
    """Set what makes jobs faster, and changes no result; some hosts let nobody set it.

    Args:
        spark: A session.
        name: Of the setting.
        value: None to unset it.
    """
    try:
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
    except Exception as refused:  # noqa: BLE001  each host refuses in its own way
        _log.info("%s stays as Spark has it: %s", name, refused)


_lending = threading.Lock()
#: Session and setting that are lent -> what the user had, and how many have it now.
_lent: dict[tuple[str, str], tuple[str | None, int]] = {}


def lend(spark: SparkSession, settings: Mapping[str, str]) -> Callable[[], None]:
    """Set a session otherwise for a time; return what sets it as the user had it.

    Several may have a setting at once: the last of them gives back what was there before the first.

    Args:
        spark: The user's session.
        settings: What is needed; a host may refuse it, as of :func:`set_if_allowed`.
    """
    session = session_id(spark)
    with _lending:
        # Before anything is noted: a session that has ended refuses to be asked.
        before = {name: spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            users, holders = _lent.get((session, name), (before[name], 0))
            _lent[session, name] = users, holders + 1
            set_if_allowed(spark, name, value)

    def give_back() -> None:
        with _lending:
            for name in settings:
                users, holders = _lent.pop((session, name))
                if holders > 1:
                    _lent[session, name] = users, holders - 1
                else:
                    set_if_allowed(spark, name, users)

    return give_back


def session_id(spark: SparkSession) -> str:
    """Return what all Python objects of a session share: ``SparkSession.active()`` makes more."""
    internals: Any = spark
    if is_connect(spark):
        return str(internals.session_id)
    return str(internals._jsparkSession.sessionUUID())


def clone_session(spark: SparkSession) -> SparkSession:
    """Return another session of the same application.

    Over Connect it has what the first has: settings, temporary views, and the archives that
    ``addArtifacts`` has sent. On Spark 4.0 it is the first, as there is no other way. A classic one
    has its settings from the application.
    """
    internals: Any = spark
    if not is_connect(spark):
        session = internals.newSession()
    elif hasattr(internals, "cloneSession"):
        session = internals.cloneSession()
    else:
        session = internals
    made: SparkSession = session
    return made


def share_views(spark: SparkSession, session: SparkSession) -> None:
    """Give a session that :func:`session_for_jobs` has made the temporary views of the first.

    One that cannot be read any more is left out, and logged: perhaps no sink wants it. Over Connect
    it has them already. A classic session names its views for itself alone, so each goes by a
    global name, which is dropped at once.

    Args:
        spark: The user's session.
        session: The other.
    """
    if session is spark or is_connect(spark):
        return
    shared = spark.conf.get("spark.sql.globalTempDatabase", "global_temp")
    # Views of the session are listed with the global ones, and no catalog of tables is asked.
    for view in spark.sql(f"SHOW VIEWS IN `{shared}`").collect():
        if view["namespace"] == "":
            name, quoted = f"millrace_{uuid4().hex}", quoted_name(view["viewName"])
            try:
                spark.table(quoted).createGlobalTempView(name)
            except Exception as problem:  # noqa: BLE001  it may be of a table that was dropped
                _log.warning(
                    "sinks do not see view %s: %s", quoted, str(problem).partition("\n")[0]
                )
                continue
            try:
                session.table(f"`{shared}`.{name}").createOrReplaceTempView(quoted)
            finally:
                spark.catalog.dropGlobalTempView(name)


def is_stopped(spark: SparkSession) -> bool:
    """Return whether a session's application has ended, or its JVM is gone; of a classic one.

    A query of it goes on saying that it is active.
    """
    context = None if is_connect(spark) else getattr(spark, "sparkContext", None)
    try:
        return context is not None and not context.defaultParallelism
    except Exception:  # noqa: BLE001  PySpark, Java and what is between them each say it otherwise
        return True


def close_session(session: SparkSession, spark: SparkSession, *, release: bool) -> None:
    """Close what :func:`session_for_jobs` has made; a connection left open delays Python's end.

    Args:
        session: It, or one that :func:`clone_session` has made.
        spark: The session that it was made of.
        release: Whether the server forgets it now, and not when it has been idle for an hour. A
            server that is gone is asked for minutes.
    """
    if session is spark or not is_connect(session):
        return
    with contextlib.suppress(Exception):  # the server is gone, or is going
        if release:
            session.client.release_session()
    with contextlib.suppress(Exception):
        session.client.close()


def _settings(spark: SparkSession) -> Mapping[str, str]:
    """Return all settings of a session."""
    if SPARK >= (4, 0):
        return spark.conf.getAll
    return {row["key"]: row["value"] for row in spark.sql("SET").collect()}


def tag_jobs(spark: SparkSession, tag: str) -> None:
    """Mark the jobs that this thread starts from here on."""
    if is_connect(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


def interrupt_jobs(spark: SparkSession, tag: str) -> None:
    """Cancel the jobs with a mark, from any thread.

    A classic session of Spark 4 knows the tags of the thread that asks alone, so its context does.
    """
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


# -- streaming sources in Python -------------------------------------------------------------------


class OffsetReader(DataSourceStreamReader):
    """Reader of a streaming source whose next offset follows from the last one.

    Spark 4.2 hands over the last offset. An earlier one does not, so the reader remembers it. It
    begins at its initial offset, or at the end of the epoch that Spark reads first: so offsets must
    make sense from the initial one on.
    """

    _last: dict[str, Any] | None = None

    def next_offset(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return where an epoch ends that begins at an offset."""
        raise NotImplementedError

    def between(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of an epoch."""
        raise NotImplementedError

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of an epoch, as Spark calls it."""
        self._last = self._last or end
        return self.between(start, end)

    if SPARK >= (4, 2):

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
            """Return where the next epoch ends."""
            return self.next_offset(start)

    else:

        def latestOffset(self) -> dict[str, Any]:  # type: ignore[misc]  # as Spark calls it there
            """Return where the next epoch ends."""
            self._last = self.next_offset(self._last or self.initialOffset())
            return self._last


# -- Spark's own files -----------------------------------------------------------------------------

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
#: The class that writes a query's offsets through Hadoop's FileSystem.
FILE_MANAGER: Final = (
    f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
    if SPARK >= (4, 1)
    else f"{_STREAMING}.FileSystemBasedCheckpointFileManager"
)
