"""Delta by tasks: what attempts leave, what a driver commits, and what others do to the table."""

from __future__ import annotations

import datetime as dt
import json
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.connectors import table_files
from millrace.connectors.lakes import delta_table, partitions
from millrace.connectors.parquet.files import STAGING
from millrace.model.errors import CheckpointMismatch, PipelineError, SinkError
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns
from tests.unit.connectors.lakeside import deletion_vector, delta_log

deltalake = pytest.importorskip("deltalake", reason="an extra: pip install 'millrace-spark[delta]'")

COLUMNS = SinkColumns(int, mr.coders.Msgpack(int))


def sink(root: Path, owner: str = "me") -> mr.sinks.Delta:
    """Return the sink of a driver that has just started."""
    made = mr.sinks.Delta(root)
    made.bind(Binding("p", "s", owner, COLUMNS))
    return made


def rows(*values: int) -> pa.RecordBatch:
    at = pa.array(values, pa.timestamp("us", tz="UTC"))
    columns = [pa.array(values), pa.array(["k"] * len(values)), at, pa.array([b"i"] * len(values))]
    return pa.RecordBatch.from_arrays(columns, list(COLUMNS.arrow.names))


def written(root: Path, *values: int, epoch: int = 3, task: int = 0) -> bytes:
    """Write an attempt at a task to its end; return its receipt."""
    file = mr.sinks.Delta(root).for_tasks().begin(epoch, task)
    file.write(rows(*values))
    return file.close()


def seen(root: Path) -> list[int]:
    """Return what the log names, as any reader of Delta finds it."""
    table = deltalake.DeltaTable(str(root))
    files = [Path(uri) for uri in table.file_uris()]
    return sorted(v for file in files for v in pq.read_table(file).column("value").to_pylist())


def left(root: Path) -> list[Path]:
    return list((root / STAGING).iterdir())


