"""The page of which Spark gives what is what the results of smoke tests make it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("versions", ROOT / "scripts/spark_versions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_results_make_it(script: ModuleType) -> None:
    results = json.loads(script.RESULTS.read_text())

    assert script.PAGE.read_text() == script.page(results), "python scripts/spark_versions.py"


def test_no_test_of_a_version_has_failed(script: ModuleType) -> None:
    results = json.loads(script.RESULTS.read_text())

    assert {*results} <= {*script.VERSIONS}
    assert not [rows for rows in results.values() if "FAILED" in str(rows)]


def test_each_version_but_that_of_the_suite_has_a_lock(script: ModuleType) -> None:
    for version in script.VERSIONS:
        name = "dev" if version == script.SUITE else f"spark-{version}"
        locked = (ROOT / f"requirements/{name}.lock").read_text()
        assert f"\npyspark=={version}." in locked


def test_a_cell_is_what_a_test_has_noted(script: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    noted = '<properties><property name="row" value="A batch"/>{}</properties>'
    connect = noted.format('<property name="kind" value="connect"/>')
    gives = connect.replace(
        "</properties>", '<property name="gives" value="refused"/></properties>'
    )
    report.write_text(
        f"<testsuite><testcase>{noted.format('')}</testcase><testcase>{gives}</testcase>"
        f"<testcase>{connect.replace('A batch', 'Epochs')}<failure/></testcase></testsuite>"
    )

    found = script.results_of(report)

    assert found == {
        "A batch": {"classic": "yes", "connect": "refused"},
        "Epochs": {"connect": "FAILED"},
    }
    assert script.table({"4.3": found}).splitlines()[2:] == [
        "| A batch | yes | refused |",
        "| Epochs | not run | FAILED |",
    ]
