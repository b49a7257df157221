"""Tables of a lake are read while others append to them, by epochs and then in real time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("live_tables.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, program: Any) -> Iterator[dict[str, Any]]:
    pytest.importorskip("deltalake", reason="an extra: pip install 'millrace-spark[delta]'")
    pytest.importorskip("pyiceberg", reason="an extra: pip install 'millrace-spark[iceberg]'")
    ran = program(PROGRAM, tmp_path_factory.mktemp("tables"))
    try:
        assert ran.process.wait(900) == 0, ran.output()
        yield json.loads(ran.output().splitlines()[-1])
    finally:
        ran.end()


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
