"""Progress on a terminal and in a log: where it goes, what it leaves, what it never touches."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from millrace.spark.progress_display import (
    EVERY_S,
    ProgressDisplay,
    ProgressTarget,
    stderr_console,
    where_to_show,
)

#: To the line above, and that is erased.
GONE = "\x1b[1A\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# As context managers: for the body of a test pytest puts its own streams and log handlers in place.


@contextmanager
def terminal() -> Iterator[Terminal]:
    """Standard error is a terminal of 40 columns, standard output a file."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "40")
        patch.setattr(sys, "stderr", screen)
        patch.setattr(sys, "stdout", io.StringIO())
        yield screen


@contextmanager
def unconfigured(level: int = logging.NOTSET) -> Iterator[None]:
    """Logging is as Python has it before anybody sets it up, but for a level of ours."""
    ours = logging.getLogger("millrace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])
        before = ours.level
        ours.setLevel(level)
        try:
            yield
        finally:
            ours.setLevel(before)


def session(draws: bool = False) -> Any:
    """Return a Spark session that draws a progress bar, or says nothing of one."""
    settings = {"spark.ui.showConsoleProgress": "true"} if draws else {}
    return SimpleNamespace(conf=settings)


def pauses(times: int) -> Any:
    """Return a pause that is over after so many times, and what was asked of it."""
    asked: list[float] = []

    def pause(seconds: float) -> bool:
        asked.append(seconds)
        return len(asked) > times

    return pause, asked


@pytest.mark.parametrize(
    ("progress", "screen", "spark_draws", "term", "where"),
    [
        (True, Terminal(), False, "xterm", ProgressTarget.TERMINAL),
        (True, Terminal(), True, "xterm", ProgressTarget.ABOVE_SPARK),
        (True, Terminal(), False, "dumb", ProgressTarget.STDERR),
        (True, io.StringIO(), False, "xterm", ProgressTarget.STDERR),
        (False, Terminal(), False, "xterm", ProgressTarget.NOWHERE),
    ],
    ids=["terminal", "Spark draws there", "dumb terminal", "file", "not wanted"],
)
def test_where_it_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    progress: bool,
    screen: Any,
    spark_draws: bool,
    term: str,
    where: ProgressTarget,
) -> None:
    monkeypatch.setenv("TERM", term)

    assert where_to_show(progress, session(spark_draws), stderr_console(screen)) is where


