"""Every door by which a value comes into a pipeline and that needs no Spark session."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from field_types import (
    KINDS,
    MISSING,
    Kind,
    Outcome,
    compared,
    lettered,
    raised,
    refused,
    utc,
)

import millrace as mr

#: What stands for a value that no declared type can hold as it is: it is refused, or it is wrong.
NOTHING = object()

#: JSON that is almost of the declared type. What Spark makes of it, where it loses nothing.
ALMOST = (
    Kind("19.99 as long", int, (NOTHING,), "bigint", ("19.99",)),
    Kind("2.0 as long", int, (2,), "bigint", ("2.0",)),
    Kind("true as long", int, (NOTHING,), "bigint", ("true",)),
    Kind("text as long", int, (NOTHING,), "bigint", ('"5"',)),
    Kind("2147483648 as int", int, (NOTHING,), "int", ("2147483648",)),
    Kind("1 as boolean", bool, (NOTHING,), "boolean", ("1",)),
    Kind("1e400 as double", float, (NOTHING,), "double", ("1e400",)),
    Kind("0.001 as decimal(10, 2)", Decimal, (NOTHING,), "decimal(10,2)", ("0.001",)),
    Kind("5 as string", str, ("5",), "string", ("5",)),
    Kind("1.50 as string", str, ("1.50",), "string", ("1.50",)),
    Kind("an object as string", str, ('{"a":1}',), "string", ('{"a":1}',)),
    Kind("an array as string", str, ('[1,"a"]',), "string", ('[1,"a"]',)),
    Kind("invalid UTF-8", str, (NOTHING,), "string", ('"\udc80"',)),
    Kind("0.5 microseconds", dt.datetime, (utc(2026, 1, 1, 9, 59, 59, 999999),), "timestamp",
         ('"2026-01-01T09:59:59.9999996Z"',)),
    Kind("a fraction of a second", dt.datetime, (utc(2023, 11, 14, 22, 13, 20, 500000),),
         "timestamp", ("1700000000.5",)),
    Kind("a time without a zone", dt.datetime, (NOTHING,), "timestamp",
         ('"2026-01-01T09:59:59"',)),
)  # fmt: skip

#: Spark's types as Arrow has them.
ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(),
    "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(), "string": pa.string(),
    "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"), "decimal(20,0)": pa.decimal128(20),
    "decimal(38,0)": pa.decimal128(38), "decimal(38,2)": pa.decimal128(38, 2),
    "array<bigint>": pa.list_(pa.int64()), "array<string>": pa.list_(pa.string()),
    "array<array<string>>": pa.list_(pa.list_(pa.string())),
    "struct<_1: bigint, _2: string>": pa.struct([("_1", pa.int64()), ("_2", pa.string())]),
    "struct<x: bigint, name: string>": pa.struct([("x", pa.int64()), ("name", pa.string())]),
    "array<struct<x: bigint, name: string>>":
        pa.list_(pa.struct([("x", pa.int64()), ("name", pa.string())])),
    "map<string, bigint>": pa.map_(pa.string(), pa.int64()),
    "map<string, array<bigint>>": pa.map_(pa.string(), pa.list_(pa.int64())),
    "map<bigint, string>": pa.map_(pa.int64(), pa.string()),
    "map<string, timestamp>": pa.map_(pa.string(), pa.timestamp("us", "UTC")),
}  # fmt: skip

NO_COLUMN = Outcome("none", "there is no such column")


def plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value as pyarrow takes it for a column."""
    if isinstance(value, msgspec.Struct) or hasattr(value, "__dataclass_fields__"):
        return {"x": value.x, "name": value.name}
    if pa.types.is_struct(kind) and isinstance(value, tuple):
        return {"_1": value[0], "_2": value[1]}
    if isinstance(value, dict):
        return [(name, plain(inner, kind.item_type)) for name, inner in value.items()]
    if isinstance(value, set | frozenset | tuple | list):
        return [plain(inner, kind.value_type) for inner in value]
    if pa.types.is_string(kind) and not isinstance(value, str):
        return str(getattr(value, "value", value))
    if pa.types.is_decimal(kind):
        return Decimal(value)
    return getattr(value, "value", value)


