"""Drivers, and clusters, as processes of their own; and what they must have computed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import jvm
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyspark
import pytest

import millrace as mr
import millrace_examples

#: How long the tests that have rounds go on with new ones, together.
CHAOS_MINUTES = float(os.environ.get("CHAOS_MINUTES", 0))

PROGRAM = Path(__file__).with_name("program.py")

#: Of masters and workers.
DAEMON = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": jvm.OPTIONS}

FORMATS = '''
import msgspec

class Reading(msgspec.Struct):
    """Workers import this one."""
    sensor: str
    value: int
'''


def environment(**others: str) -> dict[str, str]:
    """Return an environment without what another Spark, or this checkout, has left in it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHONPATH", "PG"))
    }
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1"} | jvm.ENVIRONMENT | others


def session_of(leader: int) -> list[int]:
    """Return all processes of a session: Spark's Python workers leave their process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Each starts Spark several times; the usual bound would cut them short on a busy machine.
    for item in items:
        if item.path.is_relative_to(PROGRAM.parent):
            item.add_marker(pytest.mark.timeout(1200 + 60 * CHAOS_MINUTES))


class Process:
    """A process with a session of its own, and a log."""

    before_exec: Callable[[], None] | None = None

    def __init__(
        self,
        command: list[str],
        log: Path,
        env: dict[str, str],
        cwd: Path,
        files: tuple[int, ...] = (),
    ) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=cwd, env=env,
                start_new_session=True, preexec_fn=Process.before_exec, pass_fds=files,
            )  # fmt: skip

    def alive(self) -> bool:
        return self.process.poll() is None

    def output(self) -> str:
        return self.log.read_text()

    def signal(self, number: int) -> None:
        """Send a signal to every process of the session."""
        for pid in session_of(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def find(self, *words: str) -> list[int]:
        """Return the session's processes with these words in their command line."""
        found = []
        for pid in session_of(self.process.pid):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
                if all(word in command for word in words):
                    found.append(pid)
        return found

    def end(self) -> None:
        """Kill every process of the session, until there is none."""
        deadline = time.monotonic() + 30
        while session_of(self.process.pid) and time.monotonic() < deadline:
            self.signal(signal.SIGKILL)
            self.process.poll()
            time.sleep(0.05)
        self.process.wait(30)


class Driver(Process):
    """A driver process of the program."""

    def __init__(self, scene: Scene, mode: str) -> None:
        self._epochs = scene.checkpoint / "epochs"
        super().__init__(
            [sys.executable, str(PROGRAM), str(scene.root), mode],
            scene.root / f"driver-{time.monotonic_ns()}.log",
            environment(
                PYTHONPATH=scene.python_path,
                PYSPARK_PYTHON=scene.python,
                PYSPARK_DRIVER_PYTHON=sys.executable,
            ),
            scene.root,
        )

    def entries(self) -> int:
        """Return how many there ever were: those before a remap are collected."""
        return max((int(file.stem) for file in self._epochs.glob("*.json")), default=0)

    def wait_for_entries(self, more: int) -> None:
        """Wait until so many more entries are in the epoch log, or this driver has ended."""
        wanted = self.entries() + more
        self.wait_until(lambda: self.entries() >= wanted or not self.alive())

    def wait_until(self, reached: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.005)

    def finish(self, status: int = 0) -> str:
        assert self.process.wait(900) == status, self.output()
        return self.output()


