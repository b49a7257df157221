"""IcebergAppends: which rows come between which places, and what a table may do meanwhile."""

import json
from itertools import chain, pairwise
from pathlib import Path

import pytest

import millrace as mr
from millrace.injectors.offsets import pieces, pieces_until_now
from millrace.model.errors import InputLost, PipelineError
from tests.kit.pieces import rows
from tests.unit.connectors.lakeside import Lakeside

pytest.importorskip("pyiceberg", reason="an extra: pip install 'millrace-spark[iceberg]'")
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

NAME = "lake.trips"
SCHEMA = "n long, at long"


def of(*numbers):
    return pa.table({"n": pa.array(numbers, pa.int64()), "at": pa.array(numbers, pa.int64())})


class Lake(Lakeside):
    """A table on disk."""

    def __init__(self, path, **options):
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{path}/catalog.db",
            "warehouse": f"file://{path}",
        }
        opened = load_catalog(**self.catalog)
        opened.create_namespace("lake")
        self.table = opened.create_table(NAME, of().schema)
        self.reader(**options)

    def reader(self, **options):
        """Begin again, with a new checkpoint."""
        options.setdefault("schema", SCHEMA)
        self.begin(mr.sources.Iceberg(NAME, catalog=self.catalog, **options))

    def append(self, *numbers):
        """Append a snapshot with one file; return its id."""
        self.table.append(of(*numbers))
        return self.table.current_snapshot().snapshot_id

    def append_files(self, *files):
        """Append a snapshot of several files."""
        before = {task.file.file_path for task in self.table.scan().plan_files()}
        aside = load_catalog(**self.catalog).create_table(
            f"lake.aside{len(before)}", of().schema, location=f"{self.table.location()}/aside"
        )
        for numbers in files:
            aside.append(of(*numbers))
        paths = [task.file.file_path for task in aside.scan().plan_files()]
        self.table.add_files(paths)

    def compact(self, monkeypatch):
        """Put all rows into one file, as an engine's compaction does."""
        counted = snapshot.update_snapshot_summaries

        def replaces(summary, previous_summary):  # which PyIceberg only reads
            overwrites = Summary(Operation.OVERWRITE, **summary.additional_properties)
            made = counted(overwrites, previous_summary)
            return Summary(Operation.REPLACE, **made.additional_properties)

        everything, old = self.table.scan().to_arrow(), list(self.table.scan().plan_files())
        with monkeypatch.context() as patch:
            patch.setattr(snapshot, "update_snapshot_summaries", replaces)
            commit = self.table.transaction()
            made = _dataframe_to_data_files(commit.table_metadata, everything, self.table.io)
            with commit.update_snapshot().overwrite() as rewrite:
                rewrite._operation = Operation.REPLACE
                for task in old:
                    rewrite.delete_data_file(task.file)
                for file in made:
                    rewrite.append_data_file(file)
            commit.commit_transaction()
        assert self.table.current_snapshot().summary.operation is Operation.REPLACE

    def expire(self, *snapshots):
        self.table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


def test_a_table_without_rows_stays_where_it_is(lake):
    assert lake.read_all() == []
    assert lake.offsets[NAME][0] is None
    assert lake.injector.backlog(NAME, None) == mr.sources.Backlog(records=0)


def test_what_is_appended_comes_once_and_in_order(lake):
    lake.append(2, 1)
    lake.append(3)
    assert lake.read_all() == [[2, 1, 3]]
    lake.append(5)
    lake.append(4)
    assert lake.injector.backlog(NAME, lake.offsets[NAME][0]) == mr.sources.Backlog(records=2)
    assert lake.read_all() == [[5, 4]]
    assert lake.read_all() == []


def test_the_same_offsets_give_the_same_rows_whatever_came_since(lake, monkeypatch):
    lake.append(1)
    planned = [lake.plan(), lake.plan()]
    lake.append(2)
    planned.append(lake.plan())
    first = [lake.read(between) for between in planned]
    assert first == [[], [1], [2]]
    lake.append(3)
    lake.compact(monkeypatch)
    assert [lake.read(between) for between in planned] == first
    assert lake.read_all() == [[3]]


def test_an_epoch_reads_whole_files_up_to_its_limit(lake):
    lake.reader(records_per_epoch=2)
    lake.append(0)
    lake.append_files([1], [2, 2], [3], [4])
    lake.append(5)
    epochs = lake.read_all()
    assert sorted(chain.from_iterable(epochs)) == [0, 1, 2, 2, 3, 4, 5]
    assert all(2 <= len(epoch) <= 3 for epoch in epochs[:-1])


