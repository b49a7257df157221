"""Files: figure 10's low watermark, and files that grow, appear late, shrink or are replaced."""

import bz2
import codecs
import datetime as dt
import gzip
import json
import lzma
import os
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.connectors.files import directory as file_directory
from millrace.injectors.offsets import advanced, pieces, pieces_until_now
from millrace.model.errors import InputLost, PipelineError, RecordRejected
from tests.kit.pieces import rows


class Directory:
    """A directory, an injector over it, and what it gave so far, through JSON as on Spark."""

    def __init__(self, path, **options):
        self.path = path
        self.now = 10**9
        options.setdefault("created", lambda file: int(file.stem))
        self.injector = mr.sources.Files(
            path, schema="n long, at long", clock=lambda: self.now * mr.SECOND, **options
        )
        self.offsets = {}

    def write(self, name, text, *, mode="w"):
        with (self.path / name).open(mode) as file:
            file.write(text)
        self.touch(name, self.now)

    def touch(self, name, at):
        os.utime(self.path / name, (at, at))

    def plan(self):
        before, after = self.offsets, advanced("s", self.injector, self.offsets, ())
        self.offsets = json.loads(json.dumps(after))
        return pieces(self.injector, before, self.offsets)

    def read(self, planned=None):
        planned = self.plan() if planned is None else planned
        found = [row for piece in planned for row in rows(self.injector, piece)]
        return [row[0] for row in found if not row[-1]]

    @property
    def promised(self):
        ((_, claim),) = self.offsets.values()
        return claim


def lines(*numbers):
    return "".join(f'{{"n": {n}, "at": {n}}}\n' for n in numbers)


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path)


def test_an_empty_directory_promises_nothing(directory):
    assert directory.read() == []
    assert directory.promised is None


def test_the_oldest_unfinished_file_says_the_low_watermark(tmp_path):
    """Figure 10, with an epoch that has room for one file."""
    directory = Directory(tmp_path, bytes_per_epoch=44)
    for created in (300, 100, 200):
        directory.write(f"{created}.log", lines(created, created + 1))
    assert directory.read() == [100, 101]
    assert directory.promised == 200
    assert directory.read() == [200, 201]
    assert directory.promised == 300
    assert directory.read() == [300, 301]
    assert directory.promised == 300  # all are finished: nothing older comes
    assert directory.plan() == []


def test_a_new_file_raises_it(directory):
    directory.write("100.log", lines(1))
    directory.read()
    directory.write("500.log", lines(2))
    assert directory.read() == [2]
    assert directory.promised == 500


def test_a_file_that_appears_late_is_read_and_nothing_moves_back(directory, caplog):
    directory.write("500.log", lines(1))
    directory.read()
    directory.write("100.log", lines(2))
    assert directory.read() == [2]
    assert directory.promised == 500
    assert "100.log appeared late" in caplog.text


def test_a_file_that_appears_after_it_would_be_forgotten_is_not_read_and_logged(tmp_path, caplog):
    directory = Directory(tmp_path, forget=50)
    directory.write("100.log", lines(1))
    directory.write("500.log", lines(2))
    assert directory.read() == [1, 2]
    assert directory.read() == []
    assert list(directory.offsets[str(tmp_path)][0]["files"]) == ["500.log"]
    directory.write("200.log", lines(3))
    assert directory.read() == []
    assert directory.read() == []
    said = [record.message for record in caplog.records if "200.log is not read" in record.message]
    assert len(said) == 1, "each look finds it"
    assert "If it has just appeared, its records are missing" in said[0]


def test_old_files_that_are_read_with_new_ones_are_not_forgotten_unread(tmp_path):
    directory = Directory(tmp_path, forget=5)
    directory.write("10", lines(1))
    directory.write("90", lines(2))

    assert directory.read() == [1, 2]
    assert directory.read() == []


def test_until_now_is_what_there_is_or_was_created_before_an_instant(tmp_path):
    directory = Directory(tmp_path, forget=5, bytes_per_epoch=1)
    for created in (10, 90, 95):
        directory.write(str(created), lines(created))

    def read(before=None):
        return directory.read(list(pieces_until_now("s", directory.injector, before)))

    assert read() == [10, 90, 95]
    assert read(95) == [10, 90]
    assert read("1970-01-01T00:00:00Z") == []


