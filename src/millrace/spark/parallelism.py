"""How many tasks and key intervals a run has by default."""

from __future__ import annotations

import os
import re

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # the name all of Spark's documentation uses

from millrace.balance.task_count import TaskRange
from millrace.model.errors import PipelineError
from millrace.spark.connect import is_connect


def is_local(spark: SparkSession) -> bool:
    """Return whether this program, as the driver, and the workers are one machine."""
    return (
        not is_connect(spark) and str(spark.conf.get("spark.master", "")).split("[")[0] == "local"
    )


def tasks_for(spark: SparkSession) -> int:
    """Return the session's parallelism: how many tasks it can run at once."""
    master = str(spark.conf.get("spark.master", "")) if is_local(spark) else ""
    local = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if local is not None:
        cores = local[1] or "1"
        return os.cpu_count() or 1 if cores == "*" else int(cores)
    # The number of partitions of a range is the default parallelism: the one public way to ask.
    # The partition is a column first: an aggregate of what is not deterministic is refused.
    partitions = spark.range(0, 1 << 20).select(F.spark_partition_id().alias("partition"))
    row = partitions.agg(F.max("partition")).first()
    return int(row[0]) + 1 if row is not None else 1


def intervals_for(tasks: int, *, each: int = 8) -> int:
    """Return the number of key intervals: a power of two, more than tasks.

    Args:
        tasks: Of a level.
        each: How many for each of them, and of two tasks if there is but one.

    >>> intervals_for(2), intervals_for(100), intervals_for(1, each=2)
    (16, 1024, 4)
    """
    return 1 << (each * max(2, tasks) - 1).bit_length()


def is_whole(wanted: object, least: int) -> bool:
    """Return whether what was given for an option is a whole number, and not too small.

    >>> is_whole(3, 1), is_whole(0, 1), is_whole(2.5, 1), is_whole(True, 1), is_whole("3", 1)
    (True, False, False, False, False)
    """
    return isinstance(wanted, int) and not isinstance(wanted, bool) and wanted >= least


def tasks_of(wanted: int | None, fitting: int) -> int:
    """Return the number of tasks a level.

    Args:
        wanted: What was asked for.
        fitting: How many there are to be, if nothing was.

    Raises:
        PipelineError: It is no number of tasks.
    """
    if wanted is None:
        return fitting
    if not is_whole(wanted, 1):
        raise PipelineError(f"tasks={wanted!r}: expected a number of tasks a level, 1 or more.")
    return wanted


def allowed_tasks(wanted: object, fitting: int) -> TaskRange:
    """Return how many tasks a level may have; where that is one number, it is least and most.

    Args:
        wanted: What was asked for.
        fitting: How many there are to be, if nothing was.

    Raises:
        PipelineError: It is no number of tasks, nor the least and the most of them.

    >>> allowed_tasks(None, 4), allowed_tasks((2, 16), 4)
    (TaskRange(least=4, most=4), TaskRange(least=2, most=16))
    """
    if not isinstance(wanted, tuple | list):
        tasks = tasks_of(wanted, fitting)  # type: ignore[arg-type]  # it refuses what is none
        return TaskRange(tasks, tasks)
    if not (
        len(wanted) == 2 and all(is_whole(count, 1) for count in wanted) and wanted[0] <= wanted[1]
    ):
        raise PipelineError(
            f"tasks={wanted!r}: expected the least and the most tasks a level, such as (2, 16)."
        )
    return TaskRange(*wanted)
