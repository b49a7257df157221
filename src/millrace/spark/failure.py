"""What went wrong in a run: the message that matters, and a log of all the rest."""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
import tempfile
import traceback
from pathlib import Path

from pyspark.sql import SparkSession

from millrace.model.errors import PipelineError, RunFailed, encodable, message_of
from millrace.spark.compat import is_stopped

#: Where the traceback of a Python worker says what was raised; within a message it is indented.
_RAISED = re.compile(r"^(?:\S+: )?millrace\.model\.errors\.(\w+): ", re.MULTILINE)
_STACK = re.compile(
    r"\n\s*(?:at [\w.$]+\(|JVM stacktrace|Driver stacktrace|\tat |SQLSTATE: |=== Streaming Query)"
)
#: How Spark says that a process is gone. The last one is one of its idle workers, to which it has
#: closed the line itself: a task of a query that was stopped was interrupted as it read from it.
_DIED = (
    "Python worker exited unexpectedly",
    "ExecutorLostFailure",
    "PythonWorker.refreshNonBlocking(",
    # What forks the workers ended as it started.
    "EOFException occurred while reading the port number",
    "UnixDomainSocketAddress.of(",
)
#: In real time Millrace's daemon forks the workers. One that did not start has no socket, and Spark
#: tells of a null pointer; or the daemon says that its path is too long.
_NO_SOCKET = ("UnixDomainSocketAddress.of(", "AF_UNIX path too long")
#: How Spark says that another Python runs there, or one without Millrace, or that none starts.
_CANNOT_IMPORT = (
    "No module named 'millrace'",
    "PYTHON_VERSION_MISMATCH",
    "PYTHON_DATA_SOURCE_ERROR",
    *_NO_SOCKET,
)
#: In a container of YARN the JVM's temporary directory has such a path.
_LONG_PATH = (
    " Or the path of the executors' temporary directory is too long for a socket: "
    "spark.python.unix.domain.socket.dir=/tmp, which mr.spark.realtime_settings() sets."
)
#: How an attempt is announced that finds out which record it is.
CAREFULLY = ", which looks for records that end their process, and makes them dead letters"
_JVM_TRACE = "spark.sql.pyspark.jvmStacktrace.enabled"


def failed(
    pipeline: str, cause: BaseException, spark: SparkSession, *, batch: bool = False
) -> RunFailed:
    """Return the error that a failed run ends with; all that is known of it goes to a log.

    Args:
        pipeline: Its name.
        cause: What Spark raised: a Python worker's error arrives as text, traceback and all.
        spark: The session.
        batch: Whether there is no checkpoint to go on from.
    """
    message = explain(pipeline, cause, batch=batch, stopped=is_stopped(spark))
    log = _write_log(pipeline, message, cause, spark)
    if log is not None:
        message += f"\nThe whole of it, with every traceback: {log}"
    return RunFailed(message, cause=cause, log=log)


def cannot_run_workers(error: BaseException) -> PipelineError | None:
    """Return what to say where Spark's Python workers cannot run Millrace; None of other errors.

    Args:
        error: What Spark raised of a Python process, or of code in it.
    """
    text, named = message_of(error), os.environ.get("PYSPARK_PYTHON")
    if any(words in text for words in _CANNOT_IMPORT):
        sockets = _LONG_PATH if any(words in text for words in _NO_SOCKET) else ""
        return PipelineError(
            "Spark's Python workers cannot run Millrace. They use another Python than this one, "
            f"{sys.executable}: set PYSPARK_PYTHON to it before the session is made, and on a "
            f"cluster install Millrace on the workers.{sockets} "
            f"Spark said: {text.splitlines()[-2:]}"
        )
    if "pyspark.daemon" in text:
        return PipelineError(
            f"Spark started {named!r} (PYSPARK_PYTHON), and it ended without a word to Spark: it "
            "is no Python, or none that has PySpark. Set PYSPARK_PYTHON to this one, "
            f"{sys.executable}, before the session is made."
        )
    if "Cannot run program" in text:
        return PipelineError(
            f"Spark cannot start {named!r} (PYSPARK_PYTHON). Is it in an archive? Unpack that in "
            f"the driver's working directory, {str(Path.cwd())!r}, too, under the same name: where "
            "Spark reads a source, a process beside the driver runs it."
        )
    return None


def headline(error: BaseException) -> str:
    r"""Return the first line of an error; of one that says nothing, its type.

    >>> headline(ConnectionResetError()), headline(OSError("no\nmore"))
    ('ConnectionResetError', 'no')
    """
    return message_of(error).strip().partition("\n")[0] or type(error).__name__


def worker_died(error: BaseException) -> bool:
    """Return whether a job failed because a Python worker process ended, or its executor."""
    text = message_of(error)
    return any(words in text for words in _DIED)


def explain(
    pipeline: str, cause: BaseException, *, batch: bool = False, stopped: bool = False
) -> str:
    """Return a message that begins with what matters, and not with the JVM's stack."""
    text = message_of(cause)
    raised = list(_RAISED.finditer(text))
    if stopped:
        message = (
            "its Spark session was stopped, by spark.stop() or with its application. Make another."
        )
    elif raised:
        message = f"{raised[-1][1]}: {_STACK.split(text[raised[-1].end() :])[0].strip()}"
    else:
        message = f"{type(cause).__name__}: {_STACK.split(text)[0].strip()}"
    after = (
        "The sinks have no part of it."
        if batch
        else "Everything committed before is safe; start again with the same checkpoint to go on."
    )
    return f"pipeline {pipeline!r} stopped: {message}\n{after}"


def _write_log(
    pipeline: str, message: str, cause: BaseException, spark: SparkSession
) -> Path | None:
    """Write what is known of a failure; return where, or None if that could not be written.

    In the driver's temporary directory: that is there on every host, and a checkpoint may be a
    bucket.
    """
    name = re.sub(r"[^\w.-]+", "-", pipeline)
    now = dt.datetime.now(dt.UTC)
    try:
        text = f"{now:%Y-%m-%d %H:%M:%S} UTC\n{message}\n\n{_in_full(cause, spark)}"
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"millrace-{name}-", suffix=".log", delete=False, encoding="utf-8"
        ) as file:
            file.write(encodable(text))
    except OSError:
        return None
    return Path(file.name)


def _in_full(cause: BaseException, spark: SparkSession) -> str:
    """Return an exception with the tracebacks of driver and worker, and Java's where it has one."""
    try:
        earlier = spark.conf.get(_JVM_TRACE, None)
        spark.conf.set(_JVM_TRACE, "true")
    except Exception:  # noqa: BLE001  # the session is gone, and Java's side with it
        return "".join(traceback.format_exception(cause))
    try:
        return "".join(traceback.format_exception(cause))
    finally:
        if earlier is None:
            spark.conf.unset(_JVM_TRACE)
        else:
            spark.conf.set(_JVM_TRACE, earlier)
