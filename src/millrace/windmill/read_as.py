"""Injected streams that have another name now, in what a checkpoint says of them.

How far a stream was read, what was seen of its processes and the number in the ids of its records
are under its name. Entries are read as if they had been written under the one of now; they say the
old one until the first epoch after the change, so the registry of the claim keeps what was what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from millrace.compile.topology import Topology, injector_name
from millrace.watermark.propagation import LowWatermarks
from millrace.windmill.epoch_log import End
from millrace.windmill.manifest import Completion
from millrace.windmill.titles import renamed

_BY_STREAM = ("sources", "places")


def read_as(end: End, topology: Topology) -> tuple[End, dict[str, str]]:
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
    registry = msgspec.structs.replace(
        claim.registry, streams=renamed(claim.registry.streams, fresh), read_as=names
    )
    claim = msgspec.structs.replace(
        claim, topology=claim.topology | {"injected": injected}, registry=registry
    )
    said = [_completion(completion, names) for completion in end.completions]
    return replace(end, claim=claim, completions=said), fresh


def _completion(completion: Completion, names: Mapping[str, str]) -> Completion:
    senders = {injector_name(old): injector_name(new) for old, new in names.items()}
    members = {member: renamed(getattr(completion, member), names) for member in _BY_STREAM}
    return msgspec.structs.replace(
        completion,
        after=_shown(completion.after, senders),
        moved=renamed(completion.moved, senders),
        **members,
    )


def _shown(known: LowWatermarks, senders: Mapping[str, str]) -> LowWatermarks:
    return LowWatermarks(
        known.inputs,
        renamed(known.outputs, senders),
        {p: _shown(of, senders) for p, of in known.percentiles.items()},
    )
