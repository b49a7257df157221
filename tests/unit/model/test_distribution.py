"""What a project has to install to get the Millrace that runs here, by how it was installed."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from millrace.model.distribution import requirement
from millrace.model.errors import PipelineError


class Installed:
    version = "0.1.0"

    def __init__(self, recorded: dict[str, Any] | None) -> None:
        self._recorded = recorded

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._recorded is None else json.dumps(self._recorded)


def installed(monkeypatch: pytest.MonkeyPatch, recorded: dict[str, Any] | None) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Installed(recorded))


def test_a_wheel_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "millrace_spark-0.1.0-py3-none-any.whl"
    wheel.touch()
    installed(monkeypatch, {"url": wheel.as_uri(), "archive_info": {}})

    assert requirement() == f"millrace-spark @ {wheel.as_uri()}"


def test_a_checkout_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, {"url": tmp_path.as_uri(), "dir_info": {"editable": True}})

    assert requirement() == f"millrace-spark @ {tmp_path.as_uri()}"


def test_a_repository_is_named_with_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    vcs = {"vcs": "git", "commit_id": "30a6839"}
    installed(monkeypatch, {"url": "https://example.org/millrace.git", "vcs_info": vcs})

    assert requirement() == "millrace-spark @ git+https://example.org/millrace.git@30a6839"


def test_what_came_from_an_index_is_named_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)

    assert requirement() == "millrace-spark==0.1.0"


def test_a_wheel_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, {"url": (tmp_path / "gone.whl").as_uri(), "archive_info": {}})

    with pytest.raises(PipelineError, match=r"installed from .*gone\.whl, which is not there any"):
        requirement()
