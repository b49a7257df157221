"""Titles: what entries of the epoch log say, under what the pipeline calls its computations.

Entries have the names by which the checkpoint knows them (``compile/known_names.py``). People are
told the other ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from millrace.watermark.propagation import LowWatermarks
from millrace.windmill.manifest import Claim, Completion

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
    return replace(completion, after=_shown(completion.after, called), **members)


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
        registry=replace(
            claim.registry,
            computations=renamed(claim.registry.computations, called),
            cells=renamed(claim.registry.cells, called),
            shapes=renamed(claim.registry.shapes, called),
        ),
    )


def renamed(by_name: Mapping[str, _Value], called: Mapping[str, str]) -> dict[str, Any]:
    """Return a mapping by name under other names; who began with a name that is given gives way."""
    found = {name: value for name, value in by_name.items() if name not in called}
    return found | {called[name]: value for name, value in by_name.items() if name in called}


def _shown(known: LowWatermarks, called: Mapping[str, str]) -> LowWatermarks:
    return LowWatermarks(
        renamed(known.inputs, called),
        renamed(known.outputs, called),
        {p: _shown(of, called) for p, of in known.percentiles.items()},
    )
