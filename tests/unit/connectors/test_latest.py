"""Tables of the latest row by key: in Parquet, replaced whole, and in Delta Lake, by merge."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.connectors import table_files
from millrace.connectors.lakes import delta_table
from millrace.connectors.parquet import files
from millrace.connectors.parquet.files import STAGING
from millrace.model.coder import MsgpackCoder
from millrace.model.errors import PipelineError, SinkError
from millrace.model.pane import PanedCoder
from millrace.runtime.sink_contract import Binding
from millrace.runtime.values import SinkColumns

deltalake = pytest.importorskip("deltalake", reason="an extra: pip install 'millrace-spark[delta]'")

COLUMNS = SinkColumns(int, PanedCoder(int, retracts=True))
KEY = ("_key", "_window_start")

#: A record: key, window, value, and whether it is a retraction.
Row = tuple[str, int, int, bool]


def sink(kind: type[Any], root: Path, **options: Any) -> Any:
    """Return the sink of a driver that has just started."""
    made = kind(root, key=KEY, **options)
    made.bind(Binding("p", "s", "me", COLUMNS))
    return made


class Records:
    """Writes records of an epoch as a task does; each has an id after those before."""

    def __init__(self) -> None:
        self._made = 0

    def written(self, out: Any, epoch: int, *rows: Row, task: int = 0) -> bytes:
        """Return the receipt of an attempt at a task."""
        file = out.for_tasks().begin(epoch, task)
        columns: dict[str, list[Any]] = {field.name: [] for field in COLUMNS.arrow}
        for key, window, value, retraction in rows:
            self._made += 1
            given = {"_key": key, "_window_start": window, "value": value, "_id": self._id()}
            for name, column in columns.items():
                column.append({**given, "_retraction": retraction}.get(name))
        arrays = [pa.array(columns[field.name], field.type) for field in COLUMNS.arrow]
        file.write(pa.RecordBatch.from_arrays(arrays, list(columns)))
        return bytes(file.close())

    def _id(self) -> bytes:
        return self._made.to_bytes(16, "big")


def table_of(out: Any) -> pa.Table:
    if isinstance(out, mr.sinks.Parquet):
        return pq.read_table(Path(out.path) / "latest")
    files = deltalake.DeltaTable(out.path).file_uris()
    return pa.concat_tables(map(pq.read_table, files))


def seen(out: Any) -> dict[tuple[str, int], int]:
    """Return (key, window) -> value, as a reader finds it."""
    rows = table_of(out)
    starts = rows.column("_window_start").cast(pa.int64()).to_pylist()
    keys = list(zip(rows.column("_key").to_pylist(), starts, strict=True))
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, rows.column("value").to_pylist(), strict=True))


KINDS = pytest.mark.parametrize(
    "kind", [mr.sinks.Parquet, mr.sinks.Delta], ids=["Parquet", "Delta"]
)


@KINDS
def test_a_record_replaces_the_row_of_its_key_and_a_retraction_deletes_it(
    kind: type[Any], tmp_path: Path
) -> None:
    out, made = sink(kind, tmp_path), Records()
    first = [
        made.written(out, 0, ("a", 0, 1, False), ("b", 0, 2, False), ("a", 0, 3, False)),
        made.written(out, 0, ("a", 9, 4, False), ("c", 0, 5, False), task=1),
    ]
    out.publish(0, list(reversed(first)))
    assert seen(out) == {("a", 0): 3, ("b", 0): 2, ("a", 9): 4, ("c", 0): 5}

    # Taken back and made anew, taken back for good, taken back as a session that has grown, and
    # taken back in vain.
    rows = [("a", 0, 3, True), ("a", 0, 6, False), ("b", 0, 2, True), ("a", 9, 4, True)]
    out.publish(4, [made.written(out, 4, *rows, ("a", 7, 7, False), ("d", 0, 0, True))])

    assert seen(out) == {("a", 0): 6, ("a", 7): 7, ("c", 0): 5}
    assert list((tmp_path / STAGING).iterdir()) == []


@KINDS
@pytest.mark.parametrize("format", [str, float, list[int]])
def test_a_table_with_a_column_of_another_type_is_refused_before_the_run(
    kind: type[Any], format: Any, tmp_path: Path
) -> None:
    out, made = sink(kind, tmp_path), Records()
    out.publish(0, [made.written(out, 0, ("a", 0, 1, False))])
    changed = SinkColumns(format, PanedCoder(format, retracts=True))
    with pytest.raises(PipelineError, match=r"(?s)column 'value' of the table.*Name another"):
        kind(tmp_path, key=KEY).bind(Binding("p", "s", "me", changed))


def test_a_table_in_files_goes_on_with_more_columns_and_with_less(tmp_path: Path) -> None:
    lists = SinkColumns(list[int], PanedCoder(list[int], retracts=True))
    for columns in (SinkColumns(list[int], MsgpackCoder(list[int])), lists):
        out = mr.sinks.Parquet(tmp_path, key="_key")
        out.bind(Binding("p", "s", "me", columns))
        rows = pa.Table.from_pylist([{"_key": "a", "_id": b"1"}], pa.schema(list(columns.arrow)))
        file = out.for_tasks().begin(len(rows.schema), 0)
        file.write(rows.to_batches()[0])
        out.publish(len(rows.schema), [file.close()])
    assert "_window_end" in table_of(out).column_names
    mr.sinks.Parquet(tmp_path, key="_key").bind(
        Binding("p", "s", "me", SinkColumns(list[int], MsgpackCoder(list[int])))
    )


@KINDS
def test_an_epoch_that_comes_again_changes_nothing(kind: type[Any], tmp_path: Path) -> None:
    out, made = sink(kind, tmp_path), Records()
    out.publish(0, [made.written(out, 0, ("a", 0, 1, False))])
    out.publish(1, [made.written(out, 1, ("a", 0, 2, False), ("b", 0, 2, False))])

    for again in (out, sink(kind, tmp_path)):
        again.publish(1, [made.written(out, 1, ("a", 0, 3, True))])
        again.publish(0, [made.written(out, 0, ("a", 0, 1, False))])
    sink(kind, tmp_path).publish_again(1, [b"epoch=1-gone.parquet"])

    assert seen(out) == {("a", 0): 2, ("b", 0): 2}


@KINDS
@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_what_its_records_say_wherever_drivers_die(
    kind: type[Any], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch is published by drivers that die at any call, until one is through."""
    draw, made = random.Random(seed), Records()
    expected: dict[tuple[str, int], int] = {}
    steps = {
        mr.sinks.Parquet: [
            (files, name)
            for name in ("_make", "rename_into_place", "sync_directory", "_point", "clear")
        ],
        mr.sinks.Delta: [
            *((delta_table, name) for name in ("merge", "note", "rewritten")),
            (table_files, "sync_directory"),
        ],
    }[kind]

    def dying(does: Any, *, after: bool) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if after:
                does(*arguments, **named)
            raise KeyboardInterrupt

        return call

    for epoch in range(4):
        rows = []
        for _ in range(draw.randrange(1, 9)):
            at = draw.choice("abc"), draw.randrange(2)
            retraction = draw.random() < 0.3
            rows.append((*at, draw.randrange(100), retraction))
            if retraction:
                expected.pop(at, None)
            else:
                expected[at] = rows[-1][2]
        receipts = [made.written(sink(kind, tmp_path), epoch, *rows)]
        for _ in range(draw.randrange(3)):
            owner, name = draw.choice(steps)
            dies = dying(getattr(owner, name), after=draw.random() < 0.5)
            # Who comes after one that got far enough has less to do, and may be through.
            with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
                patch.setattr(owner, name, dies)
                sink(kind, tmp_path).publish(epoch, receipts)
        sink(kind, tmp_path).publish_again(epoch, receipts)
        sink(kind, tmp_path).publish_again(epoch, receipts)

        assert seen(sink(kind, tmp_path)) == expected


