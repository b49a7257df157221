"""``millrace run``: what it starts, and its last words, with a Spark that does nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.cli import run as command
from millrace.model.errors import LeaseReleased, RunFailed, ZombieWriter

PIPELINE = """
import millrace as mr

def pipeline(spark):
    p = mr.Pipeline(f"on {spark.master}")
    p.inject("words")
    return p
"""


class Handle:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.state, self.called, self.available = "stopped", list[str](), True

    def wait(self) -> None:
        self.called.append("wait")
        if self.error is not None:
            raise self.error

    def process_available(self) -> bool:
        self.called.append("process_available")
        return self.available

    def drain(self) -> None:
        self.called.append("drain")
        self.state = "drained"

    def status(self) -> Any:
        return SimpleNamespace(state=self.state, epoch=41)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what is known of the session and the run that the command made."""
    (tmp_path / "app.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    known = SimpleNamespace(handle=Handle(), ui=None)

    def session(name: str, master: str | None, settings: dict[str, str]) -> Any:
        known.settings = settings
        return SimpleNamespace(master=master, sparkContext=SimpleNamespace(uiWebUrl=known.ui))

    def start(p: mr.Pipeline, spark: Any, **options: Any) -> Handle:
        known.name, known.options = p.name, options
        return known.handle  # type: ignore[no-any-return]

    monkeypatch.setattr(command, "session", session)
    monkeypatch.setattr(mr.Pipeline, "start", start)
    return known


def test_it_says_where_sparks_ui_is(millrace: Any, started: Any) -> None:
    started.ui = "http://driver:4040"
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt", "--master", "local[2]")

    begins = "begins, or goes on, with checkpoint ckpt; Spark's UI is at http://driver:4040\n"
    assert begins in shown.output


def test_a_run_that_is_stopped_says_how_to_go_on(millrace: Any, started: Any) -> None:
    shown = millrace(
        "run", "app.py:pipeline", "--checkpoint", "ckpt", "--master", "local[2]", "--tasks", "3",
        "--metrics", "0.0.0.0:9464", "--conf", "spark.a=b=c",
    )  # fmt: skip

    assert (shown.exit_code, started.handle.called) == (0, ["wait"])
    assert shown.output == (
        "app.py:pipeline: Spark is started on local[2], which takes some seconds\n"
        "on local[2]: begins, or goes on, with checkpoint ckpt\n"
        "on local[2]: stopped after epoch 41. The same command goes on from there.\n"
    )
    assert started.options == {
        "progress": "table",
        "checkpoint": "ckpt",
        "tasks": 3,
        "metrics": "0.0.0.0:9464",
    }
    # Spark's own bar would have the place of the table, and be in the log.
    assert started.settings == {"spark.ui.showConsoleProgress": "false", "spark.a": "b=c"}


def test_a_number_of_tasks_that_follows_the_load(millrace: Any, started: Any) -> None:
    shown = millrace(
        "run", "app.py:pipeline", "--checkpoint", "ckpt", "--realtime", "--tasks", "2-16"
    )

    assert shown.exit_code == 0, shown.output
    assert started.options["tasks"] == (2, 16)
    least = mr.spark.realtime_settings(tasks=2)["spark.shuffle.streaming.writerMaxMemory"]
    assert started.settings["spark.shuffle.streaming.writerMaxMemory"] == least


@pytest.mark.parametrize("tasks", ["0", "-1", "2-", "4-2", "two", "0-4"])
def test_what_is_no_number_of_tasks(millrace: Any, started: Any, tasks: str) -> None:
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt", f"--tasks={tasks}")

    assert shown.exit_code == 2
    assert f"'{tasks}': expected a number of tasks, 1 or more, such as 8;" in shown.output
    assert not hasattr(started, "settings"), "no session was made"


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("app.py", "Expected MODULE:NAME"),
        ("nothing.py:pipeline", "there is no file 'nothing.py' in "),
        ("no_such_module.jobs:pipeline", "there is no module 'no_such_module.jobs' in "),
        ("app.py:pipelin", "module 'app.py' has no 'pipelin'. It has pipeline."),
        ("app:pipelin", "module 'app' has no 'pipelin'. It has pipeline."),
    ],
)
def test_what_is_not_there_is_said_before_a_spark_is_started(
    millrace: Any, started: Any, app: str, said: str
) -> None:
    shown = millrace("run", app, "--checkpoint", "ckpt")

    assert shown.exit_code == 1
    assert said in shown.output
    assert not hasattr(started, "settings"), "no session was made"


@pytest.mark.parametrize(
    "text",
    [
        "if True:\n    import math as made",
        "try:\n    from os import sep as made\nexcept ImportError:\n    pass",
        "for made in range(2):\n    pass",
        "from starred_names import *",
        "globals()['made'] = 1",
        "def __getattr__(name):\n    return 1",
        "def build():\n    global made\n    made = 1\nbuild()",
        "text = 'no end",
    ],
)
def test_a_name_that_a_module_may_have_is_looked_for_when_it_is_run(
    millrace: Any, started: Any, tmp_path: Path, text: str
) -> None:
    (tmp_path / "starred_names.py").write_text("made = 1")
    (tmp_path / "app.py").write_text(text)
    shown = millrace("run", "app.py:made", "--checkpoint", "ckpt")
    assert hasattr(started, "settings"), "a session was made"
    assert " has no 'made'" not in shown.output