class Rows(mr.sources.Injector):
    """One process with some rows."""

    def __init__(self, schema: str, rows: list[tuple[Any, ...]]) -> None:
        self.schema = schema
        self.rows = rows

    def processes(self) -> list[str]:
        return ["only"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        return mr.sources.Advance(len(self.rows))

    def read(self, process: str, start: Any, end: Any) -> Iterable[tuple[Any, ...]]:
        yield from self.rows[start or 0 : end]


def injected(p: mr.Pipeline, kind: Kind, n: int, folder: Path) -> None:
    column = plain(kind.values[n], ARROW[str(kind.ddl)])
    rows = Rows(f"x {kind.ddl}, at long", [(column, 1)])
    p.inject("rows", rows, timestamp="at", format=row_of(kind.type))


def parquet(p: mr.Pipeline, kind: Kind, n: int, folder: Path) -> None:
    column = pa.array([plain(kind.values[n], ARROW[str(kind.ddl)])], ARROW[str(kind.ddl)])
    pq.write_table(pa.table({"x": column, "at": pa.array([1])}), folder / "rows.parquet")
    source = mr.sources.Files(folder, schema=f"x {kind.ddl}, at long")
    p.inject("rows", source, timestamp="at", format=row_of(kind.type))


def json_line(kind: Kind, n: int) -> bytes:
    return f'{{"x":{kind.json[n]},"at":1}}'.encode(errors="surrogateescape")


def json(p: mr.Pipeline, kind: Kind, n: int, folder: Path) -> None:
    (folder / "rows.json").write_bytes(json_line(kind, n) + b"\n")
    source = mr.sources.Files(folder, schema=f"x {kind.ddl}, at long", unit=_unit(kind))
    p.inject("rows", source, timestamp="at", unit="us", format=row_of(kind.type))


def _unit(kind: Kind) -> Any:
    return "s" if kind.name == "a fraction of a second" else None


DOORS: dict[str, Callable[[mr.Pipeline, Kind, int, Path], None]] = {
    "Injector": injected,
    "Files, Parquet": parquet,
    "Files, JSON": json,
}


def row_of(of: Any, field: str = "x") -> Any:
    """Return a record format with one field."""
    return msgspec.defstruct("Row", [(field, of)])


def kinds_of(door: str) -> tuple[Kind, ...]:
    return KINDS + ALMOST if "JSON" in door or "Kafka" in door else KINDS


def harness_outcomes(kind: Kind) -> list[Outcome]:
    """Return what becomes of values that a test gives to the Harness."""
    return [_run(_injected_by_test, kind, n, Path()) for n in range(len(kind.values))]


def _injected_by_test(p: mr.Pipeline, kind: Kind, n: int, folder: Path) -> None:
    p.inject("rows", format=row_of(kind.type))


def outcomes(door: str, kind: Kind, folder: Path) -> list[Outcome]:
    """Return what becomes of each value of a kind that comes by a door."""
    texts = "JSON" in door
    if (kind.ddl is None and not texts) or (texts and not kind.json):
        return [NO_COLUMN]
    if texts and kind.ddl is None:
        kind = Kind(kind.name, kind.type, kind.values, "string", kind.json)
    made = []
    for n in range(len(kind.values)):
        apart = folder / f"{door} {kind.name} {n}"
        apart.mkdir()
        made.append(_run(DOORS[door], kind, n, apart))
    return made


def _run(open: Callable[..., None], kind: Kind, n: int, folder: Path) -> Outcome:
    seen: list[Any] = []
    p = mr.Pipeline("matrix")
    p.dead_letter("letters")
    p.add(reads(seen))
    value = kind.values[n]
    try:
        open(p, kind, n, folder)
        p.build()
    except Exception as error:
        return refused(error, "rows", "'x'", str(kind.ddl))
    try:
        with mr.testing.Harness(p, intervals=1) as h:
            if open is _injected_by_test:
                h.inject("rows", [(row_of(kind.type)(value), 1)])
            else:
                h.poll("rows")
            letters = [letter.value for letter in h.outputs("letters")]
    except Exception as error:
        return raised(error, "rows")
    return outcome(value, seen, letters)


def outcome(value: Any, seen: list[Any], letters: list[Any]) -> Outcome:
    """Return the outcome of one value: what came of it, and the letters."""
    if letters and not seen:
        # A line that cannot be parsed has no fields: its letter says what the line is not.
        return lettered(letters[0].reason, "x", type(value).__name__, "JSON", "utf-8")
    received = seen[0] if len(seen) == 1 and not letters else seen or MISSING
    if value is NOTHING and received is not MISSING:
        return Outcome("wrong", f"it came as {received!r}")
    if isinstance(received, dt.datetime) and received.tzinfo is None:
        return Outcome("wrong", f"{received!r} names no instant, and was taken")
    return compared(value, received)


def reads(seen: list[Any]) -> Any:
    class Reads(mr.Computation):
        inputs = {"rows": mr.by(lambda row: 0)}

        def process_record(self, record: Any) -> None:
            seen.append(record.value.x)

    return Reads
