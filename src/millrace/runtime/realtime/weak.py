"""Which computations are weak in real time: their productions leave before their commit is durable.

Asked for it is with ``productions=mr.WEAK``. It takes that what comes again after a failure can be
told, or does no harm; where that is not so, productions are strong, which is always right.

Source: MillWheel 6.1.3; docs/design/2026-11-22-weak-productions-in-real-time.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from millrace.compile.topology import ComputationSpec, Edge, Topology, injector_name
from millrace.kernel.record_ids import STREAMS_MAX, TASKS_MAX
from millrace.model.computation import AT_LEAST_ONCE, WEAK, lacks_hook
from millrace.runtime.sink_contract import sinks_by_edge


def weak_computations(
    topology: Topology, *, tasks: int, live: Container[int]
) -> Mapping[str, bool]:
    """Return those that are weak, and whether ids of their productions are made from the input's.

    Args:
        topology: The pipeline, bound to its checkpoint.
        tasks: Tasks a level.
        live: Edges to sinks that are written in every turn.
    """
    return {
        spec.name: not why_no_ids(topology, spec, tasks)
        for spec in topology.computations
        if why_strong(topology, spec, tasks=tasks, live=live) is None
    }


def refused_weak(topology: Topology, *, tasks: int) -> dict[str, str]:
    """Return those that ask for weak productions and have strong ones, each with the reason.

    Args:
        topology: The pipeline.
        tasks: Tasks a level.
    """
    live = {edge for edge, sink in sinks_by_edge(topology).items() if hasattr(sink, "live")}
    reasons = {
        spec.name: why_strong(topology, spec, tasks=tasks, live=live)
        for spec in topology.computations
        if spec.guarantees.productions is WEAK
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def why_strong(
    topology: Topology, spec: ComputationSpec, *, tasks: int, live: Container[int]
) -> str | None:
    """Return why a computation's productions wait for its commit; None if they do not."""
    if spec.guarantees.productions is not WEAK:
        return "it does not ask for weak productions"
    if spec.columnar is not None or not lacks_hook(spec.instance, "process_timer"):
        return "it has timers, which may fire otherwise when they fire again"
    if spec.side_streams:
        return "it takes a stream beside its inputs, which may come otherwise when it comes again"
    sent = list(_sent(topology, spec))
    if any(edge.number in live for edge in sent):
        return "a sink that is written in every turn must not see what may come otherwise"
    if any(edge.sink is not None and _is_by_key(topology.sinks[edge.sink]) for edge in sent):
        return "a table by key takes the last of several rows, and ids must say which that is"
    if any(_wants_once(topology, edge) for edge in sent):
        return why_no_ids(topology, spec, tasks)
    return None


def why_no_ids(topology: Topology, spec: ComputationSpec, tasks: int) -> str | None:
    """Return why ids of productions cannot be made from those of the input; None if they can."""
    edges = [edge for edge in topology.edges if edge.computation == spec.name]
    if spec.level > 1:
        return "it reads what computations send, and a consumer wants each record once"
    if any(edge.identified or edge.lift is not None for edge in edges):
        return "records reach it without their places in the source"
    read = [
        stream
        for stream in topology.injected()
        if injector_name(stream.name) in spec.senders or stream.name == topology.again
    ]
    if tasks > TASKS_MAX or any(stream.number >= STREAMS_MAX for stream in read):
        return f"more than {TASKS_MAX} tasks or {STREAMS_MAX} streams cannot be told apart"
    return None


def _sent(topology: Topology, spec: ComputationSpec) -> Iterator[Edge]:
    """Yield all edges that what a computation produces may travel."""
    streams = [*spec.outputs, topology.dead_letters, topology.late_records]
    seen = set[str]()
    while streams:
        name = streams.pop()
        if name is None or name in seen:
            continue
        seen.add(name)
        stream = topology.streams[name]
        yield from stream.edges
        streams += [step.target for step in stream.steps]


def _is_by_key(sink: Any) -> bool:
    """Return whether a row that a sink is given replaces the one before it of its key."""
    return bool(getattr(sink, "key", ()))


def _wants_once(topology: Topology, edge: Edge) -> bool:
    """Return whether a row that comes again by an edge must be known.

    Of a sink that is written by mark, what is of no complete mark is never seen.
    """
    if edge.computation is None:
        return False
    return topology.computation(edge.computation).guarantees.delivery is not AT_LEAST_ONCE
