"""Sinks of the real-time plane: whoever dies, and whenever, leaves the same rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.connectors.lakes import delta_table
from millrace.connectors.parquet import files
from millrace.connectors.parquet.files import STAGING
from millrace.epochlog.run_log import RunLog
from millrace.runtime.realtime.incarnation_start import from_live_tasks
from millrace.runtime.sink_contract import sinks_by_edge
from tests.live import Feeds, InEpochs, Live


class Event(msgspec.Struct):
    key: int
    at: int


class Seen(msgspec.Struct):
    key: int
    count: int


class Count(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"seen": Seen}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce("seen", Seen(self.key, self.count.get()))


#: Records of each of eight keys.
EACH = 15
EXPECTED = Counter((key, count) for key in range(8) for count in range(1, EACH + 1))


def pipeline(*sinks: Any) -> mr.Pipeline:
    rng = random.Random(3)
    rows = [(key, 1_000_000 * n) for n in range(EACH) for key in range(8)]
    rng.shuffle(rows)
    feeds = Feeds("key long, at long", {"p0": rows[::2], "p1": rows[1::2]})
    p = mr.Pipeline("live sinks")
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("9 s"), format=Event)
    p.add(Count)
    for sink in sinks:
        p.sink("seen", sink)
    return p


class Dies(Exception):
    """The driver is killed."""


class Killer:
    """Kills the driver before or after some of its steps."""

    def __init__(self, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kills = 0
        self._rng, self._monkeypatch, self._alive = rng, monkeypatch, False

    def around(self, owner: Any, name: str) -> None:
        step: Callable[..., Any] = getattr(owner, name)

        def stepping(*arguments: Any, **named: Any) -> Any:
            self._perhaps()
            done = step(*arguments, **named)
            self._perhaps()
            return done

        self._monkeypatch.setattr(owner, name, stepping)

    def _perhaps(self) -> None:
        if not self._alive and self._rng.random() < 0.25:
            self.kills += 1
            raise Dies

    def play(self, live: Live) -> None:
        """Play a schedule; whoever dies is started again. The end of it is undisturbed."""
        live.boot()
        for _ in range(12):
            try:
                live.play(self._rng, turns=40, crash=0.02, mark=0.05)
            except Dies:
                live.plane.crash()
                live.open()
                self._boot(live)
        self._alive = True
        live.boot()
        live.finish()
        assert live.coordinator.ended

    def _boot(self, live: Live) -> None:
        while not live.plane.running:
            try:
                live.boot()
            except Dies:
                live.plane.crash()
                live.open()


def in_files(root: Path) -> Counter[tuple[int, int]]:
    found = Counter[tuple[int, int]]()
    for file in root.glob("epoch=*/*.parquet"):
        rows = pq.ParquetFile(file).read().to_pylist()
        found.update((row["key"], row["count"]) for row in rows)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_parquet_has_each_row_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(random.Random(seed), monkeypatch)
    killer.around(mr.sinks.Parquet, "publish")
    killer.around(RunLog, "complete")
    killer.play(Live(pipeline(mr.sinks.Parquet(tmp_path / "out"))))

    assert killer.kills
    assert in_files(tmp_path / "out") == EXPECTED
    assert list((tmp_path / "out" / STAGING).iterdir()) == []


def test_what_a_live_run_left_unpublished_is_published_by_who_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(pipeline(mr.sinks.Parquet(tmp_path / "out")))
    live.boot()
    with monkeypatch.context() as patch:
        patch.setattr(mr.sinks.Parquet, "publish", lambda *_: (_ for _ in ()).throw(Dies))
        with pytest.raises(Dies):
            live.finish()
    assert in_files(tmp_path / "out") == Counter()

    # Its input has ended, so there is no incarnation to come; a run by epochs can take it over.
    live.open()
    from_live_tasks(live.run_log, sinks_by_edge(live.topology))
    assert in_files(tmp_path / "out") == EXPECTED


def in_table(root: Path) -> Counter[tuple[int, int]]:
    """Return what the log of a Delta table names; no table, no rows."""
    if not deltalake().DeltaTable.is_deltatable(str(root)):
        return Counter()
    rows = [
        row
        for uri in deltalake().DeltaTable(str(root)).file_uris()
        for row in pq.read_table(Path(uri)).to_pylist()
    ]
    return Counter((row["key"], row["count"]) for row in rows)


def deltalake() -> Any:
    return pytest.importorskip("deltalake", reason="an extra: pip install 'millrace-spark[delta]'")


@pytest.mark.parametrize("seed", range(4))
def test_a_delta_table_has_each_row_once_whoever_dies(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, killer = tmp_path / "out", Killer(random.Random(seed), monkeypatch)
    killer.around(deltalake().DeltaTable, "create_write_transaction")
    killer.around(mr.sinks.Delta, "publish")
    killer.around(RunLog, "complete")
    killer.play(Live(pipeline(mr.sinks.Delta(out))))

    assert killer.kills
    assert in_table(out) == EXPECTED
    assert list((out / STAGING).iterdir()) == []


@pytest.mark.parametrize("seed", range(3))
def test_an_iceberg_table_has_each_row_once_whoever_dies(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "an extra: pip install 'millrace-spark[iceberg]'"
    loading = pytest.importorskip("pyiceberg.catalog", reason=why)
    tables = pytest.importorskip("pyiceberg.table", reason=why)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    out, killer = tmp_path / "out", Killer(random.Random(seed), monkeypatch)
    killer.around(tables.Table, "_do_commit")
    killer.around(mr.sinks.Iceberg, "publish")
    killer.around(RunLog, "complete")
    killer.play(Live(pipeline(mr.sinks.Iceberg("lake.totals", out, catalog=catalog))))

    assert killer.kills
    rows = loading.load_catalog(**catalog).load_table("lake.totals").scan().to_arrow().to_pylist()
    assert Counter((row["key"], row["count"]) for row in rows) == EXPECTED
    assert list((out / STAGING).iterdir()) == []


@pytest.mark.parametrize("kind", ["Parquet", "Delta"])
@pytest.mark.parametrize("seed", range(2))
def test_a_table_by_key_has_the_last_row_of_each_whoever_dies(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake()
    out, killer = tmp_path / "out", Killer(random.Random(seed), monkeypatch)
    sink = getattr(mr.sinks, kind)
    live = Live(pipeline(sink(out, key="key")))
    killer.around(sink, "publish")
    killer.around(files, "rename_into_place")
    killer.around(delta_table, "merge")
    killer.around(RunLog, "complete")
    killer.play(live)

    assert killer.kills
    if kind == "Delta":
        found = in_table(out)
    else:
        rows = pq.read_table(out / "latest").to_pylist()
        found = Counter((row["key"], row["count"]) for row in rows)
    assert found == Counter((key, EACH) for key in range(8))


def test_a_table_by_key_has_the_last_row_of_each_though_productions_were_to_be_weak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of weak productions say from which process a record came, and not which was later."""
    monkeypatch.setattr(Count, "productions", mr.WEAK)
    live = Live(pipeline(mr.sinks.Parquet(tmp_path, key="key")))
    live.boot()
    live.play(random.Random(0), turns=60, crash=0, mark=0)
    live.finish()

    rows = pq.read_table(tmp_path / "latest").to_pylist()
    assert [(row["key"], row["count"]) for row in rows if row["count"] != EACH] == []


