"""Sinks: what they get, how often, and what is left when a run dies between sink and completion."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import RunFailed


class Inner(msgspec.Struct):
    x: int
    y: str | None


class Out(msgspec.Struct):
    flag: bool
    ratio: float
    data: bytes
    when: dt.datetime
    day: dt.date
    maybe: int | None
    numbers: list[int]
    inner: Inner
    inners: list[Inner]
    anything: dict[str, Any]


class Make(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"made": Out, "texts": str, "keys": int}
    count = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.add(1)
        n = self.count.get()
        self.produce("texts", f"{self.key}{n}")
        self.produce("keys", n, key=(self.key, n))
        when = dt.datetime(2013, 2, 8, 1, 2, 3, 4, tzinfo=dt.UTC)
        self.produce(
            "made",
            Out(
                True, 1.5, b"\x00", when, dt.date(2013, 2, 8), n if n > 1 else None, [n],
                Inner(n, None), [Inner(1, "a")], {"k": [1, None]},
            ),
            timestamp=7,
        )  # fmt: skip


DDL = "word string, at long"


def _pipeline(source: Any, timestamp: Any = "at", **sinks: Any) -> mr.Pipeline:
    p = mr.Pipeline("sinks")
    p.inject("words", source, timestamp=timestamp, low_watermark=mr.BoundedDelay("1 s"))
    p.add(Make)
    for stream, sink in sinks.items():
        p.sink(stream, sink)
    return p


def test_formats_as_columns(spark: SparkSession, tools: Any, tmp_path: Path) -> None:
    feed = tools.feed(DDL)
    feed.add(("a", 1))
    frames: list[Any] = []

    def look(rows: Any, epoch: int) -> None:
        frames.append((rows.schema, rows.collect()))

    def jobs_of(*sinks: tuple[str, Any]) -> int:
        p = _pipeline(feed.bounded)
        for stream, sink in sinks:
            p.sink(stream, sink)
        group = f"{__name__} {len(sinks)}"
        spark.sparkContext.setJobGroup(group, "a batch")
        p.run_batch(spark)
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))

    # Tasks write the Parquet files. A job runs the batch, and the two others read what it kept.
    assert (
        jobs_of(("made", look), ("keys", look), ("made", mr.sinks.Parquet(tmp_path / "out"))) == 3
    )
    assert jobs_of(*(("made", mr.sinks.Parquet(tmp_path / f"out {n}")) for n in range(2))) == 1
    by_names = {tuple(schema.names): (schema, rows) for schema, rows in frames}
    schema, (row,) = by_names[(*Out.__struct_fields__, "_key", "_timestamp", "_id")]
    assert {field.name: field.dataType.simpleString() for field in schema} == {
        "flag": "boolean",
        "ratio": "double",
        "data": "binary",
        "when": "timestamp",
        "day": "date",
        "maybe": "bigint",
        "numbers": "array<bigint>",
        "inner": "struct<x:bigint,y:string>",
        "inners": "array<struct<x:bigint,y:string>>",
        "anything": "string",
        "_key": "string",
        "_timestamp": "timestamp",
        "_id": "binary",
    }
    assert (row.flag, row.ratio, bytes(row.data), row.day) == (
        True, 1.5, b"\x00", dt.date(2013, 2, 8),
    )  # fmt: skip
    assert row.when.timestamp() == dt.datetime(2013, 2, 8, 1, 2, 3, 4, tzinfo=dt.UTC).timestamp()
    assert row.maybe is None
    assert (row.numbers, row.inner.asDict()) == ([1], {"x": 1, "y": None})
    assert [inner.asDict() for inner in row.inners] == [{"x": 1, "y": "a"}]
    assert row.anything == '{"k":[1,null]}'
    assert row._key == "a"
    assert row._timestamp.timestamp() == pytest.approx(7e-6)
    assert len(row._id) == 16
    _, (row,) = by_names["value", "_key", "_timestamp", "_id"]
    assert (row.value, row._key) == (1, "('a', 1)")
    schema, (expected,) = by_names[(*Out.__struct_fields__, "_key", "_timestamp", "_id")]
    for name in ("out", "out 0", "out 1"):
        read = spark.read.parquet(str(tmp_path / name))
        assert read.drop("epoch").schema == schema
        (found,) = read.collect()
        # An id says which production it is, and each sink has one of its own.
        assert found.asDict() | {"_id": None} == expected.asDict() | {"_id": None, "epoch": 0}


def test_sinks_of_every_kind_side_by_side(
    spark: SparkSession, tools: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="an extra")
    feed, kept, memory = tools.feed(DDL), tools.Kept(), mr.sinks.Memory()
    calls: list[tuple[str, int, int]] = []

    def twice(rows: Any, epoch: int) -> None:
        calls.append(("twice", rows.count(), len(rows.collect())))

    def nothing(rows: Any, epoch: int) -> None:
        calls.append(("none", 0, 0))

    p = _pipeline(feed.stream)
    for sink in (
        kept,
        memory,
        mr.sinks.Console(),
        twice,
        nothing,
        mr.sinks.Parquet(tmp_path / "out"),
    ):
        p.sink("texts", sink)
    tables = [
        sink(tmp_path / f"{sink.__name__}", key="_key")
        for sink in (mr.sinks.Parquet, mr.sinks.Delta)
    ]
    for sink in tables:
        p.sink("texts", sink)
    run = tools.start(p)
    tools.step(run)
    capsys.readouterr()
    feed.add(("a", 1), ("b", 2), ("a", 3))
    tools.step(run)
    feed.add(("b", 4_000_000))
    status = tools.finish(run)

    assert tools.by_key(kept.rows) == {
        "a": [("a1", 1), ("a2", 3)],
        "b": [("b1", 2), ("b2", 4_000_000)],
    }
    assert sorted(row.value for row in memory.rows) == ["a1", "a2", "b1", "b2"]
    # Each sink is called for the epochs that have records for it.
    assert calls == [("twice", 3, 3), ("none", 0, 0), ("twice", 1, 1), ("none", 0, 0)]
    printed = capsys.readouterr().out
    assert printed.count("-- epoch") == 2
    assert "|a2" in printed
    ids = [id for epoch in kept.ids.values() for id in epoch]
    assert len(set(ids)) == 4
    assert all(len(id) == 16 for id in ids)
    # The schema is written before the first epoch, so a sink without rows can be read.
    schema, *epochs = sorted(path.name for path in (tmp_path / "out").glob("epoch=*"))
    assert schema == "epoch=-1"
    assert epochs == [f"epoch={n}" for n, rows in kept.epochs.items() if rows]
    assert status.epoch + 1 > len(epochs)
    # By key, the last of each.
    latest = spark.read.parquet(f"{tables[0].path}/latest").collect()
    assert {row._key: row.value for row in latest} == {"a": "a2", "b": "b2"}
    files = deltalake.DeltaTable(tables[1].path).file_uris()
    merged = spark.read.parquet(*files).collect()
    assert {row._key: row.value for row in merged} == {"a": "a2", "b": "b2"}


@pytest.mark.parametrize("single", [True, False], ids=["alone", "with others"])
def test_a_retried_epoch_is_written_once(
    spark: SparkSession, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, single: bool
) -> None:
    """The driver dies after the sinks and before the completion: the epoch runs again."""
    if not single:
        deltalake = pytest.importorskip("deltalake", reason="an extra")
        iceberg = pytest.importorskip("pyiceberg.catalog", reason="an extra")
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    feed, out = tools.feed(DDL), tmp_path / "out"
    first, second = tools.Kept(), tools.Kept()
    words = tools.Kept(), tools.Kept()

    def pipeline(kept: Any) -> mr.Pipeline:
        if single:
            return _pipeline(feed.stream, texts=mr.sinks.Parquet(out))
        p = _pipeline(feed.stream, timestamp=mr.INGRESS, texts=mr.sinks.Parquet(out))
        p.sink("words", words[kept is second])
        p.sink("texts", kept)
        p.sink("texts", mr.sinks.Delta(tmp_path / "table"))
        p.sink("texts", mr.sinks.Iceberg("lake.texts", tmp_path / "iceberg", catalog=catalog))
        return p

    complete, dying = RunLog.complete, [True]

    def dies(self: RunLog, manifest: Any, results: Any, sources: Any, **more: Any) -> Any:
        if "words" in sources and sources["words"].records and dying:
            dying.clear()
            raise OSError("the driver dies")
        return complete(self, manifest, results, sources, **more)

    monkeypatch.setattr(RunLog, "complete", dies)
    feed.add(("a", 1), ("b", 2), ("a", 3))
    run = tools.start(pipeline(first))
    with pytest.raises(RunFailed, match="the driver dies"):
        tools.step(run)
    (attempt,) = out.glob("epoch=[0-9]*")
    before = {path: path.stat().st_mtime_ns for path in attempt.iterdir()}

    tools.clock.now += mr.MINUTE
    status = tools.run(pipeline(second))

    assert {path: path.stat().st_mtime_ns for path in attempt.iterdir()} == before
    rows = spark.read.parquet(str(out)).collect()
    assert sorted(row.value for row in rows) == ["a1", "a2", "b1"]
    assert len({bytes(row._id) for row in rows}) == 3
    assert status.replayed > 0
    assert status.injected == {"words": 3}
    if not single:
        epoch = int(attempt.name.removeprefix("epoch="))
        assert sorted(zip(first.epochs[epoch], first.ids[epoch], strict=True)) == sorted(
            zip(second.epochs[epoch], second.ids[epoch], strict=True)
        )
        # Event time by ingress is that of the first attempt.
        assert {at for kept in words for _, _, at in kept.epochs[epoch]} == {tools.T0}
        table = deltalake.DeltaTable(str(tmp_path / "table"))
        rows = spark.read.parquet(*table.file_uris()).collect()
        assert sorted(row.value for row in rows) == ["a1", "a2", "b1"]
        assert table.version() == 1  # one makes it, and one adds the epoch
        texts = iceberg.load_catalog(**catalog).load_table("lake.texts")
        (snapshot,) = texts.snapshots()
        assert snapshot.summary["millrace.epoch"] == str(epoch)
        assert sorted(texts.scan().to_arrow().column("value").to_pylist()) == ["a1", "a2", "b1"]
    assert not list((out / "_staging").glob("*"))


def test_a_streaming_query_takes_what_a_sink_gets_once(
    spark: SparkSession, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query fails in a batch, and the run between the sink and the completion."""
    feed, out = tools.feed(DDL), tmp_path / "out"
    taken: dict[int, list[str]] = {}
    fails = [True]

    def take(rows: Any, batch: int) -> None:
        taken[batch] = sorted(row.value for row in rows.collect())
        if fails:
            fails.clear()
            raise ValueError("the query dies")

    def query() -> Any:
        rows = mr.spark.read_stream(spark, out)
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "query"))
        return writer.foreachBatch(take).trigger(availableNow=True).start()

    with pytest.raises(mr.MillraceError, match=r"expected the path of a mr\.sinks\.Parquet"):
        query()
    complete, dying = RunLog.complete, [True]

    def dies(self: RunLog, manifest: Any, results: Any, sources: Any, **more: Any) -> Any:
        if "words" in sources and sources["words"].records and dying:
            dying.clear()
            raise OSError("the driver dies")
        return complete(self, manifest, results, sources, **more)

    monkeypatch.setattr(RunLog, "complete", dies)
    feed.add(("a", 1), ("b", 2))
    run = tools.start(_pipeline(feed.stream, texts=mr.sinks.Parquet(out)))
    with pytest.raises(RunFailed, match="the driver dies"):
        tools.step(run)
    with pytest.raises(Exception, match="the query dies"):
        query().awaitTermination()
    query().awaitTermination()
    run = tools.start(_pipeline(feed.stream, texts=mr.sinks.Parquet(out)))
    tools.step(run)
    feed.add(("a", 3))
    tools.step(run)
    query().awaitTermination()
    tools.finish(run)
    query().awaitTermination()

    assert sorted(value for values in taken.values() for value in values) == ["a1", "a2", "b1"]
    assert [values for values in taken.values() if values] == [["a1", "b1"], ["a2"]]
    cluster = spark.newSession()
    cluster.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")  # where no path without a scheme is
    for path in (out, out.as_uri()):
        columns = mr.spark.read_stream(cluster, path).columns
        assert {*columns} == {"value", "_key", "_timestamp", "_id", "epoch"}


def test_what_a_killed_write_left_is_replaced(
    spark: SparkSession, tools: Any, tmp_path: Path
) -> None:
    feed, out = tools.feed(DDL), tmp_path / "out"
    feed.add(("a", 1))
    for epoch in range(4):
        staged = out / "_staging" / f"epoch={epoch}"
        staged.mkdir(parents=True)
        (staged / "part-torn.parquet").write_bytes(b"PAR1 and then the power failed")

    tools.run(_pipeline(feed.stream, texts=mr.sinks.Parquet(out)))

    assert [row.value for row in spark.read.parquet(str(out)).collect()] == ["a1"]
