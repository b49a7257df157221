"""What Spark says of processes that are gone, or cannot run Millrace, and what becomes of it."""

from __future__ import annotations

import sys

import pytest

from millrace.spark.failure import explain, worker_died

JOB = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 2 in stage 43.0, "
CLOSED = """java.nio.channels.ClosedChannelException
\tat java.base/java.nio.channels.spi.AbstractSelectableChannel.configureBlocking(A.java:319)
\tat org.apache.spark.api.python.PythonWorker.refreshNonBlocking(PythonWorkerFactory.scala:77)
\tat org.apache.spark.api.python.PythonWorkerFactory.create(PythonWorkerFactory.scala:158)
"""


@pytest.mark.parametrize(
    ("said", "died"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", True),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", True),
        (f"Lost task 2.0 in stage 43.0 (TID 169) (localhost executor driver): {CLOSED}", True),
        ("java.nio.channels.ClosedChannelException\n\tat of.the.User.sink(User.scala:7)", False),
        ("org.apache.spark.api.python.PythonException: ValueError: 7", False),
    ],
)
def test_a_process_that_is_gone_is_told_from_what_code_raised(said: str, died: bool) -> None:
    assert worker_died(RuntimeError(JOB + said)) is died


@pytest.mark.parametrize(
    ("spark", "advice"),
    [
        (
            "Lost task 0.0: java.io.IOException: Cannot run program "
            '"./environment/bin/python": error=2, No such file or directory',
            "Spark cannot start './environment/bin/python' (PYSPARK_PYTHON), the Python of its",
        ),
        (
            "EOFException occurred while reading the port number from millrace.spark.daemon's "
            "stdout.",
            "Spark started './environment/bin/python' (PYSPARK_PYTHON) for its workers, and it "
            "ended without a word",
        ),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            "ModuleNotFoundError: No module named 'millrace'",
            f"use another Python than this one, {sys.executable}: set PYSPARK_PYTHON to it",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in "
            "driver: 3.11",
            f"use another Python than this one, {sys.executable}: set PYSPARK_PYTHON to it",
        ),
    ],
)
def test_workers_that_cannot_run_millrace_come_with_what_to_do(
    spark: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")

    message = explain("game", RuntimeError(JOB + spark))

    assert advice in message
    assert spark.splitlines()[-1] in message


def test_a_failure_of_another_kind_comes_without_advice() -> None:
    message = explain("game", RuntimeError("out of memory"))

    assert message.startswith("pipeline 'game' stopped: RuntimeError: out of memory\n")
