"""Every door by which a value leaves a pipeline and that needs no Spark session.

The records are made in the Harness, with the sink in the pipeline, so that it is asked when the
pipeline is built. Their columns are those that ``mr.ArrowSink`` is given; the sink writes them as
it does in a task and in the driver, and the system behind it is asked what there is.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import math
import tempfile
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from doors_in import row_of
from field_types import EQUAL, Kind, Outcome, lettered, raised, refused, same

import millrace as mr
from millrace.plane.binding import bind_sinks
from millrace.plane.task_sinks import WriteAgain

#: What a user's own table has for a kind in PostgreSQL; the rest is ``jsonb``.
POSTGRES_TYPES: dict[Any, str] = {
    bool: "boolean", int: "bigint", float: "double precision", Decimal: "numeric", str: "text",
    bytes: "bytea", dt.date: "date", dt.datetime: "timestamptz", uuid.UUID: "uuid",
    list[int]: "bigint[]", list[int | None]: "bigint[]", set[int]: "bigint[]",
    tuple[int, ...]: "bigint[]", frozenset[str]: "text[]", int | None: "bigint",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Door:
    """A sink and what reads its system.

    Attributes:
        sink: Returns the sink; given where it may write, and the kind.
        read: Returns the values that the system has, by the same; None: what a function was given.
        judge: Returns the outcome instead, by the same and the value.
    """

    sink: Callable[[Path, Kind], Any]
    read: Callable[[Path, Kind], list[Any]] | None
    judge: Callable[[Path, Kind, Any], Outcome] | None = None


def parquet_values(folder: Path, kind: Kind) -> list[Any]:
    files = sorted(folder.glob("out/epoch=*/*.parquet"))
    return [v for file in files for v in pq.ParquetFile(file).read().column("x").to_pylist()]


def delta_values(folder: Path, kind: Kind) -> list[Any]:
    import deltalake

    table = deltalake.DeltaTable(str(folder / "out"))
    return pa.table(table.to_pyarrow_table()).column("x").to_pylist()


def _catalog(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}


def iceberg(folder: Path, kind: Kind) -> Any:
    return mr.Iceberg("lake.out", folder / "out", catalog=_catalog(folder))


def iceberg_values(folder: Path, kind: Kind) -> list[Any]:
    from pyiceberg.catalog import load_catalog

    table = load_catalog(**_catalog(folder)).load_table("lake.out")
    return table.scan().to_arrow().column("x").to_pylist()


FILES: dict[str, Door] = {
    "ArrowSink": Door(lambda folder, kind: None, None),
    "Parquet": Door(lambda folder, kind: mr.Parquet(folder / "out"), parquet_values),
    "Delta": Door(lambda folder, kind: mr.Delta(folder / "out"), delta_values),
    "Iceberg": Door(iceberg, iceberg_values),
}


def postgres_doors(server: Any) -> dict[str, Door]:
    """Return the sink of PostgreSQL with a table that it makes, and with one that is there."""

    def own(folder: Path, kind: Kind) -> Any:
        table = folder.name
        server.query(f'CREATE TABLE "{table}" (x {column_of(kind)}, _key text)')
        return mr.PostgreSQL(server.conninfo, table)

    def read(folder: Path, kind: Kind) -> list[Any]:
        return [value for (value,) in server.query(f'SELECT x FROM "{folder.name}" ORDER BY _key')]

    def made(folder: Path, kind: Kind) -> Any:
        return mr.PostgreSQL(server.conninfo, folder.name)

    return {"PostgreSQL, its table": Door(made, read), "PostgreSQL, your table": Door(own, read)}


def column_of(kind: Kind) -> str:
    """Return the type that a user's table has for a kind."""
    if kind.name.startswith("int, 64 bits without") or kind.name.startswith("int beyond"):
        return "numeric"
    if isinstance(kind.type, type) and issubclass(kind.type, enum.Enum):
        return "bigint" if issubclass(kind.type, int) else "text"
    return POSTGRES_TYPES.get(kind.type, "jsonb")


def outcomes(door: Door, kind: Kind, folder: Path) -> list[Outcome]:
    """Return what becomes of each value of a kind that leaves by a door."""
    made = []
    for n in range(len(kind.values)):
        # Its name is that of a table, too.
        apart = Path(tempfile.mkdtemp(prefix="t", dir=folder))
        made.append(_outcome(door, kind, n, apart))
    return made


