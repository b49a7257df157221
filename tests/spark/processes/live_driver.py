"""A driver that lives on: programs in real time run in it one after the other, in one session.

A JVM, its session and its Python processes are started once, for what would start them again and
again. A program is a module beside this one, and its ``main`` is called with the session, a folder,
and what else it is given; what it returns goes to the test.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle
from pyspark.sql import SparkSession

from millrace.spark import realtime_settings
from tests.spark.processes.live_pipeline import session

#: Two tasks for each of three levels and the injectors, and one more.
SLOTS = 9


def main(folder: Path, tests: Connection) -> None:
    os.chdir(folder)
    # One program begins with one task a level.
    settings = realtime_settings(tasks=1) | {"spark.sql.session.timeZone": "UTC"}
    spark = session(folder, f"local[{SLOTS}]", settings)
    while True:
        try:
            name, root, arguments = tests.recv()
        except EOFError:
            break
        spark.sparkContext.setLogLevel("WARN")
        program = importlib.import_module(f"tests.spark.processes.{name}")
        # Workers need its classes, and nothing else of what it imports.
        cloudpickle.register_pickle_by_value(program)
        found, failure = None, ""
        try:
            found = program.main(spark, root, *arguments)
            if spark.streams.active:
                failure = "the program has returned, and a run of it goes on"
        except Exception:  # noqa: BLE001  the test that asked for it raises it
            failure = traceback.format_exc()
        for query in spark.streams.active:
            query.stop()
        cloudpickle.unregister_pickle_by_value(program)
        _wait_for_tasks(spark)
        tests.send((found, failure))
    spark.stop()


def _wait_for_tasks(spark: SparkSession) -> None:
    """Return when no task of a query that has stopped is left, so that the next has the slots."""
    tracker, until = spark.sparkContext.statusTracker(), time.monotonic() + 10
    while tracker.getActiveStageIds() and time.monotonic() < until:
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Connection(int(sys.argv[2])))
