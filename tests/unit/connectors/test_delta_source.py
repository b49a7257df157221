"""DeltaAppends: which rows come between which places, and what a table may do meanwhile."""

import datetime as dt
import json
import shutil
from decimal import Decimal
from itertools import chain, pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.injectors.offsets import pieces, pieces_until_now
from millrace.model.errors import InputLost, PipelineError
from tests.kit.pieces import rows
from tests.unit.connectors.lakeside import Lakeside, deletion_vector

deltalake = pytest.importorskip("deltalake", reason="an extra: pip install 'millrace-spark[delta]'")

SCHEMA = "n long, at long"


def of(*numbers):
    return pa.table({"n": pa.array(numbers, pa.int64()), "at": pa.array(numbers, pa.int64())})


class Lake(Lakeside):
    """A table on disk, empty at version 0."""

    def __init__(self, path, table=None):
        self.path = path
        self.write(of() if table is None else table)
        self.reader()

    @property
    def table(self):
        return deltalake.DeltaTable(str(self.path))

    def write(self, rows, **options):
        deltalake.write_deltalake(str(self.path), rows, **options)

    def reader(self, **options):
        """Begin again, with a new checkpoint."""
        options.setdefault("schema", SCHEMA)
        self.begin(mr.sources.Delta(self.path, **options))

    def append(self, *numbers):
        """Append a version with one file; return its number."""
        self.write(of(*numbers), mode="append")
        return self.table.version()

    def append_files(self, *files):
        """Append a version of several files."""
        added = []
        for n, numbers in enumerate(files):
            path = f"several-{self.table.version()}-{n}.parquet"
            pq.write_table(of(*numbers), self.path / path)
            size = (self.path / path).stat().st_size
            added.append(deltalake.transaction.AddAction(path, size, {}, 0, True, "{}"))
        self.table.create_write_transaction(added, "append", self.table.schema())
        return self.table.version()

    def commit(self, *actions):
        """Add a version of these actions, as another engine may write them."""
        version = self.table.version() + 1
        self.log(version).write_text("".join(json.dumps(one) + "\n" for one in actions))
        return version

    def log(self, version):
        return self.path / "_delta_log" / f"{version:020}.json"

    def lines(self, version):
        return [json.loads(line) for line in self.log(version).read_text().splitlines()]

    def files_of(self, version):
        return [one["add"]["path"] for one in self.lines(version) if "add" in one]

    def clean(self, until):
        """Have the log begin with a checkpoint at this version, as cleaning it does."""
        self.table.create_checkpoint()
        for version in range(until):
            self.log(version).unlink()


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path / "trips")


def test_a_table_without_rows_has_none(lake):
    assert lake.read_all() == []
    offset = lake.offsets[lake.process][0]
    assert lake.injector.backlog(lake.process, offset) == mr.sources.Backlog(records=0)
    assert lake.injector.backlog(lake.process, None) == mr.sources.Backlog(records=0)


def test_what_is_there_comes_first_and_then_what_is_appended_in_order(lake):
    lake.append(2, 1)
    lake.append(3)
    assert lake.injector.backlog(lake.process, None) == mr.sources.Backlog(records=3)
    (there,) = lake.read_all()
    assert sorted(there) == [1, 2, 3]
    lake.append(5)
    lake.append(4)
    offset = lake.offsets[lake.process][0]
    assert lake.injector.backlog(lake.process, offset) == mr.sources.Backlog(records=2)
    assert lake.read_all() == [[5, 4]]
    assert lake.read_all() == []


def test_what_comes_after_the_beginning_is_noted_is_no_part_of_it(lake):
    lake.append(1)
    lake.plan()
    lake.append(2)
    lake.reader(version=1)
    lake.plan()
    lake.append(3)
    assert lake.read_all() == [[1, 2, 3]]


def test_the_same_offsets_give_the_same_rows_whatever_came_since(lake):
    lake.append(1)
    planned = [lake.plan(), lake.plan()]
    lake.append(2)
    planned.append(lake.plan())
    first = [lake.read(between) for between in planned]
    assert first == [[], [1], [2]]
    lake.append(3)
    lake.table.optimize.compact()
    assert [lake.read(between) for between in planned] == first
    assert lake.read_all() == [[3]]
    lake.offsets = {}  # of another run
    assert [sorted(epoch) for epoch in lake.read_all()] == [[1, 2, 3]]
    assert lake.read(planned[1]) == [1]