def test_a_file_that_grows_is_unfinished_until_it_has_been_quiet(tmp_path):
    directory = Directory(tmp_path, grows="10 s")
    directory.write("100.log", lines(1) + '{"n": 2,')
    directory.write("200.log", lines(3))
    assert directory.read() == [1, 3]
    assert directory.promised == 100
    directory.write("100.log", ' "at": 2}\n', mode="a")
    assert directory.read() == [2]
    directory.now += 9
    assert directory.read() == []
    assert directory.promised == 100
    directory.now += 1
    assert directory.read() == []
    assert directory.promised == 200


def test_the_last_line_of_a_quiet_file_needs_no_end(tmp_path):
    directory = Directory(tmp_path, grows="10 s")
    directory.write("100.log", lines(1).rstrip("\n"))
    assert directory.read() == []
    directory.now += 10
    assert directory.read() == [1]


def test_a_finished_file_that_grows_after_all_is_read_on(directory):
    directory.write("100.log", lines(1))
    directory.read()
    directory.now += 1
    directory.write("100.log", lines(2), mode="a")
    assert directory.read() == [2]


@pytest.mark.parametrize("which", ["directory", "logs"])
def test_a_finished_file_may_grow_within_an_instant_of_its_file_system(which, request):
    """Which may be some milliseconds long, or two seconds."""
    directory = request.getfixturevalue(which)
    directory.write("1.log", lines(1))
    directory.now += 60
    assert directory.read() == [1]
    at = (directory.path / "1.log").stat().st_mtime
    directory.write("1.log", lines(2), mode="a")
    directory.touch("1.log", at)
    assert directory.read() == [2]


def test_a_file_larger_than_an_epoch_is_read_in_whole_lines(tmp_path):
    directory = Directory(tmp_path, bytes_per_epoch=50)
    directory.write("100.log", lines(*range(100, 110)))
    found = []
    while more := directory.read():
        assert len(more) <= 3
        found += more
    assert found == list(range(100, 110))


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_line_longer_than_an_epoch_is_read_whole(tmp_path, end):
    directory = Directory(tmp_path, bytes_per_epoch=5)
    directory.write("100.log", lines(1, 2).rstrip("\n") + end)
    assert directory.read() == [1]
    assert directory.read() == [2]


def test_a_truncated_file_is_an_error_that_says_what_to_do(directory):
    directory.write("100.log", lines(1, 2))
    directory.read()
    directory.now += 1
    directory.write("100.log", lines(3))
    with pytest.raises(
        InputLost, match=r"100\.log was truncated: 36 bytes of it were read, and .*18"
    ):
        directory.read()


def test_a_replaced_file_is_an_error(directory):
    directory.write("100.log", lines(1, 2))
    directory.read()
    directory.now += 1
    directory.write("100.log", lines(7, 8, 9))
    with pytest.raises(InputLost, match=r"was replaced: the 36 bytes .*rotated=True"):
        directory.read()


@pytest.mark.parametrize("fresh", [[3], [7, 8], [7, 8, 9, 10]])
def test_a_rotated_file_is_read_from_its_beginning(tmp_path, fresh, caplog):
    directory = Directory(tmp_path, rotated=True)
    directory.write("100.log", lines(1, 2))
    directory.read()
    directory.now += 1
    directory.write("100.log", lines(*fresh))
    assert directory.read() == fresh
    assert "It is read from its beginning" in caplog.text


def test_a_touched_file_is_not_read_again(directory):
    directory.write("100.log", lines(1))
    directory.read()
    directory.touch("100.log", 5)
    assert directory.read() == []


@pytest.mark.parametrize("text", [lines(1), lines(8, 9), lines(8, 9, 10)])
def test_a_file_replaced_while_it_is_read_is_an_error(directory, text):
    directory.write("100.log", lines(1, 2))
    planned = directory.plan()
    directory.write("100.log", text)
    with pytest.raises(InputLost, match="truncated or replaced while bytes 0 to 36"):
        directory.read(planned)


def test_a_file_removed_before_it_was_read_is_an_error(directory):
    directory.write("100.log", lines(1, 2))
    planned = directory.plan()
    (directory.path / "100.log").unlink()
    with pytest.raises(InputLost, match="was removed before bytes 0 to 36 of it were read"):
        directory.read(planned)


def test_a_finished_file_may_be_removed_and_come_back(directory):
    directory.write("100.log", lines(1))
    directory.read()
    (directory.path / "100.log").unlink()
    assert directory.read() == []
    directory.write("100.log", lines(1))
    assert directory.read() == []


