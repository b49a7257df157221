"""What every supported Spark gives: the same program with a classic session, and over Connect.

``make test`` runs it over Connect with the Spark of the suite, and ``make spark-versions`` with
both kinds of session on each version. The ``row`` of a test is one of docs/reference/sparks.md.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jvm
import pyarrow.dataset as ds
import pyspark
import pytest
from click.testing import CliRunner

from millrace.cli.main import main
from tests.spark.processes.connect_server import ConnectServer

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
KINDS = ["connect", *(["classic"] if "SPARK_VERSIONS" in os.environ else [])]
PROGRAM = "tests.spark.processes.any_spark"
#: Records of each of its sources, and of each process of its injector; and how many keys they have.
RECORDS, KEYS = 3000, 7
REAL_TIME = (4, 3)


class Runs:
    """The program's parts with one kind of session; those that end by themselves ran together."""

    def __init__(
        self, program: Callable[..., Any], folder: Path, server: ConnectServer | None = None
    ) -> None:
        self.kind = "classic" if server is None else "connect"
        self.folder, self.server, self._program = folder, server, program
        self._at = "local[2]" if server is None else server.url
        self._ran: set[str] = set()

    def start(self, *parts: str, at: str | None = None) -> Any:
        """Start a process that runs some parts."""
        log = f"{parts[0]}-{time.monotonic_ns()}.log"
        return self._program(PROGRAM, self.folder, at or self._at, *parts, log=log)

    def found(self, part: str) -> Any:
        """Return what a part returned; the first call runs all parts that share a process."""
        if part not in self._ran:
            self._run(part)
        return json.loads((self.folder / f"{part}.json").read_text())

    def _run(self, part: str) -> None:
        alone = part in ("killed", "realtime")
        parts = [part] if alone else [*TOGETHER]
        slots = "local[4]" if part == "realtime" and self.kind == "classic" else None
        process = self.start(*parts, at=slots)
        assert process.process.wait(400) == 0, process.output()
        self._ran.update(parts)

    def kill_in_the_middle(self, part: str, *, server: bool = False) -> int:
        """Kill a program, and its server, with SIGKILL; return entries of its epoch log."""
        entries = self.folder / part / "checkpoint/epochs"
        before = len(list(entries.glob("*.json")))
        process = self.start(part)
        while (now := len(list(entries.glob("*.json")))) < before + 4:
            assert process.alive(), process.output()
            time.sleep(0.02)
        if server and self.server is not None:
            self.server.process.end()
            self.server.start()
        process.end()
        return now

    def values(self, part: str, stream: str) -> list[int]:
        """Return what a part has sent out."""
        files = [str(file) for file in (self.folder / part / stream).rglob("*.parquet")]
        return [int(value) for value in ds.dataset(files).to_table()["value"].to_pylist()]

    def check(self, part: str, processes: int = 1) -> None:
        """Compare what a part sent out with what it must be, each result once."""
        assert sum(self.values(part, "sums")) == processes * sum(range(RECORDS))
        of_key = [processes * len(range(key, RECORDS, KEYS)) for key in range(KEYS)]
        tenths = [n for count in of_key for n in range(10, count + 1, 10)]
        assert sorted(self.values(part, "tenths")) == sorted(tenths)


#: In one process, in this order.
TOGETHER = (
    "batch",
    "batch_of_injector",
    "files",
    "files_again",
    "injector",
    "injector_again",
    "source",
    "interrupted",
)


