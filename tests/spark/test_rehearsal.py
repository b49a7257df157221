"""A program that waits rehearses epochs, and leaves no trace anywhere until it has the lease."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.inspect import Lease
from millrace.inspect.lease import Term
from millrace.spark.realtime.retry_policy import Downtime
from millrace.spark.start import SparkStarter


class Numbers(mr.sources.Injector):
    """Two numbers an epoch; says in a folder what it was asked for."""

    schema = "n long, at long"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def processes(self) -> list[str]:
        (self.folder / "processes").touch()
        return ["all"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        (self.folder / "advance").touch()
        return mr.sources.Advance(int((self.folder / "there").read_text()))

    def read(self, process: str, start: Any, end: Any) -> Any:
        (self.folder / "read").touch()
        return ((n, n * mr.SECOND) for n in range(start or 0, end))


class Alarms(mr.Computation):
    """Sets a timer at the wall clock, which is due by the time that another program waits."""

    inputs = {"numbers": mr.by("n")}
    outputs = {"alarms": int}

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process_record(self, record: mr.Record) -> None:
        (self.folder / "code").touch()
        self.set_timer("", at=self.wall_time + mr.SECOND, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        (self.folder / "code").touch()
        self.produce("alarms", self.key)


class Totals(mr.Computation):
    """Adds up at the second level, so that there is a shuffle."""

    inputs = {"alarms": mr.by(lambda _: "all")}
    outputs = {"totals": int}
    total = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0) + record.value)
        self.produce("totals", self.total.get(0))


def _files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder that are no cache."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "cache" not in path.relative_to(folder).parts
    }


@pytest.mark.parametrize("source", ["injector", "DataFrame"])
def test_while_it_waits_nothing_is_written_read_or_called(
    spark: SparkSession, tools: Any, tmp_path: Path, source: str
) -> None:
    feed, asked, written = tools.feed("n long, at long"), tmp_path / "asked", tmp_path / "written"
    called: list[int] = []

    def sink(rows: Any, epoch: int) -> None:
        called.append(epoch)
        (asked / "sink").touch()

    def pipeline() -> mr.Pipeline:
        p = mr.Pipeline("rehearsed")
        rows = Numbers(asked) if source == "injector" else feed.stream
        p.inject("numbers", rows, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
        p.add(Alarms(asked))
        p.add(Totals())
        p.sink("totals", sink)
        p.sink("alarms", mr.sinks.Parquet(str(written)))
        return p

    asked.mkdir()
    (asked / "there").write_text("3")
    feed.add(*((n, n * mr.SECOND) for n in range(3)))
    run = tools.start(pipeline(), tasks=2)
    tools.step(run)
    run.stop()
    tools.clock.now += mr.HOUR
    lease = Lease(tools.checkpoint, "rehearsed", term="600 s")
    assert lease.acquire()
    before = _files(Path(tools.checkpoint)), _files(written), called[:]
    for trace in asked.iterdir():
        if trace.name != "there":
            trace.unlink()

    given = {"checkpoint": tools.checkpoint, "realtime": False, "lease": "600 s", "tasks": 2}
    starter = SparkStarter(spark, given | {"clock": tools.clock})
    opening = starter._opening(pipeline())
    opening.prepare()
    opening._keep_ready(Term("another", 0, 0))
    rehearsal = opening._setup.beside
    rehearsal._thread.join()
    assert opening._setup.is_warm, rehearsal.failure
    assert (_files(Path(tools.checkpoint)), _files(written), called) == before
    traces = {trace.name for trace in asked.iterdir()} - {"there"}
    assert traces == ({"processes"} if source == "injector" else set())

    lease.release(RuntimeError("it dies"))
    opening.wait_for_lease()
    opening.claim()
    plan = opening._started[0]
    heir = opening.begin(Downtime())
    try:
        assert heir.engine._plan is plan, "what was rehearsed"
        assert opening._lease.generation == heir.run_log.generation == 2
        assert source == "DataFrame" or heir.engine._session is rehearsal.session
        assert any(heir.engine.process_available("10 s") for _ in range(12))
        assert not rehearsal._thread.is_alive()
    finally:
        heir.stop()
    assert mr.ops.open_checkpoint(tools.checkpoint)["Totals"].get("all")["total"] == 3