def test_an_epoch_reads_whole_files_up_to_its_limit(lake):
    """Rows of files whose statistics do not say how many they have are counted."""
    lake.append(0)
    lake.append_files([1], [2, 2], [3], [4])
    lake.reader(records_per_epoch=2)
    lake.plan()
    lake.append_files([5, 5], [6])
    lake.append(7)
    epochs = lake.read_all()
    assert sorted(chain.from_iterable(epochs)) == [0, 1, 2, 2, 3, 4, 5, 5, 6, 7]
    assert all(2 <= len(epoch) <= 3 for epoch in epochs[:-1])
    assert epochs[-2:] == [[5, 5], [6, 7]]


def test_what_waits_within_a_version_is_counted(lake):
    lake.reader(records_per_epoch=1, version=1)
    lake.append_files([1, 1], [2, 2])
    lake.append(3)
    lake.read()
    lake.read()
    offset = lake.offsets[lake.process][0]
    assert lake.injector.backlog(lake.process, offset) == mr.sources.Backlog(records=3)


def test_small_files_are_one_piece_of_a_version(lake):
    lake.plan()
    lake.append_files([1], [2], [3])
    lake.append(4)
    planned = pieces(lake.injector, *lake.plan())
    assert [len(piece.between[1]) for piece in planned] == [3, 1]


def test_compaction_and_vacuum_are_passed_over(lake):
    lake.append(1)
    lake.append(2)
    lake.read_all()
    lake.table.optimize.compact()
    lake.append(3)
    lake.table.optimize.z_order(["n"])
    lake.table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    lake.reader(version=3)
    with pytest.raises(InputLost, match=r"\.parquet: the file was removed.*vacuumed"):
        lake.read_all()
    lake.reader()
    lake.plan()
    lake.append(4)
    assert [sorted(epoch) for epoch in lake.read_all()] == [[1, 2, 3, 4]]


def delete(lake):
    lake.table.delete("n = 2")


def update(lake):
    lake.table.update({"n": "5"}, predicate="n = 2")


def overwrite(lake):
    lake.write(of(9), mode="overwrite")


def merge(lake):
    found = lake.table.merge(of(2), "t.n = s.n", source_alias="s", target_alias="t")
    found.when_matched_update_all().execute()


@pytest.mark.parametrize(
    ("act", "named"),
    [(delete, "DELETE"), (update, "UPDATE"), (overwrite, "WRITE"), (merge, "MERGE")],
)
def test_what_takes_rows_away_is_refused_when_what_came_before_is_read(lake, act, named):
    lake.append(1, 2)
    assert lake.read_all() == [[1, 2]]
    lake.append(3)
    act(lake)
    taken = lake.table.version()
    lake.append(4)
    assert lake.read() == [3]
    message = rf"version {taken} of 20.*, {named}, takes rows away.*skip=\[{taken}\]"
    with pytest.raises(PipelineError, match=message):
        lake.read()
    with pytest.raises(PipelineError, match=message):
        lake.injector.backlog(lake.process, lake.offsets[lake.process][0])
    offsets = lake.offsets
    lake.reader(skip=[taken])
    lake.offsets = offsets
    assert lake.read_all() == [[4]]


def test_what_is_skipped_is_not_an_append(lake):
    lake.reader(version=1)
    lake.append(1)
    lake.read_all()
    lake.reader(version=1, skip=[lake.append(2)])
    assert lake.read_all() == [[1]]


def test_a_merge_and_an_overwrite_that_take_nothing_append(lake):
    lake.plan()
    overwrite(lake)
    found = lake.table.merge(of(2), "t.n = s.n", source_alias="s", target_alias="t")
    found.when_not_matched_insert_all().execute()
    lake.table.delete("n = 77")
    assert lake.read_all() == [[9, 2]]


def test_deletes_before_the_beginning_do_no_harm(lake):
    lake.append(1, 2)
    delete(lake)
    lake.append(3)
    (there,) = lake.read_all()
    assert sorted(there) == [1, 3]
    lake.reader(version=0)
    lake.plan()
    assert lake.read() == [1, 2]
    with pytest.raises(PipelineError, match="takes rows away"):
        lake.read()


