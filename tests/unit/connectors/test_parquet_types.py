"""Types that other programs write into Parquet files, as ``mr.sources.Files`` reads them.

The oracle is pyarrow, which writes and reads the same files.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import matrix_page
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr

INSTANT = dt.datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=dt.UTC)
SECOND = INSTANT.replace(microsecond=0)
TEXT = ["tea", "", None, "\U0001f375"]


@dataclass(frozen=True)
class Column:
    """A column of a file: its Arrow type, values, and the type that a user declares."""

    kind: pa.DataType
    values: list[Any]
    ddl: str

    def __str__(self) -> str:
        return f"{self.kind} as {self.ddl}"


def each(values: list[Any], ddl: str, *kinds: pa.DataType) -> list[Column]:
    return [Column(kind, values, ddl) for kind in kinds]


EQUAL = [
    *each([-(1 << 7), (1 << 7) - 1, None], "tinyint", pa.int8()),
    *each([-(1 << 15), (1 << 15) - 1, None], "smallint", pa.int16()),
    *each([-(1 << 31), (1 << 31) - 1, None], "int", pa.int32()),
    *each([-(1 << 63), (1 << 63) - 1, None], "bigint", pa.int64()),
    *each([0.1, -0.0, float("inf"), None], "double", pa.float64()),
    *each([0, 1 << 7, (1 << 8) - 1, None], "smallint", pa.uint8()),
    *each([0, 1 << 15, (1 << 16) - 1, None], "int", pa.uint16()),
    *each([0, 1 << 31, (1 << 32) - 1, None], "bigint", pa.uint32()),
    *each([0, 1 << 63, (1 << 64) - 1, None], "decimal(20,0)", pa.uint64()),
    *each([0, (1 << 63) - 1], "bigint", pa.uint64()),
    *each([Decimal("19.99"), Decimal("-0.01"), None], "decimal(20,2)",
          pa.decimal128(20, 2), pa.decimal256(50, 2), pa.decimal128(9, 2), pa.decimal32(9, 2),
          pa.decimal64(18, 2)),
    *each([Decimal("9" * 38)], "decimal(38,0)", pa.decimal256(76, 0)),
    *each(TEXT, "string", pa.string(), pa.large_string(), pa.string_view(),
          pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())),
    *each([b"tea", b"", None, bytes(range(256))], "binary", pa.binary(), pa.large_binary(),
          pa.binary_view(), pa.dictionary(pa.int16(), pa.binary())),
    *each([b"four", None], "binary", pa.binary(4)),
    *each([7, None], "bigint", pa.dictionary(pa.int32(), pa.int64())),
    *each([[1, None, 3], [], None], "array<bigint>", pa.list_(pa.int64()), pa.list_(pa.int32()),
          pa.large_list(pa.int64())),
    *each([[1, 2], None, [None, 4]], "array<bigint>", pa.list_(pa.int64(), 2)),
    *each([["tea", None], None], "array<string>", pa.large_list(pa.large_string()),
          pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    *each([{"x": 1, "name": "a"}, {"x": None, "name": None}, None],
          "struct<x: bigint, name: string>",
          pa.struct([("x", pa.int64()), ("name", pa.string())]),
          pa.struct([("name", pa.large_string()), ("x", pa.uint32()), ("more", pa.int8())])),
    *each([[("tea", 1), ("salt", None)], [], None], "map<string, bigint>",
          pa.map_(pa.string(), pa.int64()), pa.map_(pa.large_string(), pa.int16())),
    *each([dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31), None], "date",
          pa.date32(), pa.date64()),
    *each([SECOND, None], "timestamp", *(pa.timestamp(unit, zone)
          for unit in ("s", "ms", "us", "ns") for zone in ("UTC", "America/New_York", "+05:30"))),
    *each([INSTANT], "timestamp", pa.timestamp("us", "UTC"), pa.timestamp("ns", "Asia/Kolkata")),
    *each([None, None], "bigint", pa.null()),
    *each([None, None], "struct<x: bigint, name: string>", pa.null()),
    *each([0.5, -0.0, 65504.0, float("inf"), None], "float", pa.float16(), pa.float32()),
    *each([0.5, -0.0, 65504.0, float("inf"), None], "double", pa.float16(), pa.float32()),
    *each([True, None], "boolean", pa.bool_()),
]  # fmt: skip

#: Whose declared type cannot hold a value of them: the others are read.
LETTER: list[Column] = [
    Column(pa.uint64(), [1, 1 << 63], "bigint"),
    Column(pa.uint8(), [1, 200], "tinyint"),
    Column(pa.decimal256(76, 2), [Decimal("1.00"), Decimal("9" * 60)], "decimal(38,2)"),
    Column(pa.decimal128(10, 4), [Decimal("1.0000"), Decimal("0.0001")], "decimal(10,2)"),
    Column(pa.float64(), [0.5, 0.1], "float"),
    Column(pa.int64(), [1, (1 << 53) + 1], "double"),
    Column(pa.list_(pa.int64()), [[1], [1 << 31], [2, 3], None], "array<int>"),
    Column(pa.list_(pa.int64(), 1), [[1], [1 << 31], None, [2]], "array<int>"),
    Column(
        pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": 1 << 31}, {"x": 2}, None], "struct<x: int>"
    ),
    Column(
        pa.list_(pa.struct([("x", pa.list_(pa.int64()))])),
        [[{"x": [1, 2]}], [{"x": [3]}, {"x": [1 << 31]}], [{"x": [4]}, None]],
        "array<struct<x: array<int>>>",
    ),
    Column(
        pa.map_(pa.string(), pa.int64()),
        [[("a", 1)], [("a", 1 << 31)], [("b", 2)]],
        "map<string, int>",
    ),
]

#: Of which no value is of the declared type: the file is refused.
REFUSED = [
    *each([dt.time(9, 30)], "string", pa.time32("s"), pa.time32("ms"), pa.time64("us"),
          pa.time64("ns")),
    *each([dt.time(9, 30)], "bigint", pa.time32("ms"), pa.time64("us")),
    *each([dt.timedelta(seconds=1)], "bigint", pa.duration("s"), pa.duration("us")),
    *each([SECOND.replace(tzinfo=None)], "timestamp", *(pa.timestamp(unit)
          for unit in ("s", "ms", "us", "ns"))),
    Column(pa.string(), ["5"], "bigint"),
    Column(pa.int64(), [5], "string"),
    Column(pa.bool_(), [True], "int"),
    Column(pa.float64(), [1.0], "bigint"),
    Column(pa.timestamp("us", "UTC"), [SECOND], "bigint"),
    Column(pa.binary(), [b"a"], "string"),
    Column(pa.struct([("x", pa.int64())]), [{"x": 1}], "struct<y: bigint>"),
    Column(pa.list_(pa.int64()), [[1]], "bigint"),
]  # fmt: skip


def write(folder: Path, column: Column, **options: Any) -> Path:
    values = column.values
    if column.kind == pa.float16():
        values = [None if value is None else np.float16(value) for value in values]
    table = pa.table(
        {
            "n": pa.array(range(len(values)), pa.int64()),
            "x": pa.array(values, column.kind),
        }
    )
    pq.write_table(table, folder / "rows.parquet", **options)
    return folder / "rows.parquet"


def read(folder: Path, ddl: str) -> tuple[dict[int, Any], list[mr.DeadLetter]]:
    """Return the values by their number, and what is refused."""
    seen: dict[int, Any] = {}
    known = {"date": dt.date, "decimal": Decimal}.get(ddl.partition("(")[0])
    row = msgspec.defstruct("Row", [("n", int), ("x", Any if known is None else known | None)])

    class Reads(mr.Computation):
        inputs = {"rows": mr.by("n")}

        def process_record(self, record: Any) -> None:
            seen[record.value.n] = record.value.x

    p = mr.Pipeline("types")
    source = mr.sources.Files(folder, schema=f"n long, x {ddl}")
    p.inject("rows", source, timestamp=mr.INGRESS, format=row)
    p.add(Reads)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.poll("rows")
        return dict(seen), [out.value for out in h.outputs("letters")]


def expected(value: Any, kind: pa.DataType, ddl: str) -> Any:
    """Return pyarrow's value as Millrace has it: a map is a dict, a decimal a Decimal."""
    if kind == pa.uint64() and value is not None and ddl.startswith("decimal"):
        return Decimal(value)
    return dict(value) if pa.types.is_map(kind) and value is not None else value


