"""Settings: whether an application is as the real-time plane needs it, and a session that is."""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyspark.sql import SparkSession

from millrace.model.errors import PipelineError
from millrace.spark.compat import clone_session
from millrace.spark.connect import is_connect
from millrace.spark.parallelism import is_local, tasks_for
from millrace.spark.realtime.requirements import (
    realtime_settings,
    slots_needed,
    wrong_settings,
)
from millrace.spark.realtime.stages import ROWS_A_BATCH

_TWICE = "twice with standby=True, "

#: How long executors may take to register; as long as Spark itself waits for them by default.
_EXECUTORS_S = 30.0

#: What a query needs of its session. Without the first, two rows wait for a third; without the
#: second, a writer waits for 64 KiB. Then: Spark has a list of what it has tried in Real-time Mode;
#: a task that has had no input for long may be taken for dead; and packets are what they are.
SESSION = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_A_BATCH),
    "spark.sql.execution.pandas.udf.buffer.size": "128",
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": "0",
    "spark.sql.execution.arrow.compression.codec": "none",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}


def tasks_within(spark: SparkSession, levels: int, queries: int = 1) -> int:
    """Return how many tasks a level can have in a session; at least one, whether or not it fits."""
    return max(1, (_slots(spark) - 1) // (queries * (levels + 1)))


def has_slots(spark: SparkSession, tasks: int, counted: int = 0) -> bool:
    """Return whether so many tasks, of all queries, could run now, as far as it can be known.

    Args:
        spark: A session.
        tasks: How many.
        counted: Slots that :func:`check_settings` has counted. A client of Spark Connect goes by
            them: it would have to run a job to count again, which waits for a slot itself.
    """
    slots = counted if is_connect(spark) else _slots(spark)
    return slots > tasks  # one more starts them


def check_settings(
    spark: SparkSession,
    *,
    tasks: int,
    levels: int,
    queries: int = 1,
    least: int | None = None,
    slots_later: bool = False,
) -> int:
    """Refuse an application that is set otherwise than the real-time plane needs.

    Args:
        spark: A session of it.
        tasks: Tasks a level.
        levels: Of the pipeline.
        queries: How many there are to be: two where one is the standby.
        least: How many tasks a level there may be later, at least. What bounds the rows on their
            way between two tasks is for as many: it is too much for fewer, and does for more.
        slots_later: Whether there need not be slots for all of them yet.

    Returns:
        How many slots there are.

    Raises:
        PipelineError: It names each setting, what it is, what is needed, and what to write.
    """
    wrong = wrong_settings(_application(spark), least or tasks)
    needed = slots_needed(tasks, levels, queries)
    slots = _slots(spark) if slots_later else _slots_in_time(spark, needed)
    if slots < needed and not slots_later:
        wrong.append(
            f"slots: {slots} tasks can run at once, and {needed} must: {tasks} for each of "
            f"{levels + 1} levels (the injectors are level 0), {_TWICE * (queries > 1)}and one "
            "more. Otherwise no task of the last levels would ever start"
        )
    if not wrong:
        return slots
    fewer = tasks_within(spark, levels, queries)
    raise PipelineError(
        "realtime=True: this application cannot run the real-time plane.\n"
        + "".join(f"  {line}\n" for line in wrong)
        + "They count from the beginning of the application. "
        + _how_to_start(spark, least or tasks, needed)
        + (f"or with fewer tasks: tasks={fewer}." if slots < needed else "")
    )


def _how_to_start(spark: SparkSession, tasks: int, needed: int) -> str:
    """Return how an application is started with the settings, in lines."""
    if is_connect(spark):
        settings = realtime_settings(tasks).items()
        lines = (f"  --conf {name}={value}\n" for name, value in settings)
        return f"Start the server of Spark Connect with\n{''.join(lines)}"
    master = f'.master("local[{needed}]")' if is_local(spark) else ""
    return (
        "Start it with\n"
        f"  SparkSession.builder{master}.config(map=mr.spark.realtime_settings(tasks={tasks}))\n"
    )


def _application(spark: SparkSession) -> dict[str, str]:
    """Return the settings of an application; a client sees them among those of its session."""
    if is_connect(spark):
        return dict(spark.conf.getAll)
    return dict(spark.sparkContext.getConf().getAll())


def session_for(spark: SparkSession, also: Mapping[str, str]) -> SparkSession:
    """Return a session of the same application that is set as a query needs it.

    The user's own stays as it is: a query reads its settings now and then while it runs.

    Args:
        spark: The user's.
        also: What else to set.
    """
    session = clone_session(spark)
    for name, value in {**SESSION, **also}.items():
        session.conf.set(name, value)
    return session


def _slots_in_time(spark: SparkSession, needed: int) -> int:
    """Return how many tasks can run at once; of a cluster, wait until its executors are there."""
    until = time.monotonic() + (0 if is_local(spark) else _EXECUTORS_S)
    while (slots := _slots(spark)) < needed and time.monotonic() < until:
        time.sleep(0.1)
    return slots


def _slots(spark: SparkSession) -> int:
    """Return how many tasks can run at once, as far as it can be known.

    It is cheap enough to poll, but for a client of Spark Connect, who runs a job for it.
    """
    if is_connect(spark):
        cores, cpus = tasks_for(spark), spark.conf.get("spark.task.cpus", "1")
    else:
        context = spark.sparkContext
        cores = tasks_for(spark) if is_local(spark) else context.defaultParallelism
        cpus = context.getConf().get("spark.task.cpus", "1")
    return cores // max(1, int(cpus or "1"))
