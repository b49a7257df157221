"""The codec of rows in packets: what follows from a few numbers is not sent for each row.

Every byte of a packet is copied some ten times on its way to the next task: into sockets and out of
them, and between the rows, buffers and columns of the JVM. In what an injector task sends to a task
a row's task, and mostly its edge and its origin, are those of the row before. Its sequence and its
time are not far from those around it: the differences from the lowest value are sent. The hash of a
key that is a whole number is derived from the key. A record of a native source travels as a struct,
of which one field mostly is its key, and another its time: both are columns of the wire besides.
That is up to five sixths of the bytes. It costs some ten nanoseconds to leave out, and thirty to
put back.

Whole numbers as keys: encoded and hashed, a column at a time.

``hash_key`` is XXH64, as Spark has it too, and the libraries for it take one key a call. That is a
good part of what an injector task does, where there are many keys. An encoded whole number has nine
bytes, always: so its hash is some twenty operations on whole numbers, each done by NumPy for all of
them at once.

Source: the specification of XXH64, for an input of nine bytes (in the repository
github.com/Cyan4973/xxHash); the names of the constants are its.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from millrace.kernel.ordering import ENCODED_NUMBER, NUMBER_TAG, SHIFT, decoded_numbers
from millrace.model.keys import HASH_SEED
from millrace.runtime import wire

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_BYTES: Final = ENCODED_NUMBER.itemsize
#: So many are done at once: what they need stays near the processor.
_AT_ONCE: Final = 8_192

_PRIME64_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME64_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME64_3: Final = np.uint64(0x165667B19E3779F9)
_PRIME64_4: Final = np.uint64(0x85EBCA77C2B2AE63)
_PRIME64_5: Final = np.uint64(0x27D4EB2F165667C5)
_BEGIN: Final = np.uint64((HASH_SEED + int(_PRIME64_5) + _BYTES) % (1 << 64))


def encoded_numbers(column: pa.Array) -> pa.Array:
    r"""Return integers as ``encode_key`` encodes each of them; null for a null.

    >>> encoded_numbers(pa.array([-1, None])).to_pylist()
    [b'i\x7f\xff\xff\xff\xff\xff\xff\xff', None]
    """
    count = len(column)
    valid = column.is_valid().buffers()[1] if column.null_count else None
    table = np.empty(count, ENCODED_NUMBER)
    table["tag"] = NUMBER_TAG
    table["shifted"] = _shifted(column)
    offsets = np.arange(0, (count + 1) * _BYTES, _BYTES, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(table)]
    )


def numbers_of(keys: pa.Array) -> Numbers | None:
    """Return the numbers of which encoded keys were made; None if one is of something else.

    >>> numbers_of(encoded_numbers(pa.array([7, -7]))), numbers_of(pa.array([b"sJFK"]))
    (array([ 7, -7]), None)
    """
    if keys.null_count or not pa.types.is_binary(keys.type):
        return None
    count = len(keys)
    if not count:
        return np.empty(0, np.int64)
    _, offsets, data = keys.buffers()
    at = np.frombuffer(offsets, np.int32, count + 1, keys.offset * 4)
    if (np.diff(at) != _BYTES).any():
        return None
    table = np.frombuffer(data, ENCODED_NUMBER, count, int(at[0]))
    return None if (table["tag"] != NUMBER_TAG).any() else decoded_numbers(table)


def hashes_of_numbers(column: pa.Array) -> Hashes:
    """Return what ``hash_key`` returns of each encoded integer; of a null any hash.

    >>> from millrace.model.keys import encode_key, hash_key
    >>> hashes_of_numbers(pa.array([7, -7])).tolist() == [hash_key(encode_key(n)) for n in (7, -7)]
    True
    """
    shifted = _shifted(column)
    hashes = np.empty(len(shifted), np.uint64)
    for first in range(0, len(shifted), _AT_ONCE):
        _hash(shifted[first : first + _AT_ONCE], hashes[first : first + _AT_ONCE])
    return hashes


def _shifted(column: pa.Array) -> Hashes:
    """Return numbers so that they sort as bytes do."""
    if column.null_count:
        column = pc.fill_null(column, 0)
    whole: npt.NDArray[Any] = column.cast(pa.int64()).to_numpy()
    return whole.view(np.uint64) ^ SHIFT


def _hash(shifted: Hashes, into: Hashes) -> None:
    """Hash the tag and the big-endian bytes of numbers."""
    # Eight bytes, the first of them the lowest; then there is one more, the number's last.
    lane = shifted.byteswap()
    lane <<= np.uint64(8)
    lane |= np.uint64(NUMBER_TAG)
    lane *= _PRIME64_2
    lane = _rotated(lane, 31)
    lane *= _PRIME64_1
    lane ^= _BEGIN
    lane = _rotated(lane, 27)
    lane *= _PRIME64_1
    lane += _PRIME64_4
    last = shifted & np.uint64(0xFF)
    last *= _PRIME64_5
    lane ^= last
    lane = _rotated(lane, 11)
    lane *= _PRIME64_1
    lane ^= lane >> np.uint64(33)
    lane *= _PRIME64_2
    lane ^= lane >> np.uint64(29)
    lane *= _PRIME64_3
    np.bitwise_xor(lane, lane >> np.uint64(32), out=into)


def _rotated(lane: Hashes, bits: int) -> Hashes:
    """Return numbers with their highest bits as their lowest; what was given is used up."""
    high = lane >> np.uint64(64 - bits)
    lane <<= np.uint64(bits)
    lane |= high
    return lane


#: So many zeros may end the differences; a record's place has those bits for itself.
_ZEROS: Final = 17

#: The lowest value, and by how many bits the differences from it are shifted.
Near = tuple[int, int]
Wholes = npt.NDArray[np.int64]


def differences(values: Wholes) -> tuple[pa.Array, Near] | None:
    """Return the differences in as few bytes as they need, and how; None if they need many.

    >>> differences(np.array([1 << 40, (1 << 40) + 7]))
    (<pyarrow.lib.UInt16Array object at ...>
    [
      0,
      7
    ], (1099511627776, 0))
    """
    lowest = int(values.min())
    # As a number without a sign it is true, however far apart they are.
    far = (values - lowest).view(np.uint64)
    zeros = 0 if (far & np.uint64((1 << _ZEROS) - 1)).any() else _ZEROS
    far >>= np.uint64(zeros)
    most = int(far.max())
    if most >= 1 << 32:
        return None
    return pa.array(far.astype(np.uint16 if most < 1 << 16 else np.uint32)), (lowest, zeros)


def values_of(differences: pa.Array, near: Near) -> Wholes:
    """Return the values again."""
    lowest, zeros = near
    values: Wholes = differences.to_numpy().astype(np.int64)
    values <<= zeros
    values += lowest
    return values


_FIELD: Final = "of"


class LeftOutFields(msgspec.Struct, array_like=True):
    """What makes a column of terse structs whole.

    Attributes:
        type: Of the column as it was: an Arrow schema of one field.
        same: Place of a field that is not sent -> the column that has the same numbers.
        near: Place of a field of which the differences are sent -> how.
    """

    type: bytes
    same: dict[int, str] = {}
    near: dict[int, Near] = {}

    def put_back(self, sent: pa.StructArray | None, wholes: Mapping[str, Wholes]) -> pa.StructArray:
        """Return the structs as they were.

        Args:
            sent: Without the fields that were left out; None if that were all.
            wholes: The numbers of other columns.
        """
        (field,) = ipc.read_schema(pa.py_buffer(self.type))
        children = iter(() if sent is None else sent.flatten())
        fields = list(field.type)
        return pa.StructArray.from_arrays(
            list(self._fields(fields, children, wholes)), fields=fields
        )

    def _fields(
        self, fields: Iterable[pa.Field], sent: Iterator[pa.Array], wholes: Mapping[str, Wholes]
    ) -> Iterator[pa.Array]:
        for place, field in enumerate(fields):
            if place in self.same:
                yield _typed(wholes[self.same[place]], field.type)
            elif place in self.near:
                yield _typed(values_of(next(sent), self.near[place]), field.type)
            else:
                yield next(sent)


def without(
    structs: pa.StructArray, wholes: Mapping[str, Wholes]
) -> tuple[pa.StructArray | None, LeftOutFields] | None:
    """Return structs without what can be left out, and that; None if nothing can.

    Args:
        structs: A column of the wire.
        wholes: Column -> its numbers, which travel anyhow.

    >>> at = pa.array([5, 70_000])
    >>> found, left_out = without(
    ...     pa.StructArray.from_arrays([at, pa.array([7, 8]), pa.array("ab")], ["at", "n", "s"]),
    ...     {"ts": at.to_numpy()},
    ... )
    >>> str(found.type), left_out.same, left_out.near
    ('struct<n: uint16, s: string>', {0: 'ts'}, {1: (7, 0)})
    >>> left_out.put_back(found, {"ts": at.to_numpy()}).to_pylist()
    [{'at': 5, 'n': 7, 's': 'a'}, {'at': 70000, 'n': 8, 's': 'b'}]
    """
    if structs.null_count:
        return None
    left_out = LeftOutFields(b"")
    fields, children = list[pa.Field](), list[pa.Array]()
    for place, (field, child) in enumerate(zip(structs.type, structs.flatten(), strict=True)):
        values = _wholes(child)
        if values is not None:
            same = (name for name, others in wholes.items() if (values == others).all())
            if (name := next(same, None)) is not None:
                left_out.same[place] = name
                continue
            if values.dtype == np.int64 and (deltas := differences(values)) is not None:
                child, left_out.near[place] = deltas
                field = pa.field(field.name, child.type)
        fields.append(field)
        children.append(child)
    if not left_out.same and not left_out.near:
        return None
    left_out.type = pa.schema([pa.field(_FIELD, structs.type)]).serialize().to_pybytes()
    sent = pa.StructArray.from_arrays(children, fields=fields) if fields else None
    return sent, left_out


def _wholes(column: pa.Array) -> Wholes | None:
    """Return a column's numbers if they are whole, have a sign, and are all there."""
    if column.null_count:
        return None
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return column.to_numpy() if pa.types.is_signed_integer(column.type) else None


