"""A checkpoint that goes back to a savepoint in place, and what becomes of its sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import millrace as mr
from millrace.cli.main import main
from millrace.connectors.lakes.iceberg_catalog import open_catalog
from millrace.epochlog.reader import end_of
from millrace.inspect import state_at
from millrace.inspect.overview import RunEnd, leave_run_end
from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    PipelineError,
    ZombieWriter,
)
from millrace.store import Collector, SnapshotPolicy, Snapshots, open_location, write_if_due
from tests.live import Feeds, InEpochs, Kept, Live

ROWS = 24


class Event(msgspec.Struct):
    key: int
    at: int


class Total(msgspec.Struct):
    key: int
    count: int


class Counted(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"totals": Total}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("totals", Total(self.key, self.count.get()))


class Shop:
    """A run by epochs over a checkpoint on disk, in this process, with one sink."""

    def __init__(self, path: Path, sink: Any, *computations: mr.Computation) -> None:
        rows = [(n % 5, 1_000_000 * n) for n in range(ROWS)]
        source, p = Feeds("key long, at long", {"p0": rows}), mr.Pipeline("shop")
        policy = mr.BoundedDelay("5 s")
        p.inject("events", source, timestamp="at", low_watermark=policy, format=Event)
        p.add(Counted)
        for computation in computations:
            p.add(computation)
        p.sink("totals", sink)
        self.state: Any = open_location(path, pipeline="shop")
        self.live = Live(p, tasks=2, state=self.state)
        self.epochs = InEpochs(self.live)

    def epoch(self, limit: int) -> None:
        self.live.feed(limit)
        self.epochs.run(self.live.clock_us)

    def write_snapshots(self) -> None:
        """Write a snapshot of each key interval, and remove what is not needed any more."""
        for name, intervals in self.epochs.run_log.positions.maps.items():
            for interval in intervals.places:
                cache = self.live.caches[0].open(name, interval)
                write_if_due(cache, self.state.snapshots, name, interval, SnapshotPolicy(0))
        Collector(self.state).collect(self.epochs.run_log.collectable())

    def intervals(self, computation: str) -> set[int]:
        return {*self.epochs.run_log.positions.maps[computation].places}


EXPECTED = Counter(
    (key, count)
    for key in range(5)
    for count in range(1, 1 + sum(n % 5 == key for n in range(ROWS)))
)
LAST = {key: max(count for one, count in EXPECTED if one == key) for key in range(5)}


class Place:
    """A sink in a real system, and what a reader finds there."""

    def __init__(self, make: Callable[[], Any], read: Callable[[], Any], keyed: bool) -> None:
        self.make = make
        self.read = read
        self.keyed = keyed


@pytest.fixture(
    params=["parquet", "parquet by key", "delta", "delta by key", "iceberg", "postgres by key"]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    root, kind = tmp_path / "out", request.param
    key = {"key": "key"} if kind.endswith("by key") else {}
    if kind.startswith("parquet"):
        under = root / "latest" if key else root

        def parquet() -> list[dict[str, Any]]:
            files = [file for file in under.rglob("*.parquet") if "_staging" not in file.parts]
            return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

        return Place(lambda: mr.sinks.Parquet(root, **key), parquet, bool(key))
    if kind.startswith("delta"):
        deltalake = pytest.importorskip("deltalake")

        def delta() -> list[dict[str, Any]]:
            return list(deltalake.DeltaTable(str(root)).to_pyarrow_table().to_pylist())

        return Place(lambda: mr.sinks.Delta(root, **key), delta, bool(key))
    if kind == "iceberg":
        pytest.importorskip("pyiceberg")
        about = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}

        def iceberg() -> list[dict[str, Any]]:
            table = open_catalog(about).load_table("lake.totals")
            return list(table.scan().to_arrow().to_pylist())

        return Place(
            lambda: mr.sinks.Iceberg("lake.totals", root, catalog=about), iceberg, keyed=False
        )
    server = request.getfixturevalue("postgres")

    def postgres() -> list[dict[str, Any]]:
        import psycopg

        with psycopg.connect(server.conninfo) as connection:
            rows = connection.execute("SELECT key, count FROM totals").fetchall()
        return [{"key": key, "count": count} for key, count in rows]

    return Place(
        lambda: mr.sinks.PostgreSQL(server.conninfo, "totals", **key), postgres, keyed=True
    )


def seen(place: Place) -> Counter[tuple[int, int]]:
    return Counter((row["key"], row["count"]) for row in place.read())


def run(command: str, *arguments: Any) -> Any:
    """Run a command; one that would ask a run first does not wait for it: there is none."""
    waits = ["--timeout", "0"] if command == "restore" else []
    return CliRunner().invoke(main, ["checkpoint", command, *waits, *map(str, arguments)])


def test_a_checkpoint_goes_back_in_place_and_its_sinks_with_it(
    place: Place, tmp_path: Path
) -> None:
    ckpt = tmp_path / "ckpt"
    shop = Shop(ckpt, place.make())
    shop.epoch(6)
    shop.epoch(12)
    assert mr.ops.add_savepoint(ckpt, "before") == 1
    then, kept = seen(place), [*mr.ops.open_checkpoint(ckpt)["Counted"].scan()]
    owners = {"", end_of(shop.state.epochs).claim.owner}
    shop.epoch(18)
    shop.epoch(20)
    leave_run_end(shop.state.mailbox, 1, RunEnd("stopped", 3, 0))

    said = run("restore", ckpt, "--savepoint", "before")

    assert said.exit_code == 0, said.output
    assert "is as savepoint before was, after epoch 1." in said.output
    assert run("verify", ckpt).exit_code == 0
    assert [*mr.ops.open_checkpoint(ckpt)["Counted"].scan()] == kept
    assert end_of(shop.state.epochs).claim.owner not in owners
    Shop(ckpt, place.make())
    if not place.keyed:
        assert seen(place) == then
    again = Shop(ckpt, place.make())  # the first one died before it had completed an epoch
    again.epoch(ROWS)
    assert seen(place) == (Counter(LAST.items()) if place.keyed else EXPECTED)
    assert mr.ops.savepoints(ckpt) == {"before": 1}
    assert run("verify", ckpt).exit_code == 0
    with pytest.raises(ZombieWriter):
        shop.epoch(ROWS)


def test_in_real_time_it_goes_back_likewise(place: Place, tmp_path: Path) -> None:
    ckpt = tmp_path / "ckpt"

    def session(limit: int, *, draining: bool = False) -> None:
        live = Shop(ckpt, place.make()).live
        live.open()
        live.boot()
        live.feed(limit)
        live.plane.settle(live.clock_us)
        live.plane.end(live.clock_us, draining=draining)
        assert live.coordinator.ended

    session(12)
    mr.ops.add_savepoint(ckpt, "before")
    then, kept = seen(place), [*mr.ops.open_checkpoint(ckpt)["Counted"].scan()]
    session(20)
    mr.ops.restore_checkpoint(ckpt, "before")
    assert [*mr.ops.open_checkpoint(ckpt)["Counted"].scan()] == kept
    Shop(ckpt, place.make())
    if not place.keyed:
        assert seen(place) == then

    session(16)
    session(ROWS, draining=True)

    assert seen(place) == (Counter(LAST.items()) if place.keyed else EXPECTED)
    assert run("verify", ckpt).exit_code == 0


def test_a_sink_that_takes_nothing_back_is_named_and_has_to_be_accepted(tmp_path: Path) -> None:
    ckpt, sink = tmp_path / "ckpt", Kept()
    shop = Shop(ckpt, sink)
    shop.epoch(6)
    mr.ops.add_savepoint(ckpt, "before")
    shop.epoch(12)
    leave_run_end(shop.state.mailbox, 1, RunEnd("stopped", 1, 0))
    entries = shop.state.epochs.last()

    said = run("restore", ckpt, "--savepoint", "before")

    assert said.exit_code == 1
    assert "cannot take back what epochs 1 to 1 have written" in said.output
    assert "of stream 'totals'" in said.output
    assert shop.state.epochs.last() == entries
    assert run("restore", ckpt, "--savepoint", "before", "--yes").exit_code == 0
    back = Shop(ckpt, sink)
    back.epoch(ROWS)
    assert Counter((row["key"], row["count"]) for row in sink.rows) > EXPECTED


def test_a_restore_that_is_cut_off_is_said_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt, root = tmp_path / "ckpt", tmp_path / "out"
    shop = Shop(ckpt, mr.sinks.Parquet(root))
    shop.epoch(6)
    mr.ops.add_savepoint(ckpt, "before")
    shop.epoch(12)

    def full(*_: Any) -> bool:
        raise CheckpointUnwritable("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(Snapshots, "put", full)
        with pytest.raises(CheckpointUnwritable):
            mr.ops.restore_checkpoint(ckpt, "before")
    with pytest.raises(CheckpointMismatch, match="restore the savepoint again"):
        Shop(ckpt, mr.sinks.Parquet(root))

    assert mr.ops.restore_checkpoint(ckpt, "before") == 0
    back = Shop(ckpt, mr.sinks.Parquet(root))
    back.epoch(ROWS)
    files = [file for file in root.rglob("*.parquet") if "_staging" not in file.parts]
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert Counter((row["key"], row["count"]) for row in rows) == EXPECTED


def test_what_sinks_have_taken_back_does_not_come_again_unless_that_is_accepted(
    tmp_path: Path,
) -> None:
    ckpt, root = tmp_path / "ckpt", tmp_path / "out"
    shop = Shop(ckpt, mr.sinks.Parquet(root))
    for name, limit in (("monday", 4), ("tuesday", 8)):
        shop.epoch(limit)
        mr.ops.add_savepoint(ckpt, name)
    mr.ops.restore_checkpoint(ckpt, "monday")
    mr.ops.restore_checkpoint(ckpt, "tuesday")  # sinks know nothing of it yet
    mr.ops.restore_checkpoint(ckpt, "monday")
    mr.ops.add_savepoint(ckpt, "monday-again")
    mr.ops.restore_checkpoint(ckpt, "monday-again")  # what came since is still in the sink
    Shop(ckpt, mr.sinks.Parquet(root)).epoch(6)
    mr.ops.add_savepoint(ckpt, "wednesday")
    entries = state_at(ckpt).epochs.last()

    said = run("restore", ckpt, "--savepoint", "tuesday")

    assert said.exit_code == 1
    assert "sinks have taken back epochs 1 to 1 of it" in said.output
    assert state_at(ckpt).epochs.last() == entries
    mr.ops.restore_checkpoint(ckpt, "wednesday")
    back = Shop(ckpt, mr.sinks.Parquet(root))
    back.epoch(ROWS)
    files = [file for file in root.rglob("*.parquet") if "_staging" not in file.parts]
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    assert Counter((row["key"], row["count"]) for row in rows) == EXPECTED
    assert run("restore", ckpt, "--savepoint", "tuesday", "--yes").exit_code == 0


def test_what_cannot_be_restored_is_refused(tmp_path: Path) -> None:
    ckpt = tmp_path / "ckpt"
    shop = Shop(ckpt, mr.sinks.Parquet(tmp_path / "out"))
    shop.epoch(6)
    mr.ops.add_savepoint(ckpt, "now")
    with pytest.raises(CheckpointMismatch, match="no savepoint 'before'; there are now"):
        mr.ops.restore_checkpoint(ckpt, "before")
    with pytest.raises(PipelineError, match="cannot name a savepoint"):
        mr.ops.restore_checkpoint(ckpt, "../now")
    assert state_at(ckpt).epochs.last() == shop.state.epochs.last()


class Sums(mr.Computation):
    """Adds a step for each record; writes what it has to a stream of its own."""

    inputs = {"events": mr.by("key")}
    outputs = {"totals": Total}
    sum = mr.ValueState(int)

    def __init__(self, step: int) -> None:
        self.step = step

    def process_record(self, record: mr.Record) -> None:
        self.sum.set(self.sum.get(0) + self.step)
        self.produce("totals", Total(-1 - self.key, self.sum.get()))


def test_a_computation_that_was_added_since_begins_anew_beside_what_it_left(
    tmp_path: Path,
) -> None:
    ckpt, sink = tmp_path / "ckpt", Kept()
    Shop(ckpt, sink).epoch(6)
    mr.ops.add_savepoint(ckpt, "before")

    def summed(step: int) -> tuple[Shop, list[str]]:
        """Run three epochs with a snapshot of everything after each; return the ids of sums."""
        shop, since = Shop(ckpt, sink, Sums(step)), len(sink.rows)
        for limit in (9, 12, 15):
            shop.epoch(limit)
            shop.write_snapshots()
        return shop, [row["_id"] for row in sink.rows[since:] if row["key"] < 0]

    shop, ids = summed(1)
    left = shop.intervals("Sums")
    mr.ops.restore_checkpoint(ckpt, "before", accept=True)
    Shop(ckpt, sink).epoch(8)  # it may come back later
    shop, others = summed(100)

    assert not {*ids} & {*others}
    assert not left & shop.intervals("Sums")
    assert shop.state.snapshots.numbers("Sums").keys() <= shop.intervals("Sums")
    assert {row.key: row.cells["sum"] for row in mr.ops.open_checkpoint(ckpt)["Sums"].scan()} == {
        key: 100 * sum(n % 5 == key for n in range(8, 15)) for key in range(5)
    }
    assert run("verify", ckpt).exit_code == 0
