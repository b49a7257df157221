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
import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

#: What tasks need. None has a thread of Python's once it is imported, which a fork would leave
#: behind.
NEEDED = (
    "pyspark.worker",
    "millrace.runtime.by_value",
    "millrace.runtime.realtime.injector_task",
    "millrace.runtime.realtime.host",
    "millrace.spark.worker",
    "millrace.spark.realtime.stages",
    "millrace.spark.source",
    "millrace.spark.stage",
    "millrace.spark.ticks",
)


#: Of an installed PySpark: its zip file, and that of the Py4J that it needs.
_ZIP = re.compile(r"(.*)/pyspark/python/lib/(pyspark|py4j)(-[\d.]+-src)?\.zip")


def without_zips(path: list[str]) -> list[str]:
    """Return a search path without the zip files of PySpark, if what is in them is installed on it.

    Spark puts the zip files that lie within an installed PySpark before everything else. They have
    no bytecode: each daemon would compile PySpark anew, which takes it longer than all other
    imports. And each task reads the table of contents of each zip file on the path anew.

    Args:
        path: As ``sys.path``. A zip file of another PySpark, or of a Spark without one, stays.
    """
    folders = {os.path.realpath(entry) for entry in path}

    def is_installed(entry: str) -> bool:
        zipped = _ZIP.fullmatch(entry)
        if zipped is None or os.path.realpath(zipped[1]) not in folders:
            return False
        return Path(zipped[1], zipped[2]).is_dir()

    return [entry for entry in path if not is_installed(entry)]


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


def prepare() -> None:
    """Import what tasks need."""
    sys.path[:] = without_zips(sys.path)
    for name in NEEDED:
        importlib.import_module(name)
    # PyArrow imports pandas with the first array that it makes of a list: half a second.
    importlib.import_module("pyarrow").array([0])


def serve() -> None:
    """Import what tasks need, then fork workers as Spark asks for them, until it hangs up."""
    prepare()
    worker: Any = sys.modules["pyspark.worker"]
    worker.main = unheard(worker.main)
    daemon: Any = importlib.import_module("pyspark.daemon")
    # What is here stays, and is shared with the workers as long as nobody looks at it.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    serve()
