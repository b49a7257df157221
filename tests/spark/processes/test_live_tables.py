"""Tables of a lake are read while others append to them, by epochs and then in real time."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, live_driver: Any) -> dict[str, Any]:
    pytest.importorskip("deltalake", reason="an extra: pip install 'millrace-spark[delta]'")
    pytest.importorskip("pyiceberg", reason="an extra: pip install 'millrace-spark[iceberg]'")
    result: dict[str, Any] = live_driver("live_tables", tmp_path_factory.mktemp("tables"))
    return result


@pytest.mark.parametrize("table", ["delta", "iceberg"])
def test_each_row_counts_once_whoever_reads_it(found: dict[str, Any], table: str) -> None:
    """One session by epochs and two in real time, with rows that come before and meanwhile."""
    rows = 10
    for session in range(3):
        rows += 600
        done, seen, injected, there = found[table][f"session {session}"]
        assert (done, seen, there) == (True, "right", rows)
        assert injected == {"numbers": rows}
        rows += 20
