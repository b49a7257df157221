"""Columns of a user's table that hold less than a field: nothing is rounded or cut in silence.

The oracle is PostgreSQL, read by psycopg: what it does not give back as it was is a dead letter, or
is refused when the run starts.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace.connectors.postgres.text import as_arrays
from millrace.model.coder import MsgpackCoder
from millrace.model.errors import PipelineError, SinkError
from millrace.runtime.sink_contract import Binding, bind_sinks
from millrace.runtime.values import SinkColumns

D = Decimal
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)

#: The column, the field, values that come back, and values that do not.
HELD: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("smallint", int, [-(1 << 15), (1 << 15) - 1], [1 << 15, -(1 << 15) - 1]),
    ("integer", int, [-(1 << 31), (1 << 31) - 1], [1 << 31, -(1 << 31) - 1]),
    ("integer", int | None, [None, 7], [1 << 31]),
    ("bigint", int, [-(1 << 63), (1 << 63) - 1], []),
    ("real", int, [1 << 24, -(1 << 24)], [(1 << 24) + 1]),
    ("double precision", int, [1 << 53, -(1 << 53)], [(1 << 53) + 1]),
    ("numeric", int, [(1 << 63) - 1], []),
    ("numeric(5,2)", int, [999, -999], [1000]),
    ("numeric(5,2)", D, [D("999.99"), D("-0.01"), D("1E+2"), D("0E-9")],
     [D("0.001"), D("1000"), D("1E+3"), D("1E-3")]),
    ("numeric(3)", D, [D("999"), D("1.00"), D("1.5E+2")], [D("0.5"), D("1000"), D("1.55E+1")]),
    ("numeric(2,2)", D, [D("0.99"), D("-.5")], [D("1"), D("0.001")]),
    ("numeric(5,2)[]", list[D], [[D("1.50")], []], [[D("1.50"), D("0.001")]]),
    ("numeric", float, [0.1, -0.5, 1e300, 5e-324], []),
    ("double precision", float, [0.1, 5e-324, 1.7976931348623157e308], []),
    ("character varying(3)", str, ["tea", "", "\U0001fad6ab"], ["teas", "tea "]),
    ("character(3)", str, ["tea"], ["teas"]),
    ("character varying(3)[]", list[str], [["tea"], []], [["a", "teas"]]),
    ("smallint[]", list[int], [[1, 2]], [[1, 1 << 15]]),
    ("timestamp with time zone", dt.datetime, [NOON], []),
    ("timestamp without time zone", dt.date, [NOON.date()], []),
    ("date", str, ["2026-01-02"], ["2026-01-02T12:00:00", "01/02/2026", "2026-01-02+05", "soon"]),
    ("date", str | None, [None, "0001-01-01"], ["2026-01-02 12:00"]),
    ("date[]", list[str], [["2026-01-02"], []], [["2026-01-02", "2026-01-02 12:00"]]),
    ("time without time zone", str, ["12:00:00", "12:00:00.123456"],
     ["12:00:00.1234567", "12:00:00+02:00", "2026-01-02 12:00"]),
    ("time without time zone", dt.time, [dt.time(12), dt.time(12, 0, 0, 1)],
     [dt.time(12, tzinfo=dt.UTC)]),
    ("timestamp without time zone", str, ["2026-01-02T12:00:00"],
     ["2026-01-02T12:00:00Z", "2026-01-02T12:00:00.1234567", "2026-01-02T12:00:00+02:00"]),
    ("timestamp with time zone", str, ["2026-01-02T12:00:00+00:00"],
     ["2026-01-02T12:00:00", "2026-01-02T12:00:00.1234567Z"]),
]  # fmt: skip

#: The column and the field: their types show that values would be bent.
REFUSED = [
    ("real", float), ("numeric(10,2)", float), ("integer", float), ("money", float),
    ("real[]", list[float]), ("money", D), ("double precision", D), ("bigint", D), ("real", D),
    ("numeric(5,-2)", int), ("boolean", int), ("date", int), ("timestamp with time zone", int),
    ("real", str), ("double precision", str), ("numeric(5,2)", str), ("name", str), ('"char"', str),
    ("bit(3)", str), ("timestamp(0) with time zone", str), ("money", str),
    ("timestamp without time zone", dt.datetime), ("timestamp(3) with time zone", dt.datetime),
    ("date", dt.datetime), ("time without time zone", dt.datetime),
    ("timestamp with time zone", dt.date), ("integer", bool),
]  # fmt: skip


def row_of(kind: Any) -> Any:
    return msgspec.defstruct("Row", [("n", int), ("x", kind)])


def text_of(value: Any) -> Any:
    """Return a date or time of PostgreSQL, or a list of them, as ISO 8601."""
    if isinstance(value, list):
        return [text_of(one) for one in value]
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC)
    return None if value is None else value.isoformat()


def pipeline(kind: Any, sink: Any, batches: list[pa.RecordBatch]) -> mr.Pipeline:
    p = mr.Pipeline("limits")
    p.inject("rows", format=row_of(kind))
    p.dead_letter("letters")
    p.sink("rows", mr.sinks.Function(batches.append))
    p.sink("rows", sink)
    return p


@pytest.mark.parametrize(("column", "kind", "held", "bent"), HELD)
def test_a_value_comes_back_or_is_a_letter(
    postgres: Any, column: str, kind: Any, held: list[Any], bent: list[Any]
) -> None:
    postgres.query(f"CREATE TABLE limits (n bigint, x {column})")
    sink, batches = mr.sinks.PostgreSQL(postgres.conninfo, "limits"), list[pa.RecordBatch]()
    p = pipeline(kind, sink, batches)
    bind_sinks(p.build(), "owner")
    with mr.testing.Harness(p, intervals=1) as h:
        rows = [row_of(kind)(n, value) for n, value in enumerate(held + bent)]
        h.inject("rows", [(row, row.n) for row in rows])
        letters = [letter.value.reason for letter in h.outputs("letters")]
    bind_sinks(p.build(), "owner")
    sink.claim(1, -1)
    writing = sink.for_tasks().begin(0, 0)
    for batch in batches:
        writing.write(batch)
    sink.publish(0, [writing.close()])

    written = [value for (value,) in postgres.query("SELECT x FROM limits ORDER BY n")]
    if kind is float:
        written = [float(value) for value in written]
    if column.startswith(("date", "time")) and kind not in (dt.date, dt.time, dt.datetime):
        written = [text_of(value) for value in written]
    if kind is dt.date:
        written = [value.date() for value in written]
    assert written == held
    assert len(letters) == len(bent)
    assert all("$.x" in reason for reason in letters), letters


def test_a_run_binds_its_sinks_before_it_makes_records(postgres: Any) -> None:
    postgres.query("CREATE TABLE limits (n bigint, x smallint)")
    p = pipeline(int, mr.sinks.PostgreSQL(postgres.conninfo, "limits"), [])
    topology = bind_sinks(p.build(), "owner")

    limits = topology.streams["rows"].limits
    assert limits is not None
    assert limits.column("x").whole == (-(1 << 15), (1 << 15) - 1)
    assert not limits.nul


@pytest.mark.parametrize(("column", "kind"), REFUSED)
def test_a_column_that_would_bend_a_field_is_refused_before_the_run(
    postgres: Any, column: str, kind: Any
) -> None:
    postgres.query(f"CREATE TABLE limits (n bigint, x {column})")
    p = pipeline(kind, mr.sinks.PostgreSQL(postgres.conninfo, "limits"), [])

    with pytest.raises(PipelineError, match=r"'public\.limits', stream 'rows': the column 'x' "):
        bind_sinks(p.build(), "owner")


@pytest.mark.parametrize("live", [False, True], ids=["copied", "in turns"])
def test_a_key_that_a_column_would_cut_is_an_error(postgres: Any, *, live: bool) -> None:
    """A cast to ``varchar(3)``, as a turn has it, cuts text without a word."""
    postgres.query("CREATE TABLE limits (_key varchar(3), value bigint)")
    sink = mr.sinks.PostgreSQL(postgres.conninfo, "limits")
    columns = SinkColumns(int, MsgpackCoder(int))
    sink.bind(Binding("limits", "rows", "owner", columns))
    sink.claim(1, -1)
    made = columns.array(
        [b"\x01", b"\x02"], ["tea", "teas"], pa.array([0, 0]), pa.array([b"a", b"b"])
    )
    batch = pa.RecordBatch.from_struct_array(made)

    if live:
        import psycopg

        with pytest.raises(psycopg.DataError, match="'_key' is character varying"):
            as_arrays(batch, sink.for_tasks().columns)
        return
    writing = sink.for_tasks().begin(0, 0)
    writing.write(batch)
    with pytest.raises(SinkError, match=r"key 'teas'.*'_key' is character varying\(3\)"):
        writing.close()
