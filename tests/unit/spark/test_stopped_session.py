"""A session that its program stops while a run goes on."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.spark.failure import failed
from millrace.spark.microbatch_engine import MicroBatchEngine


class Context:
    """As PySpark has one: once it was stopped it has nothing that would answer."""

    stopped = False

    @property
    def defaultParallelism(self) -> int:
        if self.stopped:
            raise AttributeError("'NoneType' object has no attribute 'sc'")
        return 2


class Query:
    """Spark's: the thread that runs it has died, and it says of itself that it is active."""

    isActive = True  # noqa: N815  Spark's

    def stop(self) -> None:
        raise RuntimeError("Cannot call methods on a stopped SparkContext.")


@pytest.fixture
def session() -> Any:
    return SimpleNamespace(sparkContext=Context())


def test_the_query_of_a_stopped_session_has_ended(session: Any) -> None:
    engine: Any = object.__new__(MicroBatchEngine)
    engine._session, engine.query = session, Query()
    engine.news, engine._turn = threading.Condition(), threading.Lock()
    engine._input = SimpleNamespace(streams=())
    engine._topology = SimpleNamespace(name="p")
    engine._stop_sent, engine._run_log = threading.Event(), SimpleNamespace(drained=False)
    errors: list[BaseException] = []
    engine.run = SimpleNamespace(stopping=False, active=True, error=None, fail=errors.append)
    watching = threading.Thread(target=engine.watch, daemon=True)
    watching.start()
    watching.join(0.01)
    assert watching.is_alive()

    session.sparkContext.stopped = True
    watching.join(10)
    assert not watching.is_alive()
    assert "was stopped" in str(errors[0])
    engine.run.active = False
    engine.stop(1_000_000)  # and it does not ask what is gone


def test_whatever_fails_on_it_the_message_says_that_it_was_stopped(session: Any) -> None:
    cause = AttributeError("'NoneType' object has no attribute 'getLocalProperty'")
    assert "'getLocalProperty'" in str(failed("p", cause, session))
    session.sparkContext.stopped = True
    assert "'p' stopped: its Spark session was stopped" in str(failed("p", cause, session))
