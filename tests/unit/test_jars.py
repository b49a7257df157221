"""What `scripts/jars.py` says, and where: a program reads the standard output of who calls it."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "jars.py"


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, in a checkout without jars, where Ivy finds none."""
    spec = importlib.util.spec_from_file_location("jars", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "kafka-broker.txt").write_text("00 org/one/1/one-1.jar\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    said = subprocess.CompletedProcess([], 0, "one-1.jar: not found")
    monkeypatch.setattr(module, "retrieve", lambda *_: said)
    return module


def test_standard_output_is_left_to_the_broker_which_says_its_port_there(
    jars: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = jars.fetch(".kafka")

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "setup: fetching 1 jars into .kafka\n"
    assert problem is not None
    assert "one-1.jar: not found" in problem
