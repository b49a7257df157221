"""Claims: what a run says when it takes a checkpoint, and whether a pipeline may go on under it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from msgspec.structs import replace

from millrace.compile.evolution import Difference
from millrace.compile.identity import changes, identity, sink_changes, sunk
from millrace.compile.registry import Registry
from millrace.compile.topology import Topology
from millrace.model.errors import CheckpointMismatch
from millrace.windmill.manifest import Claim, InjectorEntry, Manifest

_log = logging.getLogger("millrace")


def claim_of(topology: Topology, registry: Registry, generation: int) -> Claim:
    """Return the claim of a run."""
    return Claim(
        generation=generation,
        topology=identity(topology),
        registry=registry,
        sinks=sunk(topology),
        senders={spec.name: sorted(spec.senders) for spec in topology.computations},
        injectors={
            spec.name: InjectorEntry(
                "" if injection.low_watermark is None else repr(injection.low_watermark),
                injection.expected,
                injection.idle_us,
                injection.skew_us,
            )
            for spec in topology.injected()
            if (injection := spec.injection) is not None
        },
    )


def registry_after(
    claim: Claim | None, topology: Topology, unfinished: Manifest | None = None
) -> Registry:
    """Return the registry of a checkpoint, with a number for everything in a topology.

    Args:
        claim: The last one; None of a new checkpoint.
        topology: Of a pipeline that may go on, see :func:`check`.
        unfinished: The manifest of the unfinished epoch, if there is one.
    """
    if claim is None:
        return Registry().assign(topology)
    known = claim.registry
    if known is None:
        known = Registry.of_positions(claim.topology, claim.edges, topology)
    if unfinished is not None and unfinished.edges is not None:
        known = known.succeeded(unfinished.edges, topology)
    return known.assign(topology)


def taken_up(
    claim: Claim, topology: Topology, unfinished: Manifest | None, completed: int
) -> tuple[Topology, Registry, Manifest | None]:
    """Return what a pipeline goes on with where a claim's left off.

    Args:
        claim: The last one.
        topology: The pipeline.
        unfinished: The manifest of the unfinished epoch, if there is one.
        completed: Number of the last completion's entry in the epoch log.

    Returns:
        The topology under the checkpoint's numbers, the registry, the manifest as this version
        writes it.

    Raises:
        CheckpointMismatch: The pipeline cannot go on there.
    """
    check(claim, topology)
    if unfinished is not None and unfinished.edges is None:
        edges = list(range(len(claim.edges)))
        unfinished = replace(unfinished, edges=edges, follows=completed)
    registry = registry_after(claim, topology, unfinished)
    bound = registry.bind(topology)
    check_sinks(claim, registry, bound, unfinished)
    return bound, registry, unfinished


def check(claim: Claim, topology: Topology) -> None:
    """Refuse a pipeline that cannot go on where a claim's left off; say what else has changed.

    Raises:
        CheckpointMismatch: It cannot, or a later version wrote the registry.
    """
    if claim.registry is not None:
        claim.registry.checked()
    _refuse(topology.name, changes(claim.topology, topology))


def check_sinks(
    claim: Claim, registry: Registry, topology: Topology, unfinished: Manifest | None
) -> None:
    """Refuse to leave out sinks of an epoch that is unfinished; between epochs they may change.

    A sink that is gone, while one is new on its stream, is not left out: it was mended.

    A sink that is new has its first records from the next epoch: who has committed in this one did
    not make any for it.

    Args:
        claim: The last one.
        registry: Of the checkpoint, with a number for all of the topology.
        topology: Under the registry's numbers.
        unfinished: The manifest of the epoch, if there is one.

    Raises:
        CheckpointMismatch: A sink is gone, or cannot be told from another, or the format of its
            stream has changed.
    """
    if unfinished is None or unfinished.edges is None:
        for difference in sink_changes(claim.sinks, topology):
            _log.info("pipeline %r: %s", topology.name, difference)
        return
    names = {number: name for name, number in registry.edges.items()}
    there = {edge.number for edge in topology.edges}
    gone = [names[number] for number in unfinished.edges if number not in there]
    # Two of a kind on one stream are told by their order; with a third, nobody knows which is new.
    unclear = [
        names[edge.number]
        for edge in topology.edges
        if edge.number not in unfinished.edges and names[edge.number].endswith(")")
        and names[edge.number].rpartition(" (")[0] in registry.edges
    ]  # fmt: skip
    if gone or unclear:
        what = f"the pipeline lacks {gone}" if gone else f"{unclear} may be one that was there"
        raise CheckpointMismatch(
            f"epoch {unfinished.epoch} of this checkpoint is unfinished, and its records went to "
            f"{[names[number] for number in unfinished.edges]}; {what}. Nothing was written. "
            "Finish the epoch with as many sinks on each stream; between epochs they may change."
        )
    read = {edge.stream for edge in topology.edges if edge.number in unfinished.edges}
    _refuse(topology.name, sink_changes(claim.sinks, topology, only=read))


def _refuse(name: str, found: Iterable[Difference]) -> None:
    """Refuse a pipeline whose checkpoint cannot be followed, naming what differs; say the rest."""
    differences = list(found)
    refused = [difference for difference in differences if difference.refused]
    if refused:
        listed = "\n".join(f"  {difference}" for difference in refused)
        raise CheckpointMismatch(
            f"pipeline {name!r} is not the one that wrote this checkpoint:\n{listed}\n"
            "Nothing was written. Start the changed pipeline with a new checkpoint, or run the "
            "pipeline as it was."
        )
    for difference in differences:
        _log.info("pipeline %r has changed, and nothing is lost: %s", name, difference)
