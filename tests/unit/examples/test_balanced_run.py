"""The benchmark of a balanced run: what epochs come to, of lines that a run has written."""

import importlib
import json
from pathlib import Path

import pytest


def test_epochs_come_to_medians_of_thirds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    benchmark = importlib.import_module("benchmarks.balanced_run")
    parts = [{}, *({"planning": 9.0, "tasks": n / 10} for n in (9, 7, 8, 5, 5, 5, 2, 1, 3))]
    lines = [json.dumps({"epoch_part_seconds": p, "epoch_duration_seconds": 2.0}) for p in parts]
    epochs = list(benchmark.epochs_in(lines))
    assert epochs[0] == (0.9, 2.0)
    case = benchmark.Case.of("Zipf", epochs, 100, 64, balanced=True)
    assert (case.first_s, case.last_s, case.records_per_s) == (0.8, 0.2, 50.0)
    assert len(case.tasks_s) == 9