def word(column: Column, folder: Path) -> str:
    """Return what becomes of the values of a column: all, or all but those that are letters."""
    write(folder, column)
    try:
        values, letters = read(folder, column.ddl)
    except mr.MillraceError:
        return "refused"
    assert len(values) + len(letters) == len(column.values)
    return matrix_page.SHOWN["letter" if letters else "equal"]


def test_the_page_says_what_becomes_of_each_type_of_a_file(tmp_path: Path) -> None:
    cells: dict[str, dict[str, str]] = {}
    for n, column in enumerate((*EQUAL, *LETTER, *REFUSED)):
        folder = tmp_path / str(n)
        folder.mkdir()
        row = cells.setdefault(f"`{column.kind}`", {})
        found, declared = word(column, folder), f"`{column.ddl}`"
        if declared not in row.get(found, "").split("; "):
            row[found] = "; ".join(filter(None, (row.get(found, ""), declared)))

    matrix_page.check_table("file types", ["equal", "dead letter", "refused"], cells)


@pytest.mark.parametrize("column", EQUAL, ids=str)
def test_a_value_is_the_same(column: Column, tmp_path: Path) -> None:
    write(tmp_path, column)
    values, letters = read(tmp_path, column.ddl)

    assert letters == []
    for n, value in enumerate(column.values):
        wanted = expected(value, column.kind, column.ddl)
        if isinstance(wanted, dict) and pa.types.is_struct(column.kind):
            wanted = {name: wanted[name] for name in ("x", "name")}
        assert repr(values[n]) == repr(wanted)


