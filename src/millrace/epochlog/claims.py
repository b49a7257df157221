"""Claims: what a run says when it takes a checkpoint, and whether a pipeline may go on under it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType

from millrace.compile.change.identity import Routes, identity, sunk
from millrace.compile.change.plan import (
    ADDED,
    CHANGED,
    KEPT,
    REFUSED,
    RENAMED,
    ChangePlan,
    PartChange,
    changes,
    planned,
    sink_changes,
)
from millrace.compile.change.registry import SINK, Registry
from millrace.compile.change.schemas import Shape, reshape_of
from millrace.compile.topology import StreamSpec, Topology, injector_name
from millrace.epochlog.entries import Claim, Completion, InjectorEntry, Manifest, Restoration
from millrace.epochlog.reader import LogTail
from millrace.epochlog.renames import read_as
from millrace.model.declarations import Since
from millrace.model.errors import CheckpointMismatch
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, format_timestamp
from millrace.watermark.map_change import Remapped

_log = logging.getLogger("millrace")


def claim_of(
    topology: Topology,
    registry: Registry,
    generation: int,
    base: int = 0,
    ids: Mapping[str, int] = MappingProxyType({}),
    taken_back: Iterable[Restoration] = (),
    owner: str = "",
) -> Claim:
    """Return the claim of a run.

    Args:
        topology: Of the run.
        registry: The numbers by which the checkpoint knows it.
        generation: Of the run.
        base: The epoch that is the first batch of Spark's own offsets.
        ids: See :class:`Claim`; of computations that were dropped, nothing is said.
        taken_back: See :class:`Claim`.
        owner: The same.
    """
    return Claim(
        generation=generation,
        owner=owner,
        base=base,
        ids={name: first for name, first in ids.items() if name not in registry.dropped},
        topology=identity(topology),
        registry=registry,
        sinks=sunk(topology),
        senders={spec.name: sorted(spec.senders) for spec in topology.computations},
        backwards={
            spec.name: dict(spec.backwards) for spec in topology.computations if spec.backwards
        },
        sink_senders=_sink_senders(topology),
        injectors={
            spec.name: InjectorEntry(
                "" if injection.low_watermark is None else repr(injection.low_watermark),
                injection.expected,
                injection.idle_us,
                injection.skew_us,
                getattr(injection.low_watermark, "behind_newest_us", None),
            )
            for spec in topology.injected()
            if (injection := spec.injection) is not None
        },
        taken_back=[*taken_back],
        final_sinks=[
            f"{sink!r} of stream {edge.stream!r}"
            for edge in topology.edges
            if edge.sink is not None
            and not getattr(sink := topology.sinks[edge.sink], "takes_back", False)
        ],
    )


def _sink_senders(topology: Topology) -> dict[str, list[str]]:
    """Return who feeds the streams that sinks read, straight or by stateless steps."""
    routes, sources = Routes(topology), dict[str, list[str]]()
    for spec in topology.streams.values():
        for step in spec.steps:
            sources.setdefault(step.target, []).append(spec.name)

    def feeders(stream: str) -> set[str]:
        spec = topology.streams[stream]
        senders = set(spec.publishers)
        if spec.injection is not None:
            senders.add(injector_name(stream))
        return senders.union(*map(feeders, sources.get(stream, ())))

    by_route: dict[str, set[str]] = {}
    for edge in topology.edges:
        if edge.sink is not None:
            by_route.setdefault(routes.text(edge.stream), set()).update(feeders(edge.stream))
    return {route: sorted(senders) for route, senders in sorted(by_route.items())}


def ids_after(ids: Mapping[str, int], made: Mapping[str, Remapped]) -> dict[str, int]:
    """Return what a claim says to reserve the ids of intervals that are to be made."""
    taken = {name: 1 + max(one.parents) for name, one in made.items() if one.parents}
    return {**ids, **taken}


def registry_after(
    claim: Claim | None, topology: Topology, unfinished: Manifest | None = None
) -> Registry:
    """Return the registry of a checkpoint, with a number for everything in a topology.

    Args:
        claim: The last one; None of a new checkpoint.
        topology: Of a pipeline.
        unfinished: The manifest of the unfinished epoch, if there is one.
    """
    if claim is None:
        return Registry().reshaped({}, topology).assign(topology)
    registry = claim.registry.checked()
    if unfinished is not None:
        registry = registry.succeeded(unfinished.edges, topology)
    return registry.reshaped(claim.topology["computations"], topology).assign(topology)


def under_known_names(claim: Claim | None, topology: Topology) -> Topology:
    """Return a topology with the names by which a checkpoint knows its computations.

    Args:
        claim: The last one; None of a new checkpoint.
        topology: Of a pipeline.
    """
    if claim is None:
        return topology
    return claim.registry.checked().known(topology, claim.topology["computations"])


def taken_up(end: LogTail, topology: Topology) -> tuple[Topology, Registry, Manifest | None]:
    """Return the topology, registry and open epoch that a run continues with; log what changed.

    Args:
        end: Of the epoch log; it has a claim.
        topology: The pipeline, under the names that the checkpoint knows.

    Returns:
        The topology under the checkpoint's numbers, the registry, the manifest of the unfinished
        epoch.

    Raises:
        CheckpointMismatch: The pipeline cannot go on there.
    """
    plan = plan_of(end, topology)
    if plan.refused:
        raise CheckpointMismatch(
            f"{plan}\nMend what is refused as it says there, run the pipeline as it was, or start "
            "the changed one with a new checkpoint."
        )
    for change in plan.changes:
        if change.kind != KEPT:
            _log.info("pipeline %r has changed, %s: %s", topology.name, change.kind, change)
    end, _ = read_as(end, topology)
    unfinished = end.manifest
    registry = registry_after(end.claim, topology, unfinished)
    return registry.bind(topology), registry, unfinished


def foreseen(end: LogTail, topology: Topology) -> tuple[Topology, Registry]:
    """Return a topology, and its numbers, as a run has them that claims the checkpoint next.

    The numbers are up to the last claim. An epoch that is unfinished then can change them, where
    sinks are others than in it.

    Args:
        end: Of the epoch log.
        topology: The pipeline, as it was built.
    """
    topology = under_known_names(end.claim, topology)
    end, _ = read_as(end, topology)
    registry = registry_after(end.claim, topology)
    return registry.bind(topology), registry


def plan_of(end: LogTail, topology: Topology, *, between: bool = False) -> ChangePlan:
    """Return what a start of a pipeline would do with a checkpoint; nothing is written.

    Args:
        end: Of the checkpoint's epoch log.
        topology: The pipeline.
        between: Whether to leave out of account what is under way.

    Raises:
        CheckpointMismatch: A later version wrote the registry, or it is a copy that was cut off.
    """
    if end.claim is not None and end.claim.copying:
        raise CheckpointMismatch(
            "this is a copy of another checkpoint, or was to go back to a savepoint, and that was "
            "cut off before it was whole. Remove the copy, and copy again; or restore the "
            "savepoint again."
        )
    end, streams = read_as(end, topology)
    claim, completion = end.claim, end.completion
    unfinished = None if between else end.manifest
    epoch = -1 if completion is None else completion.epoch
    if claim is None:
        names = [f"computation {spec.name!r}" for spec in topology.computations]
        fresh = [PartChange(ADDED, name, "the checkpoint is new") for name in names]
        return planned(topology.name, epoch, fresh)
    registry = claim.registry.checked()
    topology = under_known_names(claim, topology)
    part_changes = changes(claim.topology, topology, registry)
    part_changes += [
        PartChange(RENAMED, f"injected stream {new!r}", f"was {old!r}; it is read on", between=True)
        for old, new in sorted(streams.items())
    ]
    if completion is not None:
        part_changes += _behind(
            registry, registry_after(claim, topology, unfinished), topology, completion
        )
        part_changes += _ended(registry, topology, completion)
        part_changes += _missed(claim, topology, completion)
    if completion is not None and (streams or sources_changed(claim, topology)):
        read = {stream for stream, stats in completion.sources.items() if stats.records}
        part_changes += _not_kept(topology, read - completion.source_offsets.keys())
    if unfinished is not None:
        part_changes = [change.while_unfinished(epoch + 1) for change in part_changes]
    part_changes += _sinks(claim, topology, unfinished)
    return planned(topology.name, epoch, part_changes)


def sources_changed(claim: Claim, topology: Topology) -> bool:
    """Return whether other streams are injected than by the run of a claim."""
    return sorted(spec.name for spec in topology.injected()) != sorted(claim.topology["injected"])


def _behind(
    known: Registry, after: Registry, topology: Topology, completion: Completion
) -> Iterator[PartChange]:
    """Yield what cannot be while key intervals have state of the shape before the last one."""
    for spec in topology.computations:
        shape = known.shapes.get(spec.name, Shape())
        reports = completion.reports.get(spec.name, {})
        there = completion.numbers.get(spec.name, {})
        behind = sum(reports[n].version < shape.version for n in there if n in reports)
        if not behind:
            continue
        where = f"computation {spec.title!r}"
        left = f"{behind} of {len(there)} key intervals have yet to take the change of state before"
        if after.shapes[spec.name].version > shape.version:
            way = "let the pipeline as it was run for some epochs first"
            yield PartChange(REFUSED, where, f"{left}, and this is another", way)
        reshape = reshape_of(shape, after.cells[spec.name], spec)
        names = {number: cell for cell, number in after.cells[spec.name].items()}
        for number in shape.migrated.keys() - reshape.migrated.keys():
            cell, function = names[number], shape.migrated[number].function
            way = f"keep migrate={{{cell!r}: {function}}} until they have"
            yield PartChange(REFUSED, f"{where}, state {cell!r}", left, way)


def _ended(registry: Registry, topology: Topology, completion: Completion) -> Iterator[PartChange]:
    """Yield which computations have been drained: nothing that waits is left in them."""
    for spec in topology.computations:
        reports = completion.reports.get(spec.name, {})
        pending = any(
            report.oldest_work_us() < MAX_TIMESTAMP or report.wall_timer_us < MAX_TIMESTAMP
            for report in reports.values()
        )
        if spec.draining and spec.name in registry.computations and not pending:
            why = f"drained: nothing is left that waits. p.remove({spec.title!r}) drops the rest"
            yield PartChange(CHANGED, f"computation {spec.title!r}", why)


def _missed(claim: Claim, topology: Topology, completion: Completion) -> Iterator[PartChange]:
    """Yield which streams have gone past the instant that is to part them from a past to come."""
    for stream in topology.streams.values():
        origins = _origins(topology, stream)
        known = [completion.sources[origin] for origin in origins if origin in completion.sources]
        newest_us = max((stats.newest_us for stats in known), default=MIN_TIMESTAMP)
        for since in (getattr(step.function, "function", None) for step in stream.steps):
            if not isinstance(since, Since) or newest_us < since.at_us:
                continue
            if _origins(topology, topology.streams[since.past]) <= {*claim.topology["injected"]}:
                continue  # they were parted before
            yield PartChange(
                REFUSED,
                f"stream {stream.name!r}, backfilled from {since.past!r}",
                f"records {since!r} have come already, up to {format_timestamp(newest_us)}; who is "
                "new would never get them, from neither of the two",
                f"let until= be an instant after that one, and let {since.past!r} have all that is "
                "before it",
            )


def _origins(topology: Topology, stream: StreamSpec) -> set[str]:
    """Return the injected streams whose records come on a stream, by steps alone."""
    origins = {stream.name} if stream.injection is not None else set[str]()
    for one in topology.streams.values():
        if any(step.target == stream.name for step in one.steps):
            origins |= _origins(topology, one)
    return origins


def _not_kept(topology: Topology, unknown: Set[str]) -> Iterator[PartChange]:
    """Yield that Spark's own sources cannot be told where to go on beside others than before."""
    for spec in topology.injected():
        injection = spec.injection
        if spec.name in unknown and injection is not None and injection.source is not None:
            yield PartChange(
                REFUSED,
                f"injected stream {spec.name!r}",
                "other streams are injected than before, and then Spark's offsets begin anew; how "
                "far a source of Spark's own was read is known only there",
                "inject an mr.sources.Injector, such as mr.sources.Files or mr.sources.Kafka, in "
                "its place, with a new checkpoint; or leave the injected streams as they were",
            )


