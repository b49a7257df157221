"""Delta and Iceberg in a bucket: the same epochs, whoever dies or fails between two requests."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store

import millrace as mr
from millrace.model.errors import CheckpointMismatch, PipelineError, SinkError
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns
from millrace.store.object_blobs import ObjectBlobs

deltalake = pytest.importorskip("deltalake", reason="an extra: pip install 'millrace-spark[delta]'")
pytest.importorskip("pyiceberg", reason="an extra: pip install 'millrace-spark[iceberg]'")
from pyiceberg.catalog import load_catalog  # noqa: E402

COLUMNS = SinkColumns(int, mr.coders.Msgpack(int))


class Lake:
    """One table in a bucket, of either kind."""

    def __init__(self, kind: str, url: str, folder: Path) -> None:
        self.kind, self.url, self._folder = kind, f"{url}/table", folder
        self._key: str | tuple[str, ...] = "_key" if kind == "Delta by key" else ()

    def sink(self, owner: str = "me") -> Any:
        """Return the sink of a driver that has just started."""
        sink = self.made()
        sink.bind(Binding("p", "s", owner, COLUMNS))
        sink.claim(1, 0)
        return sink

    def made(self) -> Any:
        if self.kind == "Iceberg":
            return mr.sinks.Iceberg("lake.totals", self.url, catalog=self.catalog)
        if self.kind == "Parquet":
            return mr.sinks.Parquet(self.url)
        return mr.sinks.Delta(self.url, key=self._key)

    @property
    def catalog(self) -> Mapping[str, str]:
        """PyIceberg's own names of what is in the environment."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self._folder}/catalog.db",
            "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
            "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "s3.region": os.environ["AWS_REGION"],
        }

    def written(self, *values: int, epoch: int = 3, task: int = 0) -> bytes:
        """Write an attempt at a task to its end; return its receipt."""
        file = self.made().for_tasks().begin(epoch, task)
        at = pa.array(values, pa.timestamp("us", tz="UTC"))
        keys = pa.array([f"k{value}" for value in values])
        columns = [pa.array(values), keys, at, pa.array([b"i"] * len(values))]
        file.write(pa.RecordBatch.from_arrays(columns, list(COLUMNS.arrow.names)))
        receipt: bytes = file.close()
        return receipt

    def seen(self) -> list[int]:
        """Return what any reader of such a table finds."""
        if self.kind == "Iceberg":
            table = load_catalog(**self.catalog).load_table("lake.totals")
            return sorted(table.scan().to_arrow().column("value").to_pylist())
        if self.kind == "Parquet":
            files = [name for name in self.names() if name.startswith("epoch=")]
            data = [name for name in files if not name.rpartition("/")[2].startswith("_")]
            tables = [pq.read_table(io.BytesIO(self.store.get(name).bytes())) for name in data]
            return sorted(v for table in tables for v in table.column("value").to_pylist())
        table = deltalake.DeltaTable(self.url)
        return sorted(table.to_pyarrow_table().column("value").to_pylist())

    @property
    def store(self) -> S3Store:
        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        return S3Store(bucket, prefix=prefix, client_options={"allow_http": True})

    def names(self) -> list[str]:
        """Return the names of all objects of the table."""
        return sorted(entry["path"] for page in obstore.list(self.store) for entry in page)

    def left(self) -> list[str]:
        return [name for name in self.names() if name.startswith("_staging/")]


@pytest.fixture(params=["Delta", "Delta by key", "Iceberg", "Parquet"])
def lake(request: pytest.FixtureRequest, s3: str, tmp_path: Path) -> Lake:
    return Lake(request.param, s3, tmp_path)


