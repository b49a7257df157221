"""A session of Spark's, for a program that has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def session(name: str, master: str | None, settings: Mapping[str, str]) -> Any:
    """Return a session: that of the process, or else a new one.

    Args:
        name: Of the application.
        master: Spark's; by default what spark-submit or the configuration says.
        settings: Spark's, by name.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"millrace: {name}")
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    return (builder if master is None else builder.master(master)).getOrCreate()
