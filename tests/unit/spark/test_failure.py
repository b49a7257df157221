"""What Spark says of processes that are gone is told from what user code did."""

from __future__ import annotations

import pytest

from millrace.spark.failure import worker_died

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
        # What forks workers was killed as it started.
        (
            "java.lang.NullPointerException\n\tat java.net.UnixDomainSocketAddress.of(U.java:1)",
            True,
        ),
        (
            "org.apache.spark.SparkException: EOFException occurred while reading the port number "
            "from millrace.spark.daemon's stdout.",
            True,
        ),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", True),
        (f"Lost task 2.0 in stage 43.0 (TID 169) (localhost executor driver): {CLOSED}", True),
        ("java.nio.channels.ClosedChannelException\n\tat of.the.User.sink(User.scala:7)", False),
        ("org.apache.spark.api.python.PythonException: ValueError: 7", False),
    ],
)
def test_a_process_that_is_gone_is_told_from_what_code_raised(said: str, died: bool) -> None:
    assert worker_died(RuntimeError(JOB + said)) is died
