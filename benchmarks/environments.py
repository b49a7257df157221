"""What contenders need beside the interpreter that runs the benchmarks: Flink's own, and jars."""

from __future__ import annotations

from pathlib import Path

import pyspark

from benchmarks.contest import ContenderFailed

_REPOSITORY = Path(__file__).parents[1]
_FLINK_PYTHON = _REPOSITORY / ".venv-flink" / "bin" / "python"
_FLINK_JARS = _REPOSITORY / ".flink"
_SPARK_KAFKA = _REPOSITORY / ".spark-kafka"


def flink() -> tuple[str, list[str]]:
    """Return the interpreter that has PyFlink, and the jars of its Parquet format and of Kafka.

    Raises:
        ContenderFailed: They are not here.
    """
    jars = sorted(_FLINK_JARS.glob("*.jar"))
    if not jars or not _FLINK_PYTHON.exists():
        raise ContenderFailed(
            "flink is not here. It and Spark need different versions of the same packages, so it "
            "has an environment of its own: sh scripts/setup.sh flink"
        )
    # Of Hadoop, which Flink's Parquet format expects to find, Spark brings a copy.
    hadoop = Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar")
    return str(_FLINK_PYTHON), [str(jar) for jar in [*jars, *sorted(hadoop)]]


def spark_kafka() -> list[str]:
    """Return the jars of Spark's Kafka connector.

    Raises:
        ContenderFailed: They are not here.
    """
    jars = sorted(_SPARK_KAFKA.glob("*.jar"))
    if not jars:
        raise ContenderFailed("Spark's Kafka connector is not here: python scripts/jars.py")
    return [str(jar) for jar in jars]
