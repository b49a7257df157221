"""Pickling a topology for the workers: once a run."""

from __future__ import annotations

import dataclasses

from millrace.compile.topology import Topology
from millrace.injectors.injector import Injector
from millrace.plane.by_value import pickle_by_value


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
