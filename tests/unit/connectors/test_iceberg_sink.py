"""Iceberg by tasks: what attempts leave, what a driver commits, and what others do to the table."""

from __future__ import annotations

import datetime as dt
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace.connectors import table_files
from millrace.connectors.parquet.files import STAGING
from millrace.model.errors import CheckpointMismatch, PipelineError, SinkError
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns

pytest.importorskip("pyiceberg", reason="an extra: pip install 'millrace-spark[iceberg]'")
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

COLUMNS = SinkColumns(int, mr.coders.Msgpack(int))
NAME = "lake.totals"


def of(root: Path) -> dict[str, str]:
    """Return the properties of a catalog beside the table."""
    return {"type": "sql", "uri": f"sqlite:///{root.parent}/catalog.db"}


def made(root: Path) -> mr.sinks.Iceberg:
    return mr.sinks.Iceberg(NAME, root, catalog=of(root))


def sink(root: Path, owner: str = "me") -> mr.sinks.Iceberg:
    """Return the sink of a driver that has just started."""
    out = made(root)
    out.bind(Binding("p", "s", owner, COLUMNS))
    return out


def rows(*values: int) -> pa.RecordBatch:
    at = pa.array(values, pa.timestamp("us", tz="UTC"))
    columns = [pa.array(values), pa.array(["k"] * len(values)), at, pa.array([b"i"] * len(values))]
    return pa.RecordBatch.from_arrays(columns, list(COLUMNS.arrow.names))


def written(root: Path, *values: int, epoch: int = 3, task: int = 0) -> bytes:
    """Write an attempt at a task to its end; return its receipt."""
    file = made(root).for_tasks().begin(epoch, task)
    file.write(rows(*values))
    return file.close()


def opened(root: Path) -> Table:
    return load_catalog(**of(root)).load_table(NAME)


def seen(root: Path) -> list[int]:
    """Return what any reader of Iceberg finds."""
    return sorted(opened(root).scan().to_arrow().column("value").to_pylist())


def is_made(root: Path) -> bool:
    return load_catalog(**of(root)).table_exists(NAME)


