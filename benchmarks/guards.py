"""Two trees of Millrace by turns, and which figure has become worse than it may.

A guard is a benchmark with arguments that keep it short, the figures of it that count, and the loss
that each kind of figure is allowed. Every tree runs its own benchmarks with its own sources, in
processes of their own, one after the other and the other way round in the next round: a machine
that has something else to do is slower for both. A round's ratio is the geometric mean, over all
cases that have a figure of the kind, of this tree's by the other's: a case by itself says little on
a shared machine, where the same tree measured twice differs by a quarter. A guard's ratio is the
median over the rounds, so that 1.02 is 2 % worse, also of what should be large.

    met       the median is within what is allowed
    BROKEN    so is not the median, nor the better half of the rounds
    unsure    the median is not, but some rounds in the better half are, or there were less than
              three: run more of them

The case that lost most is named beside it, and all cases are in the results. A benchmark that the
other tree has not is passed over.

Run it with ``python -m benchmarks.guards --base v1.2``, where ``--base`` is a commit, which is
checked out beside this tree for the while, or a folder with another tree. ``--only kernel`` takes
one guard; ``--alone`` measures this tree only and writes a baseline. The exit status is 1 if a
guard is broken or a benchmark failed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import fnmatch
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.machine import describe

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Guard:
    """A benchmark that is watched.

    Attributes:
        module: Of ``benchmarks``.
        arguments: What it is given, besides ``--out``.
        losses: Pattern of a figure's path in its results -> what it may lose: 0.05 is 5 %.
        more: Whether more is better, as of records a second.
    """

    module: str
    arguments: str
    losses: dict[str, float]
    more: bool = False


#: By the names of the order of work. Losses are of a step against the tree before it.
GUARDS = {
    "kernel": Guard("productions", "--epochs 10 --rounds 1", {"costs*.cpu_s": 0.02}),
    "small_bundles": Guard(
        "small_bundles", "--rounds 1",
        {"cases*.cpu_us": 0.05, "cases*.bundle_ms_p99": 0.10},
    ),
    "live_turns": Guard("live_turns", "--rounds 1", {"cases*.levels_us*": 0.05}),
    "keyed_state": Guard(
        "keyed_state",
        "--rivals millrace --keys 200000 --batches 100000 --records 1000000",
        {"measurements*.cpu_s_per_million": 0.03},
    ),
    "windows": Guard(
        "windows",
        "--rivals millrace --keys 1000 --laws uniform --batches 100000 --records 1000000",
        {"measurements*.cpu_s_per_million": 0.03},
    ),
    "realtime_throughput": Guard(
        "realtime_throughput",
        "--rivals millrace-realtime --keys 200000 --shapes windows --records 1000000",
        {"figures*.cpu_s_per_million": 0.03},
    ),
    "empty_epoch": Guard(
        "empty_epoch", "--epochs 50 --depths 2", {"costs*millrace*.median_ms": 0.05}
    ),
    "latency": Guard(
        "latency",
        "--rivals millrace-realtime --to code --synthetic --seconds 20",
        {"measurements*.latencies_ms.*.p50": 0.05, "measurements*.latencies_ms.*.p99": 0.10},
    ),
    "recovery": Guard("recovery", "--gigabytes 0.25", {"from_*.cpu_seconds": 0.10}),
    "start_up": Guard("start_up", "--rounds 1 --kills 1", {"runs*.s": 0.10}),
    "rest_pause": Guard("rest_pause", "--rounds 2", {"rests*.gap_s": 0.10}),
    "remap_pause": Guard("remap_pause", "--keys 200000 --rounds 2", {"pauses*.pause_s": 0.10}),
    "commit_requests": Guard(
        "commit_requests", "--epochs 50", {"costs*.requests.*": 0.0, "costs*.sent": 0.0}
    ),
    "appends": Guard("appends", "--rounds 500 --groups 10000", {"appends*.grown.cpu_us": 0.10}),
    "cache_bound": Guard(
        "cache_bound", "--epochs 30", {"cases*.cpu_us": 0.10, "cases*.read_bytes": 0.10}
    ),
    "epoch_log": Guard("epoch_log", "", {"costs*.median.driver_us": 0.05}),
    "authority": Guard("authority", "", {"costs*_us": 0.10}),
    "large_state": Guard(
        "large_state", "--gigabytes 0.5 --limit-gigabytes 0.5", {"anonymous_bytes_max": 0.05}
    ),
    "many_keys": Guard(
        "many_keys", "--keys 200000 --epochs 6", {"cases*.cpu_s_per_million": 0.05}
    ),
    "aggregates": Guard("aggregates", "--epochs 4", {"costs*.cpu_us": 0.05}),
    "joins": Guard(
        "joins", "--only millrace --keys 50000 --batches 6",
        {"measurements*.cpu_s_per_million": 0.05},
    ),
    "postgres_sink": Guard("postgres_sink", "", {"costs*.cpu_us": 0.10}),
    "batch_memory": Guard("batch_memory", "--rows 2000000", {"cases*.worker_bytes_max": 0.10}),
    "nexmark": Guard(
        "nexmark", "--rivals millrace --queries q5,q8 --events 200000",
        {"measurements*.cpu_s_per_million": 0.05},
    ),
}  # fmt: skip


def figures(result: Any, losses: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return path -> figure and allowed loss, of all that some pattern names.

    What an item of a list is about, its words and whole numbers, is in the path instead of its
    place, so that a case which is left out or comes in elsewhere is not taken for another. Of a
    case that was measured several times it is the median.

    >>> figures({"cases": [{"code": "count", "size": 10, "us": 3.5}]}, {"cases*.us": 0.05})
    {'cases[code=count,size=10].us': (3.5, 0.05)}
    """
    found = dict[str, list[float]]()
    for path, figure in _leaves("", result):
        found.setdefault(path, []).append(figure)
    return {
        path: (statistics.median(several), loss)
        for path, several in found.items()
        for loss in [next((of for p, of in losses.items() if fnmatch.fnmatchcase(path, p)), None)]
        if loss is not None
    }


