"""Sessions of queries in real time: one is closed when its query has ended, never before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.spark import realtime_setup
from millrace.spark.realtime_setup import RealtimeSetup


def test_while_standbys_fail_the_session_of_the_query_that_works_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(
        realtime_setup, "close_session", lambda session, *_, **__: closed.append(session)
    )
    setup = RealtimeSetup.__new__(RealtimeSetup)
    setup._sessions, setup._spark = [], SimpleNamespace()  # type: ignore[assignment]
    queries = {name: SimpleNamespace(isActive=True) for name in ("works", "a", "b", "c", "d")}
    for name, query in queries.items():
        setup._keep(name, query)  # type: ignore[arg-type]
        query.isActive = name in ("works", "d")
    assert closed == ["a", "b"]
    assert [session for session, _ in setup._sessions] == ["works", "c", "d"]
