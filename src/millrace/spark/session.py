"""A session of Spark's, for a program that has none."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from millrace.model.errors import PipelineError


def check_session(call: str, spark: Any) -> None:
    """Refuse what is no session.

    Raises:
        PipelineError: It is none.
    """
    if not hasattr(spark, "conf"):
        raise PipelineError(
            f"{call}({spark!r}): expected a SparkSession, such as that of "
            "SparkSession.builder.getOrCreate()."
        )


def session(name: str, master: str | None, settings: Mapping[str, str]) -> Any:
    """Return a session: that of the process, or else a new one.

    A local one has workers of the same Python as this program, unless ``PYSPARK_PYTHON`` says
    otherwise: Spark takes the first ``python3`` on the path, which need not have Millrace.

    Args:
        name: Of the application.
        master: Spark's, or the URL of a Spark Connect server; by default what spark-submit or
            the configuration says.
        settings: Spark's, by name.
    """
    from pyspark.sql import SparkSession

    if master is not None and master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"millrace: {name}")
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    if master is None:
        return builder.getOrCreate()
    at = builder.remote if master.startswith("sc://") else builder.master
    return at(master).getOrCreate()