def _sinks(claim: Claim, topology: Topology, unfinished: Manifest | None) -> Iterator[PartChange]:
    """Yield what becomes of sinks. Between epochs they may change; an unfinished one needs them.

    A sink that is gone, while one is new on its stream, is not left out: it was mended. A sink that
    is new has its first records from the next epoch: who has committed in this one did not make any
    for it.
    """
    if unfinished is None:
        for difference in sink_changes(claim.sinks, topology):
            yield PartChange(CHANGED, difference.where, difference.what)
        return
    known = unfinished.edges
    registry = registry_after(claim, topology, unfinished)
    there = {edge.number: edge.stream for edge in registry.bind(topology).edges}
    names = {number: name for name, number in registry.edges.items()}
    # Subscriptions of computations are told with those.
    gone = [names[number] for number in known if number not in there and SINK in names[number]]
    # Two of a kind on one stream are told by their order; with a third, nobody knows which is new.
    unclear = [
        names[number]
        for number in there
        if number not in known and names[number].endswith(")")
        and names[number].rpartition(" (")[0] in registry.edges
    ]  # fmt: skip
    if gone or unclear:
        reason = f"the pipeline lacks {gone}" if gone else f"{unclear} may be one that was there"
        yield PartChange(
            REFUSED,
            "sinks",
            f"epoch {unfinished.epoch} of this checkpoint is unfinished, and its records went to "
            f"{[names[number] for number in known]}; {reason}",
            "finish the epoch with as many sinks on each stream; between epochs they may change",
        )
    streams = {there[n] for n in known if n in there and SINK in names[n]}
    for difference in sink_changes(claim.sinks, topology, only=streams):
        way = "finish the epoch with the format as it was; between epochs it may change"
        if difference.refused:
            yield PartChange(REFUSED, difference.where, difference.what, way)
        else:
            yield PartChange(CHANGED, difference.where, difference.what)
