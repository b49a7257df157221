"""Sessions of Spark Connect: clients of a driver elsewhere, whose JVM this program cannot reach."""

from __future__ import annotations

from typing import Any

from millrace.model.errors import PipelineError


def is_connect(spark: Any) -> bool:
    """Return whether a session is a client's of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def refuse_connect(spark: Any, call: str, needs: str, instead: str) -> None:
    """Raise if a session is one of Spark Connect.

    Args:
        spark: A session.
        call: What was called with it.
        needs: What of a driver that needs.
        instead: What to do besides a start in the driver.

    Raises:
        PipelineError: The session is a client's.
    """
    if is_connect(spark):
        raise PipelineError(
            f"{call}: this is a session of Spark Connect, a client of a driver elsewhere. {needs}. "
            "Start the pipeline in the driver: with spark-submit, or "
            f"SparkSession.builder.master(...) in place of .remote(...). {instead}"
        )