def _outcome(door: Door, kind: Kind, n: int, folder: Path) -> Outcome:
    value = kind.values[n]
    batches: list[pa.RecordBatch] = []
    try:
        sink = door.sink(folder, kind)
        p = pipeline(kind, n)
        p.sink("values", mr.ArrowSink(batches.append))
        if sink is not None:
            p.sink("values", sink)
        bind_sinks(p.build(), "matrix")
        harness = mr.testing.Harness(p, intervals=1)
    except Exception as error:
        return refused(error, "values", "'x'", "column x")
    try:
        with harness as h:
            h.inject("numbers", [(0, 1)])
            letters = [letter.value for letter in h.outputs("letters")]
        if letters:
            return lettered(letters[0].reason, "x", "values")
        if sink is not None:
            write(sink, batches)
    except Exception as error:
        return raised(error, "values")
    if door.judge is not None:
        return door.judge(folder, kind, value)
    if sink is None or door.read is None:
        found = [v for batch in batches for v in batch.column("x").to_pylist()]
    else:
        found = door.read(folder, kind)
    return compared_with_system(value, found)


def pipeline(kind: Kind, n: int) -> mr.Pipeline:
    """Return a pipeline that makes the n-th value of a kind, as the field ``x``."""
    row = row_of(kind.type)

    class Makes(mr.Computation):
        inputs = {"numbers": mr.by(str)}
        outputs = {"values": row}

        def process_record(self, record: Any) -> None:
            self.produce("values", row(kind.values[n]), key=f"{kind.name} {n}")

    p = mr.Pipeline("matrix")
    p.dead_letter("letters")
    p.inject("numbers", format=int)
    p.add(Makes)
    return p


def write(sink: Any, batches: Sequence[pa.RecordBatch]) -> None:
    """Write records as an epoch does."""
    if hasattr(sink, "claim"):
        sink.claim(1, 0)
    while True:
        writing = sink.for_tasks().begin(1, 0)
        for batch in batches:
            writing.write(batch)
        receipts = [writing.close()]
        try:
            return sink.publish(1, receipts)
        except WriteAgain:
            continue


def compared_with_system(value: Any, found: list[Any]) -> Outcome:
    """Return the outcome, by what the other system says it has."""
    if not found:
        return Outcome("lost", f"{value!r} is not there")
    if len(found) > 1:
        return Outcome("wrong", f"{value!r} is there {len(found)} times")
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return Outcome("wrong", f"{value!r} names no instant, and is there as {found[0]!r}")
    if means(value, found[0]):
        return EQUAL
    return Outcome("wrong", f"{value!r} is there as {found[0]!r}")


def means(value: Any, found: Any) -> bool:
    """Return whether what a system has stands for a value, without loss.

    A set is a list in any order, an enum its value, a map a list of pairs or an object. What has no
    type of its own in the system is there as text: a Decimal and a UUID as they write themselves,
    the rest as JSON.
    """
    if value is None:
        return found is None
    if isinstance(value, enum.Enum):
        return means(value.value, found)
    if isinstance(value, msgspec.Struct):
        return means({name: getattr(value, name) for name in value.__struct_fields__}, found)
    if dataclasses.is_dataclass(value):
        return means(vars(value), found)
    if isinstance(value, str | bool) or value is None:
        return same(value, found)
    if isinstance(value, uuid.UUID):
        return str(value) == str(found)
    if isinstance(value, Decimal):
        return isinstance(found, Decimal | int | str) and _number(value) == _number(found)
    if isinstance(value, bytes):
        if isinstance(found, str):
            return base64.b64encode(value).decode() == found
        return isinstance(found, bytes | memoryview) and value == bytes(found)
    if isinstance(value, float):
        return isinstance(found, float) and same(value, found)
    if isinstance(value, int):
        return type(found) in (int, Decimal) and value == found
    if isinstance(value, dt.datetime):
        moment = dt.datetime.fromisoformat(found) if isinstance(found, str) else found
        return isinstance(moment, dt.datetime) and bool(moment.tzinfo) and moment == value
    if isinstance(value, dt.date):
        day = dt.date.fromisoformat(found) if isinstance(found, str) else found
        return type(day) is dt.date and day == value
    if isinstance(found, str):
        return means(value, json.loads(found))
    if isinstance(value, dict):
        pairs = found if isinstance(found, list) else list(found.items())
        rest = [list(pair) for pair in pairs]
        return len(rest) == len(value) and all(
            any(means(item, there) and _is_key(name, at) for at, there in rest)
            for name, item in value.items()
        )
    if isinstance(value, set | frozenset):
        return (
            isinstance(found, list)
            and len(found) == len(value)
            and all(any(means(item, there) for there in found) for item in value)
        )
    if isinstance(found, dict):
        found = list(found.values())
    return isinstance(found, list) and len(found) == len(value) and all(map(means, value, found))


def _is_key(name: Any, found: Any) -> bool:
    return means(name, found) or str(name) == found


def _number(value: Any) -> Any:
    try:
        number = Decimal(value)
    except InvalidOperation:
        return value  # text with quotes, say
    return "NaN" if math.isnan(number) else number