def test_an_epoch_is_one_commit_and_nothing_is_left_aside(lake: Lake) -> None:
    sink = lake.sink()
    assert lake.seen() == []  # it can be read before there are records
    lost = lake.written(9)  # an attempt that does not count
    receipts = [lake.written(1, 2), lake.written(3, task=1)]
    later = lake.written(4, epoch=4)

    sink.publish(3, receipts)

    assert lake.seen() == [1, 2, 3]
    assert lake.left() == [f"_staging/{later.decode()}"]
    assert not any(lost.decode().rpartition("-")[2] in name for name in lake.names())
    lake.sink().publish(4, [later])
    assert lake.seen() == [1, 2, 3, 4]


@pytest.mark.parametrize("step", ["take", "remove"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_goes_on_from_a_driver_that_died_adds_each_row_once(
    step: str,
    after: bool,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken = "read_range_of" if lake.kind == "Delta by key" else "copy"  # of what is staged
    request = {"take": taken, "remove": "remove"}[step]
    does = getattr(ObjectBlobs, request)

    def dies(*arguments: Any, **named: Any) -> Any:
        if after:
            does(*arguments, **named)
        raise KeyboardInterrupt

    lake.sink().publish(2, [lake.written(0, epoch=2)])
    receipts = [lake.written(1, 2), lake.written(3, task=1)]
    with monkeypatch.context() as patch:
        patch.setattr(ObjectBlobs, request, dies)
        with pytest.raises(KeyboardInterrupt):
            lake.sink().publish(3, receipts)

    lake.sink().publish_again(3, receipts)
    lake.sink().publish_again(3, receipts)

    assert lake.seen() == [0, 1, 2, 3]
    assert lake.left() == []
    assert caplog.text == ""


def test_two_drivers_publish_an_epoch_and_one_adds_it(lake: Lake) -> None:
    old, new = lake.sink(), lake.sink()
    receipts = [lake.written(1), lake.written(2, task=1)]
    new.publish(3, receipts)
    old.publish(3, receipts)  # what was staged is gone, and the epoch is there
    assert lake.seen() == [1, 2]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_of_two_drivers_with_files_of_their_own_one_publishes_its(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """One is paused as it says which files count; meanwhile the other publishes the epoch."""
    lake = Lake("Parquet", s3, tmp_path)
    old, new = lake.sink(), lake.sink()
    theirs, others = [lake.written(1), lake.written(2, task=1)], [lake.written(1), lake.written(2)]
    put = ObjectBlobs.put_if_absent

    def paused(*arguments: Any) -> bool:
        monkeypatch.setattr(ObjectBlobs, "put_if_absent", put)
        if after:
            won = put(*arguments)
            new.publish(3, others)
            return won
        new.publish(3, others)
        return put(*arguments)

    monkeypatch.setattr(ObjectBlobs, "put_if_absent", paused)
    old.publish(3, theirs)
    lake.sink().publish_again(3, others)

    assert lake.seen() == [1, 2]
    assert lake.left() == []


def test_it_takes_back_what_epochs_have_added(lake: Lake) -> None:
    for epoch in (1, 2, 3):
        lake.sink().publish(epoch, [lake.written(epoch, epoch=epoch)])
    for _ in range(2):
        lake.sink().take_back(1, 4)
        assert lake.seen() == ([1, 2, 3] if lake.kind == "Delta by key" else [1])
    lake.sink().publish(5, [lake.written(5, epoch=5)])
    assert lake.seen()[-1] == 5


def test_it_is_one_checkpoints(lake: Lake) -> None:
    lake.sink().publish(3, [lake.written(1)])
    with pytest.raises(CheckpointMismatch, match="holds the output of another checkpoint"):
        lake.sink("another")


def test_what_the_bucket_refuses_is_an_error_of_the_sink(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_OBJECT_RETRY_FOR", "10 ms")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(SinkError, match=r"epoch 3: table s3://.* 403.* every worker credentials"):
        lake.written(1)


def test_a_table_that_cannot_be_opened_is_said_at_the_start(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    sink = mr.sinks.Delta(f"{s3}/table")
    with pytest.raises(
        PipelineError, match=r"the table cannot be opened: 403 .* the AWS_\* variables"
    ):
        sink.bind(Binding("p", "s", "me", COLUMNS))
    source = mr.sources.Delta(f"{s3}/table", schema="a long")
    with pytest.raises(
        PipelineError, match=r"the table cannot be read: 403 .* the AWS_\* variables"
    ):
        source.advance(source.path, None)


def test_other_spellings_are_named() -> None:
    with pytest.raises(PipelineError, match=r"table with scheme 's3a'.* Write s3://bucket/prefix"):
        mr.sinks.Delta("s3a://lake/trips")
    with pytest.raises(PipelineError, match="or s3://bucket/prefix, gs://bucket/prefix"):
        mr.sources.Delta("hdfs://host/trips", schema="a long")


def test_a_table_by_key_that_was_made_anew_is_refused(s3: str, tmp_path: Path) -> None:
    lake = Lake("Delta by key", s3, tmp_path)
    lake.sink().publish(3, [lake.written(1)])
    table = deltalake.DeltaTable(lake.url)
    deltalake.write_deltalake(lake.url, table.to_pyarrow_table().slice(0, 0), mode="overwrite")
    with pytest.raises(PipelineError, match="somebody has rewritten it in version"):
        lake.sink()


def of(*numbers: int) -> pa.Table:
    return pa.table({"a": pa.array(numbers, pa.int64()), "at": pa.array(numbers, pa.int64())})


def test_appends_are_read_from_a_bucket_version_by_version(s3: str) -> None:
    url = f"{s3}/trips"
    deltalake.write_deltalake(url, of(1, 2))
    p = mr.Pipeline("trips")
    p.inject("trips", mr.sources.Delta(url, schema="a long, at long"), timestamp="at")
    p.sink("trips", mr.sinks.Memory())
    with mr.testing.Harness(p, publish=True) as h:
        assert (h.poll("trips"), h.poll("trips")) == (0, 2)
        deltalake.write_deltalake(url, of(3), mode="append")
        deltalake.write_deltalake(url, of(4), mode="append")
        deltalake.DeltaTable(url).optimize.compact()
        assert h.poll("trips") == 2
        assert [output.value["a"] for output in h.outputs("trips")] == [1, 2, 3, 4]
        h.crash()
        assert h.poll("trips") == 0


def test_partitions_of_any_name_are_read_from_a_bucket(s3: str) -> None:
    places = ["a b", "ü", "x/y", "1%", "p=q", "q?r#s"]
    rows = pa.table({"place": places, "at": pa.array(range(6), pa.int64())})
    deltalake.write_deltalake(f"{s3}/trips", rows, partition_by=["place"])
    source = mr.sources.Delta(f"{s3}/trips", schema="place string, at long")
    (process,) = source.processes()
    start = source.advance(process, None).offset
    end = source.advance(process, start).offset
    pieces = source.split(process, start, end)
    read = [row for piece in pieces for row in source.read(process, *piece)]
    assert sorted(read, key=lambda row: row[1]) == list(zip(places, range(6), strict=True))


def test_iceberg_appends_are_read_from_a_bucket(s3: str, tmp_path: Path) -> None:
    lake = Lake("Iceberg", s3, tmp_path)
    catalog = load_catalog(**lake.catalog)
    catalog.create_namespace("lake")
    table = catalog.create_table("lake.trips", of().schema, location=f"{s3}/trips")
    table.append(of(1, 2))
    p = mr.Pipeline("trips")
    source = mr.sources.Iceberg("lake.trips", schema="a long, at long", catalog=lake.catalog)
    p.inject("trips", source, timestamp="at")
    p.sink("trips", mr.sinks.Memory())
    with mr.testing.Harness(p, publish=True) as h:
        assert (h.poll("trips"), h.poll("trips")) == (0, 2)
        table.append(of(3))
        assert h.poll("trips") == 1
        assert [output.value["a"] for output in h.outputs("trips")] == [1, 2, 3]
