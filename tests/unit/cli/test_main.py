"""The command as a whole: version, help, and how an error is said."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import millrace as mr


def test_version(millrace: Any) -> None:
    try:
        version = importlib.metadata.version("millrace-spark")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"

    run = millrace("--version")

    assert (run.exit_code, run.output) == (0, f"millrace, version {version}\n")


def test_it_is_a_module_too() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "millrace", "--help"], capture_output=True, text=True
    )

    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("Usage: millrace [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    "command",
    [[], ["demo"], ["demo", "zeitgeist"], ["checkpoint"], ["checkpoint", "show"]],
    ids=" ".join,
)
def test_every_command_has_help(millrace: Any, command: list[str]) -> None:
    run = millrace(*command, "--help")

    assert run.exit_code == 0
    assert "Usage:" in run.output
    assert "..." not in run.output.replace("[ARGS]...", "")  # no summary that is cut


def test_an_error_is_one_message_without_a_traceback(millrace: Any) -> None:
    run = millrace("checkpoint", "show", "hdfs://host/ckpt")

    assert run.exit_code == 1
    assert run.output.startswith("Error: 'hdfs://host/ckpt': expected a path or file:///path")
    assert "Traceback" not in run.output


def test_debug_lets_the_error_through(millrace: Any, tmp_path: Path) -> None:
    run = millrace("--debug", "checkpoint", "show", str(tmp_path))

    assert run.exit_code == 1
    assert isinstance(run.exception, mr.MillraceError)


def test_help_imports_no_pyspark() -> None:
    program = "import json, sys, millrace.cli.main; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    loaded = {name.partition(".")[0] for name in json.loads(run.stdout)}
    assert loaded.isdisjoint({"pyspark", "py4j", "matplotlib", "millrace_examples"})