def test_a_log_may_be_cleaned_of_what_was_read(lake):
    lake.append(1)
    lake.read_all()
    last = lake.append(2)
    lake.clean(last)
    assert lake.read_all() == [[2]]
    lake.reader()
    (there,) = lake.read_all()
    assert sorted(there) == [1, 2]


def test_and_not_of_what_was_not_read(lake):
    lake.append(1)
    lake.read_all()
    lost = lake.append(2)
    lake.clean(lake.append(3))
    with pytest.raises(InputLost, match=rf"version {lost} is not in the log any more"):
        lake.read()


def test_nor_of_where_reading_began(lake):
    lake.append(1)
    lake.plan()
    between = lake.plan()
    lake.clean(lake.append(2))
    lake.reader()
    with pytest.raises(InputLost, match="as it was at version 1, where reading began"):
        lake.read(between)


def test_a_file_that_is_gone_is_named(lake):
    version = lake.append(1)
    lake.plan()
    between = lake.plan()
    (path,) = lake.files_of(version)
    data = (lake.path / path).read_bytes()
    (lake.path / path).write_bytes(data[:4] + bytes(100) + data[104:])
    with pytest.raises(PipelineError, match=r"(?s)\.parquet cannot be read: .*damaged"):
        lake.read(between)
    (lake.path / path).write_bytes(b"something else")
    with pytest.raises(PipelineError, match=r"\.parquet is not a Parquet file.*written over"):
        lake.read(between)
    (lake.path / path).unlink()
    with pytest.raises(InputLost, match=r"\.parquet: the file was removed"):
        lake.read(between)


@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_table_that_was_made_again_is_refused(lake, again):
    """Of fewer versions than were read, of as many, of more; also by who goes on looking."""
    lake.append(1)
    lake.append(2)
    lake.read_all()
    shutil.rmtree(lake.path)
    lake.write(of())
    for n in range(again):
        lake.append(n)
    with pytest.raises(InputLost, match="the table was made again: its id is"):
        lake.read()


def test_a_log_that_was_set_back_is_refused(lake):
    last = lake.append(1)
    lake.read_all()
    lake.log(last).unlink()
    with pytest.raises(InputLost, match=rf"version {last} was read last, and the newest is 0"):
        lake.read()


def at_ms(lake, *times):
    """Say when the versions of a table were committed; the clock of a test."""
    for version, at in enumerate(times):
        lines = lake.lines(version)
        for one in lines:
            if "commitInfo" in one:
                one["commitInfo"]["timestamp"] = at
        lake.log(version).write_text("".join(json.dumps(one) + "\n" for one in lines))


def test_since_and_until_draw_the_same_line(lake):
    """Also where a version's time is before that of the one before it."""
    for n in range(4):
        lake.append(n)
    at_ms(lake, 500, 1_000, 5_000, 3_000, 7_000)
    for line_us in (0, 1_000_000, 2_000_000, 4_000_000, 6_000_000, 8_000_000):
        lake.reader(since=line_us)
        since = list(chain.from_iterable(lake.read_all()))
        planned = pieces_until_now("s", lake.injector, None)
        assert [r[0] for p in planned for r in rows(lake.injector, p) if not r[-1]] == since
        lake.reader()
        planned = list(pieces_until_now("s", lake.injector, line_us))
        until = [r[0] for p in planned for r in rows(lake.injector, p) if not r[-1]]
        assert (sorted(until), since) == ([*range(4 - len(since))], [*range(4 - len(since), 4)])
    lake.reader(since=2_000_000)
    planned = list(pieces_until_now("s", lake.injector, 6_000_000))
    assert [r[0] for p in planned for r in rows(lake.injector, p) if not r[-1]] == [1, 2]


def test_the_time_of_a_commit_is_what_it_says_else_that_of_its_file(lake):
    for n in range(3):
        lake.append(n)
    at_ms(lake, 1, 2, 3)
    for version, information in ((2, {"timestamp": 1, "inCommitTimestamp": 5_000}), (3, None)):
        lines = [one for one in lake.lines(version) if "commitInfo" not in one]
        lines += [] if information is None else [{"commitInfo": information}]
        lake.log(version).write_text("".join(json.dumps(one) + "\n" for one in lines))
    lake.reader(since=5_000_000)
    assert lake.read_all() == [[1, 2]]
    lake.reader(since=5_000_001)
    assert lake.read_all() == [[2]]


