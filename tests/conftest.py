"""Tiers as markers, what ``--fast`` leaves out, Hypothesis profiles. See tests/README.md."""

import contextlib
import ctypes
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jvm
import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

pytest_plugins = ["azure_server", "durations", "s3_server", "scheduling"]

os.environ |= jvm.ENVIRONMENT

#: Where a sync takes no time: most of what some tests took was waiting for it. Processes are killed
#: in tests, and no power fails; the simulator's disk is where a sync that is left out is found.
MEMORY = Path("/dev/shm")
MEMORY_NEEDED = 4 << 30

if (
    "TMPDIR" not in os.environ
    and MEMORY.is_dir()
    and os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED
):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

TESTS = Path(__file__).parent
POSTGRES = TESTS.parent / "scripts" / "postgres_server.py"
#: Of each property, with ``--fast``.
FAST_EXAMPLES = 10

TIERS = ("unit", "transcripts", "properties", "faults", "simulation", "browser", "spark")

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
settings.register_profile("fast", derandomize=True, deadline=None, max_examples=FAST_EXAMPLES)

#: Folders that are run where they are asked for: clusters, which take minutes (`make test-hosts`,
#: `make test-yarn`), and a server that npm fetches (`make test-azure`).
ASKED_FOR = [TESTS / "spark" / "processes" / "cluster", TESTS / "faults" / "azure"]

#: What ``--fast`` leaves out: what needs a JVM, a browser or processes, documents and examples, and
#: files whose tests take seconds each.
NOT_FAST = [
    TESTS / path
    for path in (
        "spark",
        "browser",
        "faults",
        "unit/docs",
        "unit/examples",
        "unit/inspect/test_restore.py",
        "properties/test_types.py",
        "simulation/test_replay.py",
    )
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("suite").addoption(
        "--fast", action="store_true", help="Leave out what takes long: see tests/README.md."
    )


def pytest_configure(config: pytest.Config) -> None:
    profile = "fast" if config.getoption("fast") else "default"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", profile))


def pytest_collection_finish() -> None:
    """Let Python's collector pass over what stays: ten thousand tests, and all that is imported.

    A tenth of the time of tests goes into looking for garbage that is not there.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path in ASKED_FOR:
        folder = collection_path.relative_to(TESTS).as_posix()
        return not any(folder in one for one in config.invocation_params.args) or None
    return True if config.getoption("fast") and collection_path in NOT_FAST else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else None
        if tier not in TIERS:
            raise pytest.UsageError(
                f"{item.nodeid} is in no tier: move it to one of {', '.join(TIERS)} under tests/, "
                "see tests/README.md."
            )
        item.add_marker(tier)
    if config.getoption("fast"):
        _leave_out_what_is_slow(config, items)


def _leave_out_what_is_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one planted bug a file and few examples a property; leave out the servers in a JVM."""
    kept, left_out, planted = [], [], set()
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "s3_server" in fixtures or ("found" in fixtures and item.path in planted):
            left_out.append(item)
            continue
        kept.append(item)
        if "found" in fixtures:
            planted.add(item.path)
        test = getattr(item, "obj", None)
        if is_hypothesis_test(test):
            # Its own number wins over a profile's, and hypothesis has no public way round it.
            own = test._hypothesis_internal_use_settings
            few = settings(own, max_examples=min(own.max_examples, FAST_EXAMPLES))
            getattr(test, "__func__", test)._hypothesis_internal_use_settings = few
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class PostgresServer:
    """A PostgreSQL server of its own: a directory under /tmp, a free port, a password."""

    user = "millrace"

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))
        self.start()
        self.port = int((self._home / "port").read_text())
        self.password = (self._home / "password").read_text()
        self.passfile = self._home / "pgpass"

    @property
    def conninfo(self) -> str:
        """How to connect; the password is in the environment."""
        return f"host=127.0.0.1 port={self.port} user={self.user} dbname=postgres"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        import psycopg

        settings = ["fsync=off", "max_connections=50", "shared_buffers=16MB"]
        settings.append("log_min_messages=fatal")
        command = [sys.executable, str(POSTGRES), str(self._home), *settings]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        with self._server.stdout as said:
            conninfo = said.readline()
        assert conninfo, "it has said why on standard error"
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(conninfo).close()
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