def commits(root: Path) -> int:
    return int(deltalake.DeltaTable(str(root)).version())


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was made durable, by name."""
    found = list[str]()
    fsync = table_files.os.fsync

    def noting(fd: int) -> None:
        found.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    monkeypatch.setattr(table_files.os, "fsync", noting)
    return found


def test_an_epoch_is_one_commit_and_nothing_is_seen_before_it(
    tmp_path: Path, synced: list[str]
) -> None:
    out = sink(tmp_path)
    receipts = [written(tmp_path, 1, 2), written(tmp_path, 3, task=1)]
    assert not deltalake.DeltaTable.is_deltatable(str(tmp_path))

    out.publish(3, receipts)

    assert seen(tmp_path) == [1, 2, 3]
    assert commits(tmp_path) == 1  # the first makes the table
    assert left(tmp_path) == []
    assert {f"{0:020}.json", f"{1:020}.json", "_delta_log"} <= set(synced)
    table = deltalake.DeltaTable(str(tmp_path))
    assert pa.schema(table.schema()) == pa.schema(list(COLUMNS.arrow))
    assert pa.table(table.get_add_actions()).column("num_records").to_pylist() == [2, 1]


def test_an_epoch_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    out = sink(tmp_path)
    out.publish(3, [written(tmp_path, 1)])
    out.publish(3, [written(tmp_path, 1)])  # the job ran again, and its files are others
    sink(tmp_path).publish(3, [written(tmp_path, 1)])
    out.publish(4, [written(tmp_path, 2, epoch=4)])

    assert seen(tmp_path) == [1, 2]
    assert commits(tmp_path) == 2
    assert left(tmp_path) == []


@pytest.mark.parametrize("step", ["link", "sync_directory", "create_write_transaction", "_sync"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_goes_on_from_a_driver_that_died_adds_each_row_once(
    step: str,
    after: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner: Any = {
        "create_write_transaction": deltalake.DeltaTable,
        "_sync": delta_table.DeltaCommits,
    }.get(step, table_files)
    does = getattr(owner, step)

    def dies(*arguments: Any, **named: Any) -> Any:
        if after:
            does(*arguments, **named)
        raise KeyboardInterrupt

    sink(tmp_path).publish(2, [written(tmp_path, 0, epoch=2)])
    receipts = [written(tmp_path, 1, 2), written(tmp_path, 3, task=1)]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dies)
        with pytest.raises(KeyboardInterrupt):
            sink(tmp_path).publish(3, receipts)

    sink(tmp_path).publish_again(3, receipts)
    sink(tmp_path).publish_again(3, receipts)

    assert seen(tmp_path) == [0, 1, 2, 3]
    assert left(tmp_path) == []
    assert caplog.text == ""


@pytest.mark.parametrize("same", [True, False], ids=["the same files", "files of their own"])
def test_of_two_drivers_that_publish_an_epoch_one_adds_it(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is paused right before its commit; meanwhile the other publishes."""
    old, new = sink(tmp_path), sink(tmp_path)
    theirs = [written(tmp_path, 1), written(tmp_path, 2, task=1)]
    others = theirs if same else [written(tmp_path, 1), written(tmp_path, 2, task=1)]
    commit = deltalake.DeltaTable.create_write_transaction

    def paused(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", commit)
        new.publish(3, others)
        commit(*arguments, **named)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", paused)
    old.publish(3, theirs)

    assert seen(tmp_path) == [1, 2]
    assert left(tmp_path) == []


def test_others_append_and_compact_meanwhile(tmp_path: Path) -> None:
    out = sink(tmp_path)
    for epoch in range(3):
        out.publish(epoch, [written(tmp_path, epoch, epoch=epoch)])
    theirs = pa.table(rows(7).to_pydict(), schema=pa.schema(list(COLUMNS.arrow)))
    deltalake.write_deltalake(str(tmp_path), theirs, mode="append")
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()

    out.publish(3, [written(tmp_path, 3)])

    assert seen(tmp_path) == [0, 1, 2, 3, 7]


def test_a_table_that_is_changed_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = sink(tmp_path)
    out.publish(2, [written(tmp_path, 0, epoch=2)])
    commit = deltalake.DeltaTable.create_write_transaction
    changes = [{"delta.logRetentionDuration": "interval 2 days"}, {"delta.appendOnly": "true"}]

    def changing(*arguments: Any, **named: Any) -> None:
        if changes:
            deltalake.DeltaTable(str(tmp_path)).alter.set_table_properties(changes.pop())
        commit(*arguments, **named)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", changing)
    out.publish(3, [written(tmp_path, 1)])

    assert seen(tmp_path) == [0, 1]


def test_a_table_that_conflicts_for_ever_is_said_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = [written(tmp_path, 1)]

    def conflicts(*_: Any, **__: Any) -> None:
        raise deltalake.exceptions.CommitFailedError("Metadata changed since last commit.")

    with monkeypatch.context() as patch:
        patch.setattr(deltalake.DeltaTable, "create_write_transaction", conflicts)
        with pytest.raises(SinkError, match=r"epoch 3: .* refused 5 times.*Metadata .* are kept"):
            sink(tmp_path).publish(3, receipts)

    sink(tmp_path).publish_again(3, receipts)
    assert seen(tmp_path) == [1]


TABLES = {
    "a column is missing": ([("value", "bigint")], {}, "has no column '_key'"),
    "another type": ([("value", "string")], {}, "'value' of the table is .*string"),
    "partitioned by instants": (
        None,
        {"partition_by": ["_timestamp"]},
        "cannot be partitioned by '_timestamp', which is timest",
    ),
    "a constraint": (
        None,
        {"configuration": {"delta.constraints.c": "value > 0"}},
        "'delta.constraints.c' is set",
    ),
}


class Trip(msgspec.Struct):
    taxi: str | None
    day: dt.date
    zone: int
    shared: bool
    fare: float


TRIPS = SinkColumns(Trip, mr.coders.Msgpack(Trip))
DAY = dt.date(2026, 11, 29)


def trips(*rows: tuple[str | None, dt.date, int, bool, float]) -> pa.RecordBatch:
    more = {"_key": "k", "_timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "_id": b"i"}
    names = ["taxi", "day", "zone", "shared", "fare"]
    dicts = [{**dict(zip(names, row, strict=True)), **more} for row in rows]
    return pa.RecordBatch.from_pylist(dicts, schema=pa.schema(list(TRIPS.arrow)))


def parted(root: Path, *by: str, key: tuple[str, ...] = ()) -> mr.sinks.Delta:
    made = mr.sinks.Delta(root, partition_by=by, key=key)
    made.bind(Binding("p", "s", "me", TRIPS))
    made.claim(1, 0)
    return made


def fares(root: Path, where: str) -> list[float]:
    table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(root)))
    found = pa.table(table.execute(f"SELECT fare FROM t WHERE {where}"))
    return sorted(found.column("fare").to_pylist())