def test_the_same_offsets_give_the_same_rows_again(directory):
    directory.write("100.log", lines(1, 2))
    planned = directory.plan()
    directory.now += 1
    directory.write("100.log", lines(3), mode="a")
    assert directory.read(planned) == directory.read(planned) == [1, 2]
    assert directory.read() == [3]


def test_hidden_names_and_other_patterns_are_passed_over(tmp_path):
    directory = Directory(tmp_path, pattern="*.log")
    for name in ("_100.log", ".200.log", "300.tmp"):
        directory.write(name, lines(1))
    assert directory.read() == []


def test_the_name_may_say_when_a_file_was_created(tmp_path):
    directory = Directory(tmp_path, created="searches-%Y%m%d-%H.log")
    directory.write("searches-19700101-02.log", lines(1))
    directory.read()
    assert directory.promised == 2 * mr.HOUR
    directory.write("other.log", lines(1))
    with pytest.raises(PipelineError, match="does not follow created='searches"):
        directory.read()


def test_by_default_a_file_was_created_when_it_was_last_changed_before_it_was_seen(tmp_path):
    directory = Directory(tmp_path, created=None)
    directory.write("a.log", lines(1))
    directory.read()
    assert directory.promised == directory.now * mr.SECOND


def test_a_line_that_cannot_be_read_is_named(directory):
    directory.write("100.log", lines(1) + "{oops\n")
    with pytest.raises(
        RecordRejected, match=r"100\.log, line \d, byte 18: DecodeError: (.|\n)*oops"
    ):
        directory.read()


def test_a_directory_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InputLost, match="No such file or directory"):
        Directory(tmp_path / "gone").read()


def parquet(directory, name, numbers, *, rows=1000, **columns):

    path = directory.path / name
    path.parent.mkdir(exist_ok=True)
    table = pa.table({"n": pa.array(numbers, pa.int32()), "x": numbers, "at": numbers, **columns})
    pq.write_table(table, path, row_group_size=rows)
    directory.touch(name, directory.now)
    return path


def test_parquet_is_read_by_the_columns_that_the_schema_declares(tmp_path):
    directory = Directory(tmp_path)
    parquet(directory, "5.parquet", [1, 2])
    directory.write("3.json", lines(0))
    assert directory.read() == [0, 1, 2]
    assert directory.promised == 5
    directory.write("7", lines(1))
    other = Directory(tmp_path, format="parquet", pattern="7")
    with pytest.raises(PipelineError, match=r"7 is not a Parquet file: .* Files\(format=\"json\""):
        other.read()


def test_a_large_parquet_file_is_read_in_row_groups_by_several_tasks_and_epochs(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("millrace.connectors.files.formats._ROW_GROUPS", 1)
    numbers = list(range(10_000))
    directory = Directory(tmp_path, bytes_per_epoch=1)
    parquet(directory, "1.parquet", numbers)
    assert directory.read() == numbers[:1000]
    assert directory.read() == numbers[1000:2000]
    assert directory.promised == 1

    directory = Directory(tmp_path)
    planned = directory.plan()
    assert [piece.number for piece in planned] == list(range(10))
    assert directory.read(planned[3:4]) == numbers[3000:4000]
    assert directory.read(planned) == numbers
    assert directory.read() == []

    monkeypatch.undo()
    assert len(Directory(tmp_path).plan()) == 1  # small row groups are not worth a task each


def test_an_empty_parquet_file_is_finished_at_once(directory):
    parquet(directory, "1.parquet", [])
    parquet(directory, "2.parquet", [7])
    assert directory.read() == [7]
    assert directory.promised == 2


def test_a_parquet_file_that_grows_is_read_when_it_is_quiet(tmp_path):
    directory = Directory(tmp_path, grows="5 s")
    parquet(directory, "1.parquet", [1])
    assert directory.read() == []
    directory.now += 5
    assert directory.read() == [1]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            "n long, more string",
            r"1.parquet has no column 'more', which .* declares. It has \['n', 'x', 'at'\]",
        ),
        ("n string", r"1.parquet: column 'n' is int32, and the schema declares binary"),
        ("n timestamp", r"1.parquet: column 'n' is int32, and the schema declares timestamp"),
    ],
)
def test_a_parquet_file_of_another_schema_is_an_error(directory, schema, words):
    parquet(directory, "1.parquet", [1])
    files = mr.sources.Files(directory.path, schema=schema.replace("n string", "n binary"))
    after = advanced("s", files, {}, ())
    with pytest.raises(PipelineError, match=words):
        [list(rows(files, piece)) for piece in pieces(files, {}, after)]


