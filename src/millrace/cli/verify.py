"""``millrace checkpoint verify``: every byte of a checkpoint read, every checksum checked."""

from __future__ import annotations

import msgspec

from millrace.cli.summary import open_checkpoint
from millrace.model.errors import StoreError
from millrace.store import Finding, HardState, Verified, verify_epochs, verify_interval
from millrace.windmill.journal import latest
from millrace.windmill.manifest import decode_entry


def verify(location: str) -> Verified:
    """Read everything in the checkpoint at a path or URL; writes nothing.

    While a run goes on, what it collects meanwhile may be reported; look again.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        DamagedStore: ``FORMAT`` is damaged, so that nothing else can be trusted.
    """
    _, state = open_checkpoint(location)
    verified = Verified()
    verify_epochs(state.epochs, _check_entry, verified)
    try:
        _verify_intervals(state, verified)
    except (StoreError, msgspec.MsgspecError) as error:
        if not any(finding.lost for finding in verified.findings):
            verified.findings.append(Finding("the end of the epoch log", str(error), lost=True))
    return verified


def _check_entry(data: bytes) -> None:
    decode_entry(data)


def _verify_intervals(state: HardState, verified: Verified) -> None:
    claim, completion, _ = latest(state.epochs)
    if claim is None:
        if state.epochs.last():
            raise StoreError("it has no claim, so what the checkpoint holds is not known")
        return
    for name in sorted(claim.topology["computations"]):
        known = completion.numbers.get(name, {}) if completion is not None else {}
        chains = completion.chains.get(name, {}) if completion is not None else {}
        there = {*known, *state.commits.numbers(name), *state.snapshots.numbers(name)}
        for interval in sorted(there):
            number, chain = known.get(interval, 0), chains.get(interval, 0)
            verify_interval(state, name, interval, number, chain, verified)
