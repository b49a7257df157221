"""Injectors on Spark: files and one in Python, exactly once by their offsets, held back by skew."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import file_updates
import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import CheckpointMismatch, RunFailed
from millrace.spark.asks import CallAsked, UpdateAsked, ask


class Hours(mr.Computation):
    inputs = {"trips": mr.by("zone")}
    outputs = {"counts": str}
    hours = mr.MapState(int)

    def process_record(self, record: mr.Record) -> None:
        hour = record.timestamp - record.timestamp % mr.HOUR
        self.hours[hour] = self.hours.get(hour, 0) + 1
        self.set_timer(hour, at=hour + mr.HOUR)

    def process_timer(self, timer: mr.Timer) -> None:
        count = self.hours.pop(timer.tag)
        self.produce("counts", f"{self.key} {timer.tag // mr.HOUR}: {count}")


class Bikes(Hours):
    inputs = {"bikes": mr.by("zone")}
    outputs = {"bike counts": str}

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("bike counts", f"{self.key}")


def _write(folder: Path, hour: int, *zones: str, mode: str = "w") -> None:
    with (folder / f"{hour:02}.log").open(mode) as file:
        for zone in zones:
            file.write(json.dumps({"zone": zone, "at": hour * mr.HOUR + 5}) + "\n")


def _waiting(run: Any, stream: str) -> mr.sources.Backlog:
    """Return what waits in a stream's source, asked for now."""
    run._run._backlog.ask(stream)
    found: mr.sources.Backlog = run.status().backlog[stream]
    return found


def _jobs(spark: SparkSession) -> set[str]:
    """Return what Spark's status store, which its UI shows, says that jobs are."""
    gateway: Any = spark.sparkContext._jvm
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(gateway.java.util.ArrayList())  # type: ignore[union-attr]
    return {jobs.apply(n).description().toString() for n in range(jobs.size())}


def test_files(spark: SparkSession, tools: Any, tmp_path: Path) -> None:
    """Hours end when their files do, beside files that come later, and in a batch.

    One that shrinks is lost.
    """
    folder, others, kept, batch = tmp_path / "logs", tmp_path / "a", tools.Kept(), tools.Kept()
    so_far = tools.Kept()
    folder.mkdir()
    others.mkdir()

    def files(folder: Path) -> mr.sources.Files:
        return mr.sources.Files(
            folder,
            schema="zone string, at timestamp",
            created=lambda path: int(path.stem) * mr.HOUR,
        )

    def pipeline(kept: Any, *, more: bool = False) -> mr.Pipeline:
        p = mr.Pipeline("files")
        p.inject("trips", files(folder), timestamp="at")
        p.add(Hours)
        if more:  # before the other, by name: Spark's offsets go by that
            p.inject("bikes", files(others), timestamp="at")
            p.add(Bikes)
            on_call = mr.Repeat(mr.OnCall("so far"))
            p.stream("trips").key_by("zone").window(trigger=on_call).count().to("so far")
            p.sink("so far", so_far)
        p.sink("counts", kept)
        return p

    earlier = _jobs(spark)
    _write(folder, 8, "Soho", "Bow", "Soho")
    _write(folder, 9, "Soho")
    run = tools.start(pipeline(kept))
    tools.step(run)
    assert sorted(kept.values) == ["Bow 8: 1", "Soho 8: 2"]
    assert run.status().low_watermark == 9 * mr.HOUR
    assert run.status().injected == {"trips": 4}
    assert f"Some(files: epoch {min(kept.epochs)}, level 1)" in _jobs(spark) - earlier
    assert run.status().load["Hours"].times.calls
    # What there is is kept from outside, by name and by epoch; the run goes on.
    mailbox, generation, epoch = run._run.run_log.state.mailbox, 1, run.status().epoch
    answer = ask(mailbox, "savepoint", generation, about="before", timeout_s=60)
    assert answer is not None
    assert (answer.done, answer.text) == (True, f"epoch {epoch} is kept as savepoint before")
    assert run.snapshot() == run.snapshot() == f"epoch-{epoch}"
    assert mr.ops.savepoints(tools.checkpoint) == {"before": epoch, f"epoch-{epoch}": epoch}
    with pytest.raises(CheckpointMismatch, match="there is a savepoint 'before'"):
        run.savepoint("before")
    # Paused from outside, it is read no more until it goes on; low watermarks wait.
    answer = ask(mailbox, "pause", generation, about="trips", timeout_s=60)
    assert answer is not None
    assert (answer.done, answer.text) == (True, "trips: paused")
    _write(folder, 9, "Soho", mode="a")
    tools.step(run)
    assert run.status().injected == {"trips": 4}
    assert "held back      trips: paused" in str(run.status())
    assert _waiting(run, "trips").files == 1
    run.resume("trips")
    tools.step(run)
    assert _waiting(run, "trips") == mr.sources.Backlog(files=0, size=0)
    assert run.status().injected == {"trips": 5}
    # From outside, as `millrace update` asks; the handle is that of who took over from then on.
    earlier_run = run._run
    run._starter.load = lambda name: pipeline(kept, more=name == "jobs.py:more")
    about = msgspec.json.encode(UpdateAsked("jobs.py:more")).decode()
    answer = ask(mailbox, "update", generation, about=about, timeout_s=60)
    assert answer is not None
    assert answer.done, answer.text
    assert re.fullmatch(
        rf"jobs\.py:more has taken over after epoch {earlier_run.run_log.completed}; the run stood "
        r"still for \S+ s: \S+ s to claim the checkpoint, \S+ s until the next epoch could begin",
        answer.text,
    )
    assert run.status().generation == generation + 1
    assert run._run is not earlier_run
    # There is no query of Spark's, nor a log of offsets beside Millrace's.
    assert run.query is None
    assert not (Path(tools.checkpoint) / "spark").exists()
    _write(folder, 10, "Ely")
    _write(others, 9, "Soho", "Bow")
    _write(others, 10)
    tools.step(run)
    assert sorted(kept.values) == ["Bow 8: 1", "Soho 8: 2", "Soho 9: 2"]
    assert run.status().injected == {"bikes": 2, "trips": 6}
    assert run.status().counters["Bikes"].records == 2
    # From outside, as `millrace fire` asks, and by the handle: what came since the update.
    about = msgspec.json.encode(CallAsked("so far", [])).decode()
    answer = ask(mailbox, "fire", generation + 1, about=about, timeout_s=60)
    assert answer is not None
    assert (answer.done, answer.text) == (True, "so far was called")
    tools.step(run)
    run.fire("so far", "Ely")
    tools.step(run)
    assert [row["value"] for row in so_far.values] == [1]
    # The same as a batch, of the files that were created before 10 o'clock.
    status = pipeline(batch).run_batch(spark, until="1970-01-01T10:00:00Z")
    assert sorted(batch.values) == sorted(kept.values)
    assert status.injected == {"trips": 5}
    assert status.late == 0
    _write(folder, 10)
    with pytest.raises(RunFailed, match=r"InputLost: .*10\.log was truncated: 35 bytes"):
        tools.step(run)
    # Not in an epoch, but when Spark asked the source for news.
    assert run.status().state == "failed"