@pytest.mark.parametrize("place", ["page", "footer"])
def test_a_damaged_parquet_file_is_named(directory, place):
    file = directory.path / "1.parquet"
    pq.write_table(pa.table({"n": range(1000), "at": range(1000)}), file)
    data = bytearray(file.read_bytes())
    begin = 4 if place == "page" else len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[begin : begin + 50] = bytes(50)
    file.write_bytes(data)
    directory.touch(file.name, directory.now)
    with pytest.raises(PipelineError, match=r"1\.parquet.*(Corrupt|thrift)"):
        directory.read()


def test_instants_of_spark_are_read_as_such(directory):

    at = pa.array([1_700_000_000_000_001], pa.timestamp("us", "UTC"))
    for name, int96 in (("1.parquet", True), ("2.parquet", False)):
        pq.write_table(
            pa.table({"at": at}), directory.path / name, use_deprecated_int96_timestamps=int96
        )
    files = mr.sources.Files(directory.path, schema="at timestamp")
    planned = pieces(files, {}, advanced("s", files, {}, ()))
    made = [b for p in planned for b in files.read_arrow(p.process, *p.between)]
    assert [batch.column("at") for batch in made] == [at, at]


def test_folders_are_read_too_where_that_is_wanted(tmp_path):
    directory = Directory(tmp_path, recursive=True, pattern="*/*.json", created="%Y/%m/%d.json")
    for name, numbers in (("2026/01/02.json", [2]), ("2026/01/01.json", [1]), ("3.json", [3])):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        directory.write(name, lines(*numbers))
    (tmp_path / "_temporary").mkdir()
    directory.write("_temporary/2026.json", "half a li")
    assert directory.read() == [1, 2]
    assert directory.promised == 1_767_312_000 * mr.SECOND
    assert Directory(tmp_path, pattern="*.json").read() == [3]


def in_folders(path, schema, **options):
    """Return the rows of all files in a directory and its folders, in order of their paths."""
    options.setdefault("recursive", True)
    files = mr.sources.Files(path, schema=schema, **options)
    planned = pieces(files, {}, advanced("s", files, {}, ()))
    found = [row[:-3] for piece in planned for row in rows(files, piece) if not row[-1]]
    return sorted(found, key=lambda row: row[0])


def test_what_a_folder_is_called_is_a_column_that_its_files_have_not(tmp_path):
    """As Hive and Spark write them."""
    folders = {
        "day=2026-11-29/zone=a%2Fb %25": (dt.date(2026, 11, 29), "a/b %"),
        "zone=x=y/day=2026-11-30": (dt.date(2026, 11, 30), "x=y"),
        "zone=ü/day=__HIVE_DEFAULT_PARTITION__": (None, "ü"),
        "other=1/none": (None, None),
    }
    schema = "n long, day date, zone string"
    for n, folder in enumerate(folders):
        (tmp_path / "lines" / folder).mkdir(parents=True)
        (tmp_path / "lines" / folder / f"{n}.json").write_text(f'{{"n": {n}}}\n')
        if n < 3:
            (tmp_path / "tables" / folder).mkdir(parents=True)
            file = tmp_path / "tables" / folder / f"{n}.parquet"
            pq.write_table(pa.table({"n": [n], "other": [n]}), file)
    expected = [(n, *named) for n, named in enumerate(folders.values())]
    assert in_folders(tmp_path / "lines", schema) == expected
    assert in_folders(tmp_path / "tables", schema) == expected[:3]
    one = tmp_path / "tables" / "other=1" / "3.parquet"
    one.parent.mkdir()
    pq.write_table(pa.table({"n": [3]}), one)
    with pytest.raises(PipelineError, match=r"3\.parquet has no column 'day'"):
        in_folders(tmp_path / "tables", schema)


