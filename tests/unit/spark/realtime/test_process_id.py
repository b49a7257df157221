"""A process is ended if it is the one that was meant, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from millrace.spark.realtime.process_id import ProcessId


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_a_process_that_is_stopped_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    meant = ProcessId.read(str(ProcessId.of(sleeper.pid)))
    assert meant is not None
    sleeper.send_signal(signal.SIGSTOP)
    assert meant.kill()
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not meant.kill(), "it is gone"


@pytest.mark.parametrize("what", ["boot", "namespace", "started"])
def test_another_process_of_the_same_number_is_left_alone(
    sleeper: subprocess.Popen[bytes], what: str
) -> None:
    other = ProcessId.of(sleeper.pid)._replace(**{what: "another"})
    assert not other.kill()
    assert sleeper.poll() is None


def test_a_process_does_not_end_itself() -> None:
    assert not ProcessId.of(os.getpid()).kill()


def test_what_is_no_process_is_read_as_none() -> None:
    assert ProcessId.read("") is None
    assert ProcessId.read("a/b/c/d") is None
