"""Tiers as markers, and the Hypothesis profiles. tests/README.md says what each tier is for."""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["s3_server"]

TESTS = Path(__file__).parent
TIERS = ("unit", "transcripts", "properties", "faults", "simulation", "spark")

# A wall-clock deadline would make the outcome depend on the machine; pytest-timeout is the limit.
settings.register_profile("default", derandomize=True, deadline=None)
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else None
        if tier not in TIERS:
            raise pytest.UsageError(
                f"{item.nodeid} is in no tier: move it to one of {', '.join(TIERS)} under tests/, "
                "see tests/README.md."
            )
        item.add_marker(tier)
    items.sort(key=_weight)


def _weight(item: pytest.Item) -> int:
    """Return how late a file may start: those that run long go first, or one process ends alone."""
    tier, *within = item.path.relative_to(TESTS).parts
    if tier == "spark":
        return len(within)
    return 0 if tier == "simulation" else 9


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class PostgresServer:
    """A PostgreSQL server of its own: a directory under /tmp, a free port, a password."""

    user = "millrace"

    def __init__(self) -> None:
        self._bin = _postgres_programs()
        self._home = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
        self.password = secrets.token_hex(8)
        # The server refuses to run as root.
        self._as: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        if os.getuid() != 0:
            self._as = {}
        else:
            shutil.chown(self._home, "nobody", "nogroup")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        word = self._home / "password"
        word.write_text(self.password)
        word.chmod(0o644)
        self._run(
            "initdb", "--pgdata", self._data, "--username", self.user, "--pwfile", str(word),
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync",
        )  # fmt: skip
        self.start()

    @property
    def conninfo(self) -> str:
        """How to connect; the password is in the environment."""
        return f"host=127.0.0.1 port={self.port} user={self.user} dbname=postgres"

    @property
    def passfile(self) -> Path:
        """A password file, for processes whose environment is fixed already."""
        file = self._home / "pgpass"
        if not file.exists():
            file.touch(0o600)
            file.write_text(f"127.0.0.1:{self.port}:*:{self.user}:{self.password}\n")
        return file

    @property
    def _data(self) -> str:
        return str(self._home / "data")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        import psycopg

        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self._home,
            "fsync": "off",
            "max_connections": 50,
            "shared_buffers": "16MB",
            "log_min_messages": "fatal",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._home / "log").open("a") as log:
            self._server = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", self._data, *options],
                stdout=log, stderr=log, cwd=self._home, preexec_fn=_die_with_parent, **self._as,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while True:
            try:
                self.query("SELECT 1")
                return
            except psycopg.OperationalError:
                assert self._server.poll() is None, (self._home / "log").read_text()
                assert time.monotonic() < deadline, (self._home / "log").read_text()
                time.sleep(0.02)

    def stop(self, mode: str = "fast") -> None:
        """Stop it; in mode ``immediate`` it does not finish its work, as after a crash."""
        self._server.send_signal({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])
        self._server.wait(60)

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        import psycopg

        with psycopg.connect(self.conninfo, password=self.password, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def clear(self) -> None:
        """Drop all tables."""
        self.query("DROP SCHEMA public CASCADE")
        self.query("CREATE SCHEMA public")

    def close(self) -> None:
        """Stop it and leave nothing."""
        if self._server.poll() is None:
            self.stop("immediate")
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        with (self._home / "programs").open("a") as log:
            subprocess.run(
                [str(self._bin / program), *arguments],
                check=True, cwd=self._home, stdout=log, stderr=log, **self._as,
            )  # fmt: skip


def _postgres_programs() -> Path:
    """Return the directory of initdb and pg_ctl."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for directory in found:
        if (directory / "pg_ctl").exists() and (directory / "postgres").exists():
            return directory
    raise RuntimeError(
        "no PostgreSQL server on this machine: initdb and pg_ctl are neither on PATH nor under "
        "/usr/lib/postgresql. `make setup` says how to install it."
    )


@pytest.fixture(scope="session")
def die_with_parent() -> Callable[[], None]:
    """Let a child process be killed when this one dies, whatever it dies of: a ``preexec_fn``."""
    return _die_with_parent


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server of the test session."""
    server = PostgresServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def postgres(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PostgresServer]:
    """The server, empty, and its password in the environment."""
    monkeypatch.setenv("PGPASSWORD", postgres_server.password)
    yield postgres_server
    postgres_server.clear()