def test_a_delta_table_goes_on_from_plane_to_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live driver dies right before its last commit; epochs go on, one of them twice."""
    deltalake()
    out = tmp_path / "out"
    live = Live(pipeline(mr.sinks.Delta(out)))
    live.boot()
    live.feed(20)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)
    live.feed(40)
    live.plane.settle(live.clock_us)
    with monkeypatch.context() as patch:
        patch.setattr(mr.sinks.Delta, "publish", lambda *_: (_ for _ in ()).throw(Dies))
        with pytest.raises(Dies):
            live.plane.end(live.clock_us)
    assert in_table(out).total() == 40

    live.open()
    epochs = InEpochs(live)
    assert in_table(out).total() == 80
    publish, published = mr.sinks.Delta.publish, list[int]()

    def twice(self: mr.sinks.Delta, epoch: int, receipts: list[bytes]) -> None:
        staged = [self._files.root / STAGING / receipt.decode() for receipt in receipts]
        bytes_of = [file.read_bytes() for file in staged]
        publish(self, epoch, receipts)
        for file, content in zip(staged, bytes_of, strict=True):
            file.write_bytes(content)
        publish(self, epoch, receipts)
        published.append(epoch)

    monkeypatch.setattr(mr.sinks.Delta, "publish", twice)
    live.feed(EACH * 8)
    epochs.run(live.clock_us, draining=True)
    assert published
    assert in_table(out) == EXPECTED


@pytest.mark.parametrize("seed", range(3))
def test_a_function_and_postgresql_in_turns(
    seed: int, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has each row once; the function is given each at least once, with one id."""
    given: list[tuple[bytes, int, int]] = []

    def take(rows: pa.RecordBatch) -> None:
        given.extend((row["_id"], row["key"], row["count"]) for row in rows.to_pylist())

    killer = Killer(random.Random(seed), monkeypatch)
    killer.around(RunLog, "complete")
    sinks = [
        mr.sinks.Function(take),
        mr.sinks.PostgreSQL(postgres.conninfo, "seen"),
        mr.sinks.PostgreSQL(postgres.conninfo, "latest", key="key"),
    ]
    killer.play(Live(pipeline(*sinks)))

    assert killer.kills
    assert Counter(postgres.query("SELECT key, count FROM seen")) == EXPECTED
    assert sorted(postgres.query("SELECT key, count FROM latest")) == [(k, EACH) for k in range(8)]
    assert Counter((key, count) for _, key, count in set(given)) == EXPECTED
    assert len(given) > len(set(given)) == len({id for id, _, _ in given})
