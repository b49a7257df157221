"""``millrace checkpoint verify``: every byte of a checkpoint read, every checksum checked."""

from __future__ import annotations

import msgspec

from millrace.epochlog.entries import decode_entry, interval_map
from millrace.injectors.dead_letters import LetterLog
from millrace.inspect import Checkpoint, state_at
from millrace.inspect.overview import Ended, ended
from millrace.model.errors import InputLost, StoreError
from millrace.runtime.commit_writer import check_consumed
from millrace.store import (
    Finding,
    HardState,
    Incarnations,
    Verified,
    verify_epochs,
    verify_incarnations,
    verify_interval,
    verify_segments,
)


def verify_checkpoint(location: str) -> Verified:
    """Read everything in the checkpoint at a path or URL; writes nothing.

    While a run goes on, what it collects meanwhile may be reported; look again.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        DamagedStore: ``FORMAT`` is damaged, so that nothing else can be trusted.
    """
    state = state_at(location)
    verified = Verified()
    verify_epochs(state.epochs, _check_entry, verified)
    verify_incarnations(state.incarnations, verified)
    if not any(finding.lost for finding in verified.findings):
        _verify_consumed(state, verified)
    _verify_letters(state, verified)
    try:
        _verify_intervals(state, verified)
    except (StoreError, msgspec.MsgspecError) as error:
        if not any(finding.lost for finding in verified.findings):
            verified.findings.append(Finding("the end of the epoch log", str(error), lost=True))
    return verified


def _check_entry(data: bytes) -> None:
    decode_entry(data)


def _verify_consumed(state: HardState, verified: Verified) -> None:
    """Check that segments have what deeper levels have consumed, as the next incarnation would."""
    found = ended(state.epochs)
    while True:
        try:
            _check_consumed(found, state.incarnations)
        except StoreError as error:
            before, found = found, ended(state.epochs)
            if found.completion != before.completion:
                continue  # a run has completed a mark, and collected what was before it
            verified.findings.append(Finding("the grown segments", str(error), lost=True))
        return


def _check_consumed(found: Ended, incarnations: Incarnations) -> None:
    claim, completion, unfinished = found
    if claim is None or claim.registry is None:
        return
    names = {number: name for name, number in claim.registry.checked().computations.items()}
    numbers = {} if completion is None else completion.numbers
    entries = [entry for entry in (completion, unfinished) if entry is not None]
    maps = {name: interval_map(of) for entry in entries for name, of in entry.intervals.items()}
    there = {name: numbers.get(name, {}) for name in names.values()}
    check_consumed(incarnations.under_way(), there, maps, names)


def _verify_letters(state: HardState, verified: Verified) -> None:
    """Read the dead letters that are sent again: without them nobody knows which were."""
    log = LetterLog(state.mailbox)
    for number in range(1, log.last() + 1):
        verified.letters += 1
        try:
            log.read(number)
        except (StoreError, InputLost) as error:
            what = f"message {number} of the dead letters that are sent again"
            verified.findings.append(Finding(what, str(error), lost=True))


def _verify_intervals(state: HardState, verified: Verified) -> None:
    checkpoint = Checkpoint(state)
    state = checkpoint.state
    if checkpoint.overview.generation == 0 and state.epochs.last():
        raise StoreError("it has no claim, so what the checkpoint holds is not known")
    for name in checkpoint.computations:
        known = {interval.id: interval for interval in checkpoint.intervals(name)}
        logged = checkpoint.known_name(name)
        there = {*known, *state.commits.numbers(logged), *state.snapshots.numbers(logged)}
        verify_segments(state.commits, logged, name, verified)
        for id in sorted(there):
            number, chain = (known[id].commit, known[id].chain) if id in known else (0, 0)
            verify_interval(state, logged, name, id, number, chain, verified)