def test_a_folder_of_a_column_is_read_or_it_is_logged_that_it_is_not(tmp_path, caplog):
    """Also that of a column whose name hides other folders and files."""
    for folder in ("_day=7", "_temporary", ".day=8"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.json").write_text('{"n": 1}\n')
    assert in_folders(tmp_path, "n long, _day int") == [(1, 7)]
    assert not caplog.records
    files = mr.sources.Files(tmp_path, schema="n long")
    for _ in range(2):
        files.advance(str(tmp_path), None)
    (message,) = (record.message for record in caplog.records)
    assert message.startswith(f"{tmp_path}/_day=7 is not read: the files of folders are read with")


@pytest.mark.parametrize("parse", [False, True])
def test_what_a_line_says_itself_counts_more_than_its_folder(tmp_path, parse):
    def pair(line):
        fields = json.loads(line)
        return (fields["n"], fields["day"]) if "day" in fields else (fields["n"],)

    more = {"parse": pair} if parse else {}
    (tmp_path / "day=7").mkdir()
    file = tmp_path / "day=7" / "1.json"
    for days in ([None, None], [8, 9], [None, 8]):
        text = ({"n": n} | ({} if day is None else {"day": day}) for n, day in enumerate(days))
        file.write_text("\n".join(map(json.dumps, text)))
        found = in_folders(tmp_path, "n long, day int", **more)
        assert found == [(n, 7 if day is None else day) for n, day in enumerate(days)]


@pytest.mark.parametrize("schema", ["day date", "day timestamp", "day array<int>"])
def test_a_folder_that_is_called_what_its_column_cannot_be_is_named(tmp_path, schema):
    (tmp_path / "day=2026-11-29 10%3A00").mkdir()
    (tmp_path / "day=2026-11-29 10%3A00" / "1.json").write_text("{}\n")
    with pytest.raises(PipelineError, match=r"the folder 'day=2026.* is '2026-11-29 10:00', which"):
        in_folders(tmp_path, schema)


def test_a_large_file_of_lines_is_cut_between_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.connectors.files.formats._PIECE", 100)
    directory = Directory(tmp_path)
    directory.write("1", lines(*range(100)))
    planned = directory.plan()
    assert len(planned) > 5
    assert [n for piece in planned for n in directory.read([piece])] == list(range(100))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"format": "csv"}, r"Files\(format='csv'\): expected \"json\" or \"parquet\""),
        ({"format": "parquet", "parse": len}, "Parquet files have no lines"),
    ],
)
def test_a_format_that_is_none_is_refused(tmp_path, options, words):
    with pytest.raises(PipelineError, match=words):
        mr.sources.Files(tmp_path, schema="n long", **options)


def test_a_value_of_another_type_names_its_line(directory):
    directory.write("1", lines(1) + '{"n": "x", "at": 1}\n')
    with pytest.raises(
        RecordRejected, match=r"1, line \d, byte 18: column 'n' has values that are not"
    ):
        directory.read()


@pytest.fixture
def logs(tmp_path):
    """Logs that are rotated, with a pattern that their old names do not match."""
    return Directory(tmp_path, created=None, grows="1 min", rotated=True, pattern="*.log")


@pytest.fixture
def all_logs(tmp_path):
    return Directory(tmp_path, created=None, grows="1 min", rotated=True)


@pytest.mark.parametrize("which", ["logs", "all_logs"])
def test_a_renamed_file_is_read_on_and_not_again(which, request):
    logs = request.getfixturevalue(which)
    logs.write("app.log", lines(1, 2))
    assert logs.read() == [1, 2]
    logs.write("app.log", lines(3), mode="a")  # the tail, before the rename
    (logs.path / "app.log").rename(logs.path / "app.log.1")
    logs.now += 1
    logs.write("app.log", lines(4))
    assert sorted(logs.read()) == [3, 4]
    logs.write("app.log.1", lines(5), mode="a")  # the logger had it open
    (logs.path / "app.log.1").rename(logs.path / "app.log.2")
    (logs.path / "app.log").rename(logs.path / "app.log.1")
    logs.write("app.log", lines(6))
    assert sorted(logs.read()) == [5, 6]
    logs.now += 100
    assert logs.read() == []


@pytest.mark.parametrize("which", ["logs", "all_logs"])
def test_a_file_that_is_copied_and_truncated_is_read_on_in_the_copy(which, request):
    logs = request.getfixturevalue(which)
    logs.write("app.log", lines(1, 2))
    assert logs.read() == [1, 2]
    logs.write("app.log", lines(3), mode="a")
    copy = (logs.path / "app.log").read_text()
    logs.write("app.log.1", copy[:20])  # a look while it is copied
    assert logs.read() == [3]
    logs.write("app.log", lines(4), mode="a")
    logs.write("app.log.1", (logs.path / "app.log").read_text())
    logs.now += 1
    logs.write("app.log", lines(5))
    assert sorted(logs.read()) == [4, 5]
    logs.now += 100
    assert logs.read() == []


def test_a_quiet_log_may_be_truncated_within_an_instant_of_its_file_system(logs):
    logs.write("app.log", lines(1))
    logs.now += 61
    assert logs.read() == [1]
    at = (logs.path / "app.log").stat().st_mtime
    logs.write("app.log", lines(2, 3))
    logs.touch("app.log", at)
    assert logs.read() == [2, 3]