def test_of_a_package_it_is_not_known_what_it_imports_of_itself(
    millrace: Any, started: Any, tmp_path: Path
) -> None:
    (tmp_path / "teashop_app").mkdir()
    (tmp_path / "teashop_app" / "__init__.py").write_text("import teashop_app.jobs")
    (tmp_path / "teashop_app" / "jobs.py").write_text(PIPELINE)
    assert millrace("run", "teashop_app.jobs:pipeline", "--checkpoint", "ckpt").exit_code == 0
    shown = millrace("run", "teashop_app:jobs", "--checkpoint", "ckpt")
    assert "teashop_app:jobs is module; expected an mr.Pipeline" in shown.output


def test_a_function_that_needs_more_than_a_session_is_told_so(
    millrace: Any, started: Any, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text("def pipeline(folder, spark): pass")
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt")

    assert "is a function that needs folder, and run calls it with nothing but spark." in (
        shown.output
    )
    assert "No source is read" not in shown.output, "run reads them"


def test_a_standby_starts_it_with_a_lease(millrace: Any, started: Any) -> None:
    asked = "run", "app.py:pipeline", "--checkpoint", "ckpt", "--master", "local[2]", "--standby"
    shown = millrace(*asked, "--lease", "9 s", "--realtime", "--standby-tasks")
    assert shown.output == (
        "app.py:pipeline: Spark is started on local[2], which takes some seconds\n"
        "on local[2]: waits for the lease of ckpt\n"
        "on local[2]: begins, or goes on, with checkpoint ckpt\n"
        "on local[2]: stopped after epoch 41. The same command goes on from there.\n"
    )
    assert started.options["standby"] is True
    assert started.options["lease"] == "9 s"
    millrace(*asked)
    assert started.options["lease"] is True
    assert "standby" not in started.options


def test_a_standby_ends_when_the_run_that_it_waits_for_was_stopped(
    millrace: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise LeaseReleased("it was stopped")

    monkeypatch.setattr(mr.Pipeline, "start", start)
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt", "--standby")
    assert shown.exit_code == 0
    assert "the run that had the lease was ended, so this ends too." in shown.output
    assert not started.handle.called


def test_a_lease_without_a_standby_is_refused(millrace: Any, started: Any) -> None:
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt", "--lease", "1 s")
    assert shown.exit_code == 2
    assert "--lease is of --standby, which is not given" in shown.output


def test_one_that_is_drained_has_all_its_results_out(millrace: Any, started: Any) -> None:
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt", "--drain", "--realtime")

    assert started.handle.called == ["process_available", "drain"]
    assert "drained after epoch 41. All results are out" in shown.output
    assert started.options["realtime"] is True
    assert started.settings["spark.python.udf.pipelined.enabled"] == "true"


def test_one_that_is_stopped_before_all_was_processed_is_not_drained(
    millrace: Any, started: Any
) -> None:
    started.handle.available = False
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt", "--drain")

    assert started.handle.called == ["process_available"]
    assert "stopped after epoch 41. The same command goes on" in shown.output


def test_one_that_fails_says_why_and_what_to_do(millrace: Any, started: Any) -> None:
    started.handle.error = RunFailed("key 'ann' of Visitor failed")
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt")
    assert "dead_letter" not in shown.output, "what is of the failure, that says itself"

    assert shown.exit_code == 1
    assert "\nError: key 'ann' of Visitor failed\n\nNothing is lost, and " in shown.output
    debugged = millrace("--debug", "run", "app.py:pipeline", "--checkpoint", "ckpt")
    assert debugged.exception is started.handle.error


def test_one_that_is_interrupted_while_it_starts_says_how_to_start_it(
    millrace: Any, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for owner, name in ((mr.Pipeline, "start"), (command, "session")):
        monkeypatch.setattr(owner, name, interrupted)
        shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt")
        assert shown.exit_code == 1
        assert shown.output.endswith(
            "\nError: interrupted while it started. Nothing is lost: the same command starts it.\n"
        )


def test_one_that_is_interrupted_twice_says_that_the_same_command_goes_on(
    millrace: Any, started: Any
) -> None:
    started.handle.error = KeyboardInterrupt()
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt")

    assert shown.exit_code == 1
    assert "\nError: ended at once, in the middle of its work. Nothing is lost" in shown.output


def test_one_that_was_taken_over_is_not_told_to_go_on(millrace: Any, started: Any) -> None:
    started.handle.error = ZombieWriter("run 2 has taken over")
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt")

    assert shown.exit_code == 1
    assert shown.output.endswith("\nError: run 2 has taken over\n")


def test_a_setting_without_a_value_is_refused(millrace: Any, started: Any) -> None:
    shown = millrace("run", "app.py:pipeline", "--checkpoint", "ckpt", "--conf", "spark.a")

    assert (shown.exit_code, "expected NAME=VALUE" in shown.output) == (1, True)
