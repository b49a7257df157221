"""Identity: what a checkpoint depends on, of a pipeline, and what became of it.

What is kept between epochs is the state of computations, under their names; the productions of an
unfinished epoch; and numbers. So identity is the computations, the steps and streams by which
records reach them, their keys, formats and cells. Steps and streams that only sinks read are no
part of it: nothing of theirs is kept.

Streams are told by their routes (``compile/routes.py``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

from millrace.compile.evolution import Difference, differences
from millrace.compile.routes import Routes
from millrace.compile.schemas import Schema, lasting, named, plain, schema_of
from millrace.compile.topology import ComputationSpec, Topology
from millrace.dataflow.operators import operator_of
from millrace.model.state import CombiningState, StateDescriptor

_COLUMNS: Final = "columns of accumulators, all keys together"
_BY_KEY: Final = "rows, key by key"


def identity(topology: Topology) -> Schema:
    """Return what a checkpoint of a pipeline depends on, as plain data.

    >>> import millrace as mr
    >>> p = mr.Pipeline("game")
    >>> p.inject("scores", format=dict).filter(bool).key_by("team").window(mr.FixedWindows(10)).sum(
    ...     "points"
    ... ).to("totals")
    WindowedStream('totals')
    >>> found = identity(p.build())
    >>> found["injected"], found["computations"]["totals"]["inputs"]["scores > filter"]["key"]
    (['scores'], "by('team')")
    """
    routes = Routes(topology)
    return {
        "computations": {
            spec.name: _computation(topology, spec, routes) for spec in topology.computations
        },
        "streams": {
            name: {"fed by": routes.feeders(name)}
            for name in sorted(routes.before_computations())
            if not routes.made_up(name)
        },
        "injected": sorted(spec.name for spec in topology.injected()),
    }


def changes(stored: Schema, topology: Topology) -> list[Difference]:
    """Return what differs between the identity in a checkpoint and that of a pipeline."""
    given = identity(topology)
    return [
        *_computations(stored["computations"], given["computations"]),
        *_members(stored["streams"], given["streams"], "stream", _feeders),
        *_listed(stored["injected"], given["injected"], "injected stream"),
    ]


def sunk(topology: Topology) -> Schema:
    """Return the formats of the streams that sinks read: an unfinished epoch depends on them."""
    streams = {edge.stream for edge in topology.edges if edge.sink is not None}
    return {name: schema_of(topology.streams[name].coder) for name in sorted(streams)}


def sink_changes(
    stored: Schema, topology: Topology, only: Container[str] | None = None
) -> list[Difference]:
    """Return what differs between the sinks' streams in a checkpoint and a pipeline's.

    Args:
        stored: In the checkpoint.
        topology: The pipeline.
        only: Streams to look at; None: all.
    """
    given = sunk(topology)
    if only is not None:
        stored = {name: stored[name] for name in stored if name in only}
        given = {name: given[name] for name in given if name in only}
    return list(_members(stored, given, "sink of stream", differences))


def _computation(topology: Topology, spec: ComputationSpec, routes: Routes) -> Schema:
    return {
        "inputs": {
            route: {
                "key": named(spec.inputs[stream]),
                "format": schema_of(topology.streams[stream].coder),
            }
            for stream, route in routes.texts(sorted(spec.inputs)).items()
        },
        "outputs": {name: schema_of(topology.streams[name].coder) for name in sorted(spec.outputs)},
        "state": {name: _cell(cell) for name, cell in sorted(spec.cells.items())},
        "settings": {
            name: lasting(said) if isinstance(said, str) else plain(said)
            for name, said in operator_of(spec.instance).settings().items()
        },
        "kept as": _COLUMNS if spec.columnar is not None else _BY_KEY,
    }


def _cell(cell: StateDescriptor) -> Schema:
    found: Schema = {"cell": type(cell).__name__, "format": schema_of(cell.coder)}
    if isinstance(cell, CombiningState):
        found |= {"add": named(cell.function), "initial": plain(cell.initial)}
    return found


# -- comparison ------------------------------------------------------------------------------------


def _computations(stored: Schema, given: Schema) -> Iterator[Difference]:
    for name, old, new in _both(stored, given):
        where = f"computation {name!r}"
        if old is None or new is None:
            yield _one_sided(where, new is None)
            continue
        yield from _members(old["inputs"], new["inputs"], f"{where}, input", _input)
        yield from _members(old["outputs"], new["outputs"], f"{where}, output", differences)
        yield from _members(old["state"], new["state"], f"{where}, state", _cells)
        yield from _members(old["settings"], new["settings"], f"{where},", _text)
        if old["kept as"] != new["kept as"]:
            yield Difference(
                where,
                f"its windows are kept as {old['kept as']}, and would be as {new['kept as']} now, "
                "by its windows, trigger, lateness, output time and values",
            )


def _members(stored: Schema, given: Schema, what: str, compare: Any) -> Iterator[Difference]:
    """Yield what differs in the members of two dicts, which have names of their own."""
    for name, old, new in _both(stored, given):
        where = f"{what} {name!r}"
        if old is None or new is None:
            yield _one_sided(where, new is None)
        else:
            yield from compare(old, new, where)


def _both(stored: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted({*stored, *given}):
        yield name, stored.get(name), given.get(name)


def _one_sided(where: str, gone: bool) -> Difference:
    what = "in the checkpoint, gone from the pipeline"
    return Difference(where, what if gone else "new in the pipeline, unknown to the checkpoint")


def _input(old: Schema, new: Schema, where: str) -> Iterator[Difference]:
    yield from _text(old["key"], new["key"], f"{where}, key")
    yield from differences(old["format"], new["format"], where)


def _cells(old: Schema, new: Schema, where: str) -> Iterator[Difference]:
    if old["cell"] != new["cell"]:
        yield from _text(old["cell"], new["cell"], where)
        return
    yield from differences(old["format"], new["format"], where)
    for part in ("add", "initial"):
        yield from _text(old.get(part), new.get(part), f"{where}, {part}")


def _feeders(old: Schema, new: Schema, where: str) -> Iterator[Difference]:
    yield from _listed(old["fed by"], new["fed by"], f"{where}, fed by")


def _listed(old: Iterable[str], new: Iterable[str], where: str) -> Iterator[Difference]:
    for name in sorted({*old} ^ {*new}):
        yield _one_sided(f"{where} {name!r}", name in old)


def _text(old: Any, new: Any, where: str) -> Iterator[Difference]:
    if plain(old) != plain(new):
        yield Difference(where, f"was {_said(old)}, is {_said(new)} now")


def _said(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
