"""Renames: what a checkpoint has under names of before, read under the pipeline's own.

Of computations, entries of the epoch log have the names by which the checkpoint knows them
(``compile/change/identity.py``), and people are shown the pipeline's.

How far an injected stream was read, what was seen of its processes and the number in the ids of its
records are under the stream's name. Entries are read as if they had been written under the one of
now; they have the old one until the first epoch after the change, so the registry of the claim
keeps what was what.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from millrace.compile.topology import Topology, injector_name
from millrace.epochlog.entries import Claim, Completion
from millrace.epochlog.reader import LogTail
from millrace.watermark.propagation import LowWatermarks

_Value = TypeVar("_Value")


def titled(completion: Completion, called: Mapping[str, str]) -> Completion:
    """Return a completion under other names.

    Args:
        completion: As the log has it.
        called: Computation -> what the pipeline calls it, where that is another name.
    """
    if not called:
        return completion
    by_name = ("intervals", "numbers", "chains", "reports", "counters", "moved")
    members = {member: renamed(getattr(completion, member), called) for member in by_name}
    return replace(completion, after=_renamed_watermarks(completion.after, called), **members)


def titled_claim(claim: Claim) -> Claim:
    """Return a claim under what its pipeline calls its computations."""
    called = claim.registry.checked().called
    if not called:
        return claim
    return replace(
        claim,
        topology=claim.topology | {"computations": renamed(claim.topology["computations"], called)},
        senders={
            called.get(name, name): [called.get(sender, sender) for sender in senders]
            for name, senders in claim.senders.items()
        },
        backwards={
            called.get(name, name): renamed(by_sender, called)
            for name, by_sender in claim.backwards.items()
        },
        registry=replace(
            claim.registry,
            computations=renamed(claim.registry.computations, called),
            cells=renamed(claim.registry.cells, called),
            shapes=renamed(claim.registry.shapes, called),
        ),
    )


def renamed(by_name: Mapping[str, _Value], called: Mapping[str, str]) -> dict[str, Any]:
    """Return a mapping by name under other names; who began with a name that is given gives way."""
    others = {name: value for name, value in by_name.items() if name not in called}
    return others | {called[name]: value for name, value in by_name.items() if name in called}


def _renamed_watermarks(known: LowWatermarks, called: Mapping[str, str]) -> LowWatermarks:
    return LowWatermarks(
        renamed(known.inputs, called),
        renamed(known.outputs, called),
        {p: _renamed_watermarks(watermarks, called) for p, watermarks in known.percentiles.items()},
    )


_BY_STREAM = ("sources", "source_offsets")


def read_as(end: LogTail, topology: Topology) -> tuple[LogTail, dict[str, str]]:
    """Return the end of a log under the names that a pipeline has for injected streams.

    Args:
        end: As the log has it.
        topology: The pipeline.

    Returns:
        The end, and what is renamed by this pipeline: old name -> the one of now.
    """
    claim = end.claim
    if claim is None:
        return end, {}
    known = claim.registry.read_as
    now = {spec.name: spec.injection for spec in topology.injected()}
    left = [name for name in claim.topology["injected"] if name not in now]
    fresh = dict[str, str]()
    for name, injection in now.items():
        if name in claim.topology["injected"] or injection is None:
            continue
        for earlier in (*injection.was, *(old for old, new in known.items() if old == name)):
            old = known[earlier] if earlier == name else earlier
            if old in left and old not in fresh:
                fresh[old] = name
                break
    names = {old: fresh.get(new, new) for old, new in known.items()} | fresh
    names = {old: new for old, new in names.items() if old not in now}
    if not names:
        return end, {}
    injected = sorted(fresh.get(name, name) for name in claim.topology["injected"])
    registry = replace(
        claim.registry, streams=renamed(claim.registry.streams, fresh), read_as=names
    )
    claim = replace(claim, topology=claim.topology | {"injected": injected}, registry=registry)
    said = [read_under(completion, names) for completion in end.completions]
    return dataclasses.replace(end, claim=claim, completions=said), fresh


def read_under(completion: Completion, names: Mapping[str, str]) -> Completion:
    """Return a completion under other names of injected streams.

    Args:
        completion: As the log has it.
        names: Name that a stream had -> the one that it has now.
    """
    if not names:
        return completion
    senders = {injector_name(old): injector_name(new) for old, new in names.items()}
    members = {member: renamed(getattr(completion, member), names) for member in _BY_STREAM}
    return replace(
        completion,
        after=_watermarks(completion.after, senders),
        moved=renamed(completion.moved, senders),
        **members,
    )


def _watermarks(known: LowWatermarks, senders: Mapping[str, str]) -> LowWatermarks:
    return LowWatermarks(
        known.inputs,
        renamed(known.outputs, senders),
        {p: _watermarks(watermarks, senders) for p, watermarks in known.percentiles.items()},
    )
