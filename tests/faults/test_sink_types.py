"""Every type that a sink has a column for: written, and read back by the system itself."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.model.errors import MillraceError, PipelineError
from millrace.runtime.sink_contract import bind_sinks

NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
DAY = dt.date(2026, 1, 2)
ID = uuid.UUID(int=7)


class Colour(enum.Enum):
    RED = "red"


class Price(msgspec.Struct):
    amount: Decimal
    day: dt.date


class Row(msgspec.Struct):
    yes: bool
    n: int
    x: float
    amount: Decimal
    text: str
    data: bytes
    at: dt.datetime
    day: dt.date
    id: uuid.UUID
    took: dt.timedelta
    colour: Colour
    days: list[dt.date]
    amounts: list[Decimal]
    price: Price
    counts: dict[str, int]
    nothing: Decimal | None


ROW = Row(
    True, -(2**63), 0.5, Decimal("19.99"), "tea 🫖", b"\x00\xff", NOON, DAY, ID,
    dt.timedelta(seconds=90), Colour.RED, [DAY], [Decimal("0.10")], Price(Decimal("0.01"), DAY),
    {"a": 1}, None,
)  # fmt: skip

#: What files of columns have; the rest is the value itself.
IN_FILES: dict[str, Any] = msgspec.structs.asdict(ROW) | {
    "id": str(ID), "took": "PT90S", "colour": "red",
    "price": {"amount": Decimal("0.01"), "day": DAY}, "counts": '{"a":1}',
}  # fmt: skip


def rows_of(format: Any, values: Sequence[Any], sink: Any) -> list[pa.RecordBatch]:
    """Return records as the sink gets them, and bind it."""
    batches: list[pa.RecordBatch] = []
    p = mr.Pipeline("types")
    p.inject("rows", format=format)
    p.sink("rows", mr.sinks.Function(batches.append))
    p.sink("rows", sink)
    bind_sinks(p.build(), "owner")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("rows", [(value, n) for n, value in enumerate(values)])
    bind_sinks(p.build(), "owner")
    if hasattr(sink, "claim"):
        sink.claim(1, 0)
    return batches


def write(sink: Any, format: Any, values: Sequence[Any]) -> None:
    batches = rows_of(format, values, sink)
    writing = sink.for_tasks().begin(1, 0)
    for batch in batches:
        writing.write(batch)
    sink.publish(1, [writing.close()])


def _iceberg(folder: Path) -> Any:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    return mr.sinks.Iceberg("lake.out", folder / "out", catalog=catalog)


def _read_iceberg(folder: Path) -> pa.Table:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(type="sql", uri=f"sqlite:///{folder}/catalog.db")
    return catalog.load_table("lake.out").scan().to_arrow()


def _read_delta(folder: Path) -> pa.Table:
    import deltalake

    return pa.table(deltalake.DeltaTable(str(folder / "out")).to_pyarrow_table())


LAKES = {
    "parquet": (
        lambda folder: mr.sinks.Parquet(folder / "out"),
        lambda folder: pq.read_table(folder / "out", partitioning="hive"),
    ),
    "parquet by key": (
        lambda folder: mr.sinks.Parquet(folder / "out", key="_id"),
        lambda folder: pq.read_table(folder / "out" / "latest"),
    ),
    "delta": (lambda folder: mr.sinks.Delta(folder / "out"), _read_delta),
    "delta by key": (lambda folder: mr.sinks.Delta(folder / "out", key="_id"), _read_delta),
    "iceberg": (_iceberg, _read_iceberg),
}


@pytest.mark.parametrize("lake", LAKES)
def test_every_type_comes_back_from_files(lake: str, tmp_path: Path) -> None:
    make, read = LAKES[lake]
    write(make(tmp_path), Row, [ROW])
    (found,) = read(tmp_path).to_pylist()
    assert {name: found[name] for name in IN_FILES} == IN_FILES


@pytest.mark.parametrize("lake", LAKES)
def test_a_sink_without_rows_can_be_read(lake: str, tmp_path: Path) -> None:
    make, read = LAKES[lake]
    rows_of(Row, [], make(tmp_path))
    table = read(tmp_path)
    assert table.num_rows == 0
    assert [name for name in table.column_names if name in IN_FILES] == list(IN_FILES)
    assert table.schema.field("amount").type == pa.decimal128(38, 18)


def test_every_type_comes_back_from_a_table_that_the_sink_makes(postgres: Any) -> None:
    write(mr.sinks.PostgreSQL(postgres.conninfo, "made"), Row, [ROW])
    names = list(IN_FILES)
    (found,) = postgres.query(f"SELECT {', '.join(names)} FROM made")
    expected = IN_FILES | {
        "id": ID, "price": {"amount": "0.010000000000000000", "day": "2026-01-02"},
        "counts": {"a": 1},
    }  # fmt: skip
    assert dict(zip(names, found, strict=True)) == expected
    kinds = postgres.query("SELECT pg_typeof(amount)::text, pg_typeof(id)::text FROM made")
    assert kinds == [("numeric", "uuid")]


def test_a_decimal_goes_to_columns_of_the_users_as_it_is_written(postgres: Any) -> None:
    class Paid(msgspec.Struct):
        amount: Decimal
        exact: Decimal
        text: Decimal

    postgres.query("CREATE TABLE paid (amount numeric(5,2), exact numeric, text text)")
    write(mr.sinks.PostgreSQL(postgres.conninfo, "paid"), Paid, [Paid(*[Decimal("19.90")] * 3)])
    assert postgres.query("SELECT * FROM paid") == [(Decimal("19.90"), Decimal("19.9"), "19.9")]


SINKS = {
    "parquet": lambda folder: mr.sinks.Parquet(folder / "out"),
    "delta": lambda folder: mr.sinks.Delta(folder / "out"),
    "iceberg": _iceberg,
    "postgres": lambda _: mr.sinks.PostgreSQL("host=nowhere dbname=none", "t"),
    "function": lambda _: mr.sinks.Function(print),
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("nested", [False, True])
def test_fields_that_differ_only_in_case_are_refused_when_built(
    sink: str, nested: bool, tmp_path: Path
) -> None:
    format = msgspec.defstruct("Named", [("Name", str), ("name", str)])
    if nested:
        format = msgspec.defstruct("Outer", [("inner", list[format])])  # type: ignore[valid-type]
    p = mr.Pipeline("names")
    p.inject("rows", format=format)
    p.sink("rows", SINKS[sink](tmp_path))
    with pytest.raises(PipelineError, match=r"'rows', has .*'Name' and 'name', .*only in case"):
        p.build()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sink", "name", "why"),
    [
        ("postgres", "x" * 64, "64 bytes"),
        ("postgres", "ctid", "of PostgreSQL.* itself"),
        ("postgres", "XMIN", "of PostgreSQL.* itself"),
        ("parquet", "_Millrace_Place", "of Parquet.* itself"),
        ("delta", "_id", "that sinks get"),
        ("iceberg", "_Key", "that sinks get"),
        ("function", "_timestamp", "that sinks get"),
    ],
)
def test_a_name_that_a_sink_cannot_write_is_refused_when_built(
    sink: str, name: str, why: str, tmp_path: Path
) -> None:
    from millrace.dataflow.aggregations.fields import FieldsCoder

    p = mr.Pipeline("names")
    p.inject("rows", format=FieldsCoder(((name, int),)))
    p.sink("rows", SINKS[sink](tmp_path))
    with pytest.raises(PipelineError, match=f"'rows', has a field .*{why}"):
        p.build()


def test_text_with_nul_is_refused_for_postgresql_alone() -> None:
    def run(sink: Any) -> list[Any]:
        p = mr.Pipeline("nul")
        p.dead_letter("letters")
        p.inject("rows", format=str)
        p.sink("rows", sink)
        router = p.build().streams["rows"].limits
        return [router is not None and router.nul]

    assert run(SINKS["postgres"](Path())) == [False]
    assert run(SINKS["function"](Path())) == [True]


def test_a_naive_datetime_is_refused_at_a_sink() -> None:
    p = mr.Pipeline("naive")
    p.inject("rows", format=dt.datetime)
    p.sink("rows", mr.sinks.Function(print))
    with (
        pytest.raises(MillraceError, match=r"(?s)'rows'.*timezone"),
        mr.testing.Harness(p) as h,
    ):
        h.inject("rows", [(dt.datetime(2026, 1, 1), 0)])
