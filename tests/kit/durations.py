"""How long tests take: seconds by tier, file and test, and budgets that a tier may not pass.

Seconds on a clock say nothing by themselves: another machine is three times slower, and the same
one is while something else runs on it. A budget in CPU time would be blind to the waits, which are
what makes a suite slow unnoticed, and to the JVMs, which are other processes. So every process
that runs tests times a fixed piece of work every few seconds. The seconds of a test are divided by
what that work took in the same minutes, in relation to a quiet machine on which budgets were
measured: this gives *reference seconds*.
A tier of tests fails if it takes half as much again as its budget, in reference seconds. A machine
that is faster is not asked for more, because waits do not get shorter on it.

pytest loads this file as a plugin. ``--durations-file`` switches it on.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

#: What the fixed piece of work takes, in seconds, on the machine of the budgets as the suite runs.
REFERENCE_S = 0.026

#: How often a process times it, in seconds.
EVERY_S = 5.0

#: A tier fails beyond so many times its budget.
MARGIN = 1.5

#: Reference seconds that the tests of a tier take together, over all processes. They are the mean
#: of three whole runs in two processes on two cores that had nothing else to do. Those runs differ
#: by a fifth, and tiers of short tests by a half: a machine is slow for some minutes only.
BUDGETS = {
    "unit": 285.0,
    "transcripts": 50.0,
    "properties": 275.0,
    "faults": 235.0,
    "simulation": 270.0,
    "browser": 85.0,
    "spark": 790.0,
    "spark/processes": 1015.0,
}

#: The same with ``--fast``.
FAST_BUDGETS = {"unit": 190.0, "transcripts": 35.0, "properties": 50.0, "simulation": 60.0}


def fixed_work() -> float:
    """Return how many seconds a fixed piece of work took: Python's own, of the kind tests do."""
    began = time.perf_counter()
    counts: dict[str, int] = {}
    digest = hashlib.blake2b()
    for number in range(40_000):
        word = f"{number % 997}:{number}"
        digest.update(word.encode())
        counts[word[:3]] = counts.get(word[:3], 0) + number
    sorted(counts.items(), key=lambda item: -item[1])
    return time.perf_counter() - began


@dataclass
class Durations:
    """Seconds by test, and what the fixed piece of work took meanwhile, by minute."""

    tests: dict[str, float] = field(default_factory=dict)
    _phases: list[tuple[str, float, float]] = field(default_factory=list)
    _works: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, test: str, seconds: float, ended_s: float) -> None:
        """Add a phase of a test: its set-up, call or teardown; it ended at that Unix time."""
        self.tests[test] = self.tests.get(test, 0.0) + seconds
        self._phases.append((test, seconds, ended_s))

    def add_work(self, seconds: float, ended_s: float) -> None:
        """Add what the fixed piece of work took; it ended at that Unix time."""
        self._works[_minute(ended_s)].append(seconds)

    @property
    def references(self) -> dict[str, float]:
        """Return reference seconds by test."""
        slowness = {minute: slowness_of(works) for minute, works in self._works.items()}
        overall = slowness_of([work for works in self._works.values() for work in works])
        references: dict[str, float] = defaultdict(float)
        for test, seconds, ended_s in self._phases:
            minutes = range(_minute(ended_s - seconds), _minute(ended_s) + 1)
            measured = [slowness[minute] for minute in minutes if minute in slowness]
            mean = sum(measured) / len(measured) if measured else overall
            references[test] += seconds / mean
        return dict(references)

    def by_file(self) -> dict[str, tuple[int, float]]:
        """Return tests and seconds by file."""
        return _sums((test.partition("::")[0], seconds) for test, seconds in self.tests.items())

    def by_tier(self) -> dict[str, tuple[int, float]]:
        """Return tests and seconds by tier; processes are one of their own."""
        return _sums((tier_of(test), seconds) for test, seconds in self.tests.items())

    def passed(self, budgets: dict[str, float]) -> list[str]:
        """Return a sentence for each tier that has passed its budget by half."""
        references = _sums((tier_of(test), seconds) for test, seconds in self.references.items())
        return [
            f"The tests of {tier} took {seconds:.0f} reference seconds; their "
            f"budget is {budgets[tier]:.0f}, and it is passed by half."
            for tier, (_, seconds) in references.items()
            if tier in budgets and seconds > MARGIN * budgets[tier]
        ]

    def tiers_table(self, budgets: dict[str, float]) -> list[str]:
        """Return the lines of the table of tiers."""
        references = _sums((tier_of(test), seconds) for test, seconds in self.references.items())
        lines = [f"{'tier':<18}{'tests':>7}{'seconds':>10}{'reference':>11}{'budget':>9}"]
        for tier, (tests, seconds) in self.by_tier().items():
            budget = f"{budgets[tier]:.0f}" if tier in budgets else "–"
            reference = references[tier][1]
            lines.append(f"{tier:<18}{tests:>7}{seconds:>10.1f}{reference:>11.1f}{budget:>9}")
        total = sum(self.tests.values())
        reference = sum(self.references.values())
        lines.append(f"{'all':<18}{len(self.tests):>7}{total:>10.1f}{reference:>11.1f}")
        if reference:
            lines.append(f"It took {total / reference:.2f} times as long as the reference.")
        return lines

    def files_table(self, most: int | None = None) -> list[str]:
        """Return the lines of the table of files, the slowest first."""
        files = list(self.by_file().items())[:most]
        return [f"{seconds:>9.1f} {tests:>5}  {file}" for file, (tests, seconds) in files]

    def tests_table(self, most: int | None = None) -> list[str]:
        """Return the lines of the table of tests, the slowest first."""
        slowest = sorted(self.tests.items(), key=lambda item: -item[1])[:most]
        return [f"{seconds:>9.2f}  {test}" for test, seconds in slowest]