@pytest.fixture(scope="module", params=KINDS)
def runs(
    request: pytest.FixtureRequest,
    program: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "classic":
        yield Runs(program, folder)
        return
    if SPARK < (4, 0):
        pytest.skip("no Connect server comes with its package")
    server = ConnectServer(program, tmp_path_factory.mktemp("server"))
    try:
        yield Runs(program, folder, server)
    finally:
        server.process.end()


@pytest.fixture(autouse=True)
def gives(request: pytest.FixtureRequest, record_property: Callable[[str, Any], None]) -> Any:
    """Note what a test has shown, for the table: by default that it works."""
    marker = request.function.__doc__
    record_property("row", marker.strip().rstrip("."))
    record_property("kind", request.node.callspec.params["runs"])

    def note(what: str) -> None:
        record_property("gives", what)

    return note


def test_a_batch(runs: Runs) -> None:
    """`run_batch` over DataFrames."""
    found = runs.found("batch")

    assert found == {
        "memory": sum(range(RECORDS)),
        "called": {"sums": 21, "tenths": 294},
        "epoch": 0,
    }
    runs.check("batch")


def test_a_batch_of_an_injector(runs: Runs) -> None:
    """`run_batch` over injectors."""
    assert runs.found("batch_of_injector") is None

    runs.check("batch_of_injector", processes=2)


def test_sources_of_spark(runs: Runs, gives: Any) -> None:
    """Epochs over Spark's streaming sources, stopped and started again."""
    found = runs.found("files"), runs.found("files_again")

    if runs.kind == "connect" or SPARK < (4, 0):
        named = "Spark Connect" if runs.kind == "connect" else "Spark 3.5"
        assert all(named in one["refused"] for one in found)
        gives("refused")
    else:
        assert found[0] < found[1]
        runs.check("files")


def test_injectors(runs: Runs) -> None:
    """Epochs over injectors, stopped and started again."""
    found = runs.found("injector"), runs.found("injector_again")

    assert found[0] < found[1]
    runs.check("injector", processes=2)


def test_a_stop_that_does_not_wait(runs: Runs) -> None:
    """Epochs over injectors, one of them interrupted."""
    assert runs.found("interrupted") == {"state": "stopped", "quickly": True, "on": True}

    assert sorted(runs.values("interrupted", "passed")) == sorted([*range(RECORDS)] * 2)


def test_programs_that_are_killed(runs: Runs) -> None:
    """Epochs over injectors, the program killed twice, and a server of Connect with it once."""
    killed = [runs.kill_in_the_middle("killed")]
    killed.append(runs.kill_in_the_middle("killed", server=True))

    runs.found("killed")

    assert killed == sorted(set(killed)), "each has gone on, and none was done"
    runs.check("killed", processes=2)


def test_a_run_that_other_programs_ask(runs: Runs) -> None:
    """`millrace status`, `update`, `stop` and `drain` from another program."""
    checkpoint = str(runs.folder / "asked/checkpoint")

    def millrace(*command: str) -> str:
        said = CliRunner().invoke(main, command)
        assert said.exit_code == 0, said.output
        return said.output

    def wait_for(process: Any, records: int) -> None:
        until = time.monotonic() + 200
        while True:
            said = CliRunner().invoke(main, ["status", checkpoint])
            if said.exit_code == 0 and f"{records:,}" in said.output:
                return  # the run itself has answered
            assert process.alive(), process.output()
            assert time.monotonic() < until, said.output
            time.sleep(0.1)

    process = runs.start("asked")
    wait_for(process, RECORDS)  # of both processes together, half of each
    said = millrace("update", f"{PROGRAM}:changed", checkpoint)
    assert "after epoch" in said
    wait_for(process, 2 * RECORDS)
    millrace("stop", checkpoint)
    assert process.process.wait(100) == 0, process.output()
    assert json.loads((runs.folder / "asked.json").read_text()) == "stopped"
    process = runs.start("asked_again")
    wait_for(process, 2 * RECORDS)
    millrace("drain", checkpoint)
    assert process.process.wait(100) == 0, process.output()
    assert json.loads((runs.folder / "asked_again.json").read_text()) == "drained"
    runs.check("asked", processes=2)


@pytest.mark.skipif("SPARK_VERSIONS" not in os.environ, reason="it has a server of its own")
def test_an_archive_that_the_client_sends(
    runs: Runs, program: Callable[..., Any], archive: Path, tmp_path: Path
) -> None:
    """Workers without Millrace, and an archive with it by `addArtifacts`."""
    if runs.kind == "classic":
        pytest.skip("a classic session has spark.archives, which test_cluster.py shows")
    server = ConnectServer(
        program,
        tmp_path,
        # What workers import: no more than Spark adds itself.
        environment={
            "PYSPARK_PYTHON": f"{sys.base_prefix}/bin/python3",
            "PYTHONPATH": "",
            "SPARK_SUBMIT_OPTS": jvm.OPTIONS,
        },
    )
    (runs.folder / "environment.tar.gz").symlink_to(archive)
    try:
        process = runs.start("archived", at=server.url)
        assert process.process.wait(300) == 0, process.output()
        found = json.loads((runs.folder / "archived.json").read_text())
        assert found == 21, server.process.output()
    finally:
        server.process.end()
    runs.check("archived", processes=2)


def test_a_checkpoint_as_a_dataframe(runs: Runs, gives: Any) -> None:
    """`format("millrace")`."""
    found = runs.found("source")

    if SPARK < (4, 0):
        assert "Spark 3.5" in found["refused"]
        gives("refused")
        return
    assert found == {f"k{key}": 2 * len(range(key, RECORDS, KEYS)) for key in range(KEYS)}


def test_real_time(runs: Runs, gives: Any) -> None:
    """Real time."""
    if runs.kind == "classic" and SPARK >= REAL_TIME:
        assert runs.found("realtime") is not None
        runs.check("realtime", processes=2)
        return
    gives("refused")
    refusal = runs.found("realtime")["refused"]
    assert ("Spark Connect" if SPARK >= REAL_TIME else pyspark.__version__) in refusal
