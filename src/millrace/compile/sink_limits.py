"""Limits of sinks: what a value must be to stand in the columns of a sink, and their names.

A value that a sink cannot hold is refused where it is produced, so the error names the user's line
and can be a dead letter. The check is the decode that :class:`~millrace.model.coder.MsgpackCoder`
does of every value that it writes, by a type with bounds.

Column types: which column of a sink the values of a Python type become.

One mapping for all sinks with columns. Instants are microseconds in UTC. A ``Decimal`` is
``decimal(38,18)``, as in Spark: what has more digits is refused where it is produced, never
rounded. UUIDs, durations and times of day are text. What has no column type is JSON text.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from millrace.dataflow.aggregations.fields import FieldsCoder, Results, record_of
from millrace.model.coder import Coder, MsgpackCoder, struct_fields
from millrace.model.errors import CoderError, brief
from millrace.model.pane import PanedCoder

#: Digits of a Decimal's column, and how many of them are behind the point.
DECIMAL_DIGITS, DECIMAL_SCALE = 38, 18


class ColumnType(NamedTuple):
    """The type of a column.

    Attributes:
        name: ``boolean``, ``bigint``, ``double``, ``string``, ``binary``, ``timestamp``, ``date``,
            ``decimal``, ``uuid``, ``text`` (that is not the value itself), ``json``, ``array`` or
            ``struct``.
        parts: Name and type of the element of an array (``element``), or of each field.
    """

    name: str
    parts: tuple[tuple[str, ColumnType], ...] = ()


JSON: Final = ColumnType("json")

_SCALARS: Final[dict[Any, ColumnType]] = {
    bool: ColumnType("boolean"),
    int: ColumnType("bigint"),
    float: ColumnType("double"),
    str: ColumnType("string"),
    bytes: ColumnType("binary"),
    dt.datetime: ColumnType("timestamp"),
    dt.date: ColumnType("date"),
    decimal.Decimal: ColumnType("decimal"),
    uuid.UUID: ColumnType("uuid"),
    dt.timedelta: ColumnType("text"),
    dt.time: ColumnType("text"),
}


def fields_of(format: Any) -> dict[str, Any] | None:
    """Return the fields of a record format by name; None if it has none that are known."""
    if isinstance(format, FieldsCoder):
        return dict(format.fields)
    if isinstance(format, type) and issubclass(format, msgspec.Struct):
        return {info.name: info.type for info in struct_fields(format)}
    if isinstance(format, type) and dataclasses.is_dataclass(format):
        hints = typing.get_type_hints(format)
        return {info.name: hints[info.name] for info in dataclasses.fields(format)}
    return None


def column_type(kind: Any) -> ColumnType:
    """Return the type of the column for a Python type.

    >>> column_type(int | None).name, column_type(list[str])
    ('bigint', ColumnType(name='array', parts=(('element', ColumnType(name='string', parts=())),)))
    >>> column_type(dict[str, int]).name
    'json'
    """
    return _column_type(kind, ())


def bare(kind: Any) -> Any:
    """Return a type without its annotations and names."""
    while True:
        if typing.get_origin(kind) is typing.Annotated:
            kind = typing.get_args(kind)[0]
        elif isinstance(kind, typing.NewType):
            kind = kind.__supertype__
        else:
            return kind


def _column_type(kind: Any, within: tuple[Any, ...]) -> ColumnType:
    kind = bare(kind)
    try:
        if kind in _SCALARS:
            return _SCALARS[kind]
    except TypeError:  # not hashable
        return JSON
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _common(member.value for member in kind)
    if origin is typing.Literal:
        return _common(arguments)
    if origin in (typing.Union, types.UnionType):
        present = [argument for argument in arguments if argument is not type(None)]
        return _column_type(present[0], within) if len(present) == 1 else JSON
    variadic = origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis
    if variadic or (origin in (list, set, frozenset) and arguments):
        element = _column_type(arguments[0], within)
        return JSON if element is JSON else ColumnType("array", (("element", element),))
    fields = fields_of(kind)
    if not fields or kind in within or _written_otherwise(kind):
        return JSON
    parts = tuple((name, _column_type(field, (*within, kind))) for name, field in fields.items())
    return JSON if any(part is JSON for _, part in parts) else ColumnType("struct", parts)


def _common(values: Any) -> ColumnType:
    kinds = {_SCALARS.get(type(value), JSON) for value in values if value is not None}
    return kinds.pop() if len(kinds) == 1 else JSON


def _written_otherwise(kind: Any) -> bool:
    """Return whether msgspec writes a record as something else than all its fields by name."""
    config = getattr(kind, "__struct_config__", None)
    return config is not None and (
        config.array_like
        or config.omit_defaults
        or config.tag is not None
        or kind.__struct_encode_fields__ != kind.__struct_fields__
    )


@dataclass(frozen=True)
class ColumnLimit:
    """What one column of a sink holds of the values of its field; None: any.

    Attributes:
        whole: The least and the greatest whole number.
        digits: Digits of a number before the point, and behind it.
        length: Characters of a text.
        text: Pattern of a text, from its beginning to its end.
    """

    whole: tuple[int, int] | None = None
    digits: tuple[int, int] | None = None
    length: int | None = None
    text: str | None = None

    def within(self, other: ColumnLimit) -> ColumnLimit:
        """Return what both hold."""
        wholes = [whole for whole in (self.whole, other.whole) if whole is not None]
        digits = [whole for whole in (self.digits, other.digits) if whole is not None]
        lengths = [whole for whole in (self.length, other.length) if whole is not None]
        texts = {whole: None for whole in (self.text, other.text) if whole is not None}
        return ColumnLimit(
            (max(low for low, _ in wholes), min(high for _, high in wholes)) if wholes else None,
            (min(n for n, _ in digits), min(n for _, n in digits)) if digits else None,
            min(lengths) if lengths else None,
            "".join(f"(?={text})" for text in texts) if len(texts) > 1 else next(iter(texts), None),
        )

    @property
    def integers(self) -> tuple[int, int]:
        """The least and the greatest integer."""
        low, high = self.whole or (-(1 << 63), (1 << 63) - 1)
        if self.digits is None:
            return low, high
        most = int(10 ** self.digits[0]) - 1
        return max(low, -most), min(high, most)


#: Of a column that holds what its field has.
ANY_VALUE: Final = ColumnLimit()


@dataclass(frozen=True)
class SinkLimits:
    """What a sink can hold; a sink tells by its attribute ``limits``.

    Attributes:
        nul: Whether text may have the character NUL.
        name_bytes: How long the name of a column may be in UTF-8; None: as long as you like.
        names: Of columns that are the sink's own, in lower case.
        columns: Field, or ``value``, -> what its column holds, as far as a sink knows its table.
    """

    nul: bool = True
    name_bytes: int | None = None
    names: frozenset[str] = frozenset()
    columns: Mapping[str, ColumnLimit] = dataclasses.field(default_factory=dict)

    def column(self, name: str) -> ColumnLimit:
        """Return what the column of a field holds."""
        return self.columns.get(name, ANY_VALUE)


#: Of sinks that tell none.
NO_LIMITS: Final = SinkLimits()


def limits_of(sinks: Iterable[Any]) -> SinkLimits | None:
    """Return what the values of a stream must be for all its sinks; None if it has none."""
    each = [getattr(sink, "limits", NO_LIMITS) for sink in sinks]
    columns: dict[str, ColumnLimit] = {}
    for sink_limits in each:
        for name, limit in sink_limits.columns.items():
            columns[name] = columns.get(name, ANY_VALUE).within(limit)
    return (
        SinkLimits(nul=all(sink_limits.nul for sink_limits in each), columns=columns)
        if each
        else None
    )


def limited(coder: Coder, limits: SinkLimits) -> Coder:
    """Return a coder that writes what another does, and refuses what sinks cannot hold.

    >>> limited(MsgpackCoder(int), SinkLimits()).encode(2**63)
    Traceback (most recent call last):
    ...
    millrace.model.errors.CoderError: 9223372036854775808 (int) is what a sink of the stream \