@pytest.mark.parametrize("which", ["logs", "all_logs"])
def test_a_quiet_log_is_not_read_again_in_the_copy_that_is_made_of_it(which, request):
    logs = request.getfixturevalue(which)
    logs.write("app.log", lines(1, 2))
    logs.now += 61
    assert logs.read() == [1, 2]
    for copied in (7, None):
        logs.write("app.log.1", (logs.path / "app.log").read_text()[:copied])
        assert logs.read() == []
    logs.write("app.log", lines(3))
    assert logs.read() == [3]
    assert logs.read() == []


def test_a_file_that_gets_the_inode_of_one_that_was_deleted_is_another(all_logs):
    all_logs.write("app.log", lines(1, 2))
    assert all_logs.read() == [1, 2]
    state = all_logs.offsets[str(all_logs.path)][0]["files"]["app.log"]
    (all_logs.path / "app.log").unlink()
    all_logs.now += 1
    all_logs.write("app.log", lines(7, 8, 9))
    state[-1] = (all_logs.path / "app.log").stat().st_ino
    assert all_logs.read() == [7, 8, 9]


def test_what_was_removed_is_compared_with_what_is_not_known_once(logs, monkeypatch):
    compared = 0
    checksum = file_directory.checksum

    def counted(file, end):
        nonlocal compared
        compared += 1
        return checksum(file, end)

    monkeypatch.setattr(file_directory, "checksum", counted)
    for n in range(20):
        logs.write(f"{n}.log", lines(n))
    logs.now += 60
    logs.read()
    for n in range(20):
        (logs.path / f"{n}.log").unlink()
        logs.write(f"not a log {n}", lines(*range(100, 200)))
    assert logs.read() == []
    assert compared >= 400
    compared = 0
    assert logs.read() == []
    assert compared == 0
    (logs.path / "not a log 7").write_text(lines(3))
    logs.write("20.log", lines(4, 21))
    assert logs.read() == [21]


def test_hard_links_are_one_file_and_compressed_ones_are_passed_over(all_logs):
    all_logs.write("app.log", lines(1, 2))
    os.link(all_logs.path / "app.log", all_logs.path / "link.log")
    assert all_logs.read() == [1, 2]
    all_logs.write("app.log.2.gz", "not lines")
    (all_logs.path / "app.log").unlink()
    all_logs.write("link.log", lines(3), mode="a")
    assert all_logs.read() == [3]


def test_a_file_that_is_moved_to_another_folder_is_not_read_again(tmp_path):
    logs = Directory(tmp_path, created=None, grows="1 min", rotated=True, recursive=True)
    logs.write("app.log", lines(1))
    assert logs.read() == [1]
    (tmp_path / "old").mkdir()
    logs.write("app.log", lines(2), mode="a")
    (tmp_path / "app.log").rename(tmp_path / "old" / "app.log")
    assert logs.read() == [2]


@pytest.mark.parametrize("way", ["renamed", "copied"])
def test_a_file_that_is_rotated_between_planning_and_reading_is_read(logs, way):
    logs.write("app.log", lines(1, 2))
    planned = logs.plan()
    if way == "renamed":
        (logs.path / "app.log").rename(logs.path / "app.log.1")
    else:
        logs.write("app.log.1", (logs.path / "app.log").read_text())
    logs.now += 1
    logs.write("app.log", lines(3))
    assert logs.read(planned) == [1, 2]
    assert logs.read() == [3]
    assert logs.read(planned) == [1, 2]  # again, as after a failure


@pytest.mark.parametrize("suffix", [".1", "-20261127", ".2026-11-27_13-00", "-20261127T130000.2"])
@pytest.mark.parametrize("looked", [False, True])
def test_a_log_that_came_and_was_rotated_between_two_looks_is_read(logs, suffix, looked):
    if looked:
        logs.write("app.log", lines(1))
        assert logs.read() == [1]
        (logs.path / "app.log").rename(logs.path / "app.log.9")
        logs.now += 1
    logs.write("app.log", lines(2))
    (logs.path / "app.log").rename(logs.path / f"app.log{suffix}")
    logs.now += 1
    logs.write("app.log", lines(3))
    assert sorted(logs.read()) == [2, 3]
    logs.now += 100
    assert logs.read() == []