def test_a_line_of_the_log_ends_where_json_lines_do(lake):
    lake.plan()
    version = lake.append(1)
    information = {"commitInfo": {"timestamp": 1, "operation": "a\u2028b\x85c"}}
    said = json.dumps(information, ensure_ascii=False)
    with lake.log(version).open("a", encoding="utf-8") as log:
        log.write(f"\n{said}\n\n")
    assert lake.read_all() == [[1]]


def test_since_an_instant_that_the_log_does_not_reach_is_refused(lake):
    lake.append(1)
    lake.clean(lake.append(2))
    lake.reader(since="2020-01-01T00:00:00Z")
    with pytest.raises(InputLost, match=r"not in the log any more.*2020-01-01T00:00:00Z"):
        lake.read()


def test_what_was_before_need_not_be_there_any_more(lake):
    (path, *_) = lake.files_of(lake.append_files([1], [2]))
    (lake.path / path).unlink()
    lake.append(3)
    at_ms(lake, 1, 2, 3)
    lake.reader(since=3_000)
    assert lake.read_all() == [[3]]
    lake.reader(since=2_000)
    lake.plan()
    with pytest.raises(InputLost, match=rf"{path}: the file was removed"):
        lake.read()


def test_a_version_to_begin_with(lake):
    for n in range(1, 4):
        lake.append(n)
    lake.reader(version=2)
    assert lake.read_all() == [[2, 3]]
    lake.reader(version=4)
    assert lake.read_all() == []
    lake.append(4)
    assert lake.read_all() == [[4]]
    lake.reader(version=6)
    with pytest.raises(PipelineError, match=r"version=6: the table is at version 4"):
        lake.read()
    lake.clean(3)
    lake.reader(version=2)
    lake.plan()
    with pytest.raises(InputLost, match="version 2 is not in the log"):
        lake.read()


DAY = dt.date(2024, 2, 29)
AT = dt.datetime(2024, 2, 29, 10, 5, 6, 7, tzinfo=dt.UTC)


def test_columns_of_partitions_are_those_of_their_files(tmp_path):
    """As the log has them; also those with characters that a path cannot have, and nulls."""
    columns = {
        "n": ("long", pa.array([1, 2], pa.int64())),
        "day": ("date", pa.array([DAY, None])),
        "at": ("timestamp", pa.array([AT, AT], pa.timestamp("us", "UTC"))),
        "zone": ("string", pa.array(["a b/ü=%20", "x"])),
        "fare": ("decimal(12, 2)", pa.array([Decimal("1.50"), None], pa.decimal128(12, 2))),
        "paid": ("boolean", pa.array([True, False])),
        "ratio": ("double", pa.array([0.1, -2.0])),
        "count": ("int", pa.array([7, -7], pa.int32())),
        "digest": ("binary", pa.array([b"ab", b"\xff\0\\u"])),
    }
    ddl = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    table = pa.table({name: values for name, (_, values) in columns.items()})
    lake = Lake(tmp_path / "parts", table.slice(0, 0))
    by = [name for name in columns if name != "n"]
    shutil.rmtree(lake.path)
    lake.write(table, partition_by=by)
    for options in ({}, {"version": 0}):  # all that there is, and what a version added
        lake.reader(schema=ddl, **options)
        lake.plan()
        planned = pieces(lake.injector, *lake.plan())
        found = [row for piece in planned for row in rows(lake.injector, piece) if not row[-1]]
        named = [dict(zip(columns, row, strict=False)) for row in sorted(found)]
        assert named == table.to_pylist()
    lake.reader(schema="day date")  # nothing of the file itself
    assert lake.read_all() == [[DAY, None]]


def test_an_empty_text_of_a_partition_is_null(lake):
    lake.plan()
    pq.write_table(of(1).drop_columns("at"), lake.path / "a.parquet")
    lake.commit(add("a.parquet", partitionValues={"at": ""}))
    lake.reader(schema="at long, n long", version=1)
    assert lake.read_all() == [[None]]