cannot hold: Expected `int` <= 9223372036854775807.
    """
    if isinstance(coder, PanedCoder):
        return coder.with_inner(limited(coder.inner, limits))
    if not isinstance(coder, MsgpackCoder):
        return _LimitedCoder(coder, limits, None, ("",), ("",))
    record = fields_of(coder if isinstance(coder, FieldsCoder) else coder.type)
    named = {"": coder.type} if record is None else record
    texts = {name: kind for name, kind in named.items() if column_type(kind) is JSON}
    bounded = _bounds(coder, record, limits)
    if bounded is coder.type:
        if all(_is_plain(kind, limits) for kind in texts.values()):
            return coder
        # A record with the same fields takes half as long to read.
        bounded = record_of(coder.fields) if isinstance(coder, FieldsCoder) else bounded
    untold = tuple(
        name for name, kind in texts.items() if not (_is_plain(kind, limits) or _tells(kind))
    )
    limited_coder = _LimitedCoder(coder, limits, bounded, tuple(texts), untold)
    if not limits.nul:
        limited_coder.read_apart(_bounds(coder, record, dataclasses.replace(limits, nul=True)))
    if isinstance(coder, FieldsCoder) and all(
        column_type(kind).name in _CONVERTED for kind in named.values()
    ):
        limited_coder.read_columns(
            [_bounded(k, limits, limits.column(n)) for n, k in named.items()]
        )
    return limited_coder


class _LimitedCoder:
    """A coder that checks its values against the limits of sinks when it writes them.

    msgspec checks in C what the type tells. The rest, such as what is in an ``Any``, is looked at.

    Args:
        coder: Whose bytes it writes.
        limits: Of the sinks.
        bounded: The type of the values with bounds; None if there is none.
        texts: Fields that become JSON text; an empty name is the value itself.
        untold: Those of which the type does not tell whether they can.
    """

    def __init__(
        self,
        coder: Coder,
        limits: SinkLimits,
        bounded: Any,
        texts: tuple[str, ...],
        untold: tuple[str, ...],
    ) -> None:
        self._coder, self._limits, self._texts, self._untold = coder, limits, texts, untold
        self._check = None if bounded is None else msgspec.msgpack.Decoder(bounded).decode
        self._check_without_nul = self._check
        self._no_nul = not limits.nul
        self._columns: list[Any] = []
        # Who validates in Python wants to see the value itself; otherwise it is read once.
        once = (
            isinstance(coder, MsgpackCoder)
            and not (coder.loses and coder.exact is None)
            and not _validates(coder.type)
        )
        self._exact = coder.exact if isinstance(coder, MsgpackCoder) and once else None
        self._encode = msgspec.msgpack.Encoder().encode if once else coder.encode

    def read_apart(self, bounded: Any) -> None:
        """Read bytes without a zero by another type, which does not search texts for NUL."""
        self._check_without_nul = msgspec.msgpack.Decoder(bounded).decode

    def read_columns(self, kinds: Sequence[Any]) -> None:
        """Check results that are columns by the types of these, and not value by value."""
        self._columns = [list[kind] for kind in kinds]  # type: ignore[valid-type]

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value."""
        try:
            data = self._encode(value)
            nul = self._no_nul and b"\0" in data
            check = self._check if nul else self._check_without_nul
            if check is not None:
                check(data)
        except (msgspec.ValidationError, TypeError, OverflowError, UnicodeError) as refused:
            self._coder.encode(value)  # refuses what is not of the format at all
            problems = filter(None, (self._not_json(value, name) for name in self._texts))
            raise _error(value, next(problems, str(refused))) from None
        if self._exact is not None and type(value) is not self._exact:
            self._coder.encode(value)  # refuses one of a subclass whose fields would be lost
        for name in self._untold:
            if check is not None and _is_surely_json(_field(value, name), nul):
                continue
            if why := self._not_json(value, name):
                raise _error(value, why)
        return data

    def encode_all(self, values: Sequence[Any]) -> list[bytes]:
        """Return the bytes of many values."""
        if not isinstance(values, Results):
            return [self.encode(value) for value in values]
        if self._columns:
            try:
                for kind, column in zip(self._columns, values.columns, strict=True):
                    msgspec.convert(column, kind)
                return list(map(self._encode, values.records()))
            except (msgspec.ValidationError, TypeError, OverflowError, UnicodeError):
                pass  # found again below, at its value
        # A record is encoded in half the time of a dict.
        return [self.encode(value) for value in (values if self._texts else values.records())]

    def _not_json(self, value: Any, name: str) -> str:
        part = _field(value, name)
        why = "" if part is None else _not_json(part, self._limits)
        return f"{why} - at `$.{name}`" if why and name else why

    def decode(self, data: bytes) -> Any:
        """Return a value from its bytes."""
        return self._coder.decode(data)

    def __repr__(self) -> str:
        return repr(self._coder)

    def __reduce__(self) -> tuple[Any, ...]:
        return limited, (self._coder, self._limits)


