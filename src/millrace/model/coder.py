"""Coders: how a value becomes bytes and comes back.

A record format or a state cell is declared by a type (msgpack, checked against the type) or by a
coder: :class:`MsgpackCoder`, :class:`JsonCoder`, :class:`BytesCoder`, :class:`PickleCoder`, or any
object with ``encode`` and ``decode``. Nothing is unpickled unless its coder says so by name.

Source: MillWheel, "Persistent State" (4.4): opaque bytes, and routines that the user provides.

What msgspec says of the fields of a struct, asked once for each type.

It evaluates annotations anew each time, which takes as long as all else that is done when a
computation is begun.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import pickle
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from millrace.model.errors import CoderError, brief

#: So many types are remembered: more than a program has, and few enough to keep.
_TYPES = 1024


@functools.lru_cache(_TYPES)
def struct_fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a struct type, as :func:`msgspec.structs.fields` does.

    Raises:
        TypeError: It is no struct type.

    >>> class Reading(msgspec.Struct):
    ...     sensor: str
    ...     value: int
    >>> [(info.name, info.type) for info in struct_fields(Reading)]
    [('sensor', <class 'str'>), ('value', <class 'int'>)]
    """
    return tuple(msgspec.structs.fields(kind))


_IMMUTABLE = (int, float, str, bytes, bool, type(None))


@runtime_checkable
class Coder(Protocol):
    """What Millrace asks of a coder. Coders are values: equal when they encode alike.

    A checkpoint knows a coder by the name of its class and its ``repr``. Better is a method
    ``describe() -> dict``. It returns plain data that the bytes depend on, by name, such as
    ``{"name": "trips", "version": 2}``. Types and coders of parts may be among them. A checkpoint
    is refused to a coder that describes itself otherwise.
    """

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value; raise if the value is not of this coder's format."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the value that ``encode`` made the bytes from."""
        ...


class MsgpackCoder:
    """msgpack by msgspec, typed: what does not fit the type is refused when it is written.

    >>> MsgpackCoder(int).decode(MsgpackCoder(int).encode(7))
    7
    >>> MsgpackCoder(int).encode("seven")
    Traceback (most recent call last):
    ...
    millrace.model.errors.CoderError: 'seven' (str) is not of format int: Expected `int`, got `str`.
    """

    __slots__ = ("_check", "_decode", "_encode", "exact", "loses", "scalar", "type")

    def __init__(self, type: Any = Any) -> None:
        self.type = type
        try:
            self._decode = self._check = msgspec.msgpack.Decoder(type).decode
        except TypeError as refused:
            raise CoderError(
                f"{type_name(type)} cannot be a record format or state type: {refused}. Use a "
                "msgspec.Struct, a dataclass, a builtin type, or a Coder of your own."
            ) from None
        self._encode = msgspec.msgpack.Encoder().encode
        self.scalar = type if type in (int, float, str, bytes, bool) else None
        #: The class whose own instances have all that they had when they are read; None: none has.
        self.exact = kind = None if _holds_structs(type) else _class_with_fields(type)
        #: Whether instances of other classes, which have more fields, may be among the values.
        self.loses = kind is not None or _holds_structs(type)

    def encode(self, value: Any) -> bytes:
        """Return the value as msgpack, having checked it against the type."""
        try:
            data = self._encode(value)
            # A value that could not be read back would poison the state or stream that holds it,
            # far from the line at fault. Scalars are checked by their type, the rest by reading.
            if (kind := type(value)) is not self.scalar:
                read = self._check(data)
                if kind is not self.exact and self.loses:
                    self._refuse_loss(value, read, data)
        except (msgspec.ValidationError, TypeError, OverflowError, UnicodeError) as refused:
            place = "" if isinstance(refused, msgspec.ValidationError) else self._place(value)
            raise CoderError(
                f"{_named(value)} is not of format {type_name(self.type)}: {refused}{place}."
            ) from None
        return data

    def _refuse_loss(self, value: Any, read: Any, data: bytes) -> None:
        """Refuse a value with an instance of a subclass, whose further fields would be lost."""
        if self._encode(read) != data and (lost := _lost(value, read)) is not None:
            path, part, names = lost
            at = f" - at `${path}`" if path else ""
            given, expected = type(part).__name__, type_name(self.type)
            fields = ", ".join(map(repr, names))
            raise CoderError(
                f"{_named(value)} is not of format {expected}: {given} has fields that are not of "
                f"the declared class, and would be lost: {fields}{at}. Declare {given}, or a union "
                "of classes with tags."
            )

    def _place(self, value: Any) -> str:
        """Return where in a value the part is that msgpack does not carry, as msgspec says it."""
        path, part = "", value
        while (found := next(filter(self._fails, _parts(part)), None)) is not None:
            path += found[0]
            part = found[1]
        return f" - at `${path}`" if path else ""

    def _fails(self, part: tuple[str, Any]) -> bool:
        try:
            self._encode(part[1])
        except (TypeError, OverflowError, UnicodeError):
            return True
        return False

    def encode_all(self, values: Sequence[Any]) -> list[bytes]:
        """Return what :meth:`encode` returns for each of many values."""
        return [self.encode(value) for value in values]

    def decode(self, data: bytes) -> Any:
        """Return the value from msgpack."""
        return self._decode(data)

    def quick(self) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        """Return msgspec's own functions: ``encode`` without the check, and ``decode``.

        For values that :meth:`encode` has accepted before.
        """
        return self._encode, self._decode

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MsgpackCoder) and other.type == self.type

    def __hash__(self) -> int:
        return hash(MsgpackCoder)  # int | None equals Optional[int], but hashes apart

    def __repr__(self) -> str:
        return f"MsgpackCoder({type_name(self.type)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return MsgpackCoder, (self.type,)