def test_a_column_that_was_added_is_null_in_older_files(lake):
    lake.append(1)
    lake.plan()
    lake.write(pa.table({"n": [2], "at": [2], "more": ["x"]}), mode="append", schema_mode="merge")
    assert lake.read_all() == [[1, 2]]
    lake.reader(schema="more string, n long")
    (epoch,) = lake.read_all()
    assert sorted(epoch, key=str) == [None, "x"]


def test_a_partition_value_of_another_type_is_named(lake):
    lake.plan()
    pq.write_table(of(1).drop_columns("at"), lake.path / "a.parquet")
    lake.commit(add("a.parquet", partitionValues={"at": "noon"}))
    lake.reader(schema="n long, at long", version=1)
    lake.plan()
    with pytest.raises(PipelineError, match=r"a\.parquet: its partition says 'at' is 'noon'"):
        lake.read()


def test_a_field_that_was_added_is_null_in_older_files(tmp_path):
    """In a struct, in one of a list, and of a map."""

    def row(n, **fields):
        return {"n": n, "s": fields, "l": [fields], "m": [("k", fields)]}

    def table(n, fields):
        nested = [("n", pa.int64()), ("s", fields), ("l", pa.list_(fields))]
        schema = pa.schema([*nested, ("m", pa.map_(pa.string(), fields))])
        return pa.Table.from_pylist([row(n, a=n)], schema)

    old, new = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.string())])
    lake = Lake(tmp_path / "grows", table(1, old))
    lake.write(table(2, new), mode="append", schema_mode="merge")
    kind = "struct<b: string, a: long>"
    lake.reader(schema=f"s {kind}, l array<{kind}>, m map<string, {kind}>, n long")
    lake.plan()
    planned = pieces(lake.injector, *lake.plan())
    found = [row[:4] for piece in planned for row in rows(lake.injector, piece) if not row[-1]]
    one, two = ({"b": None, "a": n} for n in (1, 2))
    assert sorted(found, key=lambda row: row[3]) == [
        (one, [one], [("k", one)], 1),
        (two, [two], [("k", two)], 2),
    ]
    lake.reader(schema="s struct<a: long, c: long>")
    with pytest.raises(PipelineError, match="it has no field 'c'"):
        lake.plan()


def test_columns_that_are_not_as_declared_are_refused_at_once(lake):
    lake.reader(schema="n long, fare double")
    with pytest.raises(PipelineError, match=r"sources.Delta.* has no column 'fare'.*\['n', 'at'\]"):
        lake.plan()
    lake.reader(schema="n array<int>")
    with pytest.raises(PipelineError, match=r"column 'n' is int64, and the schema declares list"):
        lake.plan()


def add(path, **more):
    found = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0}
    return {"add": found | {"dataChange": True} | more}


def with_features(lake, *features):
    lake.commit(
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": [*features],
                "writerFeatures": [*features],
            }
        }
    )


def test_rows_that_a_deletion_vector_takes_are_never_read(lake):
    """That there may be vectors does no harm; that there are is refused."""
    lake.read_all()
    with_features(lake, "deletionVectors", "timestampNtz")
    version = lake.append(1, 2)
    assert lake.read_all() == [[1, 2]]
    (path,) = lake.files_of(version)
    (added,) = [one["add"] for one in lake.lines(version) if "add" in one]
    gone = lake.commit(
        {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 0}},
        {"add": added | {"deletionVector": deletion_vector(lake.path, 1)}},
    )
    with pytest.raises(PipelineError, match=rf"version {gone} .*takes rows away"):
        lake.read()
    lake.reader()
    lake.plan()
    with pytest.raises(
        PipelineError, match=rf"at version {gone} rows of .*{path}.* vector, .*PURGE"
    ):
        lake.read()
    cloned = lake.commit(
        {"add": added | {"path": "x", "deletionVector": deletion_vector(lake.path, 1)}}
    )
    lake.reader(version=cloned)
    lake.plan()
    with pytest.raises(PipelineError, match=rf"at version {cloned} rows of x are deleted"):
        lake.read()


def test_what_a_reader_must_know_and_this_one_does_not_is_refused(lake):
    lake.append(1)
    lake.read_all()
    with_features(lake, "variantType")
    with pytest.raises(PipelineError, match=r"must know \['variantType'\], and that is not read"):
        lake.read()