class Iceberg:
    """A table of trips in a folder, and one of counts."""

    refusal = "is 'overwrite'"

    def __init__(self, folder: Path, trips: pa.Table) -> None:
        iceberg = pytest.importorskip("pyiceberg.catalog", reason="an extra")
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/lake.db",
            "warehouse": str(folder),
        }
        opened = iceberg.load_catalog(**self.catalog)
        opened.create_namespace("lake")
        self.table = opened.create_table("lake.trips", trips.schema)
        self.append(trips)
        self.counts = mr.sinks.Iceberg("lake.counts", folder / "counts", catalog=self.catalog)

    def append(self, trips: pa.Table) -> None:
        self.table.append(trips)

    def delete(self) -> None:
        self.table.delete("zone = 'Ely'")

    def source(self, name: str, schema: str) -> mr.sources.Injector:
        return mr.sources.Iceberg(f"lake.{name}", catalog=self.catalog, schema=schema)


class Delta:
    """The same of Delta Lake."""

    refusal = "DELETE, takes rows away"

    def __init__(self, folder: Path, trips: pa.Table) -> None:
        self.deltalake = pytest.importorskip("deltalake", reason="an extra")
        self.folder = folder
        self.append(trips)
        self.counts = mr.sinks.Delta(folder / "counts")

    def append(self, trips: pa.Table) -> None:
        self.deltalake.write_deltalake(str(self.folder / "trips"), trips, mode="append")

    def delete(self) -> None:
        self.deltalake.DeltaTable(str(self.folder / "trips")).delete("zone = 'Ely'")

    def source(self, name: str, schema: str) -> mr.sources.Injector:
        return mr.sources.Delta(self.folder / name, schema=schema)