def _error(value: Any, why: str) -> CoderError:
    for pattern, plain in _EXPECTATIONS.items():
        why = why.replace(f"`str` matching regex {pattern!r}", plain)
    kind = type(value).__name__
    return CoderError(
        f"{brief(value, 120)} ({kind}) is what a sink of the stream cannot hold: {why}."
    )


def _field(value: Any, name: str) -> Any:
    if not name:
        return value
    return value.get(name) if isinstance(value, dict) else getattr(value, name)


def _bounds(coder: MsgpackCoder, record: Mapping[str, Any] | None, limits: SinkLimits) -> Any:
    """Return the type of a coder with bounds; the type itself if it needs none."""
    if record is None:
        return _bounded(coder.type, limits, limits.column("value"))
    return _record(coder, record, limits, limits.column)


def _bounded(kind: Any, limits: SinkLimits, limit: ColumnLimit = ANY_VALUE) -> Any:
    """Return a type with the bounds of its column; the type itself if it needs none."""
    plain, column = bare(kind), column_type(kind)
    if column is JSON:
        return _bounded_text(kind, limits) if _tells(kind) else kind
    metas = [m for m in getattr(kind, "__metadata__", ()) if isinstance(m, Meta)]
    if plain is int:
        bounds: dict[str, Any] = {}
        low, high = limit.integers
        if all((meta.ge is None or meta.ge < low) and meta.gt is None for meta in metas):
            bounds["ge"] = low
        if all((meta.le is None or meta.le > high) and meta.lt is None for meta in metas):
            bounds["le"] = high
        return Annotated[kind, Meta(**bounds)] if bounds else kind
    if plain is dt.datetime:
        # Naive ones name no instant.
        return kind if any(meta.tz for meta in metas) else Annotated[kind, Meta(tz=True)]
    if plain is decimal.Decimal:
        # On the wire it is text; msgspec reads an int as a Decimal, too.
        pattern = _DECIMAL if limit.digits is None else _decimals(*limit.digits)
        return Annotated[str, Meta(pattern=pattern)] | _bounded(int, limits, limit)
    if plain is dt.time and limit.text is not None:
        return Annotated[str, Meta(pattern=limit.text)]  # what it is on the wire
    if plain is str:
        texts: dict[str, Any] = {}
        whole = limit.text or (None if limits.nul else _NO_NUL)
        if whole is not None and all(meta.pattern is None for meta in metas):
            texts["pattern"] = whole
        longest = [meta.max_length for meta in metas if meta.max_length is not None]
        if limit.length is not None and all(length > limit.length for length in longest):
            texts["max_length"] = limit.length
        return Annotated[kind, Meta(**texts)] if texts else kind
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin in (typing.Union, types.UnionType):
        present = next(argument for argument in arguments if argument is not type(None))
        bounded = _bounded(present, limits, limit)
        return kind if bounded is present else bounded | None
    if column.name == "array":
        element = _bounded(arguments[0], limits, limit)
        if element is arguments[0]:
            return kind
        generic = origin[element, ...] if origin is tuple else origin[element]
        return Annotated[generic, *metas] if metas else generic
    fields = fields_of(plain) if column.name == "struct" else None
    return kind if fields is None else _record(plain, fields, limits, lambda _: ANY_VALUE)