ROWS = [
    ("T 1/ü", DAY, 1, True, 1.0), (None, DAY, 1, False, 2.0), ("T 1/ü", DAY, -2, True, 3.0),
    ("T%31=x", dt.date(1969, 12, 31), 1, True, 4.0), ("", DAY, 1, False, 5.0),
]  # fmt: skip


def test_a_partitioned_table_gets_a_file_for_each_partition_of_a_task(tmp_path: Path) -> None:
    out = parted(tmp_path, "taxi", "day", "zone", "shared")
    lost, file = out.for_tasks().begin(3, 1), out.for_tasks().begin(3, 0)
    lost.write(trips(*ROWS))
    lost.close()
    for row in ROWS:
        file.write(trips(row))
        file.write(trips(row))
    receipt = file.close()
    given_up = out.for_tasks().begin(3, 2)
    given_up.write(trips(*ROWS))
    given_up.abort()

    for _ in range(2):  # also by a driver that goes on
        parted(tmp_path).publish_again(3, [receipt])

    assert left(tmp_path) == []
    table = deltalake.DeltaTable(str(tmp_path))
    assert table.metadata().partition_columns == ["taxi", "day", "zone", "shared"]
    assert len(table.file_uris()) == 4  # an empty text is null, as Delta has it
    assert fares(tmp_path, "true") == sorted([row[4] for row in ROWS] * 2)
    assert fares(tmp_path, "taxi = 'T 1/ü' AND zone = -2") == [3.0, 3.0]
    assert fares(tmp_path, "taxi IS NULL") == [2.0, 2.0, 5.0, 5.0]
    assert fares(tmp_path, "day < '2000-01-01' AND shared") == [4.0, 4.0]
    source = mr.sources.Delta(tmp_path, schema="taxi string, day date, fare double")
    (process,) = source.processes()
    start = source.advance(process, None).offset
    end = source.advance(process, start).offset
    read = [
        row for piece in source.split(process, start, end) for row in source.read(process, *piece)
    ]
    assert sorted(read, key=lambda row: row[2])[::2] == [
        (row[0] or None, row[1], row[4]) for row in ROWS
    ]
    parted(tmp_path).take_back(2, 3)
    assert fares(tmp_path, "true") == []


def test_a_task_may_have_more_partitions_than_files_may_be_open(tmp_path: Path) -> None:
    out = parted(tmp_path, "zone")
    file = out.for_tasks().begin(3, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard)
    )
    try:
        file.write(trips(*(("T", DAY, zone, True, float(zone)) for zone in range(200))))
        receipt = file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    out.publish(3, [receipt])
    assert fares(tmp_path, "true") == list(range(200))
    assert len(deltalake.DeltaTable(str(tmp_path)).file_uris()) == 200


def test_rows_that_do_not_fit_into_memory_get_files_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_BYTES", 500)
    out = parted(tmp_path, "zone")
    file = out.for_tasks().begin(3, 0)
    for n in range(100):
        file.write(trips(("T", DAY, n % 3, True, float(n))))
    out.publish(3, [file.close()])
    assert fares(tmp_path, "true") == list(range(100))
    assert len(deltalake.DeltaTable(str(tmp_path)).file_uris()) > 3
    given_up = out.for_tasks().begin(4, 0)
    for n in range(100):
        given_up.write(trips(("T", DAY, n % 3, True, float(n))))
    assert left(tmp_path)
    given_up.abort()
    assert left(tmp_path) == []


def test_a_partitioned_table_by_key(tmp_path: Path) -> None:
    for epoch, row in enumerate([ROWS[0], ROWS[2], ROWS[3]], 1):
        out = parted(tmp_path, "zone", key=("taxi",))
        file = out.for_tasks().begin(epoch, 0)
        file.write(trips(row))
        out.publish(epoch, [file.close()])
    assert fares(tmp_path, "true") == [3.0, 4.0]
    assert fares(tmp_path, "zone = -2") == [3.0]


def test_what_cannot_part_a_table_is_refused(tmp_path: Path) -> None:
    for by, why in {
        ("fare",): "by 'fare', which is double", ("nothing",): "no column 'nothing'",
    }.items():  # fmt: skip
        with pytest.raises(PipelineError, match=why):
            parted(tmp_path, *by)
    parted(tmp_path, "day")
    with pytest.raises(PipelineError, match=r"is partitioned by \['day'\], and the sink by"):
        parted(tmp_path, "zone")


