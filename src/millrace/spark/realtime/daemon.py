"""The process that Spark forks its Python workers from, with all imported that tasks need.

Spark's own imports nothing, so that every worker begins with nearly a second of imports. All tasks
of a query begin at once, and again after a failure: then that second is most of what a restart
takes. It is named by ``spark.python.daemon.module``.
"""

from __future__ import annotations

import gc

import pyspark.worker
from pyspark import daemon

import millrace.plane.realtime.injecting
import millrace.plane.realtime.level
import millrace.spark.process
import millrace.spark.realtime.stages

#: To import them is what this is for. None has a thread of Python's by then, which a fork would
#: leave behind.
IMPORTED = (
    pyspark.worker,
    millrace.plane.realtime.injecting,
    millrace.plane.realtime.level,
    millrace.spark.process,
    millrace.spark.realtime.stages,
)

if __name__ == "__main__":
    # What is here stays, and is shared with the workers as long as nobody looks at it.
    gc.collect()
    gc.freeze()
    daemon.manager()
