"""Columns of an injector's rows: their schema, as Spark writes it, and batches of them.

A file or table may have another type for a column than the schema declares. Only types of one
family are converted, and only without loss; but what is finer than a microsecond is cut off, down,
as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.injectors.refusals import Refusal, column_of, refusals_of, with_refusals
from millrace.injectors.typed_values import ToInstant, array_of, microsecond_instant
from millrace.model.errors import PipelineError, brief

_FAMILIES = (
    pa.types.is_boolean,
    pa.types.is_date,
    lambda kind: (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    ),
    lambda kind: (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    ),
)


def cast(column: pa.Array, wanted: pa.DataType, *, grown: bool = False) -> pa.Array:
    """Return a column as one of another type that holds the same values.

    Args:
        column: The column.
        wanted: The type.
        grown: Whether fields may have been added to structs since, which are null then.

    Raises:
        ArrowException: It would lose something, or is of another family.

    >>> cast(pa.array([7], pa.uint64()), pa.int32()).to_pylist()
    [7]
    >>> cast(pa.array([-1], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC")).cast("int64")[0]
    <pyarrow.Int64Scalar: -1>
    """
    given = column.type
    if given == wanted:
        return column
    if isinstance(column, pa.ExtensionArray):
        return cast(column.storage, wanted, grown=grown)
    if pa.types.is_dictionary(given):
        return cast(column.dictionary_decode(), wanted, grown=grown)
    if pa.types.is_null(given):
        return pa.nulls(len(column), wanted)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return _instants(column, wanted)
    if pa.types.is_timestamp(given) and given.tz is None and pa.types.is_string(wanted):
        # It names no instant, so it is left to the program, as it is in JSON.
        return _instants(column, pa.timestamp("us")).cast(wanted)
    if pa.types.is_integer(given) and _is_number(wanted):
        return _integers(column, wanted)
    if pa.types.is_float16(given) and pa.types.is_floating(wanted):
        return column.cast(pa.float32()).cast(wanted)  # Arrow does not compare them
    if pa.types.is_floating(given) and pa.types.is_floating(wanted):
        return _unchanged(column, column.cast(wanted))
    if pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        return column.cast(wanted)
    if pa.types.is_nested(given):
        return _nested(column, wanted, grown=grown)
    if any(family(given) and family(wanted) for family in _FAMILIES):
        return column.cast(wanted)
    raise pa.ArrowInvalid("they are different kinds of values")


def _is_number(kind: pa.DataType) -> bool:
    families = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(holds(kind) for holds in families)


def _integers(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(wanted):
        # Arrow asks for room for all digits of the type, not for those that are there.
        return column.cast(pa.decimal256(60, wanted.scale)).cast(wanted)
    return column.cast(wanted)


def _unchanged(column: pa.Array, made: pa.Array) -> pa.Array:
    both_nan = pc.and_(pc.is_nan(made), pc.is_nan(column))
    same = pc.or_(pc.equal(made.cast(column.type), column), both_nan)
    if pc.all(same).as_py() is False:
        raise pa.ArrowInvalid("it has values with more digits, or out of range")
    return made


def _instants(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    given = column.type
    if (given.tz is None) != (wanted.tz is None):
        raise pa.ArrowInvalid(
            "only one of the two has a time zone. A time without one names no instant; it can be "
            "declared as string"
        )
    if given.unit == "ns" and wanted.unit == "us":
        floor = pc.floor_temporal(column.cast(pa.timestamp("ns")), unit="microsecond")
        return floor.cast(pa.timestamp("us")).cast(pa.int64()).cast(wanted)
    return column.cast(wanted)


def _nested(column: pa.Array, wanted: pa.DataType, *, grown: bool) -> pa.Array:
    given = column.type
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        return _struct(column, wanted, grown=grown)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        pairs = column.cast(pa.map_(given.key_type, given.item_type))
        offsets, part = _offsets(pairs)
        keys, items = cast(part(pairs.keys), wanted.key_type), part(pairs.items)
        made = pa.MapArray.from_arrays(
            offsets, keys, cast(items, wanted.item_type, grown=grown), mask=column.is_null()
        )
        return made if made.type == wanted else made.cast(wanted)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if pa.types.is_list(wanted) and any(holds(given) for holds in lists):
        plain = column.cast(pa.list_(given.value_field))
        offsets, part = _offsets(plain)
        values = cast(part(plain.values), wanted.value_type, grown=grown)
        made = pa.ListArray.from_arrays(offsets, values, mask=column.is_null())
        return made if made.type == wanted else made.cast(wanted)
    raise pa.ArrowInvalid("they are different kinds of values")


def _offsets(column: pa.Array) -> tuple[pa.Array, Callable[[pa.Array], pa.Array]]:
    """Return where each list begins, and what takes the column's values.

    A slice of a column has the values of the whole one, with others before and behind its own.
    """
    first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return pc.subtract(column.offsets, first), lambda values: values.slice(first, end - first)


def _struct(column: pa.StructArray, wanted: pa.StructType, *, grown: bool) -> pa.Array:
    fields = []
    for field in wanted:
        position = column.type.get_field_index(field.name)
        if position >= 0:
            fields.append(cast(column.field(position), field.type, grown=grown))
        elif grown:
            fields.append(pa.nulls(len(column), field.type))
        else:
            raise pa.ArrowInvalid(f"it has no field {field.name!r}")
    return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=column.is_null())


#: Rows that become one batch. Ten times as many take no less time a row, and ten times the memory.
_CHUNK: Final = 10_000

_TYPES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
}
_COLUMN: Final = re.compile(r"(?s)\s*(`[^`]*`|[^\s:]*)\s*:?(.*)")
_KIND: Final = re.compile(
    r"(?is)\s*(\w+)\s*(?:<(.*)>|\((.*?)\))?\s*(?:not\s+null)?\s*(?:comment\b.*)?$"
)

_DIGITS: Final = re.compile(r"\s*(\d+)\s*(?:,\s*(\d+)\s*)?")
#: Of a decimal, as in Spark.
_DIGITS_MOST: Final = 38


def columns(ddl: str) -> list[tuple[str, str]]:
    """Return the names and types of the columns that a schema declares.

    >>> columns("name string, price decimal(10, 2), `at` TIMESTAMP")
    [('name', 'string'), ('price', 'decimal(10, 2)'), ('at', 'timestamp')]
    """
    return [(name, kind.lower()) for name, kind in _parts(ddl)]


def column_names(ddl: str) -> list[str]:
    """Return the names of the columns that a schema declares."""
    return [name for name, _ in _parts(ddl)]


def check_schema(ddl: Any) -> None:
    """Refuse what is no text.

    Raises:
        PipelineError: It is none.
    """
    if not isinstance(ddl, str):
        raise PipelineError(
            f'schema={brief(ddl, 120)}: expected columns as text, "user string, at timestamp".'
        )


@lru_cache(maxsize=64)
def arrow_schema(ddl: str) -> pa.Schema:
    """Return a schema as Arrow has it; a ``timestamp`` is in microseconds, UTC.

    Raises:
        PipelineError: A type is none that a column of an injector can have, or two columns, or two
            fields of a struct, have one name.

    >>> arrow_schema("name string, sizes array<int>, at timestamp")
    name: string
    sizes: list<item: int32>
      child 0, item: int32
    at: timestamp[us, tz=UTC]
    """
    return pa.schema(_fields(ddl, ddl))


#: Name of a type, of Spark's or in a schema -> what its values are.
_PLAIN: Final = {
    "string": str, "binary": bytes, "boolean": bool, "double": float, "float": float,
    "long": int, "bigint": int, "integer": int, "int": int, "short": int, "smallint": int,
    "byte": int, "tinyint": int,
}  # fmt: skip


def plain_types(source: Any) -> dict[str, Any]:
    """Return column -> type of its values, of a source's columns of text, numbers and bytes.

    Args:
        source: A Spark DataFrame, or an injector with a schema; others have none.

    >>> from types import SimpleNamespace
    >>> plain_types(SimpleNamespace(schema="word string, at timestamp, sizes array<int>"))
    {'word': str | None}
    """
    schema = getattr(source, "schema", None)
    if isinstance(schema, str):
        types = {field.name: field.type for field in arrow_schema(schema)}
        known = {kind: _PLAIN[name] for name, kind in _TYPES.items() if name in _PLAIN}
        return {name: known[kind] | None for name, kind in types.items() if kind in known}
    fields = getattr(schema, "fields", ())
    named = {field.name: field.dataType.typeName() for field in fields}
    return {name: _PLAIN[kind] | None for name, kind in named.items() if kind in _PLAIN}


def batches_of(rows: Iterable[Sequence[Any]], ddl: str, where: str) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches.

    Args:
        rows: In order of the schema's columns.
        ddl: The schema.
        where: They came from, for messages.

    A row is refused that has not as many values as the schema has columns, or a value that is not
    of its column's type; see :mod:`millrace.injectors.refusals`.
    """
    schema, each, first = arrow_schema(ddl), iter(rows), 0
    while chunk := list(islice(each, _CHUNK)):
        reasons, fitting = dict[int, str](), list[Sequence[Any] | None]()
        for n, row in enumerate(chunk):
            reason = _misshapen(row, schema)
            if reason is not None:
                reasons[n] = reason
            fitting.append(row if reason is None else None)
        batch, misfits = rows_batch(fitting, schema)
        refusals = {
            n: Refusal.of_row(reason, f"{where}, row {first + n}", chunk[n])
            for n, reason in (reasons | misfits).items()
        }
        yield with_refusals(batch, refusals)
        first += len(chunk)


def rows_batch(
    rows: Sequence[Sequence[Any] | None],
    schema: pa.Schema,
    instant: ToInstant = microsecond_instant,
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return rows as a batch, and by position why a row is refused, which has null everywhere.

    Args:
        rows: In order of the columns; None: null everywhere.
        schema: Their types.
        instant: Reads what stands for an instant.

    >>> batch, refused = rows_batch([(1,), (2.5,)], pa.schema([("n", pa.int64())]))
    >>> batch.column("n").to_pylist(), list(refused)
    ([1, None], [1])
    """
    found, refused, nothing = list[pa.RecordBatch](), dict[int, str](), (None,) * len(schema)

    def add(first: int, some: Sequence[Sequence[Any]]) -> None:
        columns = list(zip(*some, strict=True)) or [()] * len(schema)
        try:
            found.append(batch_of(columns, schema, "", instant))
        except PipelineError as misfit:
            if len(some) == 1:
                refused[first] = str(misfit)
                add(first, [nothing])
                return
            half = len(some) // 2
            add(first, some[:half])
            add(first + half, some[half:])

    add(0, [nothing if row is None else row for row in rows])
    if len(found) == 1:
        return found[0], refused
    (batch,) = pa.Table.from_batches(found).combine_chunks().to_batches()
    return batch, refused


def _misshapen(row: Any, schema: pa.Schema) -> str | None:
    """Return why a row has not the schema's columns; None if it has."""
    if not isinstance(row, Sequence) or isinstance(row, str | bytes):
        return f"it gave a {type(row).__name__}, and a row is a tuple of {schema.names}"
    if len(row) == len(schema):
        return None
    return (
        f"it gave a row of {len(row)} values, and its schema has the {len(schema)} columns "
        f"{schema.names}"
    )


def batch_of(
    values: Sequence[Sequence[Any]],
    schema: pa.Schema,
    where: str,
    instant: ToInstant = microsecond_instant,
) -> pa.RecordBatch:
    """Return columns of Python values as a batch.

    Args:
        values: A column each.
        schema: Their types.
        where: They came from, for messages.
        instant: Reads what stands for an instant.

    Raises:
        PipelineError: A type cannot hold a value of its column without loss.
    """
    arrays = []
    for column, field in zip(values, schema, strict=True):
        try:
            arrays.append(array_of(column, field.type, instant))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as refused:
            raise PipelineError(
                f"{where and f'{where}: '}column {field.name!r} has values that are not "
                f"{field.type}: {refused}. Expected values that the type which its schema "
                "declares holds without loss, or None."
            ) from refused
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def conformed(
    batch: pa.RecordBatch,
    ddl: str,
    where: str,
    names: Sequence[str] = (),
    *,
    grown: bool = False,
) -> pa.RecordBatch:
    """Return a batch with the columns of a schema, in their order, and no others.

    Types of one family are converted: integers of other widths, text with a dictionary, times in
    other units. What is finer than a microsecond is cut off. A row with a value that its declared
    type cannot hold is refused; refusals that there are stay.

    Args:
        batch: The batch.
        ddl: The schema.
        where: It came from, for messages.
        names: Of all columns that are there; by default those of the batch.
        grown: Whether fields may have been added to structs since, which are null then.

    Raises:
        PipelineError: A column is missing, or of another type than is declared.
    """
    schema = arrow_schema(ddl)
    if batch.schema.equals(schema):
        return batch
    arrays, refusals = list[pa.Array](), dict[int, Refusal]()
    for field in schema:
        position = batch.schema.get_field_index(field.name)
        if batch.schema.names.count(field.name) > 1:
            raise PipelineError(
                f"{where} has several columns {field.name!r}, which the schema {ddl!r} declares "
                f"once. It has {batch.schema.names}."
            )
        if position < 0:
            raise PipelineError(
                f"{where} has no column {field.name!r}, which the schema {ddl!r} declares. It has "
                f"{[*names] or batch.schema.names}."
            )
        column = batch.column(position)
        if column.type != field.type:
            # Whether the type is one of its family.
            _cast(column.slice(0, 0), field, where, grown=grown)
            column, misfits = _fitting(column, field, grown=grown)
            for n, reason in misfits.items():
                row = batch.slice(n, 1)
                refusals.setdefault(n, Refusal.of_row(reason, where, _plain_row(row)))
        arrays.append(column)
    if refusals:
        good = pa.array([n not in refusals for n in range(batch.num_rows)])
        nothing = [pa.scalar(None, field.type) for field in schema]
        arrays = [pc.if_else(good, *pair) for pair in zip(arrays, nothing, strict=True)]
    made = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return with_refusals(made, refusals_of(column_of(batch)) | refusals)


def _fitting(column: pa.Array, field: pa.Field, *, grown: bool) -> tuple[pa.Array, dict[int, str]]:
    """Return a column as a field declares it, null where it cannot be, and why."""
    found, refused = list[pa.Array](), dict[int, str]()

    def add(first: int, some: pa.Array) -> None:
        try:
            found.append(_cast(some, field, "", grown=grown))
        except PipelineError as misfit:
            if len(some) == 1:
                refused[first] = str(misfit)
                found.append(pa.nulls(1, field.type))
                return
            half = len(some) // 2
            add(first, some.slice(0, half))
            add(first + half, some.slice(half))

    add(0, column)
    return found[0] if len(found) == 1 else pa.concat_arrays(found), refused


def _plain_row(row: pa.RecordBatch) -> Any:
    try:
        return row.to_pylist()[0]
    except (ValueError, OverflowError):  # Python has no such text, or no such time
        return str(row)


def _cast(column: pa.Array, field: pa.Field, where: str, *, grown: bool) -> pa.Array:
    try:
        return cast(column, field.type, grown=grown)
    except pa.ArrowException as refused:
        raise PipelineError(
            f"{where and f'{where}: '}column {field.name!r} is {column.type}, and the schema "
            f"declares {field.type}: {refused}. Declare the type that it has, or convert it where "
            "it is written."
        ) from refused


def _parts(ddl: str) -> list[tuple[str, str]]:
    """Return the names and types between the commas."""
    found = []
    for part in _apart(ddl):
        name, kind = _COLUMN.match(part).groups()  # type: ignore[union-attr]  # it matches anything
        found.append((name.strip("`"), kind.strip()))
    return found


def _apart(text: str) -> list[str]:
    """Return what stands between the commas that are in no brackets."""
    found, depth, start, quoted = [], 0, 0, False
    for at, character in enumerate(text + ","):
        quoted ^= character == "`"
        if quoted:
            continue
        depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            found.append(text[start:at])
            start = at + 1
    return found


def _fields(inner: str, ddl: str) -> list[tuple[str, pa.DataType]]:
    """Return the fields of a schema, or of a struct in it."""
    found = [(name, _type(kind, ddl)) for name, kind in _parts(inner)]
    names = [name for name, _ in found]
    if again := [name for name in names if names.count(name) > 1]:
        raise PipelineError(
            f"schema {ddl!r} declares {again[0]!r} {len(again)} times. Give each column, and each "
            "field of a struct, a name of its own."
        )
    return found


def _type(kind: str, ddl: str) -> pa.DataType:
    matched = _KIND.match(kind)
    word, inner, sizes = matched.group(1, 2, 3) if matched else ("", None, None)
    word = word.lower()
    if inner is None and word in _TYPES:
        return _TYPES[word]
    if word in ("varchar", "char"):
        return pa.string()
    if word in ("decimal", "dec", "numeric"):
        digits = _DIGITS.fullmatch(sizes or "10,0")
        precision, scale = (int(part or 0) for part in digits.groups()) if digits else (0, 0)
        if scale <= precision and 1 <= precision <= _DIGITS_MOST:
            return pa.decimal128(precision, scale)
    if inner is not None and word == "array":
        return pa.list_(_type(inner, ddl))
    if inner is not None and word == "struct":
        return pa.struct(_fields(inner, ddl))
    if inner is not None and word == "map" and len(_apart(inner)) == 2:
        key, item = (_type(part, ddl) for part in _apart(inner))
        if pa.types.is_nested(key):
            raise PipelineError(
                f"schema {ddl!r}: {kind!r} has keys that no dict of Python can have. Declare "
                "array<struct<key: ..., value: ...>>."
            )
        return pa.map_(key, item)
    if word == "timestamp_ntz":
        raise PipelineError(
            f"schema {ddl!r}: {kind!r} has no time zone, so it names no instant. Declare it as "
            "timestamp, and give times with their zone; or as string, and convert it in a step."
        )
    raise PipelineError(
        f"schema {ddl!r}: {kind!r} is no type of an injector's column. Expected one of "
        f"{', '.join(_TYPES)}, decimal(p, s), array<...>, map<..., ...> or struct<name: ...>."
    )
