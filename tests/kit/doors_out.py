"""Every door by which a value leaves a pipeline and that needs no Spark session.

The records are made in the Harness, with the sink in the pipeline, so that it is asked when the
pipeline is built. Their columns are those that ``mr.sinks.Function`` is given; the sink writes
them as it does in a task and in the driver, and the system behind it is asked what there is.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import json
import math
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from field_types import EQUAL, Kind, Outcome, lettered, raised, refused, same

import millrace as mr
from millrace.runtime.sink_contract import WriteAgain, bind_sinks

#: What a user's own table has for a kind in PostgreSQL; the rest is ``jsonb``.
POSTGRES_TYPES: dict[Any, str] = {
    bool: "boolean", int: "bigint", float: "double precision", Decimal: "numeric", str: "text",
    bytes: "bytea", dt.date: "date", dt.datetime: "timestamptz", uuid.UUID: "uuid",
    list[int]: "bigint[]", list[int | None]: "bigint[]", set[int]: "bigint[]",
    tuple[int, ...]: "bigint[]", frozenset[str]: "text[]", int | None: "bigint",
}  # fmt: skip


#: What a system has: the id of a row -> column -> value.
Table = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Door:
    """A sink and what reads its system.

    All kinds go out in one table with a column each, ``c0`` and so on, and a row for each value.

    Attributes:
        sink: Returns the sink; given where it may write, and the kinds.
        read: Returns what the system has, by the same; None: what a function was given.
        judge: Returns the outcomes of a kind instead; given where, its number among the kinds, it.
    """

    sink: Callable[[Path, Sequence[Kind]], Any]
    read: Callable[[Path], Table] | None
    judge: Callable[[Path, int, Kind], list[Outcome]] | None = None


def by_id(rows: Iterable[dict[str, Any]]) -> Table:
    return {row["id"]: row for row in rows}


def parquet_rows(folder: Path) -> Table:
    files = sorted(folder.glob("out/epoch=*/*.parquet"))
    return by_id(row for file in files for row in pq.ParquetFile(file).read().to_pylist())


def delta_rows(folder: Path) -> Table:
    import deltalake

    table = deltalake.DeltaTable(str(folder / "out"))
    return by_id(pa.table(table.to_pyarrow_table()).to_pylist())


def _catalog(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}


def iceberg(folder: Path, kinds: Sequence[Kind]) -> Any:
    return mr.sinks.Iceberg("lake.out", folder / "out", catalog=_catalog(folder))


def iceberg_rows(folder: Path) -> Table:
    from pyiceberg.catalog import load_catalog

    table = load_catalog(**_catalog(folder)).load_table("lake.out")
    return by_id(table.scan().to_arrow().to_pylist())


FILES: dict[str, Door] = {
    "sinks.Function": Door(lambda folder, kinds: None, None),
    "Parquet": Door(lambda folder, kinds: mr.sinks.Parquet(folder / "out"), parquet_rows),
    "Delta": Door(lambda folder, kinds: mr.sinks.Delta(folder / "out"), delta_rows),
    "Iceberg": Door(iceberg, iceberg_rows),
}


def postgres_doors(server: Any) -> dict[str, Door]:
    """Return the sink of PostgreSQL with a table that it makes, and with one that is there."""

    def own(folder: Path, kinds: Sequence[Kind]) -> Any:
        table = folder.name
        columns = "".join(f", c{k} {column_of(kind)}" for k, kind in enumerate(kinds))
        server.query(f'CREATE TABLE "{table}" (id text{columns}, _key text)')
        return mr.sinks.PostgreSQL(server.conninfo, table)

    def read(folder: Path) -> Table:
        names = server.query(
            "SELECT column_name FROM information_schema.columns "
            f"WHERE table_name = '{folder.name}' AND column_name ~ '^(id|c[0-9]+)$'"
        )
        columns = [name for (name,) in names]
        rows = server.query(f'SELECT {", ".join(columns)} FROM "{folder.name}"')
        return by_id(dict(zip(columns, row, strict=True)) for row in rows)

    def made(folder: Path, kinds: Sequence[Kind]) -> Any:
        return mr.sinks.PostgreSQL(server.conninfo, folder.name)

    return {"PostgreSQL, its table": Door(made, read), "PostgreSQL, your table": Door(own, read)}


def column_of(kind: Kind) -> str:
    """Return the type that a user's table has for a kind."""
    if kind.name.startswith("int, 64 bits without") or kind.name.startswith("int beyond"):
        return "numeric"
    if isinstance(kind.type, type) and issubclass(kind.type, enum.Enum):
        return "bigint" if issubclass(kind.type, int) else "text"
    return POSTGRES_TYPES.get(kind.type, "jsonb")