@pytest.mark.parametrize("forced", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_colours_that_are_wanted_make_no_terminal(
    monkeypatch: pytest.MonkeyPatch, forced: str
) -> None:
    monkeypatch.setenv(forced, "1")

    found = where_to_show(True, session(), stderr_console(io.StringIO()))

    assert found is ProgressTarget.STDERR


def test_a_notebook_has_no_lines_in_whatever_cell_runs() -> None:
    notebook = Console(file=io.StringIO(), force_jupyter=True)

    assert where_to_show(True, session(), notebook) is ProgressTarget.LOG


def test_a_line_on_a_terminal_while_somebody_waits() -> None:
    said = iter(f"job: running, epoch {n}, {'9' * 60}" for n in range(1_000))
    with terminal() as screen:
        display = ProgressDisplay(lambda: next(said), ProgressTarget.TERMINAL)
        display.start()
        assert screen.getvalue() == ""
        with display.live():
            sys.stdout.write("a sink prints\n")
            sys.stderr.write("a warning\n")
        printed = sys.stdout.getvalue()  # type: ignore[attr-defined]
        assert sys.stderr is screen
    drawn = screen.getvalue()

    assert "job: running, epoch " in drawn
    assert "9" * 40 not in drawn  # cut at the edge, so that it stays one line
    assert "a warning\n" in drawn
    assert printed == "a sink prints\n"
    assert drawn.endswith(GONE)


def test_spark_has_the_line_below_for_its_bar() -> None:
    with terminal() as screen:
        display = ProgressDisplay(lambda: "job: running", ProgressTarget.ABOVE_SPARK)
        with display.live():
            pass

    assert "- job: running\n" in screen.getvalue()  # there the cursor stands, and Spark draws
    assert screen.getvalue().endswith(GONE * 2)


def test_it_leaves_one_last_line() -> None:
    last = f"job: drained, {'9' * 60}"
    with terminal() as screen:
        display = ProgressDisplay(lambda: last, ProgressTarget.TERMINAL)
        with display.live():
            display.finish()
            display.finish()
        display.finish()
        lines = screen.getvalue().splitlines()
        before = len(screen.getvalue())
        with display.live():
            pass
        assert len(screen.getvalue()) == before

    assert sum(line.endswith(last) for line in lines) == 1


def test_it_is_gone_when_the_wait_fails() -> None:
    with terminal() as screen:
        display = ProgressDisplay(lambda: "job: running", ProgressTarget.TERMINAL)
        with pytest.raises(ZeroDivisionError), display.live():
            raise ZeroDivisionError
        assert sys.stderr is screen

    assert screen.getvalue().endswith(GONE)


def test_what_the_program_draws_itself_stays_alone() -> None:
    with terminal() as screen:
        display = ProgressDisplay(lambda: "job: running", ProgressTarget.TERMINAL)
        with Live("mine", console=Console(stderr=True), auto_refresh=False), display.live():
            pass

    assert "mine" in screen.getvalue()
    assert "job: running" not in screen.getvalue()


def test_a_log_has_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    pause, asked = pauses(2)
    said = iter(["one", "two", "last"])
    facts = iter([{"epoch": n} for n in range(3)])
    display = ProgressDisplay(
        lambda: next(said), ProgressTarget.STDERR, pause=pause,
        facts=lambda: next(facts),
    )  # fmt: skip

    with caplog.at_level(logging.INFO, logger="millrace"):
        display.report()
        display.finish()

    assert asked == [EVERY_S] * 3
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("millrace.progress", "INFO", message) for message in ("one", "two", "last")
    ]
    assert [r.__dict__["millrace"] for r in caplog.records] == [
        {"event": "progress", "epoch": n} for n in range(3)
    ]


def test_a_run_that_has_ended_gets_its_last_line(caplog: pytest.LogCaptureFixture) -> None:
    going = iter([True, False])
    pause, asked = pauses(100)
    display = ProgressDisplay(
        lambda: "line", ProgressTarget.LOG, pause=pause,
        going=lambda: next(going),
    )  # fmt: skip

    with caplog.at_level(logging.INFO, logger="millrace"):
        display.report()

    assert len(caplog.records) == len(asked) == 2


def test_without_logging_set_up_it_is_said_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = ProgressDisplay(lambda: "job: stopped", ProgressTarget.STDERR)

    with unconfigured():
        display.finish()

    out, err = capsys.readouterr()
    assert out == ""
    assert err[:4].isdigit()
    assert err[19:] == "Z job: stopped\n"


@pytest.mark.parametrize(
    ("where", "level"),
    [
        (ProgressTarget.STDERR, logging.ERROR),
        (ProgressTarget.LOG, logging.NOTSET),
        (ProgressTarget.NOWHERE, logging.INFO),
    ],
)
def test_who_wants_no_progress_gets_none(
    capsys: pytest.CaptureFixture[str], where: ProgressTarget, level: int
) -> None:
    display = ProgressDisplay(lambda: "job: stopped", where)

    with unconfigured(level), display.live():
        display.finish()

    assert capsys.readouterr() == ("", "")


def test_a_closed_standard_error_does_no_harm() -> None:
    closed = Terminal()
    console = stderr_console(closed)
    closed.close()
    with unconfigured():
        for where in (ProgressTarget.STDERR, ProgressTarget.TERMINAL):
            ProgressDisplay(lambda: "line", where, console=console).finish()