def _typed(values: Wholes, type: pa.DataType) -> pa.Array:
    """Return numbers as a column of a type."""
    if pa.types.is_timestamp(type):
        return pa.array(values).view(type)
    return pa.array(values.astype(type.to_pandas_dtype()))


#: Fewer rows are sent as they are: each terse batch is a stream of its own.
FEW: Final = 1_000
#: Columns that often have one value, and those whose values often lie near each other.
_SAME: Final = ("pid", "edge", "origin")
_KEY, _HASH = "key", "hash"
_TIME: Final = "ts"
_NEAR: Final = (_KEY, _TIME, "sequence")


class LeftOut(msgspec.Struct, array_like=True):
    """What makes terse rows whole.

    Attributes:
        names: Of all columns, in order.
        same: Column -> its one value.
        near: Column of which the differences from its lowest value are sent -> how.
        numbers: Whether keys are sent as the whole numbers that they are, and hashes not at all.
        fields: Column of structs -> what of them is not sent.
    """

    names: list[str]
    same: dict[str, int]
    near: dict[str, Near]
    numbers: bool = False
    fields: dict[str, LeftOutFields] = {}

    def put_back(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they were, but for what a schema says besides names and types."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name, value in self.same.items():
            kind = wire.SCHEMA.field(name).type
            columns[name] = pa.array(np.full(rows.num_rows, value, kind.to_pandas_dtype()))
        for name, near in self.near.items():
            columns[name] = pa.array(values_of(columns[name], near))
        if self.fields:
            wholes = _source_columns(columns, numbers=self.numbers)
            for name, fields in self.fields.items():
                columns[name] = fields.put_back(columns.get(name), wholes)
        if self.numbers:
            numbers = columns[_KEY]
            columns[_HASH] = pa.array(hashes_of_numbers(numbers).view(np.int64))
            columns[_KEY] = encoded_numbers(numbers)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.names], names=self.names)