def left(root: Path) -> list[Path]:
    return list((root / STAGING).iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a table"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What was made durable, by name."""
    found = set[str]()
    fsync = table_files.os.fsync

    def noting(fd: int) -> None:
        found.add(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(table_files.os, "fsync", noting)
    return found


def test_an_epoch_is_one_snapshot_and_nothing_is_seen_before_it(
    root: Path, synced: set[str]
) -> None:
    out = sink(root)
    receipts = [written(root, 1, 2), written(root, 3, task=1)]
    assert not is_made(root)

    out.publish(3, receipts)

    assert seen(root) == [1, 2, 3]
    there = opened(root)
    (snapshot,) = there.snapshots()
    assert snapshot.summary is not None
    assert snapshot.summary["millrace.epoch"] == "3"
    assert snapshot.summary["millrace.checkpoint"] == "me"
    assert "commit.retry.num-retries" not in there.properties
    assert left(root) == []
    wrote = {Path(there.metadata_location).name, Path(snapshot.manifest_list).name}
    wrote |= {Path(one.manifest_path).name for one in snapshot.manifests(there.io)}
    assert wrote | {"data", "metadata"} <= synced
    found = there.scan().to_arrow()
    assert found.column_names == COLUMNS.arrow.names
    assert [found.schema.field("_timestamp").type, found.schema.field("value").type] == [
        pa.timestamp("us", tz="UTC"),
        pa.int64(),
    ]


def test_an_epoch_that_comes_again_changes_nothing(root: Path) -> None:
    out = sink(root)
    out.publish(3, [written(root, 1)])
    out.publish(3, [written(root, 1)])  # the job ran again, and its files are others
    sink(root).publish(3, [written(root, 1)])
    out.publish(4, [written(root, 2, epoch=4)])

    assert seen(root) == [1, 2]
    assert len(opened(root).snapshots()) == 2
    assert left(root) == []


@pytest.mark.parametrize("step", ["link", "sync_directory", "commit_table", "sync"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_goes_on_from_a_driver_that_died_adds_each_row_once(
    step: str,
    after: bool,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    catalogs = type(load_catalog(**of(root)))
    owner: Any = {"commit_table": catalogs, "sync": table_files.MountedFiles}.get(step, table_files)
    does = getattr(owner, step)

    def dies(*arguments: Any, **named: Any) -> Any:
        if after:
            does(*arguments, **named)
        raise KeyboardInterrupt

    sink(root).publish(2, [written(root, 0, epoch=2)])
    receipts = [written(root, 1, 2), written(root, 3, task=1)]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dies)
        with pytest.raises(KeyboardInterrupt):
            sink(root).publish(3, receipts)

    sink(root).publish_again(3, receipts)
    sink(root).publish_again(3, receipts)

    assert seen(root) == [0, 1, 2, 3]
    assert left(root) == []
    assert caplog.text == ""


@pytest.mark.parametrize("same", [True, False], ids=["the same files", "files of their own"])
@pytest.mark.parametrize("new_table", [True, False], ids=["of a new table", "of a table"])
def test_of_two_drivers_that_publish_an_epoch_one_adds_it(
    same: bool, new_table: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is paused right before its commit; meanwhile the other publishes."""
    old, new = sink(root), sink(root)
    if not new_table:
        old.publish(2, [written(root, 0, epoch=2)])
    theirs = [written(root, 1), written(root, 2, task=1)]
    others = theirs if same else [written(root, 1), written(root, 2, task=1)]
    commit = Table._do_commit

    def paused(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", commit)
        new.publish(3, others)
        commit(*arguments, **named)

    monkeypatch.setattr(Table, "_do_commit", paused)
    old.publish(3, theirs)

    assert seen(root) == ([1, 2] if new_table else [0, 1, 2])
    assert left(root) == []


def test_others_append_and_expire_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their commit comes right before ours; and of ours, no snapshot is left at the end."""
    out = sink(root)
    out.publish(2, [written(root, 1, epoch=2)])
    theirs = pa.table(rows(7).to_pydict(), schema=pa.schema(list(COLUMNS.arrow)))
    commit = Table._do_commit

    def between(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", commit)
        opened(root).append(theirs)
        commit(*arguments, **named)

    monkeypatch.setattr(Table, "_do_commit", between)
    out.publish(3, [written(root, 3)])
    assert seen(root) == [1, 3, 7]

    opened(root).append(theirs)
    there = opened(root)
    *ours, newest = (one.snapshot_id for one in there.snapshots())
    there.maintenance.expire_snapshots().by_ids(ours).commit()
    assert [one.snapshot_id for one in opened(root).snapshots()] == [newest]
    sink(root).publish(3, [written(root, 3)])

    assert seen(root) == [1, 3, 7, 7]


def test_rows_are_not_lost_sight_of_when_snapshots_expire(root: Path) -> None:
    for epoch in (1, 2, 3):
        sink(root).publish(epoch, [written(root, epoch, epoch=epoch)])
    expire(root)
    sink(root).take_back(2, 3)
    assert seen(root) == [1, 2]

    opened(root).overwrite(opened(root).scan().to_arrow())  # as a compaction does
    sink(root).publish(4, [written(root, 4, epoch=4)])
    expire(root)
    for epoch in (5, 6):
        sink(root).publish(epoch, [written(root, epoch, epoch=epoch)])
    with pytest.raises(SinkError, match=r"history does not go back to epoch 1 any more"):
        sink(root).take_back(1, 6)
    sink(root).take_back(5, 6)
    assert seen(root) == [1, 2, 4, 5]


def expire(root: Path) -> None:
    """Keep no more than the newest snapshot."""
    table = opened(root)
    *older, _ = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.maintenance.expire_snapshots().by_ids(older).commit()


def test_a_commit_of_which_the_answer_was_lost_is_not_made_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Table._do_commit

    def lost(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", commit)
        commit(*arguments, **named)
        raise CommitStateUnknownException("502 Bad Gateway")

    monkeypatch.setattr(Table, "_do_commit", lost)
    sink(root).publish(3, [written(root, 1)])

    assert seen(root) == [1]


def test_a_table_that_conflicts_for_ever_is_said_and_nothing_is_lost(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = [written(root, 1)]

    def conflicts(*_: Any, **__: Any) -> None:
        raise CommitFailedException("Requirement failed.")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "_do_commit", conflicts)
        with pytest.raises(
            SinkError, match=r"epoch 3: .* refused 5 times.*Requirement .* are kept"
        ):
            sink(root).publish(3, receipts)

    sink(root).publish_again(3, receipts)
    assert seen(root) == [1]


def make(root: Path, fields: list[pa.Field], **more: Any) -> Table:
    catalog = load_catalog(**of(root))
    catalog.create_namespace_if_not_exists("lake")
    return catalog.create_table(NAME, pa.schema(fields), **({"location": str(root)} | more))


TABLES: dict[str, tuple[list[pa.Field] | None, dict[str, Any], str]] = {
    "a column is missing": ([pa.field("value", pa.int64())], {}, "has no column '_key'"),
    "another type": (
        [pa.field("value", pa.string()), *list(COLUMNS.arrow)[1:]],
        {},
        "'value' of the table is string, and of the records long",
    ),
    "one more, not null": (
        [*COLUMNS.arrow, pa.field("note", pa.string(), nullable=False)],
        {},
        "column 'note' may not be null",
    ),
    "one of ours, not null": (
        [COLUMNS.arrow[0].with_nullable(False), *list(COLUMNS.arrow)[1:]],
        {},
        "column 'value' may not be null",
    ),
    "elsewhere": (
        None,
        {"location": "{there}"},
        "location is .*/elsewhere, and not .*/a table. Name",
    ),
    "metadata elsewhere": (
        None,
        {"properties": {"write.metadata.path": "{there}"}},
        "'write.metadata.path' is set",
    ),
    "another's": (
        None,
        {"properties": {"millrace.checkpoint": "you", "millrace.epoch": "9"}},
        "holds the output of another checkpoint",
    ),
}


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_take_the_rows_is_refused(case: str, root: Path) -> None:
    fields, more, says = TABLES[case]
    elsewhere = str(root.parent / "elsewhere").encode()
    more = msgspec.json.decode(msgspec.json.encode(more).replace(b"{there}", elsewhere))
    make(root, list(COLUMNS.arrow) if fields is None else fields, **more)

    with pytest.raises((PipelineError, CheckpointMismatch), match=rf"sink Iceberg\(.*{says}"):
        sink(root)
    assert not (root / "_millrace").exists()


def test_a_directory_may_be_called_what_a_uri_would_quote(tmp_path: Path) -> None:
    root = tmp_path / "50%25 of a b"
    for epoch in (1, 2):
        sink(root).publish(epoch, [written(root, epoch, epoch=epoch)])
    assert seen(root) == [1, 2]
    with pytest.raises(PipelineError, match="under a path with '#'"):
        made(tmp_path / "a#b")


AT = dt.datetime(2026, 11, 29, 23, 59, 59, 999999, tzinfo=dt.UTC)
ROWS = [
    (1, "k", AT), (2, "", AT), (3, "k", AT + dt.timedelta(microseconds=1)),
    (4, "a very long name/ü=%, longer than bounds", AT),
    (5, "k", AT.replace(year=1969)), (6, "k", AT),
]  # fmt: skip


def parted(root: Path, *by: tuple[str, str]) -> mr.sinks.Iceberg:
    """Return the sink of a table that somebody has made with partitions, unless it is there."""
    catalog = load_catalog(**of(root))
    catalog.create_namespace_if_not_exists("lake")
    schema = pa.schema(list(COLUMNS.arrow))
    table = catalog.create_table_if_not_exists(NAME, schema, location=f"file://{root}")
    if not table.spec().fields:
        with table.update_spec() as change:
            for column, transform in by:
                change.add_field(column, transform, f"{column}_{transform}".replace("[", "_"))
    return sink(root)


@pytest.mark.parametrize(
    ("by", "files"),
    [
        ([("_key", "identity")], 3),
        ([("_timestamp", "day")], 3),
        ([("_timestamp", "year"), ("_key", "identity")], 4),
        ([("_timestamp", "hour"), ("value", "identity")], 6),
        ([("_timestamp", "month")], 2),
    ],
)
def test_a_partitioned_table_gets_a_file_for_each_partition_of_a_task(
    by: list[tuple[str, str]], files: int, root: Path
) -> None:
    out = parted(root, *by)
    file = out.for_tasks().begin(3, 0)
    names = list(COLUMNS.arrow.names)
    for value, key, at in ROWS:
        row = dict(zip(names, (value, key, at, b"i"), strict=True))
        file.write(pa.RecordBatch.from_pylist([row], schema=pa.schema(list(COLUMNS.arrow))))
    receipt = file.close()

    for _ in range(2):
        sink(root).publish_again(3, [receipt])

    assert left(root) == []
    table = opened(root).scan().to_arrow()
    found = zip(*(table.column(name).to_pylist() for name in names[:3]), strict=True)
    assert sorted(found) == ROWS
    assert len(list(opened(root).scan().plan_files())) == files
    assert len(list(opened(root).scan(row_filter="_key == ''").to_arrow())) > 0
    day = "_timestamp >= '2026-11-29T00:00:00+00:00' and _timestamp < '2026-11-30T00:00:00+00:00'"
    assert sorted(opened(root).scan(row_filter=day).to_arrow().column("value").to_pylist()) == [
        1, 2, 4, 6,
    ]  # fmt: skip
    sink(root).take_back(2, 3)
    assert seen(root) == []


def test_partitions_by_other_transforms_are_refused(root: Path) -> None:
    with pytest.raises(PipelineError, match=r"partitioned by bucket\[4\] of '_key'"):
        parted(root, ("_key", "bucket[4]"))


def test_a_column_more_that_may_be_null_is_left_so(root: Path) -> None:
    make(root, [pa.field("note", pa.string()), *COLUMNS.arrow])
    sink(root).publish(3, [written(root, 1)])
    assert seen(root) == [1]


def test_a_table_belongs_to_one_checkpoint(root: Path) -> None:
    place = made(root).bind(Binding("p", "s", "me", COLUMNS))
    assert place == f"the directory '{root}'"
    with pytest.raises(CheckpointMismatch, match="output of another checkpoint"):
        sink(root, "you")


def test_a_table_that_was_dropped_since_is_not_missed(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receipts = [written(root, 1)]
    sink(root).publish(3, receipts)
    load_catalog(**of(root)).drop_table(NAME)
    shutil.rmtree(root)

    sink(root).publish_again(3, receipts)

    assert "epoch 3: neither the table nor the directory has it" in caplog.text
    assert not is_made(root)


def test_files_that_are_gone_are_no_silent_loss(root: Path) -> None:
    receipt = written(root, 1)
    (root / STAGING / receipt.decode()).unlink()

    with pytest.raises(SinkError, match="No such file"):
        sink(root).publish(3, [receipt])


def test_what_is_no_table_here_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", "hdfs://host/table"):
        with pytest.raises(PipelineError, match="expected a local or mounted path"):
            mr.sinks.Iceberg(NAME, path, catalog={})
    for name in ("totals", ".totals", ""):
        with pytest.raises(PipelineError, match=r"with its namespace, such as 'lake\.totals'"):
            mr.sinks.Iceberg(name, root, catalog={})
    with pytest.raises(PipelineError, match="catalog cannot be asked for the table"):
        mr.sinks.Iceberg(NAME, root, catalog={"type": "unheard of"}).bind(
            Binding("p", "s", "me", COLUMNS)
        )
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(PipelineError, match=r"pip install 'millrace-spark\[iceberg\]'"):
        made(root)
