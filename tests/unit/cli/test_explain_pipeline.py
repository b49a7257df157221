"""``millrace explain MODULE:NAME``."""

from pathlib import Path
from typing import Any

import pytest

MODULE = """
import millrace as mr

def build(name="words"):
    p = mr.Pipeline(name)
    p.inject("words", format=str)
    p.stream("words").key_by(str.upper).window(mr.FixedWindows("1 h")).count().to("counts")
    return p

made = build("made")
broken = mr.Pipeline("broken")
broken.sink("nothing", print)
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "explained_jobs.py").write_text(MODULE)
    (tmp_path / "explained_bad.py").write_text("import no_such_module_at_all")
    monkeypatch.chdir(tmp_path)
    return "explained_jobs"


@pytest.mark.parametrize(("name", "title"), [("build", "words"), ("made", "made")])
def test_a_pipeline_or_a_function_that_makes_one(
    millrace: Any, module: str, name: str, title: str
) -> None:
    shown = millrace("explain", f"{module}:{name}")

    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(f"pipeline '{title}': 1 level, 1 shuffle an epoch\n\nsources, ")
    assert "edge 0 by(str.upper) -> 'counts'" in shown.output


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("explained_jobs", "Expected MODULE:NAME"),
        ("explained_nothing:p", "there is no module 'explained_nothing'"),
        ("explained_jobs:nothing", "module 'explained_jobs' has no 'nothing'"),
        ("explained_jobs:number", "is int; expected an mr.Pipeline"),
        ("explained_jobs:broken", "which nobody injects"),
    ],
)
def test_what_is_no_pipeline_is_said(millrace: Any, module: str, path: str, complaint: str) -> None:
    shown = millrace("explain", path)

    assert shown.exit_code == 1
    assert complaint in shown.output


def test_a_module_that_fails_shows_its_own_error(millrace: Any, module: str) -> None:
    shown = millrace("explain", "explained_bad:p")

    assert isinstance(shown.exception, ModuleNotFoundError)
    assert "no_such_module_at_all" in str(shown.exception)
