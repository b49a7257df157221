"""How the results of several aggregates travel by name, and their accumulators side by side.

KeyFields: results with the key and the window as fields, for ``keys=True``.
"""

from __future__ import annotations

import datetime as dt
import functools
import keyword
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, overload

import msgspec

from millrace.model.coder import Coder, MsgpackCoder, coder_for, type_name
from millrace.model.errors import PipelineError
from millrace.model.pane import Window
from millrace.model.time import datetime_of

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
        self.loses = False  # what is read for the check is a record, and not the dict

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


#: Fields of a window in a row.
WINDOW_FIELDS: Final = ("window_start", "window_end")

#: The field of a single aggregate's result in a row, as the column of a sink is called.
VALUE_FIELD: Final = "value"


@dataclass(frozen=True)
class KeyFields:
    """Makes rows of results: the key and the window are fields beside the results.

    Attributes:
        keys: Name of the key's field; several if the key is a tuple.
        results: Names of the results of several aggregates; none of one alone, which is ``value``.
        windows: Whether a row has the start and the end of its window.
        types: Of the key's fields, as far as streams before say them.
        make: What to make of a row, by name; by default a dict.

    >>> fields = KeyFields(("team",), (), windows=True)
    >>> fields.row("red", Window(0, 1_000_000), 12)["window_end"].isoformat()
    '1970-01-01T00:00:01+00:00'
    """

    keys: tuple[str, ...]
    results: tuple[str, ...]
    windows: bool
    types: tuple[Any, ...] = ()
    make: type | None = None

    def __post_init__(self) -> None:
        for name in self.keys:
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise PipelineError(
                    f"keys=True: the key's field {name!r} cannot be a field of a row. Give the key "
                    'another name before: .map(lambda value: {"team": value["my team"], ...}).'
                )
        for name in (*self.keys, *self.of_window):
            if self.names.count(name) > 1:
                raise PipelineError(
                    f"keys=True: a row would have {name!r} twice, among {', '.join(self.names)}. "
                    "Give the result another name, "
                    "aggregate(points=mr.agg.sum(...), keys=True)."
                )

    @property
    def of_window(self) -> tuple[str, ...]:
        """Names of the fields of the window."""
        return WINDOW_FIELDS if self.windows else ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all fields of a row."""
        return (*self.keys, *self.of_window, *(self.results or (VALUE_FIELD,)))

    def row(self, key: Any, window: Window, result: Any) -> Any:
        """Return the row of a result."""
        values = [*key] if len(self.keys) > 1 else [key]
        if self.windows:
            values += [window.start_time, window.end_time]
        fields = dict(zip(self.names, values, strict=False))
        fields |= result if self.results else {VALUE_FIELD: result}
        return fields if self.make is None else self.make(**fields)

    def rows(
        self, keys: Sequence[Any], windows: Sequence[tuple[int, int]], results: Sequence[Any]
    ) -> Sequence[Any]:
        """Return the rows of many results, with the start and end of the window of each."""
        columns: list[Sequence[Any]] = [keys]
        if len(self.keys) > 1:
            columns = [*zip(*keys, strict=True)]
        if self.windows:
            columns += [list(map(datetime_of, instants)) for instants in zip(*windows, strict=True)]
        if self.results and isinstance(results, Results):
            columns += results.columns
        else:
            columns.append(results)
        found = Results(record_of(self.names), columns)
        return found if self.make is None else [self.make(**row) for row in found]

    def result_type(self, keys: Sequence[Any], result: Any) -> FieldsCoder:
        """Return the coder of the rows.

        Args:
            keys: Type of each of the key's fields, as what is grouped says it; none if it does not.
            result: Type or coder of the results.
        """
        of_window = [(name, dt.datetime) for name in self.of_window]
        several = self.results and isinstance(result, FieldsCoder)
        of_results = result.fields if several else ((VALUE_FIELD, result),)
        declared = self.types or (Any,) * len(self.keys)
        types = [
            other if kind is Any else kind
            for kind, other in zip(keys or declared, declared, strict=True)
        ]
        return FieldsCoder((*zip(self.keys, types, strict=True), *of_window, *of_results))

    def making(self, format: Any) -> KeyFields:
        """Return the same, with rows of a class.

        Raises:
            PipelineError: The class cannot be made with them.
        """
        return replace(self, make=class_of_fields(format, self.names))


def class_of_fields(format: Any, given: Sequence[str]) -> type | None:
    """Return the class to make of fields by name; None for a dict.

    Raises:
        PipelineError: It is a class that cannot be made with them.
    """
    if format is Any or not isinstance(format, type) or issubclass(format, dict):
        return None
    fields = getattr(format, "__struct_fields__", getattr(format, "__dataclass_fields__", None))
    if fields is None or sorted(fields) != sorted(given):
        raise PipelineError(
            f"the aggregates {', '.join(given)} cannot become a {format.__name__}, which "
            + ("is no record" if fields is None else f"has {', '.join(fields)}")
            + ". Declare a msgspec.Struct or a dataclass with just these fields, or none: then "
            "a result is a dict."
        )
    return format


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
