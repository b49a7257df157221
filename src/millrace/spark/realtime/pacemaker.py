"""The pacemaker: what keeps the tasks of a query running, and gives them nothing to read.

Real-time Mode runs tasks for as long as its source says, one for each partition of it. The
injector tasks read for themselves, so the source has only to be there. Spark has one in its own
jar, made for its tests: LowLatencyMemoryStream, which is never fed here. Nothing public makes it.
So this is the one module of Millrace that reaches into the JVM, and it says which Spark it was
tried with.

Where that cannot be had, as over Spark Connect, a Kafka topic that nobody writes to does the same
by public means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millrace.model.errors import PipelineError
from millrace.spark.connect import is_connect

#: Spark's that were tried, by major and minor version. Real-time Mode has run Python stages side by
#: side since the first of them.
TRIED = ((4, 3),)

_STREAM = "org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream"
_ENCODERS = "org.apache.spark.sql.Encoders"

#: A topic, or the options of Spark's Kafka source, among which passwords may be.
Pacemaker = str | Mapping[str, str]


def check_spark(spark: Any, pacemaker: Pacemaker | None) -> None:
    """Refuse a session that cannot run the real-time plane.

    Args:
        spark: The session.
        pacemaker: What the user asked for; None for Spark's own.

    Raises:
        PipelineError: It is another version of Spark than was tried, or a client's without a topic.
    """
    version = str(spark.version)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    tried = ", ".join(f"{major}.{minor}" for major, minor in TRIED)
    if numbers < TRIED[0]:
        raise PipelineError(
            f"realtime=True: this session is Spark {version}, whose Real-time Mode cannot run "
            f"Python stages side by side; Spark {tried} can. Install it (pip install "
            f"'pyspark~={tried}.0'), or leave realtime out: epochs run on this one."
        )
    if pacemaker is not None:
        _kafka_options(pacemaker)
    elif is_connect(spark):
        raise PipelineError(
            "realtime=True: this is a session of Spark Connect, and what Spark brings along to "
            "keep tasks running is made in the driver's JVM alone. Name a Kafka topic with as many "
            "partitions as there are tasks, which nobody writes to, in its place: "
            'pacemaker="kafka:servers/topic". Or leave realtime out: epochs of injectors run.'
        )
    elif numbers not in TRIED:
        raise PipelineError(
            f"realtime=True: this session is Spark {version}, and the real-time plane was tried "
            f"with {tried}: it uses a part of Spark that may have changed since. Name a Kafka "
            "topic with as many partitions as there are tasks, which nobody writes to, in its "
            "place: "
            'pacemaker="kafka:servers/topic". Or leave realtime out.'
        )


def pacemaker_of(spark: SparkSession, tasks: int, pacemaker: Pacemaker | None) -> DataFrame:
    """Return a streaming frame of so many partitions, without rows; it has a source of its own.

    Args:
        spark: A session that was checked.
        tasks: How many.
        pacemaker: ``kafka:servers/topic``: a topic in place of Spark's own; or the options of
            Spark's Kafka source.

    Raises:
        PipelineError: Spark's own cannot be made; or Spark lacks its Kafka connector.
    """
    if pacemaker is not None:
        reader = spark.readStream.format("kafka").options(**_kafka_options(pacemaker))
        try:
            topic_rows = reader.option("startingOffsets", "latest").load().select("value")
            _ = topic_rows.schema  # a client of Spark Connect asks its server only now
            return topic_rows
        except Exception as error:
            raise PipelineError(
                f"pacemaker={_without_secrets(pacemaker)}: Spark cannot read the topic: "
                f"{str(error).splitlines()[0].rstrip('.')}. Does the session have Spark's Kafka "
                "connector? "
                '.config("spark.jars.packages", '
                f'"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}")'
            ) from error
    session: Any = spark
    try:
        java: Any = session._jvm
        encoder = getattr(java, _ENCODERS).BINARY()
        frame = getattr(java, _STREAM).apply(session._jsparkSession, tasks, encoder)
        return DataFrame(frame.toDF(), spark)
    except Exception as error:
        raise PipelineError(
            f"realtime=True: {_STREAM}, with which the real-time plane keeps tasks running, could "
            f"not be made in Spark {spark.version}: {str(error).splitlines()[0]}. Name a Kafka "
            "topic with as many partitions as there are tasks, which nobody writes to, in its "
            'place: pacemaker="kafka:servers/topic".'
        ) from error


def _kafka_options(pacemaker: Pacemaker) -> dict[str, str]:
    """Return the options of Spark's Kafka source.

    >>> _kafka_options("kafka:one:9092,two:9092/idle")
    {'kafka.bootstrap.servers': 'one:9092,two:9092', 'subscribe': 'idle'}
    """
    if isinstance(pacemaker, Mapping):
        if not {"kafka.bootstrap.servers", "subscribe"} <= pacemaker.keys():
            raise PipelineError(
                f"pacemaker={_without_secrets(pacemaker)}: expected options of Spark's Kafka "
                'source, "kafka.bootstrap.servers" and "subscribe" among them.'
            )
        return dict(pacemaker)
    match = re.fullmatch(r"kafka:([^/\s]+)/([\w.-]+)", pacemaker)
    if match is None:
        raise PipelineError(
            f"pacemaker={pacemaker!r}: expected a Kafka topic that nobody writes to, such as "
            'pacemaker="kafka:broker:9092/idle", or none.'
        )
    return {"kafka.bootstrap.servers": match[1], "subscribe": match[2]}


def _without_secrets(pacemaker: Pacemaker) -> str:
    """Return the text of a pacemaker, of options their names alone.

    >>> _without_secrets({"subscribe": "idle", "kafka.sasl.jaas.config": "password"})
    '{subscribe, kafka.sasl.jaas.config}'
    """
    return f"{{{', '.join(pacemaker)}}}" if isinstance(pacemaker, Mapping) else repr(pacemaker)