def files_of(lake):
    return [task.file.file_path for task in lake.table.scan().plan_files()]


def test_what_waits_within_a_snapshot_is_counted(lake):
    lake.reader(records_per_epoch=1)
    lake.append_files([1, 1], [2, 2])
    lake.append(3)
    lake.read()
    lake.read()
    assert lake.injector.backlog(NAME, lake.offsets[NAME][0]) == mr.sources.Backlog(records=3)


def test_small_files_are_one_piece_of_a_snapshot(lake):
    lake.append_files([1], [2], [3])
    lake.append(4)
    lake.plan()
    planned = pieces(lake.injector, *lake.plan())
    assert [piece.between is not None for piece in planned] == [True, True]


def test_compaction_moves_rows_and_is_passed_over(lake, monkeypatch):
    lake.append(1)
    lake.append(2)
    assert lake.read_all() == [[1, 2]]
    lake.compact(monkeypatch)
    assert lake.read_all() == []
    lake.append(3)
    assert lake.read_all() == [[3]]


def test_a_delete_is_refused_when_what_came_before_is_read(lake):
    lake.append(1, 2)
    assert lake.read_all() == [[1, 2]]
    lake.append(3)
    lake.table.delete(EqualTo("n", 2))
    deletes = lake.table.current_snapshot().snapshot_id
    lake.append(4)
    assert lake.read() == [3]
    with pytest.raises(PipelineError, match=rf"snapshot {deletes} of 20.* 'overwrite', .*skip="):
        lake.read()
    offsets = lake.offsets
    lake.reader(skip=[deletes])
    lake.offsets = offsets
    assert lake.read_all() == [[4]]


def test_equality_deletes_are_refused_and_never_passed_over(lake):
    """As Flink writes them."""
    lake.append(1, 2)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"{lake.table.location()}/data/gone.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
        equality_ids=[1],
    )
    file.spec_id = 0
    with lake.table.transaction() as commit, commit.update_snapshot().fast_append() as change:
        change.append_data_file(file)
    lake.expire(lake.table.snapshots()[0].snapshot_id)
    lake.plan()
    with pytest.raises(PipelineError, match=r"cannot read snapshot .*equality deletes.*since="):
        lake.read()


def test_what_is_skipped_is_not_an_append(lake):
    lake.append(1)
    lake.read_all()
    lake.reader(skip=[lake.append(2)])
    assert lake.read_all() == [[1, 2]]


def test_deletes_before_the_oldest_snapshot_do_no_harm(lake):
    first = lake.append(1, 2)
    lake.table.delete(EqualTo("n", 2))
    lake.append(3)
    with pytest.raises(PipelineError, match="'overwrite'"):
        lake.read_all()
    lake.reader()
    lake.expire(first)
    assert lake.read_all() == [[1, 3]]


def test_a_snapshot_that_was_read_may_expire(lake):
    one = lake.append(1)
    lake.read_all()
    two = lake.append(2)
    lake.expire(one)
    assert lake.read_all() == [[2]]
    lake.append(3)
    lake.expire(two)
    assert lake.read_all() == [[3]]


def test_a_snapshot_that_was_not_read_may_not(lake):
    lake.append(1)
    lake.read_all()
    two = lake.append(2)
    lake.append(3)
    lake.expire(two)
    with pytest.raises(InputLost, match=r"read last, .*or snapshots between the two were expired"):
        lake.read()


def test_nor_one_that_is_planned(lake):
    one = lake.append(1)
    between = lake.plan(), lake.plan()
    lake.append(2)
    lake.expire(one)
    with pytest.raises(InputLost, match=rf"not kept any more: snapshot {one}"):
        lake.read(between[1])


def test_a_file_that_is_gone_is_named(lake):
    lake.append(1)
    lake.plan()
    between = lake.plan()
    (path,) = files_of(lake)
    file = Path(path.removeprefix("file://"))
    data = file.read_bytes()
    file.write_bytes(data[:4] + bytes(30) + data[34:])
    with pytest.raises(PipelineError, match=r"(?s)\.parquet cannot be read: .*damaged"):
        lake.read(between)
    lake.table.io.delete(path)
    with pytest.raises(InputLost, match=r"\.parquet: the file was removed"):
        lake.read(between)


def test_a_table_that_was_set_back_is_refused(lake):
    one = lake.append(1)
    two = lake.append(2)
    lake.read_all()
    lake.table.manage_snapshots().rollback_to_snapshot(one).commit()
    with pytest.raises(InputLost, match=rf"snapshot {two} was read last, .*set back"):
        lake.read()


