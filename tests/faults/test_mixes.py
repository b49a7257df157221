"""The mixes that real faults befall, in a Harness that crashes: their oracles are right.

On Spark they are run by ``spark/processes/test_live_chaos.py``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr
from tests.spark.processes.mixes import MIXES, SHARE, Mix, Rows, Tables

ROWS = 120


def columns_of(output: Any) -> dict[str, Any]:
    """Return an output as the columns that it has at a sink."""
    value = msgspec.to_builtins(output.value)
    columns = value if isinstance(value, dict) else {"value": value}
    if output.pane is not None:
        window = output.pane.window
        columns |= {"_window_start": getattr(window, "start", None)}
        columns |= {"_window_end": getattr(window, "end", None)}
    return columns | {"_key": str(output.key)}


def net(outputs: list[Any], columns: tuple[str, ...]) -> Rows:
    found: Rows = Counter()
    for output in outputs:
        row = columns_of(output)
        taken_back = output.pane is not None and output.pane.retraction
        found[tuple(row[column] for column in columns)] += -1 if taken_back else 1
    return Counter({row: count for row, count in found.items() if count})


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_in_the_harness_each_mix_has_the_outputs_of_its_oracle(
    mix: type[Mix], tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    limit = tmp_path / "limit"
    limit.write_text("0")
    p = mr.Pipeline("mix")
    one = mix(tmp_path, "dbname=nothing")
    one.build(p)
    with mr.testing.Harness(p, publish=True) as h:
        h.advance_clock(4_000_000_000 * mr.SECOND)
        fed = [name for name, injection in p.injections.items() if "calls" not in name]
        for rows in range(10, ROWS + 1, 10):
            limit.write_text(str(rows * SHARE))
            for stream in fed:
                h.poll(stream)
            h.crash()
        for second in range(1, 30):
            h.advance_clock((4_000_000_000 + second) * mr.SECOND)
        for stream in fed:
            h.advance_watermark(stream, mr.MAX_TIMESTAMP)
        expected = one.expected(ROWS)
        found = {sink: net(h.outputs(sink), columns) for sink, columns in one.sinks.items()}
        if isinstance(one, Tables):
            found = {"postings in Delta": net(h.outputs("postings"), ("account", "n"))}
    assert found
    for sink, rows in found.items():
        assert rows == expected[sink]
        assert rows
