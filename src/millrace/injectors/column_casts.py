"""Casts of columns: from the type that a file or table has to the one that a schema declares.

Only types of one family are converted, and only without loss; but what is finer than a microsecond
is cut off, down, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

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


def cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column as one of another type that holds the same values.

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
        return cast(column.storage, wanted)
    if pa.types.is_dictionary(given):
        return cast(column.dictionary_decode(), wanted)
    if pa.types.is_null(given):
        return pa.nulls(len(column), wanted)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return _instants(column, wanted)
    if pa.types.is_integer(given) and _is_number(wanted):
        return _integers(column, wanted)
    if pa.types.is_float16(given) and pa.types.is_floating(wanted):
        return column.cast(pa.float32()).cast(wanted)  # Arrow does not compare them
    if pa.types.is_floating(given) and pa.types.is_floating(wanted):
        return _unchanged(column, column.cast(wanted))
    if pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        return column.cast(wanted)
    if pa.types.is_nested(given):
        return _nested(column, wanted)
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
        raise pa.ArrowInvalid("only one of the two has a time zone")
    if given.unit == "ns" and wanted.unit == "us":
        floor = pc.floor_temporal(column.cast(pa.timestamp("ns")), unit="microsecond")
        return floor.cast(pa.timestamp("us")).cast(pa.int64()).cast(wanted)
    return column.cast(wanted)


def _nested(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    given = column.type
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        return _struct(column, wanted)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        pairs = column.cast(pa.map_(given.key_type, given.item_type))
        offsets, part = _offsets(pairs)
        keys, items = cast(part(pairs.keys), wanted.key_type), part(pairs.items)
        made = pa.MapArray.from_arrays(
            offsets, keys, cast(items, wanted.item_type), mask=column.is_null()
        )
        return made if made.type == wanted else made.cast(wanted)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if pa.types.is_list(wanted) and any(holds(given) for holds in lists):
        plain = column.cast(pa.list_(given.value_field))
        offsets, part = _offsets(plain)
        made = pa.ListArray.from_arrays(
            offsets, cast(part(plain.values), wanted.value_type), mask=column.is_null()
        )
        return made if made.type == wanted else made.cast(wanted)
    raise pa.ArrowInvalid("they are different kinds of values")


def _offsets(column: pa.Array) -> tuple[pa.Array, Callable[[pa.Array], pa.Array]]:
    """Return where each list begins, and what takes the column's values.

    A slice of a column has the values of the whole one, with others before and behind its own.
    """
    first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return pc.subtract(column.offsets, first), lambda values: values.slice(first, end - first)


def _struct(column: pa.StructArray, wanted: pa.StructType) -> pa.Array:
    fields = []
    for field in wanted:
        position = column.type.get_field_index(field.name)
        if position < 0:
            raise pa.ArrowInvalid(f"it has no field {field.name!r}")
        fields.append(cast(column.field(position), field.type))
    return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=column.is_null())
