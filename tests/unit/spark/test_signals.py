"""Ctrl-C asks for an end in order, and asked for twice does not wait for it."""

from __future__ import annotations

import os
import signal

import pytest

from millrace.spark.run import interrupted


def test_ctrl_c_says_how_to_end_at_once_and_then_does(caplog: pytest.LogCaptureFixture) -> None:
    called = []
    before = signal.getsignal(signal.SIGINT)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert called == ["stop"]
        assert "Ctrl-C again ends at once" in caplog.text
        os.kill(os.getpid(), signal.SIGINT)

    with interrupted(lambda: called.append("stop")), pytest.raises(KeyboardInterrupt):
        twice()
    assert called == ["stop"]
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_may_come_as_often_as_it_likes() -> None:
    called = []
    with interrupted(lambda: called.append("stop")):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
    assert called == ["stop", "stop"]


def test_a_handler_that_is_not_pythons_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds Python has some in C: nobody can set them again."""
    installed, handlers = list[int](), {signal.SIGTERM: None, signal.SIGINT: signal.SIG_DFL}

    def install(number: signal.Signals, handler: object) -> object:
        assert handler is not None, "Python takes no None"
        installed.append(number)
        return handlers[number]

    monkeypatch.setattr(signal, "signal", install)
    monkeypatch.setattr(signal, "getsignal", handlers.get)
    with interrupted(lambda: None):
        pass
    assert installed == [signal.SIGINT, signal.SIGINT]