def test_a_driver_that_was_superseded_does_not_turn_the_table_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up right before it points at its version, when two more are there."""
    old, new, made = (
        sink(mr.sinks.Parquet, tmp_path),
        sink(mr.sinks.Parquet, tmp_path, keep=0),
        Records(),
    )
    point = files._point

    def paused(*arguments: Any) -> None:
        monkeypatch.setattr(files, "_point", point)
        for epoch in (0, 1, 2):
            new.publish(epoch, [made.written(new, epoch, ("a", 0, epoch, False))])
        point(*arguments)

    monkeypatch.setattr(files, "_point", paused)
    old.publish(0, [made.written(old, 0, ("a", 0, 0, False))])

    assert seen(old) == {("a", 0): 2}
    assert (tmp_path / "latest").resolve().name == "2"


def test_a_table_that_was_replaced_stays_for_readers_that_have_begun(tmp_path: Path) -> None:
    out, made = sink(mr.sinks.Parquet, tmp_path), Records()
    out.publish(0, [made.written(out, 0, ("a", 0, 1, False))])
    reader = pq.ParquetDataset((tmp_path / "latest").resolve())
    out.publish(1, [made.written(out, 1, ("a", 0, 2, False))])
    assert reader.read().column("value").to_pylist() == [1]

    brief = sink(mr.sinks.Parquet, tmp_path, keep=0)
    brief.publish(2, [made.written(brief, 2, ("a", 0, 3, False))])

    assert [one.name for one in (tmp_path / "_versions").iterdir()] == ["2"]


@KINDS
def test_what_has_no_key_is_refused(kind: type[Any], tmp_path: Path) -> None:
    out, made = sink(kind, tmp_path / "a"), Records()
    receipt = made.written(out, 0, ("a", None, 1, False), ("a", 0, 1, False))  # type: ignore[arg-type]

    with pytest.raises(SinkError, match=r"epoch 0: 1 of 2 records have no '_window_start'"):
        out.publish(0, [receipt])
    with pytest.raises(PipelineError, match=r"key 'team', and its stream no such column"):
        kind(tmp_path / "b", key="team").bind(Binding("p", "s", "me", COLUMNS))
    of_floats = SinkColumns(float, mr.coders.Msgpack(float))
    with pytest.raises(PipelineError, match=r"key 'value', of type double"):
        kind(tmp_path / "c", key="value").bind(Binding("p", "s", "me", of_floats))


def test_parquet_by_key_needs_a_path_of_the_driver() -> None:
    with pytest.raises(PipelineError, match=r"by key needs a local or mounted path"):
        mr.sinks.Parquet("s3a://bucket/table", key="_key")


@pytest.mark.parametrize(
    ("rewrite", "says"),
    [
        ("overwritten", r"rewritten it in version 3 \(WRITE Overwrite\)"),
        ("set back", r"rewritten it in version 3 \(RESTORE\)"),
        ("made anew", "made the table anew"),
        ("of other columns", "has no column '_key'"),
    ],
)
def test_a_delta_table_that_somebody_else_has_rewritten_is_refused(
    rewrite: str, says: str, tmp_path: Path
) -> None:
    out, made = sink(mr.sinks.Delta, tmp_path), Records()
    for epoch in (0, 1):
        out.publish(epoch, [made.written(out, epoch, ("a", epoch, 1, False))])
    table = deltalake.DeltaTable(str(tmp_path))
    rows = table_of(out)
    if rewrite == "set back":
        table.restore(1)
    elif rewrite == "of other columns":
        few = rows.select(["value"])
        deltalake.write_deltalake(table, few, mode="overwrite", schema_mode="overwrite")
    else:
        if rewrite == "made anew":
            shutil.rmtree(tmp_path / "_delta_log")
        deltalake.write_deltalake(str(tmp_path), rows.slice(0, 1), mode="overwrite")

    with pytest.raises(SinkError, match=says):
        out.publish(2, [made.written(out, 2, ("a", 0, 2, False))])
    with pytest.raises(PipelineError, match=says):
        sink(mr.sinks.Delta, tmp_path)


def test_others_compact_a_table_that_is_merged_into_and_add_rows_of_their_own(
    tmp_path: Path,
) -> None:
    out, made = sink(mr.sinks.Delta, tmp_path), Records()
    for epoch in (0, 1):
        out.publish(epoch, [made.written(out, epoch, ("a", epoch, 1, False))])
    theirs = table_of(out).slice(0, 1).set_column(1, "_key", pa.array(["x"]))
    deltalake.write_deltalake(str(tmp_path), theirs, mode="append")
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()

    out.publish(2, [made.written(out, 2, ("a", 0, 2, False))])

    assert sorted(seen(out).values()) == [1, 1, 2]
    assert len(seen(out)) == 3


def test_of_two_drivers_that_merge_an_epoch_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is paused before its commit; meanwhile the other publishes this one and the next."""
    old, new, made = sink(mr.sinks.Delta, tmp_path), sink(mr.sinks.Delta, tmp_path), Records()
    old.publish(0, [made.written(old, 0, ("a", 0, 1, False))])
    theirs = made.written(old, 1, ("a", 0, 2, False))
    merge = delta_table.merge

    def paused(*arguments: Any) -> None:
        monkeypatch.setattr(delta_table, "merge", merge)
        for epoch in (1, 2):
            new.publish(epoch, [made.written(new, epoch, ("a", 0, epoch + 1, False))])
        merge(*arguments)

    monkeypatch.setattr(delta_table, "merge", paused)
    old.publish(1, [theirs])

    assert seen(old) == {("a", 0): 3}


