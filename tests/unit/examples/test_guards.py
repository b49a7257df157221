"""Guards of benchmarks: their figures are there, and a worse tree is told from a noisy machine."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    return importlib.import_module("benchmarks.guards")


def test_each_guard_has_figures_in_the_results_of_its_benchmark(guards: Any) -> None:
    without = dict[str, list[str]]()
    for name, guard in guards.GUARDS.items():
        files = sorted(RESULTS.glob(f"{guard.module.replace('_', '-')}-20*.json"))
        if not files:
            continue
        found = guards.figures(json.loads(files[-1].read_text()), guard.losses)
        if missing := [
            loss
            for loss in guard.losses
            if not guards.figures(json.loads(files[-1].read_text()), {loss: 0.0})
        ]:
            without[name] = missing
        assert all(figure >= 0 for figure, _ in found.values())
    assert without == {}


def test_a_case_measured_several_times_has_the_median(guards: Any) -> None:
    result = {"rests": [{"what": "a split", "gap_s": gap} for gap in (1.0, 9.0, 2.0)]}
    found = guards.figures(result, {"rests*.gap_s": 0.1})
    assert found == {"rests[what=a split].gap_s": (2.0, 0.1)}


@pytest.fixture
def measured(guards: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def with_figures(ours: list[float], theirs: list[float]) -> Any:
        runs = {guards.ROOT: iter(ours), Path("base"): iter(theirs)}
        monkeypatch.setattr(guards, "run", lambda tree, _: {"us": (next(runs[tree]), 0.05)})
        guard, base = guards.Guard("m", "", {"us": 0.05}), Path("base")
        return guards.compare(guard, base, len(ours), lambda _: None)["us"]

    return with_figures


def test_a_machine_that_is_slower_for_both_breaks_no_guard(measured: Any) -> None:
    told = measured([10.0, 31.0, 20.0], [10.0, 30.0, 20.0])
    assert (told["verdict"], told["ratio"]) == ("met", 1.0)


def test_a_tree_that_is_slower_in_each_round_breaks_it(measured: Any) -> None:
    told = measured([11.0, 33.0, 22.0], [10.0, 30.0, 20.0])
    assert told["verdict"] == "BROKEN"
    assert told["ratio"] == pytest.approx(1.1)


def test_one_good_round_among_bad_ones_says_to_measure_again(measured: Any) -> None:
    assert measured([10.0, 33.0, 22.0], [10.0, 30.0, 20.0])["verdict"] == "unsure"


def test_who_begins_changes_with_each_round(guards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()
    figure = itertools.repeat((1.0, 0.0))

    def run(tree: Path, _: Any) -> dict[str, tuple[float, float]]:
        order.append("ours" if tree == guards.ROOT else "base")
        return {"us": next(figure)}

    monkeypatch.setattr(guards, "run", run)
    lines = list[str]()
    guards.compare(guards.Guard("m", "", {"us": 0.05}), Path("base"), 2, lines.append)
    assert order == ["base", "ours", "ours", "base"]
    assert lines[1] == "  round 2 of 2: us 1.000, 1 cases from 1.00 to 1.00"


def test_one_case_of_many_that_is_slower_breaks_no_guard_and_is_named(
    guards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {f"cases[{n}].us": (10.0, 0.05) for n in range(10)}
    slower = {**figures, "cases[7].us": (12.0, 0.05)}
    monkeypatch.setattr(guards, "run", lambda tree, _: slower if tree == guards.ROOT else figures)
    guard = guards.Guard("m", "", {"cases*.us": 0.05})
    told = guards.compare(guard, Path("base"), 3, lambda _: None)["cases*.us"]
    assert (told["verdict"], next(iter(told["cases"]))) == ("met", "cases[7].us")
    assert told["ratio"] == pytest.approx(1.2**0.1)


def test_a_benchmark_that_the_other_tree_has_not_is_known(guards: Any, tmp_path: Path) -> None:
    (tmp_path / "benchmarks" / "windows").mkdir(parents=True)
    (tmp_path / "benchmarks" / "appends.py").touch()
    there = [name for name, guard in guards.GUARDS.items() if guards.has(tmp_path, guard)]
    assert there == ["windows", "appends"]


def test_more_may_be_better(guards: Any) -> None:
    assert guards.ratio(90.0, 100.0, more=True) == pytest.approx(100 / 90)
    assert guards.ratio(1.0, 0.0, more=False) == float("inf")


def test_a_benchmark_that_fails_is_told_with_its_last_lines(guards: Any, tmp_path: Path) -> None:
    with pytest.raises(guards.BenchmarkFailed, match="No module named"):
        guards.run(tmp_path, guards.Guard("no_such_benchmark", "", {"*": 0.0}))