def _bounded_text(kind: Any, limits: SinkLimits) -> Any:
    """Return a type, which tells all, with the bounds of JSON text; itself if it needs none."""
    if _is_plain(kind, limits):
        return kind
    if kind is float:
        return Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
    if kind is dt.datetime:
        return Annotated[dt.datetime, Meta(tz=True)]
    if kind is str:
        return Annotated[str, Meta(pattern=_NO_NUL)]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    inner = tuple(
        argument if argument is ... else _bounded_text(argument, limits) for argument in arguments
    )
    return typing.Union[inner] if origin in _UNIONS else origin[inner]  # noqa: UP007


def _record(
    format: Any,
    fields: Mapping[str, Any],
    limits: SinkLimits,
    limit_of: Callable[[str], ColumnLimit],
) -> Any:
    """Return a record type whose fields have bounds; the type itself if they need none."""
    bounded = {name: _bounded(kind, limits, limit_of(name)) for name, kind in fields.items()}
    kind = format.type if isinstance(format, FieldsCoder) else getattr(format, "type", format)
    if all(bounded[name] is fields[name] for name in fields):
        return kind
    options: dict[str, Any] = {}
    defaults: dict[str, dict[str, Any]] = {}
    config = getattr(kind, "__struct_config__", None)
    if config is not None:
        options = {
            "array_like": config.array_like,
            "tag": config.tag,
            "tag_field": config.tag_field,
            "forbid_unknown_fields": config.forbid_unknown_fields,
        }
        for info in struct_fields(kind):
            defaults[info.name] = {"name": info.encode_name}
            if info.default is not msgspec.NODEFAULT:
                defaults[info.name]["default"] = info.default
            elif info.default_factory is not msgspec.NODEFAULT:
                defaults[info.name]["default_factory"] = info.default_factory
    bounded_fields = [
        (name, field_type, msgspec.field(**defaults[name]))
        if name in defaults
        else (name, field_type)
        for name, field_type in bounded.items()
    ]
    return msgspec.defstruct("Bounded", bounded_fields, kw_only=True, gc=False, **options)