class JsonCoder:
    """JSON by msgspec, typed: bytes that other programs can read.

    >>> JsonCoder(dict[str, int]).encode({"a": 1})
    b'{"a":1}'
    """

    __slots__ = ("_decode", "type")

    def __init__(self, type: Any = Any) -> None:
        self.type = type
        try:
            self._decode = msgspec.json.Decoder(type).decode
        except TypeError as refused:
            raise CoderError(f"{type_name(type)} cannot be a JSON format: {refused}.") from None

    def encode(self, value: Any) -> bytes:
        """Return the value as JSON, having checked it against the type."""
        try:
            data = msgspec.json.encode(value)
            # JSON has no bytes and no timestamps, but text that reads as them; so a value must
            # come back as it was.
            if self._decode(data) != value:
                raise TypeError(f"in JSON it is {data[:80]!r}, which reads as something else")
        except (msgspec.ValidationError, TypeError, OverflowError, UnicodeError) as refused:
            raise CoderError(
                f"{_named(value)} is not of format {type_name(self.type)}: {refused}."
            ) from None
        return data

    def decode(self, data: bytes) -> Any:
        """Return the value from JSON."""
        return self._decode(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonCoder) and other.type == self.type

    def __hash__(self) -> int:
        return hash(JsonCoder)

    def __repr__(self) -> str:
        return f"JsonCoder({type_name(self.type)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonCoder, (self.type,)


