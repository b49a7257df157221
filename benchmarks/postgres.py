"""PostgreSQL for benchmarks: the server that the tests start, too, but one that syncs."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

_SCRIPT = Path(__file__).parents[1] / "scripts" / "postgres_server.py"
_PATIENCE_S = 60


@contextmanager
def postgres() -> Iterator[str]:
    """Run a server that leaves nothing behind, with PostgreSQL's own settings.

    Yields:
        How to connect.
    """
    # In a folder that the server's own user may enter.
    with tempfile.TemporaryDirectory(prefix="millrace-postgres-") as folder:
        command = [sys.executable, str(_SCRIPT), folder]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            with server.stdout as said:
                conninfo = said.readline().strip()
            _wait(server, conninfo, Path(folder) / "log")
            yield conninfo
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(_PATIENCE_S)


def _wait(server: subprocess.Popen[str], conninfo: str, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            if conninfo:
                psycopg.connect(conninfo).close()
                return
        except psycopg.OperationalError:
            pass
        if server.poll() is not None or time.monotonic() > deadline:
            said = log.read_text()[-2000:] if log.exists() else "it has said why above"
            raise RuntimeError(f"PostgreSQL did not start: {said}")
        time.sleep(0.05)
