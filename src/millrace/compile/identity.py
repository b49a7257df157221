"""Identity: what a checkpoint depends on, of a pipeline.

What is kept between epochs is the state of computations, under their names; the productions of an
unfinished epoch; and numbers. So identity is the computations, the steps and streams by which
records reach them, their keys, formats and cells. Steps and streams that only sinks read are no
part of it: nothing of theirs is kept. What became of it in another pipeline: ``comparison.py``.

Streams are told by their routes (``compile/routes.py``).
"""

from __future__ import annotations

from typing import Final

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


def sunk(topology: Topology) -> Schema:
    """Return the formats of the streams that sinks read: an unfinished epoch depends on them."""
    streams = {edge.stream for edge in topology.edges if edge.sink is not None}
    return {name: schema_of(topology.streams[name].coder) for name in sorted(streams)}


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
        **({"drains": True} if spec.draining else {}),
    }


def _cell(cell: StateDescriptor) -> Schema:
    found: Schema = {"cell": type(cell).__name__, "format": schema_of(cell.coder)}
    if isinstance(cell, CombiningState):
        found |= {"add": named(cell.function), "initial": plain(cell.initial)}
    return found