class Scene:
    """A pipeline's input, checkpoint and outputs, and the drivers that run it."""

    def __init__(self, root: Path, postgres: Any, *, files: int = 6) -> None:
        self.root = root
        self.checkpoint = root / "checkpoint"
        self.python = sys.executable
        self.python_path = os.pathsep.join([str(root), str(Path(mr.__file__).parents[1])])
        self.config: dict[str, Any] = {
            "master": "local[2]",
            "conf": {},
            # Whether the driver begins epochs itself, or Spark does.
            "driven": False,
            "checkpoint": str(self.checkpoint),
            "conninfo": f"{postgres.conninfo} passfile={postgres.passfile}" if postgres else "",
        }
        self._postgres = postgres
        self._drivers: list[Driver] = []
        (root / "reading_formats.py").write_text(FORMATS)
        for folder in ("in", "traps", "attempts"):
            (root / folder).mkdir()
        self._files = 0
        self.feed(files)

    def feed(self, files: int) -> None:
        """Write more input, a file an epoch."""
        draw = random.Random(2013 + self._files)
        for _ in range(files):
            number, self._files = self._files, self._files + 1
            rows = [
                (f"{draw.choice('abc')}{draw.randrange(5)}", draw.randrange(100), number * 200 + n)
                for n in range(200)
            ]
            columns = [list(column) for column in zip(*rows, strict=True)]
            table = pa.table(dict(zip(("sensor", "value", "at"), columns, strict=True)))
            unfinished = self.root / "in" / f"_{number}"
            pq.write_table(table, unfinished)
            os.utime(unfinished, (1_700_000_000 + number,) * 2)
            unfinished.rename(self.root / "in" / f"{number:06}.parquet")

    def start(self, mode: str = "finish") -> Driver:
        """Start a driver."""
        (self.root / "config.json").write_text(json.dumps(self.config))
        self._drivers.append(Driver(self, mode))
        return self._drivers[-1]

    def use(self, cluster: Cluster, archive: Path, **conf: str) -> None:
        """Run on a cluster, whose workers have the archive's Python and not this checkout.

        With Spark's own settings, as users have them.
        """
        self.python = "./environment/bin/python"
        environment = self.root / "environment"
        environment.mkdir()
        # Python's own unpacks links that lead elsewhere in a way that its versions differ in.
        subprocess.run(["tar", "-xzf", archive, "-C", environment], check=True)
        self.config["master"] = cluster.master
        self.config["conf"] = {
            **jvm.SPARKS_OWN,
            "spark.archives": f"{archive}#environment",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": jvm.OPTIONS,
            # What is lost is noticed at once, and not after minutes of asking for it.
            "spark.shuffle.io.maxRetries": "1",
            "spark.shuffle.io.retryWait": "1s",
            "spark.task.maxFailures": "8",
            **conf,
        }

    def set_trap(self, name: str) -> Path:
        """Let a misfortune happen to the next task that comes by."""
        trap = self.root / "traps" / name
        trap.touch()
        return trap

    def attempts(self, name: str) -> list[Path]:
        """Return what task attempts wrote down at a trap."""
        return sorted((self.root / "attempts").glob(f"{name} *"))

    def check(self) -> None:
        """Compare the outputs with the same, computed without Millrace.

        Every output has the numbers that user code drew, as the first level's commits have them.
        """
        readings = ds.dataset(self.root / "in", format="parquet").to_table().to_pylist()
        found = pq.read_table(self.root / "out").to_pylist()
        assert len({row["_id"] for row in found}) == len(found)
        at = [(row["_key"], row["_timestamp"].timestamp()) for row in found]
        assert len(set(at)) == len(at)
        sums = {
            (row["_key"], round(row["_timestamp"].timestamp() * 1e6)): row["total"] for row in found
        }
        expected: dict[tuple[str, int], int] = defaultdict(int)
        for row in readings:
            expected[row["sensor"][0], row["at"] // 100 * 100 + 100] += row["value"]
        assert sums == expected
        if self._postgres is not None:
            self._check_tables(readings, found)

    def _check_tables(self, readings: list[Any], found: list[Any]) -> None:
        confirmed = self._postgres.query("SELECT sensor, value, at, nonce, _id FROM confirmed")
        assert len({row[4] for row in confirmed}) == len(confirmed)
        assert sorted(row[:3] for row in confirmed) == sorted(
            (row["sensor"], row["value"], row["at"]) for row in readings
        )
        nonces: dict[tuple[str, int], int] = defaultdict(int)
        totals: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
        for sensor, value, at, nonce, _ in confirmed:
            nonces[sensor[0], at // 100 * 100 + 100] ^= nonce
            window = totals[sensor, at // 100 * 100]
            window[0] += value
            window[1] ^= nonce
        assert {
            (row["_key"], round(row["_timestamp"].timestamp() * 1e6)): row["nonces"]
            for row in found
        } == nonces
        latest = {sensor: (at, *totals[sensor, at]) for sensor, at in sorted(totals)}
        windows = self._postgres.query("SELECT sensor, at, total, nonces FROM windows")
        assert {row[0]: row[1:] for row in windows} == latest
        assert len(windows) == len(latest)

    def end(self) -> None:
        """Leave no process behind."""
        for driver in self._drivers:
            driver.end()


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_tests(die_with_parent: Callable[[], None]) -> None:
    """Take the processes along if pytest itself is killed."""
    Process.before_exec = staticmethod(die_with_parent)


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """A folder that is not in memory, whose syncs take the time that they take a user."""
    build = Path(__file__).parents[3] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix="tests-") as folder:
        yield Path(folder)


def start_program(
    what: Path | str,
    folder: Path,
    *arguments: str,
    log: str = "log",
    files: tuple[int, ...] = (),
    within: Sequence[str] = (),
    **others: str,
) -> Process:
    """Start a program, given a folder, in an environment of its own; its output is in ``log``.

    Args:
        what: Its file, or the name of a module.
        folder: Of its own.
        arguments: More of them.
        log: A file in the folder.
        files: Descriptors that it keeps.
        within: A command that becomes the one it is given, such as on another host.
        others: Of its environment.
    """
    program = ["-m", what] if isinstance(what, str) else [str(what)]
    command = [*within, sys.executable, *program, str(folder), *arguments]
    return Process(command, folder / log, with_packages(**others), folder, files)


def start_daemon(command: list[str], log: Path, **others: str) -> Process:
    """Start a master, or a worker whose Python has the packages of this checkout."""
    return Process(command, log, with_packages(**DAEMON, **others), log.parent)


def with_packages(**others: str) -> dict[str, str]:
    """Return an environment in which the packages of this checkout are imported."""
    packages = [Path(package.__file__).parents[1] for package in (mr, millrace_examples)]
    paths = [PROGRAM.parent, PROGRAM.parents[3], *packages]
    ours = {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if others.get("PYTHONPATH"):
        ours["PYTHONPATH"] += os.pathsep + others.pop("PYTHONPATH")
    return environment(**ours | others)


@pytest.fixture(scope="session")
def program() -> Callable[..., Process]:
    """Start a program: see :func:`start_program`."""
    return start_program


@pytest.fixture(scope="session")
def daemon() -> Callable[..., Process]:
    """Start a master or a worker: see :func:`start_daemon`."""
    return start_daemon


class LiveDriver:
    """``live_driver.py``, which runs programs in real time one after the other.

    Args:
        folders: Makes a folder of a name.
        others: Environment of the process.
    """

    def __init__(self, folders: Callable[[str], Path], others: dict[str, str]) -> None:
        self._folders, self._others = folders, others
        self._process: Process | None = None
        self._asks: Connection | None = None
        #: What was written while the last program ran.
        self.output = ""

    def __call__(self, name: str, root: Path, *arguments: Any) -> Any:
        """Run a program, and return what it returns.

        Args:
            name: The module in this folder.
            root: A folder of its own.
            arguments: What else ``main`` is given.

        Raises:
            AssertionError: The program has raised, or its process ended; the next one has another.
        """
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._asks is not None
        before = self._process.log.stat().st_size
        try:
            self._asks.send((name, root, arguments))
            found, failure = self._asks.recv() if self._asks.poll(600) else (None, "ten minutes")
        except (EOFError, OSError) as error:
            found, failure = None, f"the driver ended: {error!r}"
        self.output = self._process.log.read_bytes()[before:].decode(errors="replace")
        if failure:
            self.end()
        assert not failure, f"{failure}\n{self.output}"
        return found

    def _start(self) -> None:
        folder = self._folders("live")
        self._asks, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            self._process = start_program(
                "tests.spark.processes.live_driver", folder, str(number), files=(number,),
                **self._others,
            )  # fmt: skip

    def end(self) -> None:
        """Leave no process behind."""
        if self._process is not None:
            self._process.end()
        if self._asks is not None:
            self._asks.close()
        self._process = self._asks = None


@pytest.fixture(scope="session")
def live_driver(tmp_path_factory: pytest.TempPathFactory, s3_server: Any) -> Iterator[LiveDriver]:
    """The driver of all programs in real time whose driver need not die."""
    driver = LiveDriver(tmp_path_factory.mktemp, s3_server.environment())
    try:
        yield driver
    finally:
        driver.end()


class Worker(Process):
    """A worker of a standalone cluster: with an address, and a temporary directory, of its own.

    Spark runs no speculative copy on a host that runs the task already, so the addresses differ.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.home = cluster.home / f"worker-{number}"
        self.temporary = self.home / "tmp"
        self.temporary.mkdir(parents=True)
        host = f"127.0.0.{number + 1}"
        super().__init__(
            [
                cluster.spark_class, "org.apache.spark.deploy.worker.Worker", "--host", host,
                "--webui-port", "0", "--cores", "1", "--memory", "1g",
                "--work-dir", str(self.home / "work"), cluster.master,
            ],
            self.home / "log",
            environment(
                SPARK_LOCAL_IP=host,
                TMPDIR=str(self.temporary),
                SPARK_LOCAL_DIRS=str(self.home / "local"),
                **DAEMON,
            ),
            self.home,
        )  # fmt: skip
        cluster.wait_for(self, "Successfully registered with master")


class Cluster:
    """A Spark standalone cluster of two worker processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{port}"
        self._master = Process(
            [
                self.spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1",
                "--port", str(port), "--webui-port", "0",
            ],
            home / "master.log",
            environment(**DAEMON),
            home,
        )  # fmt: skip
        self.workers: list[Worker] = []
        self._started: list[Process] = [self._master]
        self.wait_for(self._master, "I have been elected leader")
        for _ in range(2):
            self.add_worker()

    def add_worker(self) -> Worker:
        worker = Worker(self, len(self._started))
        self.workers.append(worker)
        self._started.append(worker)
        return worker

    def kill_worker(self, worker: Worker) -> None:
        """Kill a worker with its executors and their Python processes."""
        worker.end()
        self.workers.remove(worker)

    @staticmethod
    def wait_for(process: Process, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in process.output():
            assert process.alive(), process.output()
            assert time.monotonic() < deadline, process.output()
            time.sleep(0.05)

    def end(self) -> None:
        for process in self._started:
            process.end()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Master and workers, for the tests of one module."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Millrace as a wheel, installed in an environment, packed: as it is shipped to executors.

    Only what Millrace depends on is not packed but found by its path, to spare half a gigabyte.
    """
    folder, top = tmp_path_factory.mktemp("archive"), Path(__file__).parents[3]
    source, made = folder / "source", folder / "environment"
    for name in ("src", "examples"):
        shutil.copytree(top / name, source / name, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(top / name, source)

    def pip(*arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
            check=True, capture_output=True, cwd=folder, env=environment(),
        )  # fmt: skip

    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", str(source))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    (wheel,) = (folder / "wheels").iterdir()
    python = str(made / "bin" / "python")
    pip("--python", python, "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{Path(msgspec.__file__).parents[1]}\n")
    packed = folder / "environment.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(made, ".")
    return packed


@pytest.fixture
def seeds() -> Callable[[int], Iterator[random.Random]]:
    """Give the draws of each round: one round, or as many as CHAOS_MINUTES have time for.

    Only the first is the same each time. Each prints its seed; CHAOS_SEED makes it the first.
    """

    def rounds(first: int) -> Iterator[random.Random]:
        deadline = time.monotonic() + 60 * CHAOS_MINUTES / 2
        seed = int(os.environ.get("CHAOS_SEED", first))
        while True:
            sys.stdout.write(f"CHAOS_SEED={seed}\n")
            yield random.Random(seed)
            if time.monotonic() >= deadline:
                return
            seed = random.SystemRandom().getrandbits(32)

    return rounds


@pytest.fixture
def scenes(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Make scenes; their processes end with the test."""
    made: list[Scene] = []

    def make(postgres: Any = None, **options: Any) -> Scene:
        root = tmp_path / f"scene-{len(made)}"
        root.mkdir()
        made.append(Scene(root, postgres, **options))
        return made[-1]

    yield make
    for scene in made:
        scene.end()
