"""Known names: a pipeline's computations under the names by which a checkpoint knows them.

A computation that is renamed is, to its checkpoint, the one that it was: logs, snapshots, caches
and the epoch log go on under the first name that it had there. What people read and write is the
name that it is called by now. So a rename moves nothing, and no crash can find it half done.

Source: docs/design/2026-11-22-a-name-is-not-an-identity.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from millrace.compile.topology import Edge, StreamSpec, Topology


def known_names(
    topology: Topology, there: Collection[str], called: Mapping[str, str], used: Collection[str]
) -> dict[str, str]:
    """Return what a computation is called in a pipeline -> how a checkpoint knows it.

    Args:
        topology: The pipeline.
        there: The computations that the checkpoint has, by their known names.
        called: Known name -> what it was called last, where that is another.
        used: All names that the checkpoint ever gave a computation.

    >>> import millrace as mr
    >>> class Echo(mr.Computation):
    ...     inputs = {"words": mr.by(str)}
    ...
    ...     def process_record(self, record):
    ...         pass
    >>> def shop(name, was=()):
    ...     p = mr.Pipeline("shop")
    ...     _ = p.inject("words", format=str)
    ...     p.add(Echo, name=name, was=was)
    ...     return p.build()
    >>> known_names(shop("Loud", was="Echo"), ["Echo"], {}, ["Echo"])
    {'Loud': 'Echo'}
    >>> known_names(shop("Loud"), ["Echo"], {"Echo": "Loud"}, ["Echo"])
    {'Loud': 'Echo'}
    >>> known_names(shop("Echo"), ["Echo"], {"Echo": "Loud"}, ["Echo"])  # the program as it was
    {'Echo': 'Echo'}
    """
    now = {called.get(name, name): name for name in there}
    specs = {spec.title: spec for spec in topology.computations}
    found = {title: now.pop(title) for title in specs if title in now}
    for title, spec in specs.items():
        earlier = next((name for name in spec.evolution.was if name in now), None)
        if title not in found and earlier is not None:
            found[title] = now.pop(earlier)
    for title in specs.keys() - found.keys():
        # The program as it was before a rename knows the name with which it began.
        fresh = called.get(title, title) == title or title in now.values()
        found[title] = title if fresh else _unused(title, used)
    return found


def dropped_names(
    topology: Topology, known: Mapping[str, str], there: Collection[str], called: Mapping[str, str]
) -> frozenset[str]:
    """Return the known names of the computations that a checkpoint is to forget.

    Args:
        topology: The pipeline.
        known: See :func:`known_names`, which returns it.
        there: See there.
        called: See there.
    """
    now = {called.get(name, name): name for name in there}
    return frozenset(now.get(title, title) for title in topology.dropped) - {*known.values()}


def under(topology: Topology, known: Mapping[str, str], dropped: frozenset[str]) -> Topology:
    """Return a topology in which computations have their known names, and are called as they were.

    Args:
        topology: The pipeline.
        known: What each is called -> its known name.
        dropped: Known names of the computations to forget.
    """
    now = {spec.name: known[spec.title] for spec in topology.computations}
    computations = [
        dataclasses.replace(
            spec,
            name=now[spec.name],
            called=spec.title,
            senders=frozenset(now.get(sender, sender) for sender in spec.senders),
            backwards={now.get(sender, sender): us for sender, us in spec.backwards.items()},
        )
        for spec in topology.computations
    ]
    return dataclasses.replace(
        topology,
        streams={name: _stream(spec, now) for name, spec in topology.streams.items()},
        computations=tuple(sorted(computations, key=lambda spec: (spec.level, spec.name))),
        edges=tuple(_edge(edge, now) for edge in topology.edges),
        dropped=dropped,
    )


def _stream(spec: StreamSpec, now: Mapping[str, str]) -> StreamSpec:
    return dataclasses.replace(
        spec,
        publishers=tuple(now[name] for name in spec.publishers),
        edges=tuple(_edge(edge, now) for edge in spec.edges),
    )


def _edge(edge: Edge, now: Mapping[str, str]) -> Edge:
    if edge.computation is None:
        return edge
    return dataclasses.replace(edge, computation=now[edge.computation])


def _unused(name: str, used: Collection[str]) -> str:
    n = 2
    while f"{name} ({n})" in used:
        n += 1
    return f"{name} ({n})"