def test_a_directory_has_epochs_or_a_table_by_key(tmp_path: Path) -> None:
    by_key, plain, made = (
        sink(mr.sinks.Parquet, tmp_path / "a"),
        mr.sinks.Parquet(tmp_path / "b"),
        Records(),
    )
    by_key.publish(0, [made.written(by_key, 0, ("a", 0, 1, False))])
    binding = Binding("p", "s", "me", COLUMNS)
    plain.bind(binding)
    plain.publish(0, [made.written(plain, 0, ("a", 0, 1, False))])

    with pytest.raises(PipelineError, match=r"written with a key.* this sink has none"):
        mr.sinks.Parquet(tmp_path / "a").bind(binding)
    with pytest.raises(PipelineError, match=r"written with no key.* this sink has one"):
        mr.sinks.Parquet(tmp_path / "b", key="_key").bind(binding)
    assert sink(mr.sinks.Parquet, tmp_path / "a").bind(binding) == f"the directory '{tmp_path}/a'"


def test_a_directory_without_rows_may_become_a_table_by_key(tmp_path: Path) -> None:
    binding, made = Binding("p", "s", "me", COLUMNS), Records()
    plain = mr.sinks.Parquet(tmp_path)
    plain.bind(binding)
    plain.claim(1, -1)
    assert [path.name for path in tmp_path.glob("epoch=*")] == ["epoch=-1"]

    by_key = sink(mr.sinks.Parquet, tmp_path)
    by_key.claim(2, -1)
    by_key.publish(0, [made.written(by_key, 0, ("a", 0, 1, False))])

    assert seen(by_key) == {("a", 0): 1}
    assert list(tmp_path.glob("epoch=*")) == []
    with pytest.raises(PipelineError, match=r"written with a key.* this sink has none"):
        plain.bind(binding)


