"""Sessions of Spark Connect are refused, before anything is done."""

from __future__ import annotations

from typing import Any

from millrace.model.errors import PipelineError


def refuse_connect(spark: Any, call: str) -> None:
    """Raise if a session is one of Spark Connect.

    A run is the driver's: the function that Spark calls for each epoch holds the run's locks,
    logs and counters. Connect pickles that function and calls it in a process of the server,
    where it would be a copy without a run.

    Args:
        spark: A session.
        call: What was called with it.

    Raises:
        PipelineError: The session is a client's.
    """
    if not type(spark).__module__.startswith("pyspark.sql.connect."):
        return
    raise PipelineError(
        f"{call}: this is a session of Spark Connect, a client of a driver elsewhere. Expected "
        "is one of the driver itself. Spark calls Millrace in the process that has the "
        "run, and Connect would call a copy of it in the server. Start the pipeline in the driver: "
        "with spark-submit, or SparkSession.builder.master(...) in place of .remote(...)."
    )
