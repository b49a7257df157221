"""``millrace new``: the project that it writes runs."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from millrace.model.distribution import requirement

TEST = "test_words_are_counted_in_minutes_even_after_a_crash"


@pytest.fixture
def project(millrace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shown = millrace("new", "tea-house")
    assert shown.output == (
        "tea-house is there: `cd tea-house`, `make setup test`, then `make run`.\n"
    )
    monkeypatch.chdir(tmp_path / "tea-house")
    return tmp_path / "tea-house"


def test_its_test_passes_and_its_pipeline_can_be_explained(millrace: Any, project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import test_pipeline as t; t.{TEST}()"],
        cwd=project, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    shown = millrace("explain", "pipeline.py:on_spark")
    assert shown.output.startswith("pipeline 'tea-house': 1 level"), shown.output


def test_a_project_that_reads_kafka_runs_in_the_harness(
    millrace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert millrace("new", "tea-house", "--from", "kafka").exit_code == 0
    monkeypatch.chdir(tmp_path / "tea-house")
    test = "test_words_are_counted_early_on_time_and_late_even_after_a_crash"
    done = subprocess.run(
        [sys.executable, "-c", f"import test_pipeline as t; t.{test}()"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = millrace("explain", "pipeline.py:on_spark")
    assert shown.output.startswith("pipeline 'tea-house': 1 level"), shown.output
    written = tomllib.loads(Path("pyproject.toml").read_text())
    millrace_with_kafka = requirement().replace("millrace-spark", "millrace-spark[kafka]", 1)
    assert written["project"]["dependencies"] == [millrace_with_kafka, "pytest"]
    planned = subprocess.run(
        ["make", "-n", "words", "run", "ARGS=--realtime"], capture_output=True, text=True
    )
    assert planned.returncode == 0, planned.stderr
    assert "--master 'local[2]' --realtime" in planned.stdout
    compile(Path("send.py").read_text(), "send.py", "exec")


def test_it_installs_the_millrace_that_wrote_it(project: Path) -> None:
    written = tomllib.loads((project / "pyproject.toml").read_text())

    assert written["project"]["dependencies"] == [requirement(), "pytest"]


def test_it_installs_the_wheel_that_is_named(
    millrace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.whl").touch()
    millrace("new", "tea-house", "--millrace", "other.whl")

    written = tomllib.loads((tmp_path / "tea-house" / "pyproject.toml").read_text())
    wheel = f"millrace-spark @ {(tmp_path / 'other.whl').as_uri()}"
    assert written["project"]["dependencies"] == [wheel, "pytest"]


def test_its_make_targets_are_there(project: Path) -> None:
    planned = subprocess.run(
        ["make", "-n", "words", "run", "test", "ARGS=--drain"],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert planned.returncode == 0, planned.stderr
    command = (
        "millrace run pipeline.py:on_spark --checkpoint checkpoint --master 'local[2]' --drain"
    )
    assert command in planned.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [("../tea-house", "there is something at that path"), ("a b", "cannot be the name of a proj")],
)
def test_a_name_that_will_not_do_is_refused(
    millrace: Any, project: Path, name: str, said: str
) -> None:
    shown = millrace("new", name)

    assert (shown.exit_code, said in shown.output) == (1, True)
