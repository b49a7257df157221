"""What is said when Spark cannot run the tick source; the session is a stand-in."""

from pathlib import Path
from typing import Any

import pytest

from millrace.model.errors import PipelineError
from millrace.spark.ticks import Alarm, ticks


class Session:
    """A session whose streaming sources fail to load."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.dataSource = self.readStream = self

    def register(self, source: Any) -> None:
        pass

    def format(self, name: str) -> "Session":
        return self

    def option(self, name: str, value: str) -> "Session":
        return self

    def load(self) -> None:
        raise self.error


def start(error: Exception, tmp_path: Path) -> None:
    session: Any = Session(error)
    ticks(session, Alarm(tmp_path / "alarm"))


def test_a_python_that_is_only_on_the_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    error = RuntimeError('java.io.IOException: Cannot run program "./environment/bin/python"')
    with pytest.raises(PipelineError, match=r"cannot start './environment/bin/python'.*Unpack"):
        start(error, tmp_path)


def test_a_program_that_is_no_python(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/bin/false")
    error = RuntimeError(
        "org.apache.spark.SparkException: EOFException occurred while reading the port number from "
        "pyspark.daemon's stdout and terminated with code: 1."
    )
    with pytest.raises(PipelineError, match=r"started '/bin/false' \(PYSPARK_PYTHON\).*no Python"):
        start(error, tmp_path)


def test_a_python_without_millrace(tmp_path):
    error = RuntimeError("[PYTHON_DATA_SOURCE_ERROR] ModuleNotFoundError: no\nmodule")
    with pytest.raises(PipelineError, match=r"workers cannot run Millrace.*set PYSPARK_PYTHON"):
        start(error, tmp_path)


def test_any_other_failure_is_its_own(tmp_path):
    with pytest.raises(RuntimeError, match="out of memory"):
        start(RuntimeError("out of memory"), tmp_path)