def test_a_table_that_is_parted_otherwise_meanwhile_is_refused(tmp_path: Path) -> None:
    out = parted(tmp_path)
    file = out.for_tasks().begin(3, 0)
    file.write(trips(ROWS[0]))
    receipt = file.close()
    deltalake.write_deltalake(
        str(tmp_path), trips(), mode="overwrite", schema_mode="overwrite", partition_by=["day"]
    )
    with pytest.raises(SinkError, match="other partitions than when its files were written"):
        out.publish(3, [receipt])


@pytest.mark.parametrize("case", TABLES)
def test_a_table_that_cannot_take_the_rows_is_refused(case: str, tmp_path: Path) -> None:
    columns, more, says = TABLES[case]
    kinds = {"bigint": pa.int64(), "string": pa.string()}
    fields = list(COLUMNS.arrow) if columns is None else [(n, kinds[k]) for n, k in columns]
    schema = deltalake.Schema.from_arrow(pa.schema(fields))
    deltalake.DeltaTable.create(str(tmp_path), schema, raise_if_key_not_exists=False, **more)

    with pytest.raises(PipelineError, match=rf"sink Delta\(.*{says}"):
        sink(tmp_path)
    assert not (tmp_path / "_millrace").exists()


@pytest.mark.parametrize(
    ("writers", "says"),
    [
        ({"minWriterVersion": 6}, r"\['identityColumns'\]"),
        ({"minWriterVersion": 7, "writerFeatures": ["appendOnly", "rowTracking"]}, "rowTracking"),
    ],
)
def test_a_table_that_asks_more_of_writers_is_refused_at_once(
    writers: dict[str, Any], says: str, tmp_path: Path
) -> None:
    sink(tmp_path).publish(1, [written(tmp_path, 1, epoch=1)])
    commit(tmp_path, {"protocol": {"minReaderVersion": 1} | writers})
    with pytest.raises(PipelineError, match=f"its writers must know .*{says}"):
        sink(tmp_path)


def test_a_table_that_takes_appends_alone_takes_no_rows_by_key(tmp_path: Path) -> None:
    schema = deltalake.Schema.from_arrow(pa.schema(list(COLUMNS.arrow)))
    only = {"delta.appendOnly": "true"}
    deltalake.DeltaTable.create(str(tmp_path), schema, configuration=only)
    sink(tmp_path).publish(1, [written(tmp_path, 1, epoch=1)])
    with pytest.raises(PipelineError, match=r"'delta\.appendOnly' is set"):
        mr.sinks.Delta(tmp_path, key="_key").bind(Binding("p", "s", "me", COLUMNS))


def test_a_column_more_that_may_be_null_is_left_so(tmp_path: Path) -> None:
    fields = [*COLUMNS.arrow, pa.field("note", pa.string())]
    deltalake.DeltaTable.create(str(tmp_path), deltalake.Schema.from_arrow(pa.schema(fields)))
    sink(tmp_path).publish(3, [written(tmp_path, 1)])
    assert seen(tmp_path) == [1]

    needed = tmp_path / "needed"
    fields[-1] = pa.field("note", pa.string(), nullable=False)
    deltalake.DeltaTable.create(str(needed), deltalake.Schema.from_arrow(pa.schema(fields)))
    with pytest.raises(PipelineError, match="column 'note' may not be null"):
        sink(needed)


def test_a_table_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    place = mr.sinks.Delta(tmp_path).bind(Binding("p", "s", "me", COLUMNS))
    assert place == f"the directory '{tmp_path}'"
    with pytest.raises(CheckpointMismatch, match="output of another checkpoint"):
        sink(tmp_path, "you")


def test_a_table_that_was_removed_since_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    receipts = [written(tmp_path, 1)]
    sink(tmp_path).publish(3, receipts)
    shutil.rmtree(tmp_path)

    sink(tmp_path).publish_again(3, receipts)

    assert "epoch 3: neither the table nor the directory has it" in caplog.text
    assert not deltalake.DeltaTable.is_deltatable(str(tmp_path))


def test_files_that_are_gone_are_no_silent_loss(tmp_path: Path) -> None:
    receipt = written(tmp_path, 1)
    (tmp_path / STAGING / receipt.decode()).unlink()

    with pytest.raises(SinkError, match="No such file"):
        sink(tmp_path).publish(3, [receipt])


