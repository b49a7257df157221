"""Pickling for processes elsewhere: by value where they cannot import.

cloudpickle sends classes of scripts and notebooks by value, but cannot rebuild a msgspec.Struct,
whose metaclass makes its own slots, nor a TypedDict, which takes no base that is a class. They are
rebuilt here by ``msgspec.defstruct`` and ``typing.TypedDict``. And msgspec keeps a cache on every
dataclass that it has read, which cannot be pickled and can be left out.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

import cloudpickle
import msgspec

from millrace.model.coder import struct_fields

_StructMeta = type(msgspec.Struct)
_CACHE = "__msgspec_cache__"


def pickle_by_value(value: Any) -> bytes:
    """Return anything as bytes, with the classes in it that workers cannot import."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is not typed
    def reducer_override(self, obj: Any) -> Any:
        if obj is dataclasses.MISSING:
            return "MISSING"  # by name: dataclasses tell it from others by identity
        if not isinstance(obj, type) or _importable(obj):
            return super().reducer_override(obj)
        if type(obj) is _StructMeta:
            return _reduce_struct(obj)
        if typing.is_typeddict(obj):
            return _reduce_typed_dict(obj)
        if _CACHE in vars(obj):
            delattr(obj, _CACHE)
        return super().reducer_override(obj)


def _importable(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    if module is None or cls.__module__ == "__main__":
        return False
    package = cls.__module__.split(".")
    by_value = cloudpickle.list_registry_pickle_by_value()
    if any(".".join(package[: n + 1]) in by_value for n in range(len(package))):
        return False
    target: Any = module
    for part in cls.__qualname__.split("."):
        target = getattr(target, part, None)
    return target is cls


def _reduce_struct(cls: Any) -> Any:
    config = cls.__struct_config__
    own = vars(cls).get("__annotations__", {})
    fields = [
        (info.name, info.type, info.encode_name, *_default(info))
        for info in struct_fields(cls)
        if info.name in own
    ]
    options = {name: getattr(config, name) for name in _OPTIONS if hasattr(config, name)}
    methods = {
        name: value
        for name, value in vars(cls).items()
        if isinstance(value, types.FunctionType | property | classmethod | staticmethod)
    }
    skeleton = (cls.__name__, fields, cls.__bases__, cls.__module__, options)
    return _struct_skeleton, skeleton, methods, None, None, _add_methods


_OPTIONS = (
    "tag", "tag_field", "omit_defaults", "forbid_unknown_fields", "frozen", "eq", "order",
    "array_like", "gc", "weakref", "dict", "cache_hash",
)  # fmt: skip


def _default(info: Any) -> tuple[str, Any]:
    """Return a field's default as plain data: msgspec's own description of it has no pickle."""
    if info.default_factory is not msgspec.NODEFAULT:
        return "default_factory", info.default_factory
    if info.default is not msgspec.NODEFAULT:
        return "default", info.default
    return "", None


def _reduce_typed_dict(cls: Any) -> Any:
    hints = typing.get_type_hints(cls)  # of its bases too, and what they require is in the keys
    optional = cls.__optional_keys__
    fields = {
        name: typing.NotRequired[kind] if name in optional else kind for name, kind in hints.items()
    }
    return _typed_dict, (cls.__name__, fields)


def _typed_dict(name: str, fields: Mapping[str, Any]) -> Any:
    return typing.TypedDict(name, dict(fields))  # type: ignore[operator]  # made at run time


def _struct_skeleton(
    name: str,
    fields: list[tuple[str, Any, str, str, Any]],
    bases: tuple[type, ...],
    module: str,
    options: dict[str, Any],
) -> type:
    described = []
    for field, kind, encode_name, how, default in fields:
        renamed = {"name": encode_name} if encode_name != field else {}
        described.append((field, kind, msgspec.field(**renamed, **({how: default} if how else {}))))
    struct = msgspec.defstruct(name, described, bases=bases, module=module, **options)
    struct.__qualname__ = name
    return struct


def _add_methods(cls: type, methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        setattr(cls, name, method)