def test_a_table_that_was_made_again_is_refused(lake):
    """Also where the sequence numbers of its snapshots would follow, as others are expired."""
    lake.append(1)
    between = lake.plan(), lake.plan()
    opened = load_catalog(**lake.catalog)
    opened.drop_table(NAME)
    lake.table = opened.create_table(NAME, of().schema)
    first = lake.append(8)
    lake.append(9)
    lake.expire(first)
    with pytest.raises(InputLost, match="the table was made again: its id is"):
        lake.read()
    with pytest.raises(InputLost, match="the table was made again: its id is"):
        lake.read(between[1])


def at_ms(lake, *times):
    """Say when the snapshots of a table were committed; the clock of a test."""
    metadata = lake.table.metadata
    made = [
        one.model_copy(update={"timestamp_ms": at})
        for one, at in zip(metadata.snapshots, times, strict=True)
    ]
    return metadata.model_copy(update={"snapshots": made})


def test_since_and_until_draw_the_same_line(lake, monkeypatch):
    """Also where a snapshot's time is before that of its parent."""
    for n in range(4):
        lake.append(n)
    metadata = at_ms(lake, 1_000, 5_000, 3_000, 7_000)
    load = mr.sources.Iceberg._load

    def loaded(self):
        table = load(self)
        table.metadata = metadata
        return table

    monkeypatch.setattr(mr.sources.Iceberg, "_load", loaded)
    for line_us in (0, 1_000_000, 2_000_000, 4_000_000, 6_000_000, 8_000_000):
        lake.reader(since=line_us)
        since = list(chain.from_iterable(lake.read_all()))
        planned = pieces_until_now("s", lake.injector, None)
        assert [r[0] for p in planned for r in rows(lake.injector, p) if not r[-1]] == since
        lake.reader()
        planned = list(pieces_until_now("s", lake.injector, line_us))
        until = [r[0] for p in planned for r in rows(lake.injector, p) if not r[-1]]
        assert until + since == [0, 1, 2, 3], line_us


def test_since_an_instant_that_is_expired_is_refused(lake):
    one = lake.append(1)
    lake.append(2)
    lake.expire(one)
    lake.reader(since="2020-01-01T00:00:00Z")
    with pytest.raises(InputLost, match=r"are expired.*2020-01-01T00:00:00Z"):
        lake.read()


def test_columns_are_found_by_what_they_are_now(lake):
    lake.append(1)
    with lake.table.update_schema() as change:
        change.rename_column("n", "number")
        change.add_column("more", LongType())
    lake.table.append(pa.table({"number": [2], "at": [2], "more": [7]}))
    lake.reader(schema="number long, more long, at long")
    (epoch,) = lake.read_all()
    assert epoch == [1, 2]
    lake.reader(schema="n long, at long")
    lake.plan()
    with pytest.raises(PipelineError, match=r"has no column 'n'.*\['at', 'more', 'number'\]"):
        lake.read()


def test_what_it_cannot_be_asked_for_is_said(lake):
    with pytest.raises(PipelineError, match="with its namespace"):
        mr.sources.Iceberg("trips", catalog=lake.catalog, schema=SCHEMA)
    with pytest.raises(PipelineError, match="records_per_epoch=0"):
        lake.reader(records_per_epoch=0)
    missing = mr.sources.Iceberg("lake.other", catalog=lake.catalog, schema=SCHEMA)
    with pytest.raises(PipelineError, match="no such table"):
        missing.advance("lake.other", None)
    away = mr.sources.Iceberg(
        NAME, catalog={"type": "sql", "uri": "sqlite:////no/such/place.db"}, schema=SCHEMA
    )
    with pytest.raises(ConnectionError, match="Is it up"):
        away.advance(NAME, None)


def test_offsets_only_grow(lake):
    """Each advance begins where the one before ended, over whole files."""
    lake.reader(records_per_epoch=1)
    lake.append_files([1], [2])
    lake.append(3)
    advances = list(lake.injector.until_now(NAME))
    assert len({json.dumps(one.offset) for one in advances}) == len(advances) == 4
    for earlier, later in pairwise(advances):
        assert list(lake.injector.split(NAME, earlier.offset, later.offset))


def test_a_task_in_real_time_goes_on_from_any_place(lake):
    lake.append(1, 2, 3)
    lake.append(4)
    whole = lake.followed(None)
    assert [n for numbers, _ in whole for n in numbers] == [1, 2, 3, 4]
    for begun, (_, place) in enumerate(whole, start=1):
        left = [n for numbers, _ in whole[begun:] for n in numbers]
        assert [n for numbers, _ in lake.followed(place) for n in numbers] == left
