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

def needs(feed, *, gap, name="words", **more):
    return build(name)

def fails():
    return 1 // 0

class Job:
    def __init__(self, folder):
        pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "explained_jobs.py").write_text(MODULE)
    (tmp_path / "explained_bad.py").write_text("import no_such_module_at_all")
    (tmp_path / "explained_torn.py").write_text("\ndef build(:\n")
    (tmp_path / "explained_script.py").write_text("import sys\nsys.exit(3)")
    monkeypatch.chdir(tmp_path)
    return "explained_jobs"


@pytest.mark.parametrize(
    ("name", "title"), [(":build", "words"), (":made", "made"), (".py:made", "made")]
)
def test_a_pipeline_or_a_function_that_makes_one(
    millrace: Any, module: str, name: str, title: str
) -> None:
    shown = millrace("explain", f"{module}{name}")

    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(f"pipeline '{title}': 1 level, 1 shuffle an epoch\n\nsources, ")
    assert "edge 0 by(str.upper) -> 'counts'" in shown.output


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("explained_jobs", "Expected MODULE:NAME"),
        ("explained_nothing:p", "there is no module 'explained_nothing'"),
        ("sub/explained_jobs.py:made", "there is no file 'sub/explained_jobs.py'"),
        ("..explained:made", "there is no module '..explained'"),
        ("explained_jobs:nothing", "module 'explained_jobs' has no 'nothing'. It has made, broken"),
        ("explained_jobs:number", "is int; expected an mr.Pipeline"),
        ("explained_jobs:broken", "which nobody injects"),
    ],
)
def test_what_is_no_pipeline_is_said(millrace: Any, module: str, path: str, complaint: str) -> None:
    shown = millrace("explain", path)

    assert shown.exit_code == 1
    assert complaint in shown.output


@pytest.mark.parametrize(
    ("name", "kind", "needed"),
    [("needs", "function", "feed and gap"), ("Job", "class", "folder")],
)
def test_a_function_with_parameters_is_told_what_to_do(
    millrace: Any, module: str, name: str, kind: str, needed: str
) -> None:
    shown = millrace("explain", f"{module}:{name}")

    assert shown.exit_code == 1
    assert shown.output.startswith(
        f"Error: explained_jobs:{name} is a {kind} that needs {needed}, and explain calls it "
        "without arguments."
    )
    assert "Give them defaults" in shown.output


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        (
            "explained_bad:p",
            "module 'explained_bad' cannot be imported: ModuleNotFoundError: No module named "
            "'no_such_module_at_all' (explained_bad.py, line 1).",
        ),
        ("explained_torn:p", "SyntaxError: invalid syntax (explained_torn.py, line 2)."),
        ("explained_script:p", "cannot be imported: SystemExit: 3 (explained_script.py, line 2)."),
        (
            "explained_jobs:fails",
            "explained_jobs:fails() failed: ZeroDivisionError: integer division or modulo by zero "
            "(explained_jobs.py, line 19).",
        ),
    ],
)
def test_code_that_fails_is_one_message_and_a_place(
    millrace: Any, module: str, path: str, complaint: str
) -> None:
    shown = millrace("explain", path)

    assert shown.exit_code == 1
    assert complaint in shown.output
    assert "millrace --debug explain" in shown.output
    debugged = millrace("--debug", "explain", path)
    assert isinstance(debugged.exception.__cause__, Exception | SystemExit)
