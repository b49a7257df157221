"""A run of the real-time plane whose incarnation has ended, and that was superseded meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.model.errors import DamagedStore, PipelineError, ZombieWriter
from millrace.spark.realtime.retry_policy import Downtime, RetryPolicy
from millrace.spark.realtime_engine import RealtimeEngine


class Epochs:
    def __init__(self, answer: Exception | None) -> None:
        self._answer = answer

    def superseded(self) -> ZombieWriter | None:
        if isinstance(self._answer, DamagedStore):
            raise self._answer
        return self._answer if isinstance(self._answer, ZombieWriter) else None


def tried_again(answer: Exception | None) -> tuple[bool, list[BaseException]]:
    """Return whether another incarnation is to follow a lost task, and how the run has failed."""
    failed: list[BaseException] = []
    policy = RetryPolicy(attempts=3)
    policy.well()
    run: Any = SimpleNamespace(
        _run_log=Epochs(answer),
        _retry_policy=policy,
        downtime=Downtime(),
        _giving_up=False,
        _fail=failed.append,
        _pause=lambda _: None,
        _takes_over=False,
    )
    return RealtimeEngine._tried_again(run, ConnectionError("a task is lost")), failed


def test_it_ends_at_once_and_starts_no_query_in_its_successors_way() -> None:
    zombie = ZombieWriter("a newer run goes on")
    assert tried_again(zombie) == (False, [zombie])


@pytest.mark.parametrize(
    "said",
    [
        # There is no socket of a daemon that did not start.
        "java.lang.NullPointerException\n\tat java.net.UnixDomainSocketAddress.of(U.java:146)",
        "Error from python worker:\n  OSError: AF_UNIX path too long",
    ],
)
def test_a_python_that_cannot_run_workers_is_named(said: str) -> None:
    failed: list[BaseException] = []
    engine: Any = SimpleNamespace(run=SimpleNamespace(fail=failed.append))
    RealtimeEngine._fail(engine, RuntimeError(said))
    assert isinstance(failed[0], PipelineError)
    assert "set PYSPARK_PYTHON to it before the session is made" in str(failed[0])
    assert "spark.python.unix.domain.socket.dir=/tmp" in str(failed[0])


@pytest.mark.parametrize("answer", [None, DamagedStore("it cannot be read")])
def test_one_that_was_not_or_cannot_know_tries_again(answer: Exception | None) -> None:
    assert tried_again(answer) == (True, [])