@pytest.mark.parametrize("name", ["app.log.pos", "app.log.1.pos", "app.log1", "app.txt.1"])
def test_only_a_number_or_a_date_after_its_name_makes_a_file_part_of_a_log(logs, name):
    logs.write(name, lines(1))
    assert logs.read() == []
    assert logs.injector.backlog(str(logs.path), None).files == 0


def test_without_rotation_a_number_after_a_name_is_no_part_of_a_log(tmp_path):
    directory = Directory(tmp_path, created=None, pattern="*.log")
    directory.write("app.log.1", lines(1))
    assert directory.read() == []


def test_until_now_reads_the_rotated_files_that_a_run_has_read(logs):
    logs.write("app.log.1", lines(1))
    logs.now += 1
    logs.write("app.log", lines(2))
    found = [
        row for piece in pieces_until_now("s", logs.injector) for row in rows(logs.injector, piece)
    ]
    assert sorted(row[0] for row in found if not row[-1]) == sorted(logs.read()) == [1, 2]


@pytest.mark.parametrize("which", ["logs", "all_logs"])
def test_a_log_that_was_rotated_unseen_was_begun_when_the_one_before_had_ended(which, request):
    logs = request.getfixturevalue(which)
    logs.write("app.log", lines(1))
    logs.read()
    ended = logs.now
    (logs.path / "app.log").rename(logs.path / "app.log.2")
    logs.now += 100
    logs.write("app.log.1", lines(2))
    logs.now += 100
    logs.write("app.log", lines(3))
    logs.now += 100
    assert sorted(logs.read()) == [2, 3]
    files = logs.offsets[str(logs.path)][0]["files"].values()
    assert {state[5]: state[2] for state in files} == dict.fromkeys(
        ["app.log", "app.log.1", "app.log.2"], ended * mr.SECOND
    )


@pytest.mark.parametrize("pattern", ["*.log", "*"])
def test_what_its_name_says_of_a_rotated_file_is_said_before_its_number(tmp_path, pattern):
    logs = Directory(tmp_path, created="app-%Y%m%d.log", rotated=True, pattern=pattern)
    logs.write("app-20010909.log.1", lines(1))
    assert logs.read() == [1]
    assert logs.promised == 999_993_600 * mr.SECOND


def test_a_date_after_its_name_says_when_a_rotated_file_was_created(tmp_path):
    logs = Directory(tmp_path, created="app.log-%Y%m%d", rotated=True, pattern="app.log*")
    logs.write("app.log-20010909", lines(1))
    assert logs.read() == [1]
    assert logs.promised == 999_993_600 * mr.SECOND


@pytest.mark.parametrize("rotated", [True, False])
def test_a_file_that_grew_for_longer_than_forget_is_not_read_again(tmp_path, rotated):
    logs = Directory(
        tmp_path, created=None, grows="1 min", forget="1 h", rotated=rotated, pattern="*.log"
    )
    logs.write("1.log", lines(1))
    assert logs.read() == [1]
    logs.now += 2 * 3600
    logs.write("1.log", lines(2), mode="a")
    if rotated:
        (tmp_path / "1.log").rename(tmp_path / "1.log.1")
    logs.write("2.log", lines(3))
    assert sorted(logs.read()) == [2, 3]
    for _ in range(3):
        logs.now += 100
        assert logs.read() == []


def test_of_a_log_that_was_rotated_unseen_the_older_file_is_read_first(tmp_path):
    logs = Directory(
        tmp_path, created=None, grows="1 min", rotated=True, pattern="*.log", bytes_per_epoch=1
    )
    logs.write("app.log", lines(1))
    assert logs.read() == [1]
    (tmp_path / "app.log").rename(tmp_path / "app.log.2")
    logs.now += 1
    logs.write("app.log.1", lines(2))
    logs.now += 1
    logs.write("app.log", lines(3))
    assert [logs.read(), logs.read()] == [[2], [3]]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.connectors.files.formats._PIECE", 30)
    directory = Directory(tmp_path)
    (tmp_path / "1.json").write_bytes(codecs.BOM_UTF8 + lines(*range(9)).encode())
    (tmp_path / "2.json").write_bytes(codecs.BOM_UTF8 + b"\r\n" + lines(9).encode())
    assert directory.read() == list(range(10))


@pytest.mark.parametrize(
    ("begin", "kind"),
    [
        (gzip.compress(lines(1).encode()), r"compressed \(gzip\)"),
        (bz2.compress(lines(1).encode()), r"compressed \(bzip2\)"),
        (lzma.compress(lines(1).encode()), r"compressed \(xz\)"),
        (lines(1).encode("utf-16"), "text in UTF-16"),
    ],
    ids=["gzip", "bzip2", "xz", "utf-16"],
)
def test_a_file_that_has_no_lines_is_refused_and_not_each_of_its_lines(tmp_path, begin, kind):
    (tmp_path / "1.json").write_bytes(begin)
    directory = Directory(tmp_path)
    with pytest.raises(PipelineError, match=rf"1.json is {kind}, and lines are read of plain"):
        directory.read()