def outcomes(door: Door, kinds: Sequence[Kind], folder: Path) -> dict[str, list[Outcome]]:
    """Return what becomes of each value of kinds that leave by a door: name of a kind -> outcomes.

    All go together; those that are refused when the pipeline is built, are taken out. If the run
    ends with an exception, each goes alone, which tells whose it is.
    """
    made: dict[str, list[Outcome]] = {}
    left = list(kinds)
    while left:
        # Its name is that of a table, too.
        apart = Path(tempfile.mkdtemp(prefix="t", dir=folder))
        try:
            p, batches, sink = _opened(door, left, apart)
        except Exception as error:
            named = [k for k in range(len(left)) if re.search(rf"\bc{k}\b", str(error))]
            k = named[0] if len(named) == 1 else 0
            if len(named) != 1 and len(left) > 1:
                return made | _each_alone(door, left, folder)
            made[left[k].name] = [refused(error, f"c{k}")] * len(left[k].values)
            del left[k]
            continue
        try:
            return made | _run(door, left, apart, p, batches, sink)
        except Exception as error:
            if len(left) > 1:
                return made | _each_alone(door, left, folder)
            return made | {left[0].name: [raised(error, "values")] * len(left[0].values)}
    return made


def _each_alone(door: Door, kinds: Sequence[Kind], folder: Path) -> dict[str, list[Outcome]]:
    """Return the outcomes of kinds that do not go together: value by value."""
    made: dict[str, list[Outcome]] = {}
    for kind in kinds:
        alone = [dataclasses.replace(kind, values=(value,)) for value in kind.values]
        made[kind.name] = [outcomes(door, [one], folder)[kind.name][0] for one in alone]
    return made


def _opened(door: Door, kinds: Sequence[Kind], folder: Path) -> tuple[mr.Pipeline, list[Any], Any]:
    """Return a pipeline, the batches that it writes, and the sink that they are for."""
    batches: list[pa.RecordBatch] = []
    sink = door.sink(folder, kinds)
    p = pipeline(kinds)
    p.sink("values", mr.sinks.Function(batches.append))
    if sink is not None:
        p.sink("values", sink)
    bind_sinks(p.build(), "matrix")
    return p, batches, sink


def _run(
    door: Door,
    kinds: Sequence[Kind],
    folder: Path,
    p: mr.Pipeline,
    batches: Sequence[pa.RecordBatch],
    sink: Any,
) -> dict[str, list[Outcome]]:
    places = places_of(kinds)
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("numbers", [(n, n) for n in range(len(places))])
        letters = {letter.value.value: letter.value.reason for letter in h.outputs("letters")}
    if sink is not None:
        write(sink, batches)
    found: Table = {}
    if sink is None:
        found = by_id(row for batch in batches for row in batch.to_pylist())
    elif door.read is not None:
        found = door.read(folder)
    made: dict[str, list[Outcome]] = {}
    for k, kind in enumerate(kinds):
        judged = [] if door.judge is None else door.judge(folder, k, kind)
        outcomes = made[kind.name] = list[Outcome]()
        for v, value in enumerate(kind.values):
            letter, row = letters.get(str(places.index((k, v)))), found.get(f"{k} {v}")
            if letter is not None:
                outcomes.append(lettered(letter, f"c{k}"))
            elif judged:
                outcomes.append(judged[v])
            else:
                outcomes.append(compared_with_system(value, [] if row is None else [row[f"c{k}"]]))
    return made


def places_of(kinds: Sequence[Kind]) -> list[tuple[int, int]]:
    """Return the numbers of kinds, and of values in them."""
    return [(k, v) for k, kind in enumerate(kinds) for v in range(len(kind.values))]


def wide_row(kinds: Sequence[Kind]) -> Any:
    """Return a record format with a field for each kind."""
    fields = [(f"c{k}", kind.type | None, None) for k, kind in enumerate(kinds)]
    return msgspec.defstruct("Row", [("id", str), *fields])  # type: ignore[arg-type]


def pipeline(kinds: Sequence[Kind]) -> mr.Pipeline:
    """Return a pipeline that makes a record of each value of kinds."""
    row, places = wide_row(kinds), places_of(kinds)

    class Makes(mr.Computation):
        inputs = {"numbers": mr.by(str)}
        outputs = {"values": row}

        def process_record(self, record: Any) -> None:
            k, v = places[record.value]
            self.produce("values", row(id=f"{k} {v}", **{f"c{k}": kinds[k].values[v]}))

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
    what is not finite as "NaN" or "Infinity", the rest as JSON.
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
        if isinstance(found, str):  # JSON has no form of its own for it
            return not math.isfinite(value) and same(value, float(found))
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
