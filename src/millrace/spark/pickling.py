"""Pickling a topology for the workers: once a run, by value where workers cannot import.

cloudpickle sends classes of scripts and notebooks by value, but cannot rebuild a msgspec.Struct,
whose metaclass makes its own slots. Those are rebuilt here by ``msgspec.defstruct``.
"""

from __future__ import annotations

import dataclasses
import io
import sys
import types
from typing import Any

import cloudpickle
import msgspec

from millrace.model.topology import Topology

_StructMeta = type(msgspec.Struct)


def pickle_topology(topology: Topology) -> bytes:
    """Return a topology as bytes, without what only the driver uses: sources and sinks."""
    streams = {
        name: dataclasses.replace(
            spec,
            injection=spec.injection and dataclasses.replace(spec.injection, source=None),
        )
        for name, spec in topology.streams.items()
    }
    travelling = dataclasses.replace(
        topology, streams=streams, sinks=tuple(None for _ in topology.sinks)
    )
    buffer = io.BytesIO()
    _Pickler(buffer).dump(travelling)
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle is not typed
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _StructMeta and not _importable(obj):
            return _reduce_struct(obj)
        return super().reducer_override(obj)


def _importable(cls: type) -> bool:
    module = sys.modules.get(cls.__module__)
    if module is None or cls.__module__ == "__main__":
        return False
    package = cls.__module__.split(".")
    by_value = cloudpickle.list_registry_pickle_by_value()
    if any(".".join(package[: n + 1]) in by_value for n in range(len(package))):
        return False
    found: Any = module
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is cls


def _reduce_struct(cls: Any) -> Any:
    config = cls.__struct_config__
    own = vars(cls).get("__annotations__", {})
    fields = [
        (info.name, info.type, *_default(info))
        for info in msgspec.structs.fields(cls)
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


def _default(info: Any) -> tuple[Any, ...]:
    if info.default_factory is not msgspec.NODEFAULT:
        return (msgspec.field(default_factory=info.default_factory, name=info.encode_name),)
    if info.default is not msgspec.NODEFAULT:
        return (msgspec.field(default=info.default, name=info.encode_name),)
    if info.encode_name != info.name:
        return (msgspec.field(name=info.encode_name),)
    return ()


def _struct_skeleton(
    name: str, fields: list[Any], bases: tuple[type, ...], module: str, options: dict[str, Any]
) -> type:
    made = msgspec.defstruct(name, fields, bases=bases, module=module, **options)
    made.__qualname__ = name
    return made


def _add_methods(cls: type, methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        setattr(cls, name, method)