def _validates(kind: Any) -> bool:
    """Return whether a type, or that of a field in it, has validation in Python."""
    kind = bare(kind)
    if hasattr(kind, "__post_init__"):
        return True
    if column_type(kind) is JSON and fields_of(kind) is None:
        return False  # it is read as it is
    within = fields_of(kind)
    inner = within.values() if within is not None else typing.get_args(kind)
    return any(_validates(argument) for argument in inner if argument is not kind)


def _is_plain(kind: Any, limits: SinkLimits, within: tuple[Any, ...] = ()) -> bool:
    """Return whether every value of a type can be JSON text, and be read back from it."""
    kind = bare(kind)
    if kind is str:
        return limits.nul
    if kind in _PLAIN or kind in within:
        return True
    fields = fields_of(kind)
    inner = list(fields.values()) if fields else _inner(kind)
    return bool(inner) and all(_is_plain(argument, limits, (*within, kind)) for argument in inner)


def _tells(kind: Any) -> bool:
    """Return whether bounds tell which values of a type can be JSON text."""
    if kind in _BOUNDED or kind in _PLAIN:
        return True
    inner = _inner(kind)
    return bool(inner) and all(map(_tells, inner))


def _inner(kind: Any) -> list[Any]:
    """Return the types within a container; none if it is not one that JSON text has."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin not in _CONTAINERS or (origin is dict and bare(arguments[0]) not in (str, int)):
        return []
    return [argument for argument in arguments if argument is not Ellipsis]


def _is_surely_json(value: Any, nul: bool) -> bool:
    """Return whether a value that msgpack has can be JSON text, as far as a quick look tells.

    Args:
        value: A value that msgpack was made of.
        nul: Whether there may be a NUL in its texts, and must not.
    """
    waiting = [value]
    for part in waiting:
        kind = type(part)
        if kind is str:
            if nul and "\0" in part:
                return False
        elif kind is float:
            if not math.isfinite(part):
                return False
        elif kind is dict:
            for name in part:
                if type(name) is not str or (nul and "\0" in name):
                    return False
            waiting += part.values()
        elif kind is list or kind is tuple:
            waiting += part
        elif kind is dt.datetime:
            if part.tzinfo is None:
                return False
        elif kind not in _PLAIN:
            return False
    return True


def _not_json(value: Any, limits: SinkLimits) -> str:
    """Return why a value cannot be JSON text; empty if it can."""
    try:
        msgspec.json.encode(value)
        parts = _leaves(msgspec.to_builtins(value, builtin_types=(dt.datetime,)))
        for part in parts:
            if isinstance(part, float) and not math.isfinite(part):
                return f"it is written as JSON, which has no {part!r}"
            if isinstance(part, dt.datetime) and part.tzinfo is None:
                return f"{part!r} is naive, so it names no instant; give it a time zone"
            if not limits.nul and isinstance(part, str) and "\0" in part:
                return f"Expected {_EXPECTATIONS[_NO_NUL]}"
    except (TypeError, ValueError, RecursionError) as refused:
        return f"it is written as JSON: {str(refused) or type(refused).__name__}"
    return ""


def _leaves(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            waiting += part
        else:
            yield part


@cache
def _decimals(before: int, scale: int) -> str:
    """Return a pattern of Decimals with so many digits before the point, and behind it."""
    plus, minus = [], []
    for shift in range(before):
        digits = rf"(\.\d{{1,{scale + shift}}}0*)?" if scale + shift else ""
        plus.append(rf"\d{digits}E\+{shift}")
    for shift in range(1, scale + 1):
        digits = rf"(\.\d{{1,{scale - shift}}}0*)?" if shift < scale else r"(\.0*)?"
        minus.append(rf"\d{digits}E-{shift}")
    forms = [
        rf"0*\d{{0,{before}}}(\.\d{{0,{scale}}}0*)?",
        r"0+(\.0*)?E[+-]?\d+",
        # Whether it is one of many is asked once.
        rf"(?=\d(\.\d+)?E\+)({'|'.join(plus)})",
        rf"(?=\d(\.\d+)?E-)({'|'.join(minus)})",
    ]
    pattern = rf"\A-?({'|'.join(forms)})\Z"
    _EXPECTATIONS[pattern] = (
        f"a Decimal of at most {before} digits before the point and {scale} behind it (quantize it "
        "where you make it)"
    )
    return pattern


_NO_NUL: Final = r"\A[^\x00]*\Z"
#: Pattern -> what it expects, for messages.
_EXPECTATIONS: Final = {_NO_NUL: "text without the character NUL"}
_DECIMAL: Final = _decimals(DECIMAL_DIGITS - DECIMAL_SCALE, DECIMAL_SCALE)
_PLAIN: Final = frozenset(
    {bool, int, bytes, type(None), dt.date, dt.time, dt.timedelta, decimal.Decimal, uuid.UUID}
)
_BOUNDED: Final = frozenset({float, str, dt.datetime})
_UNIONS: Final = (typing.Union, types.UnionType)
_CONTAINERS: Final = (list, set, frozenset, tuple, dict, *_UNIONS)
#: Columns whose values msgspec converts as it reads them.
_CONVERTED: Final = frozenset({"boolean", "bigint", "double", "string", "binary"})
