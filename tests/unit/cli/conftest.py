"""Running the command in process, and checkpoints for it to look into."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import millrace as mr
from millrace.cli.main import main
from millrace.compile.topology import Topology
from millrace.epochlog.entries import SourceStats
from millrace.epochlog.run_log import RunLog
from millrace.kernel.bundle import ReceivedRecords
from millrace.kernel.execution import Execution
from millrace.model.keys import encode_key, hash_key
from millrace.store import LmdbCaches, open_location
from tests.kit.epochs import run_epoch

Millrace = Callable[..., Result]


@pytest.fixture
def millrace() -> Millrace:
    """Run ``millrace`` with arguments."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments))

    return run


class Counter(mr.Computation):
    inputs = {"clicks": mr.by("page")}
    outputs = {"counts": int}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.increment("seen")
        self.set_timer("report", at=mr.MINUTE)
        self.set_timer("look", at=mr.HOUR, domain=mr.WALL_TIME)
        self.hold(record.timestamp)

    def process_timer(self, timer: mr.Timer) -> None:
        self.hold(None)


def topology(pipeline: str, name: str, was: str | tuple[()] = ()) -> Topology:
    """Return a pipeline of one computation."""
    p = mr.Pipeline(pipeline)
    p.inject("clicks")
    p.add(Counter, name=name, was=was)
    return p.build()


class Checkpoint:
    """A checkpoint on disk, written epoch by epoch as a driver writes it."""

    def __init__(self, path: Path, pipeline: str = "pages") -> None:
        self.path = path
        self._topology = topology(pipeline, name="Counter[bold]")
        self._state = open_location(path, pipeline=pipeline)
        self._run_log = RunLog(self._topology, self._state, intervals=2)
        self._execution = Execution(
            self._topology, self._state, LmdbCaches(path / "cache", self._state.uuid)
        )

    def rename(self, name: str) -> None:
        """Have a run claim the checkpoint whose computation has another name."""
        renamed = topology(self._topology.name, name, was="Counter[bold]")
        self._run_log = RunLog(renamed, self._state, intervals=2)

    def epoch(
        self,
        *pages: str,
        at: int = 0,
        low_watermark: int,
        complete: bool = True,
        drain: bool = False,
    ) -> None:
        """Run an epoch with a click on each page."""
        run_log = self._run_log
        manifest = run_log.begin(
            run_log.completed + 1,
            wall_time_us=1_000_000,
            injectors={"clicks": low_watermark},
            draining=drain,
        )
        assert manifest is not None
        keys = [encode_key(page) for page in pages]
        count = len(keys)
        arrivals = ReceivedRecords(
            np.array([hash_key(key) for key in keys], dtype=np.uint64),
            keys,
            [{"page": page} for page in pages],
            np.full(count, at, dtype=np.int64),
            "clicks",
            np.zeros(count, dtype=np.int64),
            np.arange(count, dtype=np.int64),
        )
        (spec,) = self._topology.computations
        owned = range(len(manifest.interval_map(spec.name)))
        clocks, positions = {100: low_watermark}, run_log.positions
        produced = run_epoch(self._execution, spec, manifest, positions, owned, arrivals, clocks)
        if complete:
            seen = {"clicks": SourceStats(at, count)} if count else {}
            run_log.complete(manifest, [result for result, _ in produced], seen)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Return a checkpoint that a run has claimed."""
    return Checkpoint(tmp_path / "ckpt")
