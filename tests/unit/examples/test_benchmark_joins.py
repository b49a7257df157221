"""The joins' benchmark: a right answer is what joining each with each would find."""

import importlib
from pathlib import Path

import pyarrow.dataset as ds
import pytest


@pytest.mark.parametrize("shape", ["interval", "table"])
def test_the_totals_are_those_of_all_pairs(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    joins = importlib.import_module("benchmarks.joins.workload")
    totals = joins.Workload(shape, keys=7, records=60, batches=3, parts=2).write(tmp_path)

    lefts, rights = (ds.dataset(tmp_path / side).to_table().to_pylist() for side in SIDES)
    pairs = [
        (left["value"], right["value"])
        for left in lefts
        for right in rights
        if left["key"] == right["key"]
        and (shape == "table" or -5_000 <= right["time_ms"] - left["time_ms"] < 10_000)
    ]
    assert totals == joins.Totals(len(pairs), *(sum(each) for each in zip(*pairs, strict=True)))
    for side, rows in zip(SIDES, (lefts, rights), strict=True):
        whole = ds.dataset(tmp_path / "whole" / side).to_table().to_pylist()
        assert sorted(map(str, whole)) == sorted(map(str, rows))


SIDES = ("left", "right")