def test_mapped_columns_are_refused(lake):
    (metadata,) = [one["metaData"] for one in lake.lines(0) if "metaData" in one]
    schema = json.loads(metadata["schemaString"])
    for n, field in enumerate(schema["fields"], start=1):
        names = {"delta.columnMapping.id": n, "delta.columnMapping.physicalName": f"col-{n}"}
        field["metadata"] = names
    mode = {"delta.columnMapping.mode": "name"}
    with_features(lake, "columnMapping")
    mapped = {"schemaString": json.dumps(schema), "configuration": mode}
    lake.commit({"metaData": metadata | mapped})
    with pytest.raises(PipelineError, match=r"its columns are mapped to other names"):
        lake.read()


def test_files_of_another_place(lake, tmp_path):
    """As those of a shallow clone are."""
    lake.plan()
    elsewhere = tmp_path / "else where.parquet"
    pq.write_table(of(1), elsewhere)
    lake.commit(add(elsewhere.as_uri()))
    assert lake.read_all() == [[1]]
    lake.commit(add("hdfs://host/a.parquet"))
    with pytest.raises(PipelineError, match=r"its file hdfs://host/a\.parquet is elsewhere"):
        lake.read()


def test_instants_as_spark_writes_them(tmp_path):
    """INT96, which says nothing of a time zone."""
    table = pa.table({"at": pa.array([AT], pa.timestamp("us", "UTC"))})
    lake = Lake(tmp_path / "spark", table.slice(0, 0))
    lake.reader(schema="at timestamp")
    lake.plan()
    pq.write_table(table, lake.path / "a.parquet", use_deprecated_int96_timestamps=True)
    lake.commit(add("a.parquet"))
    assert lake.read_all() == [[AT]]


def test_what_it_cannot_be_asked_for_is_said(lake, tmp_path):
    with pytest.raises(PipelineError, match="expected a local or mounted path"):
        mr.sources.Delta("hdfs://host/trips", schema=SCHEMA)
    with pytest.raises(PipelineError, match="records_per_epoch=0"):
        lake.reader(records_per_epoch=0)
    for given in ({"version": -1}, {"version": 1, "since": 0}):
        with pytest.raises(PipelineError, match="expected one of the two"):
            lake.reader(**given)
    missing = mr.sources.Delta(tmp_path / "no", schema=SCHEMA)
    with pytest.raises(PipelineError, match="there is no Delta table"):
        missing.advance("no", None)
    lake.commit(add("a.parquet"))
    lake.log(1).write_text("{torn")
    lake.reader()
    with pytest.raises(PipelineError, match="the table cannot be read"):
        lake.plan()


def test_offsets_only_grow(lake):
    """Each advance begins where the one before ended, over whole files."""
    lake.reader(records_per_epoch=1, version=1)
    lake.append_files([1], [2])
    lake.append(3)
    advances = list(lake.injector.until_now(lake.process))
    assert len({json.dumps(one.offset) for one in advances}) == len(advances) == 4
    for earlier, later in pairwise(advances):
        assert list(lake.injector.split(lake.process, earlier.offset, later.offset))


def test_a_task_in_real_time_goes_on_from_any_place(lake):
    lake.reader(version=0)
    lake.append(1, 2, 3)
    lake.append(4)
    whole = lake.followed(None)
    assert [n for numbers, _ in whole for n in numbers] == [1, 2, 3, 4]
    for begun, (_, place) in enumerate(whole, start=1):
        left = [n for numbers, _ in whole[begun:] for n in numbers]
        assert [n for numbers, _ in lake.followed(place) for n in numbers] == left


def test_while_there_is_nothing_new_the_table_is_not_opened(lake, monkeypatch):
    lake.append(1)
    lake.read_all()
    opened = deltalake.DeltaTable.__init__

    def counted(self, *args, **options):
        opens.append(args)
        opened(self, *args, **options)

    opens = []
    monkeypatch.setattr(deltalake.DeltaTable, "__init__", counted)
    assert [lake.plan() for _ in range(3)]
    assert not opens
    lake.append(2)
    opens.clear()
    assert lake.read_all() == [[2]]
    assert len(opens) == 1