@pytest.mark.parametrize("column", LETTER, ids=str)
def test_what_the_declared_type_cannot_hold_is_a_letter(column: Column, tmp_path: Path) -> None:
    file = write(tmp_path, column)
    values, letters = read(tmp_path, column.ddl)

    assert values == {
        n: expected(value, column.kind, column.ddl)
        for n, value in enumerate(column.values)
        if n != 1
    }
    (letter,) = letters
    assert "column 'x'" in letter.reason
    assert file.name in str(letter.place)


@pytest.mark.parametrize("column", REFUSED, ids=str)
def test_a_column_of_another_kind_is_an_error_that_names_it(column: Column, tmp_path: Path) -> None:
    write(tmp_path, column)

    with pytest.raises(mr.MillraceError, match=r"rows.parquet.*column 'x' is .*declares"):
        read(tmp_path, column.ddl)


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_int96(zone: str | None, tmp_path: Path) -> None:
    values = [
        INSTANT,
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
    ]
    # As nanoseconds these two ends would have overflowed.
    column = Column(pa.timestamp("us", zone), values, "timestamp")
    write(tmp_path, column, use_deprecated_int96_timestamps=True)

    assert read(tmp_path, "timestamp") == (dict(enumerate(values)), [])


NAIVE = pa.timestamp("us")
NAIVE_STRUCT = pa.struct([("n", pa.int64()), ("at", NAIVE)])


@pytest.mark.parametrize(
    ("kind", "ddl", "value"),
    [
        (pa.list_(NAIVE), "array<timestamp>", [INSTANT, None]),
        (pa.list_(NAIVE, 2), "array<timestamp>", [INSTANT, None]),
        (NAIVE_STRUCT, "struct<n: long, at: timestamp>", {"n": 1, "at": INSTANT}),
        (pa.map_(pa.string(), NAIVE), "map<string, timestamp>", {"a": INSTANT}),
        (
            pa.list_(pa.struct([("some", pa.list_(NAIVE_STRUCT))])),
            "array<struct<some: array<struct<n: long, at: timestamp>>>>",
            [{"some": [{"n": None, "at": INSTANT}]}, {"some": None}, None],
        ),
    ],
    ids=str,
)
def test_int96_within_others(kind: pa.DataType, ddl: str, value: Any, tmp_path: Path) -> None:
    """As Spark writes structs, arrays and maps of timestamps, unless it is told otherwise."""
    write(tmp_path, Column(kind, [value, None], ddl), use_deprecated_int96_timestamps=True)

    assert read(tmp_path, ddl) == ({0: value, 1: None}, [])


def test_int96_is_told_from_a_column_of_its_name(tmp_path: Path) -> None:
    table = pa.table({"at": ["noon"], "s": pa.array([{"at": INSTANT}], pa.struct([("at", NAIVE)]))})
    pq.write_table(table, tmp_path / "1.parquet", use_deprecated_int96_timestamps=True)
    files = mr.sources.Files(tmp_path, schema="at string")
    offset = files.advance("", None).offset

    assert [row for one in files.split("", None, offset) for row in files.read("", *one)] == [
        ("noon",)
    ]


@pytest.mark.parametrize("kind", ["time", "time(6)", "duration", "interval day to second", "uint"])
def test_a_type_that_no_column_has_is_refused_when_the_injector_is_made(
    kind: str, tmp_path: Path
) -> None:
    with pytest.raises(mr.MillraceError, match="no type of an injector's column"):
        mr.Pipeline("p").inject(
            "rows", mr.sources.Files(tmp_path, schema=f"x {kind}, at long"), timestamp="at"
        )