def test_what_is_no_path_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", "hdfs://host/table"):
        with pytest.raises(PipelineError, match="expected a local or mounted path"):
            mr.sinks.Delta(path)
    monkeypatch.setattr(deltalake, "__version__", "1.5.1")
    with pytest.raises(PipelineError, match=r"deltalake 1\.5\.1, which can add an epoch twice"):
        mr.sinks.Delta("x")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(PipelineError, match=r"pip install 'millrace-spark\[delta\]'"):
        mr.sinks.Delta("x")


def test_it_takes_back_what_epochs_have_added_once_and_leaves_what_others_did(
    tmp_path: Path,
) -> None:
    for epoch in (1, 2, 3):
        sink(tmp_path).publish(epoch, [written(tmp_path, epoch, epoch=epoch)])
    others = pa.Table.from_batches([rows(50)])
    deltalake.write_deltalake(str(tmp_path), others, mode="append")

    for _ in range(2):
        sink(tmp_path).take_back(1, 4)
        assert seen(tmp_path) == [1, 50]
    assert commits(tmp_path) == 5
    sink(tmp_path).publish(5, [written(tmp_path, 5, epoch=5)])
    assert seen(tmp_path) == [1, 5, 50]


def test_what_others_have_rewritten_cannot_be_taken_back(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        sink(tmp_path).publish(epoch, [written(tmp_path, epoch, epoch=epoch)])
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()

    with pytest.raises(SinkError, match=r"part-2-.*were rewritten by another writer"):
        sink(tmp_path).take_back(1, 3)
    assert seen(tmp_path) == [1, 2, 3]


def commit(root: Path, *actions: dict[str, Any]) -> None:
    """Add a version of these actions, as another engine may write them."""
    lines = [json.dumps(action, ensure_ascii=False) for action in actions]
    delta_log(root, commits(root) + 1).write_text("\n".join(lines), "utf-8")


def added(root: Path, version: int) -> dict[str, Any]:
    actions = map(json.loads, delta_log(root, version).read_text("utf-8").splitlines())
    (add,) = [action["add"] for action in actions if "add" in action]
    return dict(add)


def test_rows_that_a_deletion_vector_takes_cannot_be_taken_back(tmp_path: Path) -> None:
    sink(tmp_path).publish(1, [written(tmp_path, 1, 2, epoch=1)])
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    commit(
        tmp_path, {"protocol": protocol | {"readerFeatures": features, "writerFeatures": features}}
    )
    add = added(tmp_path, 1)
    commit(
        tmp_path,
        {"remove": {"path": add["path"], "dataChange": True, "deletionTimestamp": 0}},
        {"add": add | {"deletionVector": deletion_vector(tmp_path, 1)}},
    )

    with pytest.raises(SinkError, match=r"part-1-.*were rewritten by another writer"):
        sink(tmp_path).take_back(0, 3)


def cleaned(root: Path) -> None:
    """Have the log begin with a checkpoint, as cleaning it does."""
    deltalake.DeltaTable(str(root)).create_checkpoint()
    for version in range(commits(root)):
        delta_log(root, version).unlink(missing_ok=True)


def test_rows_are_not_lost_sight_of_when_the_log_is_cleaned(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        sink(tmp_path).publish(epoch, [written(tmp_path, epoch, epoch=epoch)])
    cleaned(tmp_path)
    sink(tmp_path).take_back(2, 3)
    assert seen(tmp_path) == [1, 2]

    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    sink(tmp_path).publish(4, [written(tmp_path, 4, epoch=4)])
    cleaned(tmp_path)
    for epoch in (5, 6):
        sink(tmp_path).publish(epoch, [written(tmp_path, epoch, epoch=epoch)])
    with pytest.raises(SinkError, match=r"history does not go back to epoch 1 any more"):
        sink(tmp_path).take_back(1, 6)
    sink(tmp_path).take_back(5, 6)
    assert seen(tmp_path) == [1, 2, 4, 5]


def test_a_commit_of_others_may_hold_any_text(tmp_path: Path) -> None:
    sink(tmp_path).publish(1, [written(tmp_path, 1, epoch=1)])
    commit(tmp_path, {"commitInfo": {"userName": "a\u2028b"}, "add": None, "txn": None})
    sink(tmp_path).take_back(0, 1)
    assert seen(tmp_path) == []


def test_a_table_without_rows_takes_nothing_back(tmp_path: Path) -> None:
    for made in (sink(tmp_path / "delta"), mr.sinks.Parquet(tmp_path / "parquet")):
        made.take_back(0, 3)
    assert not (tmp_path / "parquet").exists()
