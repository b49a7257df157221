"""``millrace checkpoint verify``: every byte of a checkpoint read, every checksum checked."""

from __future__ import annotations

import msgspec

from millrace.inspect import Checkpoint, state_at
from millrace.model.errors import StoreError
from millrace.store import (
    Finding,
    HardState,
    Verified,
    verify_epochs,
    verify_interval,
    verify_journals,
)
from millrace.windmill.manifest import decode_entry


def verify(location: str) -> Verified:
    """Read everything in the checkpoint at a path or URL; writes nothing.

    While a run goes on, what it collects meanwhile may be reported; look again.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        DamagedStore: ``FORMAT`` is damaged, so that nothing else can be trusted.
    """
    state = state_at(location)
    verified = Verified()
    verify_epochs(state.epochs, _check_entry, verified)
    verify_journals(state.journals, verified)
    try:
        _verify_intervals(state, verified)
    except (StoreError, msgspec.MsgspecError) as error:
        if not any(finding.lost for finding in verified.findings):
            verified.findings.append(Finding("the end of the epoch log", str(error), lost=True))
    return verified


def _check_entry(data: bytes) -> None:
    decode_entry(data)


def _verify_intervals(state: HardState, verified: Verified) -> None:
    checkpoint = Checkpoint(state)
    state = checkpoint.state
    if checkpoint.overview.generation == 0 and state.epochs.last():
        raise StoreError("it has no claim, so what the checkpoint holds is not known")
    for name in checkpoint.computations:
        known = {interval.id: interval for interval in checkpoint.intervals(name)}
        there = {*known, *state.commits.numbers(name), *state.snapshots.numbers(name)}
        for id in sorted(there):
            number, chain = (known[id].commit, known[id].chain) if id in known else (0, 0)
            verify_interval(state, name, id, number, chain, verified)