class Terse:
    """Rows to be sent.

    Args:
        rows: What is sent of them.
        left_out: What is not; None if that is nothing.

    >>> rows = pa.RecordBatch.from_pydict(
    ...     {
    ...         "edge": pa.array(np.full(FEW, 3, np.int32)),
    ...         "ts": pa.array(np.arange(FEW)),
    ...         "sequence": pa.array(np.arange(FEW) << 17),
    ...     }
    ... )
    >>> terse = Terse.of(rows)
    >>> rows.nbytes, terse.rows.nbytes
    (20000, 4000)
    >>> terse.left_out.put_back(terse.rows).equals(rows)
    True
    """

    __slots__ = "left_out", "rows"

    def __init__(self, rows: pa.RecordBatch, left_out: LeftOut | None = None) -> None:
        self.rows = rows
        self.left_out = left_out

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> Self:
        """Leave out what can be."""
        if rows.num_rows < FEW:
            return cls(rows)
        names = rows.schema.names
        columns: dict[str, Any] = dict(zip(names, rows.columns, strict=True))
        left_out = LeftOut(names, {}, {})
        for name in _SAME:
            column = columns.get(name)
            if column is not None and (value := _one_value(column)) is not None:
                left_out.same[name] = value
                del columns[name]
        if _KEY in columns and _HASH in columns:
            numbers = _numbers(columns[_KEY], columns[_HASH])
            if numbers is not None:
                left_out.numbers = True
                columns[_KEY] = numbers
                del columns[_HASH]
        wholes = _source_columns(columns, numbers=left_out.numbers)
        for name, column in list(columns.items()):
            if pa.types.is_struct(column.type) and (parts := without(column, wholes)) is not None:
                columns[name], left_out.fields[name] = parts
        for name in _NEAR if left_out.numbers else _NEAR[1:]:
            column = columns.get(name)
            if column is None or column.null_count:
                continue
            if (deltas := differences(column.to_numpy())) is not None:
                columns[name], left_out.near[name] = deltas
        if len(columns) == len(names) and not left_out.near and not left_out.fields:
            return cls(rows)
        sent = {name: column for name, column in columns.items() if column is not None}
        return cls(pa.RecordBatch.from_arrays([*sent.values()], names=[*sent]), left_out)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of what is sent."""
        return int(self.rows.nbytes)

    def slice(self, first: int, count: int) -> Terse:
        """Return some of the rows."""
        return Terse(self.rows.slice(first, count), self.left_out)

    def goes_with(self, other: Any) -> bool:
        """Return whether both can be in one stream."""
        if not isinstance(other, Terse) or self.left_out is not other.left_out:
            return False
        return bool(self.rows.schema.equals(other.rows.schema))


def _one_value(column: pa.Array) -> int | None:
    if column.null_count:
        return None
    values = column.to_numpy()
    first = values[0]
    # The last one is another where there are several, nearly always.
    return int(first) if values[-1] == first and bool((values == first).all()) else None


def _numbers(keys: pa.Array, hashes: pa.Array) -> pa.Array | None:
    """Return whole numbers of which all keys and hashes were made; None if there are none such."""
    numbers = numbers_of(keys)
    if numbers is None or hashes.null_count:
        return None
    key_column = pa.array(numbers)
    same = (hashes_of_numbers(key_column).view(np.int64) == hashes.to_numpy()).all()
    return key_column if same else None


def _source_columns(columns: Mapping[str, Any], *, numbers: bool) -> dict[str, Wholes]:
    """Return the columns that fields of a record may be found in.

    Args:
        columns: By name.
        numbers: Whether keys are whole numbers, and here as such.
    """
    chosen = [_KEY, _TIME] if numbers else [_TIME]
    wholes = {name: columns[name] for name in chosen if name in columns}
    return {name: column.to_numpy() for name, column in wholes.items() if not column.null_count}
