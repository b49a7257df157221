"""Runs smoke tests on each supported Spark, and writes what each gives into the reference.

    python scripts/spark_versions.py            every version
    python scripts/spark_versions.py 4.0 4.1    these; the results of others stay

An environment is made by ``scripts/setup.sh``, from a lock of its own. The newest Spark is that of
``.venv``, on which the whole suite runs. Results are in docs/reference/sparks.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "docs/reference/sparks.json"
PAGE: Final = ROOT / "docs/reference/sparks.md"
#: Above the table, and below it.
MARKS: Final = ("<!-- made by scripts/spark_versions.py -->\n", "<!-- end -->\n")

SUITE: Final = "4.3"
VERSIONS: Final = ("3.5", "4.0", "4.1", "4.2", SUITE)
#: Where every test notes its row of the table.
NOTED: Final = "tests/spark/processes/test_any_spark.py"
#: The same, of what the newest Spark alone gives. What one shows stands in place of what the others
#: have shown of the same row.
NEWEST: Final = ("tests/spark/processes/kafka/test_pacemaker.py",)
#: Other tests -> their row, with a classic session.
ROWS: Final = {
    "tests/spark/test_windows.py::test_panes_on_spark_are_those_of_the_harness": (
        "Panes and timers as in the Harness, step by step"
    ),
    "tests/spark/test_sinks.py::test_a_retried_epoch_is_written_once[alone]": (
        "An epoch that fails after its sinks, and is run again: they have it once"
    ),
}
#: PySpark leaves sockets open, up to 4.1.
_WARNINGS: Final = ("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def run(version: str) -> dict[str, dict[str, str]]:
    """Run the tests on a version; return row -> kind of session -> what it gives."""
    if version == SUITE:
        python = ROOT / ".venv/bin/python"
    else:
        subprocess.run(["sh", "scripts/setup.sh", f"spark-{version}"], cwd=ROOT, check=True)
        python = ROOT / f".venv-spark-{version}/bin/python"
    report = ROOT / "build" / f"spark-{version}.xml"
    report.unlink(missing_ok=True)
    # There are no Python data sources before Spark 4, and so nothing that streams.
    others = () if version.startswith("3.") else (*ROWS, *NEWEST * (version == SUITE))
    ignored = [word for warning in _WARNINGS for word in ("-W", warning)]
    command = [str(python), "-m", "pytest", "-q", *ignored, f"--junitxml={report}", NOTED, *others]
    began = time.monotonic()
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | {"SPARK_VERSIONS": "1"}, check=False)
    print(f"Spark {version}: {time.monotonic() - began:.0f} s", flush=True)
    if ended.returncode not in (0, 1):
        raise SystemExit(f"spark-versions: pytest ended with {ended.returncode} on {version}")
    return results_of(report)


def results_of(report: Path) -> dict[str, dict[str, str]]:
    """Return row -> kind of session -> what it gives, of a report of pytest's."""
    found: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        noted = {each.get("name"): str(each.get("value")) for each in case.iter("property")}
        name = f"{case.get('file')}::{case.get('name')}"
        row, kind = noted.get("row") or ROWS[name], noted.get("kind", "classic")
        gives = noted.get("gives", "yes")
        if case.find("failure") is not None or case.find("error") is not None:
            gives = "FAILED"
        found.setdefault(row, {})[kind] = gives
    return found


def table(results: dict[str, dict[str, dict[str, str]]]) -> str:
    """Return the table of results: a row a feature, a column a version and kind of session.

    >>> print(table({"4.3": {"A batch": {"classic": "yes", "connect": "refused"}}}))
    | | 4.3 | 4.3 Connect |
    |---|---|---|
    | A batch | yes | refused |
    <BLANKLINE>
    """
    versions = [version for version in reversed(VERSIONS) if version in results]
    columns = [
        (version, kind)
        for kind in ("classic", "connect")
        for version in versions
        if any(kind in kinds for kinds in results[version].values())
    ]
    rows = list(dict.fromkeys(row for version in versions for row in results[version]))
    heads = [f"{version}{' Connect' * (kind == 'connect')}" for version, kind in columns]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        cells = (results[version].get(row, {}).get(kind, "not run") for version, kind in columns)
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(results: dict[str, dict[str, dict[str, str]]]) -> str:
    """Return the page with the table of results."""
    before, _, after = PAGE.read_text().partition(MARKS[0])
    return f"{before}{MARKS[0]}\n{table(results)}\n{MARKS[1]}{after.partition(MARKS[1])[2]}"


def main(versions: list[str]) -> None:
    unknown = sorted({*versions} - {*VERSIONS})
    if unknown:
        raise SystemExit(f"spark-versions: no {unknown}; there are {', '.join(VERSIONS)}")
    for version in versions or VERSIONS:
        found = run(version)
        results = json.loads(RESULTS.read_text()) | {version: found}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        PAGE.write_text(page(results))
    if any("FAILED" in kinds.values() for rows in results.values() for kinds in rows.values()):
        raise SystemExit("spark-versions: some tests failed, see above")


if __name__ == "__main__":
    main(sys.argv[1:])
