"""The course of a cell: who is started when, how long the load lasts, when all is seen."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import psycopg

from benchmarks import environments
from benchmarks.contest import Contender, ContenderFailed
from benchmarks.latency import figures, probe, synthetic
from benchmarks.latency.beside import Beside
from benchmarks.latency.job import Job, Outcome
from benchmarks.latency.load import Load, draw_keys
from benchmarks.latency.visible import SCHEMA, TABLE
from benchmarks.measure import TreeSampler
from millrace_examples.kafka.broker import Broker

CODE, KAFKA, POSTGRES = "code", "kafka", "postgres"
_LOOK_EVERY_S = 0.1
#: Rows of a contender that has said nothing for so long, after the load, will not come.
_SILENCE_S = 10
#: From the decision to the first record: until then everybody has to be there.
_RUN_UP_NS = 1_500_000_000


@dataclass(frozen=True)
class Cell:
    """What is measured.

    Attributes:
        rival: A key of ``contender.CONTENDERS``.
        to: Where rows go: ``code`` (nowhere: user code of the last stage), ``kafka``, ``postgres``.
        rate: Records a second.
        keys: So many.
        stages: So many, each behind a change of key.
        partitions: Of the topics, and tasks a stage.
        warm_up_s: Seconds of the load that are not measured.
        seconds: Those that are.
        synthetic: Whether Millrace makes the records itself, by the clock.
        probe_every: User code of the last stage says so of one key in so many.
        every_ms: How often the load sends what is due, at the most.
    """

    rival: str
    to: str
    rate: int
    keys: int
    stages: int
    partitions: int
    warm_up_s: int
    seconds: int
    synthetic: bool
    probe_every: int = 1
    every_ms: int = 1

    @property
    def records(self) -> int:
        """All records, warm-up included."""
        return self.rate * (self.warm_up_s + self.seconds)


class Course:
    """Runs a cell.

    Args:
        cell: The cell.
        broker: That has the topics ``in-`` and ``out-`` with the name of the folder; or None.
        conninfo: Of PostgreSQL, for a cell that writes to it.
        scratch: Its empty folder.
        patience_s: How long the contender may take for its last rows; and twice as long to start.

    Attributes:
        job: The contender's.
        samplers: Who -> CPU time, with ``engine`` for the contender.
        begin_ns: When the load began, in nanoseconds since 1970.
        load_stats: What the load generator reports of itself.
        outcome: What the contender says at its end.
        pid: Root of the contender's processes.
    """

    begin_ns: int
    pid: int

    def __init__(
        self, cell: Cell, broker: Broker | None, conninfo: str, scratch: Path, patience_s: float
    ) -> None:
        self.cell = cell
        self._broker = broker
        self._scratch = scratch
        self._patience_s = patience_s
        self.samplers: dict[str, TreeSampler] = {}
        self.load_stats: dict[str, float] = {}
        self.outcome = Outcome()
        self._python, jars = sys.executable, []
        if cell.rival.startswith("flink"):
            self._python, jars = environments.flink()
        elif cell.rival.startswith("spark"):
            jars = environments.spark_kafka()
        self.job = Job(
            rival=cell.rival,
            servers=broker.servers if broker is not None else "",
            source="" if cell.synthetic else f"in-{scratch.name}",
            sink=f"out-{scratch.name}" if cell.to == KAFKA else "",
            conninfo=conninfo if cell.to == POSTGRES else "",
            rate=cell.rate,
            records=cell.records,
            keys=cell.keys,
            stages=cell.stages,
            partitions=cell.partitions,
            scratch_dir=scratch / "scratch",
            jars=jars,
            probe_every=cell.probe_every,
            every_ms=cell.every_ms,
        )

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows that came out, and when each was there."""
        with np.load(self._rows_path) as found:
            return found["rows"], found["arrived_ns"]

    def keys(self) -> np.ndarray:
        """Return the keys of all records, in the last stage."""
        cell = self.cell
        if cell.synthetic:
            keys = synthetic.keys_of(np.arange(cell.records), cell.keys)
        else:
            keys = draw_keys(cell.records, cell.keys)
        return figures.last_keys(keys, cell.keys, cell.stages)

    def sent_ns(self) -> np.ndarray:
        """Return when each record was sent."""
        if not self.cell.synthetic:
            return np.load(self._sent_path)
        cell, numbers = self.cell, np.arange(self.cell.records)
        every_ns = cell.every_ms * 1_000_000
        return synthetic.sent_ns(numbers, self.begin_ns, cell.rate, every_ns)

    @property
    def _sent_path(self) -> Path:
        return self._scratch / "sent.npy"

    @property
    def _rows_path(self) -> Path:
        return self._scratch / "rows.npz"

    def run(self, each_second: Callable[[Course], None] | None = None) -> None:
        """Start everybody, let the load run, wait for the last row, and end it."""
        self.job.scratch_dir.mkdir()
        self.job.dump(self._scratch / "job.json")
        with ExitStack() as stack:
            if self.job.conninfo:
                self._make_table()
                self._sample(stack, "postgres", _postmaster(self.job.conninfo))
            contender = stack.enter_context(
                Contender(
                    self.cell.rival,
                    "benchmarks.latency.contender",
                    self._scratch,
                    self._python,
                    tree_every_s=2,
                )
            )
            self.pid = contender.pid
            self.samplers["engine"] = contender.sampler
            self._wait_until_ready(contender)
            eyes = self._open_eyes(stack)
            load = self._begin(stack)
            if self._broker is not None:
                self._sample(stack, "broker", self._broker.pid)
            self._let_run(contender, load, each_second)
            self._wait_for_rows(contender, eyes)
            if eyes is not None:
                eyes.end()
            self.job.stop_path.touch()
            contender.wait(120)
        self.outcome = Outcome.load(self._scratch / "outcome.json")

    def _sample(self, stack: ExitStack, who: str, pid: int) -> None:
        self.samplers[who] = stack.enter_context(TreeSampler(pid, tree_every_s=5))

    def _make_table(self) -> None:
        with psycopg.connect(self.job.conninfo, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
            connection.execute(f"CREATE TABLE {TABLE} (sent bigint, key bigint, count bigint)")

    def _wait_until_ready(self, contender: Contender) -> None:
        deadline = time.monotonic() + 2 * self._patience_s
        while not self.job.ready_path.exists():
            if contender.ended or time.monotonic() > deadline:
                raise contender.failure(f"it was not ready within {2 * self._patience_s:g} s")
            time.sleep(_LOOK_EVERY_S)

    def _open_eyes(self, stack: ExitStack) -> Beside | None:
        """Start who looks at what comes out."""
        rows = str(self._rows_path)
        if self.job.sink:
            partitions = str(self.cell.partitions)
            eyes = Beside("observer", self.job.servers, self.job.sink, partitions, rows)
        elif self.job.conninfo:
            eyes = Beside("visible", self.job.conninfo, rows)
        else:
            return None
        stack.enter_context(eyes).wait_for_word()
        self.samplers["consumer"] = eyes.sampler
        return eyes

    def _begin(self, stack: ExitStack) -> Beside | None:
        self.begin_ns = time.time_ns() + _RUN_UP_NS
        if self.cell.synthetic:
            # Under its name only when it is whole.
            making = self.job.begin_path.with_suffix(".making")
            making.write_text(str(self.begin_ns))
            making.rename(self.job.begin_path)
            return None
        wanted = Load(
            servers=self.job.servers,
            topic=self.job.source,
            partitions=self.cell.partitions,
            rate=self.cell.rate,
            every_ms=self.cell.every_ms,
            records=self.cell.records,
            keys=self.cell.keys,
            begin_ns=self.begin_ns,
            text=self.cell.rival.startswith("flink"),
            log_path=str(self._sent_path),
        )
        load = stack.enter_context(Beside("load", json.dumps(asdict(wanted))))
        self.samplers["load"] = load.sampler
        return load

    def _let_run(
        self,
        contender: Contender,
        load: Beside | None,
        each_second: Callable[[Course], None] | None,
    ) -> None:
        over_s = self.begin_ns / 1e9 + self.cell.warm_up_s + self.cell.seconds
        while time.time() < over_s and not (load is not None and load.ended):
            if contender.ended:
                raise contender.failure("it ended while the load ran")
            if each_second is not None:
                each_second(self)
            time.sleep(min(1.0, max(0.0, over_s - time.time())))
        if load is not None:
            self.load_stats = json.loads(load.wait())

    def _wait_for_rows(self, contender: Contender, eyes: Beside | None) -> None:
        """Wait for a row for each record, or until no more come."""
        deadline = time.monotonic() + self._patience_s
        found, since = -1, time.monotonic()
        wanted = self._expected()
        while found < wanted:
            if contender.ended:
                raise contender.failure("it ended before its last row")
            time.sleep(_LOOK_EVERY_S)
            now = self._count(eyes)
            if now != found:
                found, since = now, time.monotonic()
            elif time.monotonic() > since + _SILENCE_S:
                return  # what is missing, if anything is, will be seen
            if time.monotonic() > deadline:
                raise contender.failure(
                    f"{self._patience_s:g} s after the load had ended, {found:,} of "
                    f"{wanted:,} had come, and more were coming: it is too slow for "
                    "such a rate"
                )

    def _expected(self) -> int:
        if self.cell.to != CODE:
            return self.cell.records
        return int((self.keys() % self.cell.probe_every == 0).sum())

    def _count(self, eyes: Beside | None) -> int:
        if eyes is None:
            return probe.count(self.job.probes_dir)
        if self.job.sink:
            return int(eyes.said) if eyes.said.isdigit() else 0
        with psycopg.connect(self.job.conninfo, autocommit=True) as connection:
            found = connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone()
        assert found is not None
        return int(found[0])


def _postmaster(conninfo: str) -> int:
    """Return the process of a server on this machine, whose children serve the clients.

    Raises:
        ContenderFailed: It runs elsewhere.
    """
    with psycopg.connect(conninfo) as connection:
        found = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert found is not None
        try:
            backend = psutil.Process(found[0])
            if "postgres" in backend.name():
                return int(backend.ppid())
        except psutil.NoSuchProcess:
            pass
    raise ContenderFailed("PostgreSQL has to run on this machine: clocks and CPU time are read")
