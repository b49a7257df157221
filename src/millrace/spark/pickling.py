"""Pickling a topology for the workers, once a run; and why one cannot be.

What cannot be sent is told by which part of the pipeline holds it, and how it got there.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from millrace.compile.topology import Topology
from millrace.injectors.injector import Injector
from millrace.model.stream import ByFunction, ByRecord, OfRecord
from millrace.runtime.by_value import pickle_by_value


def pickle_topology(topology: Topology) -> bytes:
    """Return a topology as bytes, without what only the driver uses: DataFrames and sinks.

    Functions that tasks call for sinks travel with what the tasks write with; whether they can is
    found out here, before there is a run.
    """
    streams = {
        name: spec
        if spec.injection is None or isinstance(spec.injection.source, Injector)
        else dataclasses.replace(spec, injection=dataclasses.replace(spec.injection, source=None))
        for name, spec in topology.streams.items()
    }
    travelling = dataclasses.replace(
        topology, streams=streams, sinks=tuple(None for _ in topology.sinks)
    )
    pickle_by_value([getattr(sink, "function", None) for sink in topology.sinks])
    return pickle_by_value(travelling)


#: How far down is looked; what a user captured is near the top.
_DEEPEST = 8


def captured(topology: Topology, refused: BaseException) -> str:
    """Return what to say of a topology that cannot be pickled.

    Args:
        topology: The pipeline.
        refused: What pickling it raised.
    """
    for part, value in _parts(topology):
        if _refuses(value):
            way, culprit = _way_to(value, _DEEPEST)
            kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix(
                "builtins."
            )
            how = f" {', '.join(way)}, a {kind}" if way else f" a {kind}"
            return (
                f"{part} cannot be sent to Spark's workers: it holds{how} ({_brief(refused)}). "
                + _advice(culprit)
            )
    return f"pipeline {topology.name!r} cannot be sent to Spark's workers: {_brief(refused)}."


def _parts(topology: Topology) -> Iterator[tuple[str, Any]]:
    """Yield what of a pipeline is the user's code, functions first, as computations hold some."""
    for stream in topology.streams.values():
        for step in stream.steps:
            yield f"the {step.kind} step on stream {step.source!r}", step.function
    for edge in topology.edges:
        if edge.computation is not None:
            who = f"the key of computation {edge.computation!r} on stream {edge.stream!r}"
            yield who, edge.extractor
    for spec in topology.computations:
        yield f"computation {spec.name!r}", spec.instance
    for sink in topology.sinks:
        yield f"the function of {sink!r}", getattr(sink, "function", None)
    for stream in topology.streams.values():
        yield f"the format of stream {stream.name!r}", stream.coder


def _advice(culprit: Any) -> str:
    if type(culprit).__module__.startswith("pyspark."):
        return (
            "Spark's sessions and DataFrames are of the driver alone. Compute what you need of "
            "them before, and use the plain result; or inject the DataFrame as a stream of its own."
        )
    return (
        "Code runs on the workers with a copy of what it uses, so that must be picklable: make "
        "locks, open files and connections there, where they are used first."
    )


def _refuses(value: Any) -> bool:
    try:
        pickle_by_value(value)
    except Exception:  # noqa: BLE001  # what cannot be pickled says so in any way it likes
        return True
    return False


def _way_to(value: Any, deepest: int) -> tuple[list[str], Any]:
    """Return how to get from a thing to what in it cannot be pickled, and that."""
    if deepest:
        for how, inner in _within(value):
            if inner is not value and _refuses(inner):
                way, culprit = _way_to(inner, deepest - 1)
                return ([how, *way] if how else way), culprit
    return [], value


def _within(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what travels with a thing, and how it is reached; empty where that goes without saying.

    Nothing below what is not of user code or a plain container: Spark's own objects are named as
    they are.
    """
    if isinstance(thing, types.FunctionType):
        where = f"{thing.__qualname__} ({Path(thing.__code__.co_filename).name}:"
        where += f"{thing.__code__.co_firstlineno})"
        cells = zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True)
        for name, cell in cells:
            yield f"variable {name!r} of {where}", cell.cell_contents
        for name in sorted(_globals_of(thing.__code__) & thing.__globals__.keys()):
            yield f"variable {name!r} of {where}", thing.__globals__[name]
        for value in (*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()):
            yield f"a default of {where}", value
    elif isinstance(thing, types.MethodType):
        yield "", thing.__self__
    elif isinstance(thing, functools.partial):
        for value in (thing.func, *thing.args, *thing.keywords.values()):
            yield "", value
    elif isinstance(thing, ByFunction | ByRecord | OfRecord):
        yield "", thing.function
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield f"item {key!r}", value
    elif isinstance(thing, list | tuple | set | frozenset):
        for value in thing:
            yield "", value
    elif isinstance(thing, type):
        for value in vars(thing).values():
            if isinstance(value, types.FunctionType):
                yield "", value
    elif not type(thing).__module__.startswith(("pyspark.", "py4j.")):
        for name, value in getattr(thing, "__dict__", {}).items():
            yield f"attribute {name!r} of a {type(thing).__qualname__}", value
        yield "", type(thing)


def _globals_of(code: types.CodeType) -> set[str]:
    within = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*(_globals_of(inner) for inner in within))


def _brief(refused: BaseException) -> str:
    return str(refused).strip().split("\n")[0].rstrip(".")