def _leaves(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in ("machine", "settings", "arguments"):
                yield from _leaves(f"{path}.{name}" if path else name, inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            about = _about(inner) or str(number)
            yield from _leaves(f"{path}[{about}]", inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, float(value)


def _about(item: Any) -> str:
    if not isinstance(item, dict):
        return ""
    said = {**item, **{k: v for inner in item.values() if isinstance(inner, dict)
                       for k, v in inner.items() if isinstance(v, str)}}  # fmt: skip
    words = {k: v for k, v in said.items() if isinstance(v, str) and k not in ("verdict", "said")}
    cases = {k: v for k, v in item.items() if k in _CASES}
    return ",".join(f"{name}={value}" for name, value in {**words, **cases}.items())


#: Whole numbers that say which case it is, and not how it went.
_CASES = ("keys", "size", "batch", "batch_records", "intervals", "depth", "rate", "stages", "ahead",
          "balanced", "zipf", "skew", "pending", "kept", "share")  # fmt: skip


def ratio(ours: float, theirs: float, *, more: bool) -> float:
    """Return by how much ours is worse: 1 is as good, 1.1 is 10 % worse.

    >>> ratio(11.0, 10.0, more=False), ratio(9.0, 9.0, more=True), ratio(0.0, 0.0, more=False)
    (1.1, 1.0, 1.0)
    """
    worse, better = (theirs, ours) if more else (ours, theirs)
    if worse == better:
        return 1.0
    return worse / better if better else float("inf")


def verdict(ratios: Sequence[float], allowed: float) -> str:
    """Return what a figure's ratios, one a round, say of its guard.

    >>> verdict([1.0, 1.2, 1.01], 0.05), verdict([1.2, 1.1, 1.3], 0.05)
    ('met', 'BROKEN')
    >>> verdict([1.0, 1.06, 1.3], 0.05), verdict([1.4], 0.05)
    ('unsure', 'unsure')
    """
    if statistics.median(ratios) <= 1 + allowed:
        return "met"
    better = sorted(ratios)[: (len(ratios) + 1) // 2]
    return "BROKEN" if len(ratios) > 2 and min(better) > 1 + allowed else "unsure"


def run(tree: Path, guard: Guard) -> dict[str, tuple[float, float]]:
    """Return the figures of a benchmark of a tree."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", f"benchmarks.{guard.module}", *guard.arguments.split()]
        paths = [str(tree / "src"), str(tree)]
        done = subprocess.run(
            [*command, "--out", str(out)], cwd=tree, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode or not out.exists():
            last = "\n".join(done.stdout.splitlines()[-15:])
            raise BenchmarkFailed(f"{' '.join(command[1:])} in {tree} failed:\n{last}")
        found = figures(json.loads(out.read_text()), guard.losses)
    if not found:
        raise BenchmarkFailed(f"{guard.module} has no figure like {', '.join(guard.losses)}.")
    return found


def has(tree: Path, guard: Guard) -> bool:
    """Return whether a tree has the benchmark of a guard."""
    module = tree / "benchmarks" / guard.module
    return module.is_dir() or module.with_suffix(".py").exists()


class BenchmarkFailed(Exception):
    """A benchmark that has no figures."""


@contextlib.contextmanager
def tree_of(base: str) -> Iterator[Path]:
    """Yield the folder of a commit, or the folder itself."""
    if Path(base).is_dir():
        yield Path(base).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(tree), base], check=True, capture_output=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compare(
    guard: Guard, base: Path, rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return kind of figure -> ratio of each round, their median and the verdict, and its cases.

    Args:
        guard: What is measured.
        base: The other tree.
        rounds: How often each is.
        progress: Given a line after each round, as a guard takes minutes.
    """
    ours, theirs = list[dict[str, Any]](), list[dict[str, Any]]()
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        pair = [(ours, ROOT), (theirs, base)]
        for found, tree in pair if number % 2 else reversed(pair):
            found.append(run(tree, guard))
        for kind in guard.losses:
            of_cases = [
                ratio(figure[0], theirs[-1][name][0], more=guard.more)
                for name, figure in ours[-1].items()
                if name in theirs[-1] and fnmatch.fnmatchcase(name, kind)
            ]
            if of_cases:
                mean = _geometric_mean(of_cases)
                ratios.setdefault(kind, []).append(mean)
                progress(
                    f"  round {number + 1} of {rounds}: {kind} {mean:.3f}, {len(of_cases)} cases "
                    f"from {min(of_cases):.2f} to {max(of_cases):.2f}"
                )
    if not ratios:
        raise BenchmarkFailed(f"{guard.module}: the trees have no figure in common.")
    return {
        kind: {
            "cases": _cases(kind, ours, theirs, more=guard.more),
            "ratio": statistics.median(of_rounds),
            "ratios": of_rounds,
            "allowed": 1 + guard.losses[kind],
            "verdict": verdict(of_rounds, guard.losses[kind]),
        }
        for kind, of_rounds in ratios.items()
    }


def _cases(
    kind: str, ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], *, more: bool
) -> dict[str, dict[str, float]]:
    """Return case -> medians of both trees and of the ratio, the greatest loss first."""
    cases = dict[str, dict[str, float]]()
    for name in ours[0]:
        both = [(o[name][0], t[name][0]) for o, t in zip(ours, theirs, strict=True)
                if name in o and name in t]  # fmt: skip
        if both and fnmatch.fnmatchcase(name, kind):
            cases[name] = {
                "ours": statistics.median(o for o, _ in both),
                "base": statistics.median(t for _, t in both),
                "ratio": statistics.median(ratio(o, t, more=more) for o, t in both),
            }
    return dict(sorted(cases.items(), key=lambda case: -case[1]["ratio"]))


def _geometric_mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean, endless if one ratio is.

    >>> _geometric_mean([0.5, 2.0]), _geometric_mean([1.0, float("inf")])
    (1.0, inf)
    """
    return math.exp(statistics.fmean(map(math.log, ratios)))


def main() -> None:
    """Measure, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="HEAD~1", help="a commit, or the folder of a tree")
    parser.add_argument("--only", default="", help="guards, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="this tree only: a baseline")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(GUARDS)
    if unknown := [name for name in names if name not in GUARDS]:
        parser.error(f"no guard {', '.join(unknown)}; there are {', '.join(GUARDS)}")
    console = Console()
    table = Table("guard", "figure", "cases", "ratio", "may be", "", "worst case")
    results, failed = dict[str, Any](), list[str]()
    with contextlib.ExitStack() as stack:
        base = None if arguments.alone else stack.enter_context(tree_of(arguments.base))
        for name in names:
            console.print(f"{name} …")
            if base is not None and not has(base, GUARDS[name]):
                console.print("  the other tree has no such benchmark", markup=False)
                continue
            try:
                if base is None:
                    rounds = [run(ROOT, GUARDS[name]) for _ in range(arguments.rounds)]
                    results[name] = {
                        figure: statistics.median(r[figure][0] for r in rounds if figure in r)
                        for figure in rounds[0]
                    }
                else:
                    results[name] = compare(GUARDS[name], base, arguments.rounds, console.print)
            except BenchmarkFailed as error:
                failed.append(name)
                console.print(str(error), markup=False)
    for name, told in results.items():
        for kind, of in told.items():
            if base is None:
                table.add_row(name, escape(kind), "", f"{of:.4g}")
                continue
            case, worst = next(iter(of["cases"].items()))
            table.add_row(
                name, escape(kind), str(len(of["cases"])), f"{of['ratio']:.3f}",
                f"{of['allowed']:.2f}", of["verdict"], f"{worst['ratio']:.2f} {escape(case)}",
            )  # fmt: skip
    console.print(table)
    out = arguments.out or ROOT / "benchmarks" / "results" / (
        f"guards-{dt.datetime.now(dt.UTC):%Y-%m-%d-%H%M}.json"
    )
    settings = {"base": arguments.base, "rounds": arguments.rounds, "alone": arguments.alone}
    written = {"benchmark": "guards", "machine": describe(), "settings": settings}
    out.write_text(json.dumps({**written, "guards": results, "failed": failed}, indent=1) + "\n")
    broken = {
        name
        for name, told in results.items()
        if base is not None and any(of["verdict"] == "BROKEN" for of in told.values())
    }
    console.print(f"Broken: {', '.join(sorted(broken)) or 'none'}. Failed: {failed or 'none'}.")
    raise SystemExit(bool(broken or failed))


if __name__ == "__main__":
    main()
