"""Files whose directory is a prefix of a bucket: each object once, whatever is put meanwhile."""

from __future__ import annotations

import io
from collections.abc import Callable

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store

import millrace as mr
from millrace.connectors.buckets import BucketPath
from millrace.model.errors import InputLost, PipelineError, StoreError
from millrace.model.time import format_timestamp
from millrace.store import BucketOptions, BucketUrl
from tests.unit.connectors.lakeside import Lakeside

Put = Callable[[str, bytes], None]


@pytest.fixture
def put(s3: str) -> Put:
    """Put an object under the prefix."""
    bucket, _, prefix = s3.removeprefix("s3://").partition("/")
    store = S3Store(bucket, prefix=prefix, client_options={"allow_http": True})
    return lambda name, data: obstore.put(store, name, data) and None


def lines(*numbers: int) -> bytes:
    return b"".join(b'{"n": %d}\n' % n for n in numbers)


def reader(s3: str, **given: object) -> Lakeside:
    lake = Lakeside()
    lake.begin(mr.sources.Files(s3, schema="n long", **given))
    return lake


def test_objects_are_read_once_each_as_they_come(s3: str, put: Put) -> None:
    put("1.json", lines(1, 2))
    put("_half.json", lines(8))
    put(".hidden", lines(9))
    put("later/2.json", lines(10))
    read = reader(s3)
    assert read.read_all() == [[1, 2]]
    put("2.json", lines(3))
    put("1.json.parquet", parquet(4))
    assert sorted(flat(read)) == [3, 4]
    assert read.read_all() == []


def flat(read: Lakeside) -> list[int]:
    return [n for epoch in read.read_all() for n in epoch]


def parquet(*numbers: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), out)
    return out.getvalue()


def test_folders_are_read_with_their_columns(s3: str, put: Put) -> None:
    put("day=2026-11-29/1.parquet", parquet(1))
    put("_day=2026-11-30/2.parquet", parquet(2))
    put("_tmp/3.parquet", parquet(3))
    put("plain/4.parquet", parquet(4))
    assert sorted(flat(reader(s3, recursive=True))) == [1, 2, 4]
    assert flat(reader(s3, recursive=True, pattern="plain/*")) == [4]
    source = mr.sources.Files(s3, schema="n long, day string", recursive=True, pattern="day=*")
    offset = source.advance(s3, None).offset
    rows = [row for piece in source.split(s3, None, offset) for row in source.read(s3, *piece)]
    assert rows == [(1, "2026-11-29")]


def test_objects_may_have_any_name(s3: str, put: Put) -> None:
    names = ["a b.json", "ü.json", "1%.json", "%2e.json", "p=q.json", "q?r#s.json", "x&y+z.json"]
    for n, name in enumerate(names):
        put(name, lines(n))
    assert sorted(flat(reader(s3))) == list(range(len(names)))


def test_large_objects_are_read_by_several_tasks(s3: str, put: Put) -> None:
    put(
        "large.json",
        b"".join(b'{"n": %d, "more": "%s"}\n' % (n, b"x" * 1000) for n in range(30_000)),
    )
    read = reader(s3, bytes_per_epoch=24 << 20)
    between = read.plan()
    first = read.read(between)
    rest = flat(read)
    assert first + rest == list(range(30_000))
    assert len(rest) > 0


def test_an_object_that_is_replaced_is_an_error(s3: str, put: Put) -> None:
    put("1.json", lines(1, 2))
    read = reader(s3)
    between = read.plan()
    put("1.json", lines(5, 6))
    with pytest.raises(InputLost, match=r"s3://.*/1\.json: it was truncated or replaced"):
        read.read(between)


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(s3: str, put: Put) -> None:
    put("1.json", lines(*range(20_000)))
    path = BucketPath(BucketUrl.parse(s3), BucketOptions(), "Files") / "1.json"
    with path.open() as file:
        assert file.readline() == b'{"n": 0}\n'
        put("1.json", lines(*range(5, 20_005)))
        with pytest.raises(FileNotFoundError, match=r"1\.json, as it was when it was opened"):
            file.read()


def test_what_is_gone_before_it_was_read_is_an_error(s3: str, put: Put) -> None:
    put("1.json", lines(1))
    read = reader(s3)
    between = read.plan()
    bucket, _, prefix = s3.removeprefix("s3://").partition("/")
    obstore.delete(S3Store(bucket, prefix=prefix, client_options={"allow_http": True}), "1.json")
    with pytest.raises(InputLost, match="it was removed before bytes 0 to"):
        read.read(between)


def test_how_much_waits_and_the_low_watermark(s3: str, put: Put) -> None:
    source = mr.sources.Files(s3, schema="n long", created="%Y%m%d.json", bytes_per_epoch=1)
    put("20261101.json", lines(1))
    put("20261102.json", lines(2))
    assert source.backlog(s3, None) == mr.sources.Backlog(files=2, size=18)
    advance = source.advance(s3, None)
    assert format_timestamp(advance.low_watermark).startswith("2026-11-02")
    assert source.backlog(s3, advance.offset) == mr.sources.Backlog(files=1, size=9)


def test_what_the_store_refuses(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match=r"Files s3://.*: list failed: 403"):
        mr.sources.Files(s3, schema="n long").advance(s3, None)
    with pytest.raises(PipelineError, match="objects are not renamed"):
        mr.sources.Files(s3, schema="n long", rotated=True)
    with pytest.raises(PipelineError, match="or s3://bucket/prefix"):
        mr.sources.Files("hdfs://host/in", schema="n long")