def test_a_table_by_key_without_rows_may_become_a_directory_of_epochs(tmp_path: Path) -> None:
    binding, made = Binding("p", "s", "me", COLUMNS), Records()
    sink(mr.sinks.Parquet, tmp_path).claim(1, -1)

    plain = mr.sinks.Parquet(tmp_path)
    plain.bind(binding)
    plain.claim(2, -1)
    plain.publish(0, [made.written(plain, 0, ("a", 0, 1, False))])

    assert sorted(path.name for path in tmp_path.glob("[!_.]*")) == ["epoch=-1", "epoch=0"]
    with pytest.raises(PipelineError, match=r"written with no key.* this sink has one"):
        sink(mr.sinks.Parquet, tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (mr.sinks.Parquet, "_millrace_place"),
        (mr.sinks.Parquet, "_millrace_place_max"),
        (mr.sinks.Delta, "_millrace_place"),
        (mr.sinks.Delta, "_millrace_place_max"),
        (mr.sinks.Delta, "_millrace_deleted"),
        (mr.sinks.Delta, "_Millrace_Deleted"),
    ],
)
def test_a_field_called_as_a_column_of_a_table_by_key_is_refused(
    kind: type[Any], name: str, tmp_path: Path
) -> None:
    p = mr.Pipeline("p")
    p.inject("in", format=msgspec.defstruct("Row", [("n", int), (name, int)]))
    p.sink("in", kind(tmp_path, key="_key"))

    with pytest.raises(PipelineError, match=f"a field '{name}', which is the name of a column of "):
        mr.testing.Harness(p)
