"""The process that Spark forks its Python workers from, with all imported that tasks need.

Spark's own imports nothing, so that every worker begins with nearly a second of imports. All tasks
of a query in real time begin at once, and again after a failure: then that second is most of what a
restart takes. By epochs it is paid at the start, for each worker that is killed, and for each that
Spark has ended because it had nothing to do for a minute. It is named by
``spark.python.daemon.module``, which counts from an application's beginning.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pyspark.worker
from pyspark import daemon

import millrace.plane.realtime.injecting
import millrace.plane.realtime.level
import millrace.spark.process
import millrace.spark.realtime.stages
import millrace.spark.source
import millrace.spark.stage
import millrace.spark.ticks

#: To import them is what this is for. None has a thread of Python's by then, which a fork would
#: leave behind.
IMPORTED = (
    pyspark.worker,
    millrace.plane.realtime.injecting,
    millrace.plane.realtime.level,
    millrace.spark.process,
    millrace.spark.realtime.stages,
    millrace.spark.source,
    millrace.spark.stage,
    millrace.spark.ticks,
)


def unheard(main: Callable[[BinaryIO, BinaryIO], Any]) -> Callable[[BinaryIO, BinaryIO], Any]:
    """Return a worker's main whose last words are dropped if Spark has hung up.

    Spark's daemon prints a traceback for it: one for many a task of a run that was stopped.

    Args:
        main: Takes what Spark sends, and where to write to it.
    """

    @functools.wraps(main)
    def quiet(infile: BinaryIO, outfile: BinaryIO) -> Any:
        try:
            return main(infile, outfile)
        except BrokenPipeError:
            raise SystemExit(1) from None
        finally:
            try:
                outfile.flush()
            except BrokenPipeError:
                # The daemon flushes again, what is still unwritten.
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), outfile.fileno())

    return quiet


if __name__ == "__main__":
    pyspark.worker.main = unheard(pyspark.worker.main)
    # What is here stays, and is shared with the workers as long as nobody looks at it.
    gc.collect()
    gc.freeze()
    daemon.manager()