def tier_of(test: str) -> str:
    """Return the tier of a test, given its id."""
    folders = test.partition("::")[0].split("/")
    at = folders.index("tests") + 1 if "tests" in folders else 0
    return "spark/processes" if folders[at : at + 2] == ["spark", "processes"] else folders[at]


def _minute(unix_s: float) -> int:
    return int(unix_s // 60)


def slowness_of(works: list[float]) -> float:
    """Return how much longer than on the quiet machine work took; never less than 1."""
    return max(1.0, sum(works) / len(works) / REFERENCE_S) if works else 1.0


def _sums(durations: Iterable[tuple[str, float]]) -> dict[str, tuple[int, float]]:
    """Return how many there are, and their sum, by name; the largest sum first."""
    found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for name, seconds in durations:
        tests, total = found[name]
        found[name] = tests + 1, total + seconds
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


# -- the plugin ------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite")
    group.addoption("--durations-file", help="Write what tests took there, and check budgets.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("durations_file"):
        config.pluginmanager.register(DurationsPlugin(config), "millrace-durations")


class DurationsPlugin:
    """Collects durations where pytest reports them, and times the fixed work where tests run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses")
        self._timed_at = -EVERY_S
        self._durations = Durations()
        self._budgets = FAST_BUDGETS if config.getoption("fast", False) else BUDGETS
        self._passed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        if self._runs_tests and time.monotonic() - self._timed_at >= EVERY_S:
            report.fixed_work_s = fixed_work()  # xdist sends all attributes of a report
            self._timed_at = time.monotonic()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._durations.add(report.nodeid, report.duration, report.stop)
        if hasattr(report, "fixed_work_s"):
            self._durations.add_work(report.fixed_work_s, report.stop)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            return
        self._passed = self._durations.passed(self._budgets)
        if self._passed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        path = Path(self._config.rootpath, self._config.getoption("durations_file"))
        path.parent.mkdir(parents=True, exist_ok=True)
        tables = [
            self._durations.tiers_table(self._budgets),
            self._durations.files_table(),
            self._durations.tests_table(),
        ]
        path.write_text("\n\n".join("\n".join(table) for table in tables) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("time by tier")
        for line in self._durations.tiers_table(self._budgets):
            terminalreporter.write_line(line)
        terminalreporter.section("slowest files: seconds, tests")
        for line in self._durations.files_table(25):
            terminalreporter.write_line(line)
        for sentence in self._passed:
            terminalreporter.write_line(sentence, red=True)