class BytesCoder:
    """Raw bytes, as they are.

    >>> BytesCoder().encode(b"opaque")
    b'opaque'
    """

    __slots__ = ()

    def encode(self, value: Any) -> bytes:
        """Return the bytes themselves."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise CoderError(f"{_named(value)} is not of format bytes.")
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        """Return the bytes themselves."""
        return data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BytesCoder)

    def __hash__(self) -> int:
        return hash(BytesCoder)

    def __repr__(self) -> str:
        return "BytesCoder()"


class PickleCoder:
    """Python's pickle, for values nothing else can carry. Reading runs code: trust the store.

    >>> PickleCoder().decode(PickleCoder().encode(range(3)))
    range(0, 3)
    """

    __slots__ = ()

    def encode(self, value: Any) -> bytes:
        """Return the value pickled.

        Raises:
            CoderError: It is of a class that is not found by its name, as one of a script.
        """
        try:
            return pickle.dumps(value, protocol=5)
        except (pickle.PicklingError, AttributeError) as error:
            # Before Python 3.14, of a class within a function it is an AttributeError.
            if isinstance(error, AttributeError) and "local object" not in str(error):
                raise
            raise CoderError(
                f"{error}. Pickle names a class by its module, where it is found again. Put the "
                "class in a module that workers import, not in a function, nor in the script or "
                "notebook itself."
            ) from error

    def decode(self, data: bytes) -> Any:
        """Return the value unpickled."""
        return pickle.loads(data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PickleCoder)

    def __hash__(self) -> int:
        return hash(PickleCoder)

    def __repr__(self) -> str:
        return "PickleCoder()"


def coder_for(format: Any) -> Coder:
    """Return the coder that a declaration means: a type, or a coder already.

    Raises:
        CoderError: The declaration is neither, or msgspec cannot carry the type.

    >>> coder_for(int)
    MsgpackCoder(int)
    """
    if inspect.isclass(format) and not isinstance(format, types.GenericAlias):
        if hasattr(format, "encode") and hasattr(format, "decode") and format not in (str, bytes):
            raise CoderError(
                f"{type_name(format)} is a class of coders; give an instance: "
                f"{type_name(format)}()."
            )
        return MsgpackCoder(format)
    if isinstance(format, str):
        raise CoderError(f"{format!r} is not a format. Expected a type (not its name) or a Coder.")
    # What isinstance(format, Coder) asks, in a twentieth of its time.
    if hasattr(format, "encode") and hasattr(format, "decode"):
        coder: Coder = format
        return coder
    if format is Any or typing.get_origin(format) is not None:
        return MsgpackCoder(format)
    raise CoderError(f"{format!r} is not a format. Expected a type or a Coder.")


def shape_of(coder: Coder) -> type | None:
    """Return the class that a coder's values surely are of; None if that says too little.

    A value of that class may still be refused for what is in it; one of another class may still be
    accepted. It is what can be checked at every write.

    >>> shape_of(MsgpackCoder(dict[str, int])), shape_of(MsgpackCoder(int | None))
    (<class 'dict'>, None)
    """
    kind = getattr(coder, "type", None)
    if not inspect.isclass(kind) or isinstance(kind, types.GenericAlias):
        kind = typing.get_origin(kind)
    return kind if inspect.isclass(kind) and kind is not types.UnionType else None


def is_immutable(coder: Coder) -> bool:
    """Return whether values of this coder can only change by being replaced.

    Values that can be changed in place are compared with their stored bytes after user code ran,
    so that ``model.get().append(x)`` is not lost. A coder may have an attribute that says so.
    """
    kind: Any = getattr(coder, "type", None)
    if getattr(coder, "immutable", False) or isinstance(coder, BytesCoder) or kind in _IMMUTABLE:
        return True
    return bool(getattr(getattr(kind, "__struct_config__", None), "frozen", False)) and all(
        field.type in _IMMUTABLE for field in struct_fields(kind)
    )


def type_name(type: Any) -> str:
    """Return a type as a person would write it."""
    return type.__qualname__ if inspect.isclass(type) else repr(type).replace("typing.", "")


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    """Return the parts of a value, and how msgspec writes where they are."""
    if isinstance(value, msgspec.Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    if dataclasses.is_dataclass(value):
        return [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        return [("[...]", part) for part in (*value.keys(), *value.values())]
    if isinstance(value, list | tuple):
        return [(f"[{n}]", part) for n, part in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [("[...]", part) for part in value]
    return []


def _class_with_fields(kind: Any) -> type | None:
    """Return a type's class if that is a Struct or a dataclass, which may have subclasses."""
    kind = typing.get_origin(kind) or kind
    fields = inspect.isclass(kind) and (
        issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
    )
    return kind if fields else None


def _holds_structs(kind: Any) -> bool:
    """Return whether a part of a type's values may be a Struct or an instance of a dataclass."""
    waiting, seen = list(_types_within(kind)), list[Any]()
    while waiting:
        part = waiting.pop()
        if _class_with_fields(part) is not None:
            return True
        if part not in seen:
            seen.append(part)
            waiting += _types_within(part)
    return False


def _types_within(kind: Any) -> Iterable[Any]:
    """Return the types of a type's parts."""
    if isinstance(kind, typing.NewType):
        return [kind.__supertype__]
    if inspect.isclass(cls := typing.get_origin(kind) or kind):
        if issubclass(cls, msgspec.Struct):
            return [field.type for field in struct_fields(kind)]
        if dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or hasattr(cls, "_fields"):
            with contextlib.suppress(NameError, TypeError):  # then msgspec has refused it
                return list(typing.get_type_hints(cls).values())
    return typing.get_args(kind)


def _lost(value: Any, read: Any, path: str = "") -> tuple[str, Any, list[str]] | None:
    """Return a part that has fields which are not there when it is read: where, what and which."""
    if isinstance(value, dict) and isinstance(read, dict):
        pairs = zip(value.values(), read.values(), strict=False)
        parts = ((f"{path}[...]", part, other) for part, other in pairs)
    elif isinstance(value, list | tuple) and isinstance(read, list | tuple):
        pairs = zip(value, read, strict=False)
        parts = ((f"{path}[{n}]", part, other) for n, (part, other) in enumerate(pairs))
    elif _class_with_fields(type(value)) and _class_with_fields(type(read)):
        mine, others = (dict(_parts(each)) for each in (value, read))
        if names := [name[1:] for name in mine if name not in others]:
            return path, value, names
        parts = ((path + name, part, others[name]) for name, part in mine.items())
    else:
        return None
    return next(filter(None, (_lost(part, other, place) for place, part, other in parts)), None)


def _named(value: Any) -> str:
    return f"{brief(value, 120)} ({type(value).__name__})"