def test_a_parquet_file_that_is_taken_for_lines_is_refused(directory):
    parquet(directory, "1", [1])
    with pytest.raises(PipelineError, match="1 is a Parquet file, and lines are read of"):
        directory.read()


def test_a_name_that_is_no_text_is_refused_where_it_counts(tmp_path):
    directory = Directory(tmp_path, pattern="*.json")
    for ending in (b".json", b".tmp"):
        with open(os.fsencode(tmp_path) + b"/\xe9" + ending, "w") as file:  # noqa: PTH123
            file.write(lines(1))
    with pytest.raises(PipelineError, match=r"xe9\.json': the name of the file is not UTF-8"):
        directory.read()
    assert Directory(tmp_path, pattern="*.log").read() == []


@pytest.mark.parametrize("rotated", [False, True])
def test_a_file_is_not_read_again_by_a_link_to_it(tmp_path, rotated):
    directory = Directory(tmp_path, recursive=True, rotated=rotated)
    (tmp_path / "day").mkdir()
    directory.write("day/5.json", lines(5))
    (tmp_path / "latest").symlink_to("day")
    (tmp_path / "day" / "6.json").symlink_to("5.json")
    (tmp_path / "day" / "up").symlink_to(tmp_path)
    assert directory.read() == [5]
    directory.write("day/7.json", lines(7))
    assert directory.read() == [7]
    assert Directory(tmp_path, recursive=True, pattern="latest/5*").read() == [5]


@pytest.mark.parametrize("recursive", [True, False])
def test_links_that_lead_nowhere_are_passed_over(tmp_path, recursive):
    directory = Directory(tmp_path, recursive=recursive)
    directory.write("1.json", lines(1))
    for name, to in ("2.json", "2.json"), ("3.json", "gone"), ("day=4", "day=4"):
        (tmp_path / name).symlink_to(to)
    assert directory.read() == [1]


def test_a_link_is_followed_to_what_has_no_other_name_there(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "partner").mkdir()
    (tmp_path / "partner" / "3.json").write_text(lines(3))
    (tmp_path / "in" / "partner").symlink_to(tmp_path / "partner")
    (tmp_path / "in" / ".data.json").write_text(lines(4))
    (tmp_path / "in" / "4.json").symlink_to(".data.json")
    assert sorted(Directory(tmp_path / "in", recursive=True).read()) == [3, 4]


def test_a_folder_that_is_removed_while_the_directory_is_looked_at_is_passed_over(
    tmp_path, monkeypatch
):
    directory = Directory(tmp_path, recursive=True)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    directory.write("b/1.json", lines(1))
    scan = os.scandir

    def removing(folder):
        if folder == str(tmp_path / "a"):
            (tmp_path / "a").rmdir()
        return scan(folder)

    monkeypatch.setattr("millrace.connectors.files.directory.os.scandir", removing)
    assert directory.read() == [1]


def test_a_file_that_is_renamed_while_the_directory_is_looked_at_is_read_by_its_new_name(
    tmp_path, monkeypatch
):
    directory = Directory(tmp_path)
    directory.write("1.json", lines(1))
    directory.write("2.tmp", lines(2))
    look = file_directory.Directory.look

    def renamed(self, *arguments):
        found = look(self, *arguments)
        with suppress(FileNotFoundError):
            (tmp_path / "2.tmp").rename(tmp_path / "2.json")
        return found

    monkeypatch.setattr(file_directory.Directory, "look", renamed)
    assert [directory.read(), directory.read()] == [[1], [2]]


def test_a_directory_may_be_named_as_spark_names_it(tmp_path):
    directory = Directory(tmp_path)
    directory.write("1.json", lines(1))
    address = Directory(tmp_path)
    address.injector = mr.sources.Files(tmp_path.as_uri(), schema="n long, at long")
    assert address.read() == directory.read() == [1]


@pytest.mark.parametrize("path", ["", "ftp://host/in", "hdfs:///in"])
def test_what_names_no_directory_is_refused(path):
    with pytest.raises(PipelineError, match="expected a local or mounted directory"):
        mr.sources.Files(path, schema="n long")
