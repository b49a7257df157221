"""What Spark says of processes that are gone is told from what user code did."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.spark.failure import failed, headline, worker_died
from millrace.spark.realtime.control_connection import packed_error

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


class Mute(Exception):
    """What it says is a second failure."""

    def __str__(self) -> str:
        raise RuntimeError("nothing to say")

    def __reduce__(self) -> Any:
        raise RuntimeError("nor to send")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError("caf\udce9.csv"), "caf\\udce9.csv"),  # as os.listdir() has such a name
        (Mute(), "str() of it raised RuntimeError"),
    ],
)
def test_an_error_that_cannot_be_written_is_told_all_the_same(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    session: Any = SimpleNamespace()  # that was stopped
    failure = failed("p", error, session)
    assert f"pipeline 'p' stopped: {type(error).__name__}: {said}\n" in str(failure)
    assert said in Path(failure.log or "").read_text(encoding="utf-8")
    assert headline(error) == said
    assert not worker_died(error)


def test_a_task_can_send_an_error_that_says_nothing() -> None:
    error = pickle.loads(packed_error(Mute()))
    assert str(error) == "Mute: str() of it raised RuntimeError"
