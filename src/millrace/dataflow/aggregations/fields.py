"""How the results of several aggregates travel by name, and their accumulators side by side."""

from __future__ import annotations

import functools
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

import msgspec

from millrace.model.coder import Coder, MsgpackCoder, coder_for, type_name

#: Names and types of the results.
Fields = tuple[tuple[str, Any], ...]


class FieldsCoder(MsgpackCoder):
    """The coder of dicts with just these fields, each of its own type.

    >>> coder = FieldsCoder((("n", int), ("high", float | None)))
    >>> coder.decode(coder.encode({"n": 2, "high": None}))
    {'n': 2, 'high': None}
    """

    __slots__ = ("fields",)

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        super().__init__(_typed_dict(fields))
        # A record with the same fields takes half as long to read.
        self._check = msgspec.msgpack.Decoder(record_of(fields)).decode

    def encode_all(self, values: Sequence[Any]) -> list[bytes]:
        """Return the values as msgpack; results that are columns are checked as columns.

        >>> coder = FieldsCoder((("n", int), ("high", float | None)))
        >>> results = Results(record_of(("n", "high")), [[2, 3], [None, 0.5]])
        >>> coder.encode_all(results) == [coder.encode(result) for result in results]
        True
        """
        if isinstance(values, Results) and all(kind in _SCALARS for _, kind in self.fields):
            try:
                for (_, kind), column in zip(self.fields, values.columns, strict=True):
                    msgspec.convert(column, list[kind])  # type: ignore[valid-type]
                return list(map(self._encode, values.records()))
            except (msgspec.ValidationError, TypeError, OverflowError, UnicodeError):
                pass  # found again below, at its value
        return super().encode_all(values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FieldsCoder):
            return other.fields == self.fields
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()

    def __repr__(self) -> str:
        shown = (f"{name}: {type_name(kind)}" for name, kind in self.fields)
        return f"FieldsCoder({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return FieldsCoder, (self.fields,)


class Results(Sequence[Any]):
    """Results of several aggregates, kept as a column each; who takes one gets a dict.

    Most leave as bytes, and a record is encoded in half the time of a dict, and needs none.

    Args:
        record: Of the names, as :func:`record_of` makes it.
        columns: By name, in order.
    """

    def __init__(self, record: type[msgspec.Struct], columns: Sequence[Sequence[Any]]) -> None:
        self._record = record
        self.columns = columns

    def records(self) -> Iterator[msgspec.Struct]:
        """Yield the results as records."""
        return map(self._record, *self.columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, n: int) -> Any: ...

    @overload
    def __getitem__(self, n: slice) -> Results: ...

    def __getitem__(self, n: int | slice) -> Any:
        chosen = [column[n] for column in self.columns]
        if isinstance(n, slice):
            return Results(self._record, chosen)
        return msgspec.structs.asdict(self._record(*chosen))

    def __iter__(self) -> Iterator[Any]:
        return map(msgspec.structs.asdict, self.records())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list


#: Types of results that a column can be checked for, wholly.
_SCALARS: Final = {kind for one in (int, float, str, bytes, bool) for kind in (one, one | None)}


@functools.cache
def _typed_dict(fields: Fields) -> Any:
    """Return the type of a dict with these fields: the same for the same."""
    return typing.TypedDict("Results", dict(fields))  # type: ignore[operator]  # made at run time


@functools.cache
def record_of(fields: Fields | tuple[str, ...]) -> type[msgspec.Struct]:
    """Return the type of a record with these fields; without types they may be of any."""
    return msgspec.defstruct("Results", fields, gc=False)


class PartsCoder:
    """The coder of a tuple, of which some items have coders of their own; an item may be None.

    >>> coder = PartsCoder((int, str))
    >>> coder.decode(coder.encode((3, None)))
    (3, None)
    """

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts
        self._coders: tuple[Coder, ...] = tuple(map(coder_for, parts))

    def encode(self, value: Any) -> bytes:
        """Return the tuple as msgpack."""
        pairs = zip(self._coders, value, strict=True)
        return _encode([None if item is None else coder.encode(item) for coder, item in pairs])

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the tuple."""
        pairs = zip(self._coders, _decode(data), strict=True)
        return tuple(None if item is None else coder.decode(item) for coder, item in pairs)

    def describe(self) -> dict[str, Any]:
        """Return what a checkpoint knows it by."""
        return {"name": "parts"} | {f"part {n}": c for n, c in enumerate(self._coders)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartsCoder) and other._coders == self._coders

    def __hash__(self) -> int:
        return hash((PartsCoder, self._coders))

    def __repr__(self) -> str:
        return f"PartsCoder({self.parts!r})"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[bytes | None]).decode
