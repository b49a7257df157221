"""What a computation keeps as columns: types by the checkpoint's schemas, rows as Arrow batches.

What has no type of its own in columns, a union, a value of any type, or what only the program can
read, is JSON text.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from millrace.compile.change.schemas import Schema
from millrace.inspect.computation import Cell, ComputationInspection
from millrace.inspect.json_text import as_json, key_text
from millrace.model.errors import PipelineError, brief

#: Rows of a batch: enough for Arrow to pay, few enough to hold beside a key interval.
_BATCH: Final = 8_192


class _Column(NamedTuple):
    """The type of a column, and what makes its values of those that are read."""

    type: pa.DataType
    of: Callable[[Any], Any]


class _NoInstant(ValueError):
    """A datetime without a time zone, which Arrow would take for one in UTC."""


def _instant(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        raise _NoInstant(f"{value!r} has no time zone, so it names no instant, and")
    return value


def _text(value: Any) -> Any:
    return None if value is None else as_json(value).decode()


_INSTANT: Final = _Column(pa.timestamp("us", tz="UTC"), _instant)
_JSON: Final = _Column(pa.string(), _text)
_SAME: Final[dict[str, pa.DataType]] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "date": pa.date32(),
}
_LISTS: Final = ("list", "set", "frozenset", "vartuple")

_KEY: Final = {"key": pa.string()}
_FIXED: Final[dict[str, dict[str, pa.DataType]]] = {
    "timers": {
        **_KEY, "tag": pa.string(), "at": pa.int64(), "domain": pa.string(),
        "percentile": pa.int64(), "hold": pa.int64(),
    },
    "holds": {**_KEY, "at": pa.int64(), "timer": pa.string()},
    "windows": {
        **_KEY, "start": pa.int64(), "end": pa.int64(), "size": pa.int64(), "pending": pa.int64(),
        "panes": pa.int64(), "accumulator": pa.string(),
    },
    "chunks": {"at": pa.int64(), "commit": pa.int64(), "bytes": pa.int64()},
    "ids": {"commit": pa.int64(), "expires": pa.int64(), "count": pa.int64()},
}  # fmt: skip

#: What can be read of a computation.
WHAT: Final = ("cells", *_FIXED)


def columns_of(computation: ComputationInspection, what: str = "cells") -> pa.Schema:
    """Return the columns of what a computation keeps.

    Args:
        computation: Of a checkpoint.
        what: ``cells``: a row a key, with its hash as Spark's ``xxhash64`` has it (unless a cell
            has that name), and a column a cell; a map's entries are a map by :func:`key_text`, a
            bag's items a list. ``timers``, ``holds``, ``windows``,
            ``chunks``, ``ids``: a row each, instants in microseconds.

    Raises:
        PipelineError: There is nothing of that name.
    """
    if what in _FIXED:
        return pa.schema(_FIXED[what])
    if what != "cells":
        raise PipelineError(f"{what!r} cannot be read of a computation. Expected {', '.join(WHAT)}")
    cells = {name: _of_cell(cell).type for name, cell in computation.cells.items()}
    return pa.schema({"key": pa.string(), "hash": pa.int64(), **cells})


def batches(computation: ComputationInspection, what: str = "cells") -> Iterator[pa.RecordBatch]:
    """Yield what a computation keeps, in the order of :func:`rows_of`, as columns of that kind.

    A key of more than 159 bytes is null: rows hold but a digest of it.

    Raises:
        NotKept: The run has gone on, and what was after this epoch is not kept any more.
        PipelineError: An int does not fit in 64 bits with a sign, or a datetime has no time zone.
    """
    schema = columns_of(computation, what)
    rows = _cell_rows(computation) if what == "cells" else _fixed_rows(computation, what)
    while block := list(itertools.islice(rows, _BATCH)):
        try:
            yield pa.RecordBatch.from_pylist(block, schema=schema)
        except (OverflowError, pa.ArrowException) as error:
            raise _does_not_fit(block, schema) from error


def _does_not_fit(block: list[dict[str, Any]], schema: pa.Schema) -> PipelineError:
    """Return the error that names the first value of some rows that its column does not hold."""
    for row in block:
        for field in schema:
            try:
                pa.array([row[field.name]], field.type)
            except (OverflowError, pa.ArrowException):
                what = (
                    f"{brief(row[field.name], 120)} does not fit in a column of type {field.type}"
                )
                return _elsewhere(field.name, row["key"], what)
    raise AssertionError("a value of these rows does not fit")


def _elsewhere(cell: str, key: str | None, why: str) -> PipelineError:
    """Return the error that says where to read what is none for a column."""
    return PipelineError(
        f"{cell!r} of key {key}: {why}. Read it with `millrace state get`, or in Python by "
        "mr.ops.open_checkpoint(...)[computation].get(key)."
    )


def rows_of(computation: ComputationInspection, what: str) -> Iterable[dict[str, Any]]:
    """Return what a computation keeps as values by name: a row a key, a timer, a hold, and so on.

    Args:
        computation: Of a checkpoint.
        what: As :func:`columns_of` has it.
    """
    fields = msgspec.structs.asdict
    match what:
        case "cells":
            return map(fields, computation.scan())
        case "windows":
            return ({"key": key, **fields(one)} for key, one in computation.windows())
        case "timers":
            return map(fields, computation.timers())
        case "holds":
            return map(fields, computation.holds())
        case "chunks":
            return map(fields, computation.chunks())
    return map(fields, computation.delivered_ids())


def _cell_rows(computation: ComputationInspection) -> Iterator[dict[str, Any]]:
    cells = [(name, _of_cell(cell).of) for name, cell in computation.cells.items()]
    for row in rows_of(computation, "cells"):
        key, values = _key(row["key"]), dict[str, Any]()
        for name, of in cells:
            try:
                values[name] = of(row["cells"][name])
            except _NoInstant as naive:
                raise _elsewhere(
                    name, key, f"{naive} does not fit in a column of instants"
                ) from None
        yield {"key": key, "hash": _signed(row["hash"]), **values}


def _fixed_rows(computation: ComputationInspection, what: str) -> Iterator[dict[str, Any]]:
    for row in rows_of(computation, what):
        for name in row.keys() & {"key", "tag"}:
            row[name] = _key(row[name])
        for name in row.keys() & {"accumulator", "timer"}:
            row[name] = _text(row[name])
        yield row


def _signed(hash: int) -> int:
    return hash - (1 << 64) if hash >> 63 else hash


def _key(key: Any) -> str | None:
    return None if key is None else key_text(key)


def _of_cell(cell: Cell) -> _Column:
    schema = cell.format
    known = schema["coder"] in ("msgpack", "json") and "type" in schema
    if known:
        value = _of_type(schema["type"], schema.get("types", {}), ())
    else:
        value = _Column(pa.binary(), _nothing_else) if schema["coder"] == "bytes" else _JSON
    if cell.kind in ("MapState", "SideInput"):
        return _map_of(value)
    return _list_of(value) if cell.kind == "BagState" else value


def _of_type(node: Schema, types: Schema, inside: tuple[str, ...]) -> _Column:
    """Return the column of a type; JSON where there is none, or where a type holds itself."""
    if "ref" in node:
        if node["ref"] in inside:
            return _JSON
        return _of_type(types[node["ref"]], types, (*inside, node["ref"]))
    kind = node["kind"]
    if kind == "datetime":
        return _INSTANT
    if kind in _SAME:
        return _Column(_SAME[kind], _nothing_else)
    if kind in _LISTS:
        return _list_of(_of_type(node["item"], types, inside))
    if kind in ("dict", "frozendict"):
        return _map_of(_of_type(node["value"], types, inside))
    if kind in ("object", "array") and node["fields"]:
        fields = [
            (field.get("attribute", field["name"]), _of_type(field["type"], types, inside))
            for field in node["fields"]
        ]
        type = pa.struct([pa.field(name, column.type) for name, column in fields])
        return _Column(type, lambda value: None if value is None else _struct(fields, value))
    if kind == "union":
        there = [one for one in node["of"] if one.get("kind") != "none"]
        if len(there) == 1:
            return _of_type(there[0], types, inside)
    return _JSON


def _struct(fields: list[tuple[str, _Column]], value: dict[str, Any]) -> dict[str, Any]:
    return {name: column.of(value.get(name)) for name, column in fields}


def _list_of(item: _Column) -> _Column:
    def of(value: Any) -> Any:
        return None if value is None else [item.of(each) for each in value]

    return _Column(pa.list_(item.type), of)


def _map_of(value: _Column) -> _Column:
    def of(entries: Any) -> Any:
        if entries is None:
            return None
        return [(key_text(name), value.of(each)) for name, each in entries.items()]

    return _Column(pa.map_(pa.string(), value.type), of)


def _nothing_else(value: Any) -> Any:
    return value