@pytest.mark.parametrize("kind", [Iceberg, Delta])
def test_rows_that_are_appended_to_a_table(
    spark: SparkSession, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """From table to table, with a driver that dies; and the second table as a batch."""
    trips = pa.table({"zone": ["Soho", "Bow", "Soho"], "at": [8 * mr.HOUR + n for n in range(3)]})
    lake = kind(tmp_path, trips)

    def pipeline() -> mr.Pipeline:
        p = mr.Pipeline("lake")
        source = lake.source("trips", "zone string, at long")
        p.inject("trips", source, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
        p.add(Hours)
        p.sink("counts", lake.counts)
        return p

    complete, dying = RunLog.complete, [True]

    def dies(self: RunLog, manifest: Any, results: Any, sources: Any, **more: Any) -> Any:
        if "trips" in sources and sources["trips"].records and dying:
            dying.clear()
            raise OSError("the driver dies")
        return complete(self, manifest, results, sources, **more)

    monkeypatch.setattr(RunLog, "complete", dies)
    run = tools.start(pipeline())
    with pytest.raises(RunFailed, match="the driver dies"):
        tools.step(run)
    lake.append(pa.table({"zone": ["Soho", "Ely"], "at": [8 * mr.HOUR + 9, 9 * mr.HOUR + 2**21]}))
    run = tools.start(pipeline())
    tools.step(run)
    assert run.status().injected == {"trips": 5}
    assert _waiting(run, "trips") == mr.sources.Backlog(records=0)
    run.stop()

    kept, p = tools.Kept(), mr.Pipeline("again")
    counts = lake.source("counts", "value string, _timestamp timestamp")
    p.inject("counts", counts, timestamp="_timestamp", format=str)
    p.sink("counts", kept)
    assert p.run_batch(spark).injected == {"counts": 2}
    assert sorted(kept.values) == ["Bow 8: 1", "Soho 8: 3"]
    lake.delete()
    run = tools.start(pipeline())
    with pytest.raises(RunFailed, match=rf"PipelineError: sources.{kind.__name__}.*{lake.refusal}"):
        tools.step(run)


class Numbers(mr.sources.Injector):
    """Two processes with a record a second; the slow one has as many as a file says."""

    schema = "n long, at long"

    def __init__(self, path: str) -> None:
        self.path = path

    def processes(self) -> list[str]:
        return ["fast", "slow"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        there = json.loads(Path(self.path).read_text())[process]
        at = min((offset or 0) + 10, there)
        return mr.sources.Advance(at, low_watermark=at * mr.SECOND)

    def read(self, process: str, start: Any, end: Any) -> Any:
        return ((n, n * mr.SECOND) for n in range(start or 0, end))


class Echo(mr.Computation):
    inputs = {"numbers": mr.by(lambda value: value["n"] % 7)}
    outputs = {"echoes": int}

    def process_record(self, record: mr.Record) -> None:
        assert not record.late
        self.produce("echoes", record.value["n"])


def test_an_injector_in_python_that_is_held_back(tools: Any, tmp_path: Path) -> None:
    there, kept = tmp_path / "there", tools.Kept()
    attempts: dict[int, list[Any]] = {}

    def injected(rows: Any, epoch: int) -> None:
        made = [(row["_id"], row["value"]) for row in rows.toArrow().to_pylist()]
        attempts.setdefault(epoch, []).append(sorted(made))

    class Flaky(type(kept)):  # type: ignore[misc]
        failures = 1

        def __call__(self, rows: Any, epoch: int) -> None:
            super().__call__(rows, epoch)
            if epoch and self.failures:
                self.failures -= 1
                raise ConnectionError("the sink is away")

    flaky = Flaky()

    def start() -> Any:
        p = mr.Pipeline("numbers")
        p.inject("numbers", Numbers(str(there)), timestamp="at", skew="15 s")
        p.add(Echo)
        p.sink("numbers", injected)
        p.sink("echoes", flaky)
        return tools.start(p)

    file_updates.replace(there, json.dumps({"fast": 100, "slow": 5}))
    run = start()
    with pytest.raises(RunFailed, match="the sink is away"):
        tools.step(run)
    run = start()
    tools.step(run)
    # fast was read to 20, not more than 15 s ahead of slow, and then ten more at once.
    assert sorted(flaky.values) == sorted([*range(30), *range(5)])
    assert run.status().low_watermark == 5 * mr.SECOND
    file_updates.replace(there, json.dumps({"fast": 100, "slow": 100}))
    tools.step(run)
    assert sorted(flaky.values) == sorted([*range(100), *range(100)])
    assert run.status().low_watermark == 100 * mr.SECOND
    assert run.status().late == 0
    # The epoch that was run again had the same records, with the same ids.
    assert [len(made) for made in attempts.values()][:3] == [1, 2, 1]
    assert attempts[1][0] == attempts[1][1]
    assert len({id for made in attempts.values() for id, _ in made[-1]}) == 200
