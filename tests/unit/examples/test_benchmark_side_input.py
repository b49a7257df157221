"""The benchmark of side inputs: a table is logged once a task, and each interval has it back."""

import importlib
from pathlib import Path

import pytest

from millrace.kernel import families, row_codec
from millrace.kernel.row_codec import ALL_KEYS_ROW
from millrace.store import LocalHardState, MemoryCache, bring, chain_of, decode_segment
from millrace.testing.feed import Feed, Read

ROWS, BYTES, INTERVALS, EPOCHS = 100, 1000, 4, 3


def test_a_table_is_logged_once_for_all_intervals_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    side_input = importlib.import_module("benchmarks.side_input")
    monkeypatch.setattr(side_input, "len_of_table", ROWS)
    case = side_input.Case("changing", tmp_path, INTERVALS)
    for number in range(EPOCHS):
        table = [Read((n, bytes([number]) * BYTES), number, "all") for n in range(ROWS)]
        events = [Read(n, number, "all") for n in range(200)]
        case.epoch(number, [Feed("rows", table, {}), Feed("events", events, {})])

    state = LocalHardState.open(tmp_path / "changing")
    segments = sorted((tmp_path / "changing/commits").glob("*/*"))
    assert len(segments) == EPOCHS
    for segment in segments:
        assert len(list(decode_segment(segment.read_bytes()))) == INTERVALS
        assert ROWS * BYTES < segment.stat().st_size < 2 * ROWS * BYTES
    for interval in range(INTERVALS):
        commit = state.commits.read("code", interval, EPOCHS)
        assert commit is not None
        assert commit.chain == chain_of(commit.previous, commit.mutations)
        cache = MemoryCache("code", interval)
        bring(cache, state, "code", interval, EPOCHS, commit.chain)
        with cache.view() as view:
            kept = [data for _, data in row_codec.scan(view, families.MAP + ALL_KEYS_ROW)]
        assert sum(bytes([EPOCHS - 1]) * BYTES in data for data in kept) == ROWS
