"""A server of the tests' own that keeps objects: a process, and the environment of its clients."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest


class StoreServer:
    """A process on a free port of the loopback interface, with a directory of its own.

    Args:
        name: Of the program.
        ended_by: The signal that ends it so that what it has answered for is on disk.
    """

    def __init__(self, name: str, *, ended_by: signal.Signals = signal.SIGKILL) -> None:
        self._name = name
        self._ended_by = ended_by
        self.home = Path(tempfile.mkdtemp(prefix=f"millrace-{name.lower()}-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        """Return how it is started."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return what a client needs in its environment."""
        raise NotImplementedError

    def variables(self) -> Mapping[str, str]:
        """Return what it has in its environment besides."""
        return {}

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, **self.variables()},
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self.status("GET", "/")
                return
            except OSError:
                time.sleep(0.05)
        log_text = (self.home / "log").read_text()[-2000:]
        raise RuntimeError(f"{self._name} did not start: {log_text}")

    def status(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> int:
        """Return the status that it answers a request with."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def kill(self) -> None:
        """End the server, with requests under way; what it has answered for is on disk."""
        assert self._process is not None
        self._process.send_signal(self._ended_by)
        self._process.wait()

    def close(self) -> None:
        """End it and leave nothing."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def set_environment(patch: pytest.MonkeyPatch, prefix: str, variables: Mapping[str, str]) -> None:
    """Let clients of this process have these variables, and no others with the prefix."""
    for name in [name for name in os.environ if name.startswith(prefix)]:
        patch.delenv(name)
    for name, value in variables.items():
        patch.setenv(name, value)
