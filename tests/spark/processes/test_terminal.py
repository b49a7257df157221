"""``millrace run`` at a terminal: what is seen of a live run, and how Ctrl-C ends it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spark.processes.conftest import environment

APP = """
import time
from pathlib import Path

import millrace as mr


class Ever(mr.sources.Injector):
    schema = "number long, at long"

    def processes(self):
        return ["one"]

    def advance(self, process, offset):
        return mr.sources.Advance((offset or 0) + 10)

    def read(self, process, start, end):
        for n in range(start or 0, end):
            yield n, n * 1_000_000


class Echoing(mr.Computation):
    inputs = {"numbers": mr.by("number")}
    outputs = {"echoes": object}

    def process_record(self, record):
        while Path("slow").exists():
            Path("at work").touch()
            time.sleep(0.1)


p = mr.Pipeline("ever")
p.inject("numbers", Ever(), timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
p.add(Echoing)
"""
#: What a terminal is told besides text: colours, and where the cursor goes.
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A program at a terminal of its own, 100 columns wide."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.fd, inner = pty.openpty()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(TERM="xterm-256color"),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inner)
        self._said = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        try:
            while some := os.read(self.fd, 65_536):
                self._said += some
        except OSError:
            pass  # nobody is at its other end any more

    @property
    def text(self) -> str:
        """What was said, without colours and without moves."""
        return CONTROLS.sub("", self._said.decode(errors="replace")).replace("\r", "")

    def wait_for(self, words: str) -> None:
        self.wait(lambda: words in self.text)

    def wait(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not reached():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def ctrl_c(self) -> None:
        os.write(self.fd, b"\x03")

    def end(self) -> int:
        """Return the exit status."""
        status = self.process.wait(50)
        self._reading.join(10)
        return status


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "app.py").write_text(APP)
    yield tmp_path
    (tmp_path / "slow").unlink(missing_ok=True)


def test_a_live_run_is_seen_and_ended_once_in_order_and_once_at_once(folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("millrace")), "run", "app.py:p"]
    command += ["--checkpoint", "ckpt", "--master", "local[2]"]
    first = Terminal(command, folder)
    first.wait_for("app.py:p: Spark is started on local[2], which takes some seconds\n")
    first.wait_for("ever: begins, or goes on, with checkpoint ckpt; Spark's UI is at http://")
    first.wait_for("records/s")
    first.wait_for("Echoing")
    first.wait_for("ever: running, epoch 3, ")
    assert "WARN" not in first.text.partition("records/s")[2], "it would tear the table"
    first.ctrl_c()
    assert first.end() == 0
    assert "stopping, once what is under way is done; Ctrl-C again ends at once" in first.text
    assert re.search(r"ever: stopped after epoch \d+. The same command goes on", first.text)

    second = Terminal(command, folder)
    second.wait_for("ever: running, epoch ")
    (folder / "slow").touch()
    second.wait(lambda: (folder / "at work").exists())
    second.ctrl_c()
    second.wait_for("Ctrl-C again ends at once")
    asked = time.monotonic()
    second.ctrl_c()
    assert second.end() == 1
    assert time.monotonic() - asked < 30, "it waited for the epoch"
    assert "ended at once, in the middle of its work. Nothing is lost" in " ".join(
        second.text.split()
    )


def test_of_two_such_commands_one_takes_over_when_the_other_is_killed(folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("millrace")), "run", "app.py:p"]
    command += ["--checkpoint", "ckpt", "--master", "local[2]", "--standby", "--lease", "2 s"]
    first = Terminal(command, folder)
    first.wait_for("ever: running, epoch ")
    second = Terminal(command, folder)
    second.wait_for("ever: waits for the lease of ckpt")
    mailbox = folder / "ckpt" / "mailbox"
    assert [one.name for one in mailbox.glob("lease-*")] == ["lease-000000001"]
    assert "begins" not in second.text
    first.process.kill()
    first.process.wait(10)
    second.wait_for("ever: begins, or goes on, with checkpoint ckpt")
    second.wait_for("ever: running, epoch ")
    assert [one.name for one in mailbox.glob("lease-*")] == ["lease-000000002"]
    second.ctrl_c()
    assert second.end() == 0
    assert re.search(r"ever: stopped after epoch \d+. The same command goes on", second.text)
