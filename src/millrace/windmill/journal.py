"""The epoch log as a history: what stands at its end, and when a low watermark got where it is.

It only reads, so it may look at the checkpoint of a live run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.model.errors import DamagedStore
from millrace.store import EpochLog
from millrace.windmill.manifest import Claim, Completion, Entry, Manifest, decode_entry


def latest(log: EpochLog) -> tuple[Claim | None, Completion | None, Manifest | None]:
    """Return the last claim, the last completion, and a manifest after it if there is one.

    Raises:
        DamagedStore: An entry that is needed is gone or cannot be read.
    """
    claim: Claim | None = None
    completion: Completion | None = None
    manifest: Manifest | None = None
    for number in range(log.last(), max(1, log.first()) - 1, -1):
        entry = _read(log, number)
        if isinstance(entry, Claim):
            claim = claim or entry
        elif isinstance(entry, Completion):
            completion = completion or entry
        elif completion is None:
            manifest = manifest or entry
        if claim is not None and completion is not None:
            break
    return claim, completion, manifest


def completions(log: EpochLog) -> Iterator[Completion]:
    """Yield every completion that the log still has, oldest first."""
    if not log.last():
        return
    for number in range(log.first(), log.last() + 1):
        entry = _read(log, number)
        if isinstance(entry, Completion):
            yield entry


def since(log: EpochLog, reached: Callable[[Completion], bool]) -> Completion | None:
    """Return the completion from which on something was so, by bisection.

    Args:
        log: The epoch log.
        reached: Whether it was; once true, true for all later completions, as of anything that
            never moves back.

    Returns:
        The first completion that says so; the first one that the log still has if all do; None if
        none does.
    """
    low, high = max(1, log.first()), log.last()
    found: Completion | None = None
    while low <= high:
        middle = (low + high) // 2
        completion, at = _completion_from(log, middle, high)
        if completion is None or reached(completion):
            found = completion or found
            high = middle - 1
        else:
            low = at + 1
    return found


def _completion_from(log: EpochLog, number: int, last: int) -> tuple[Completion | None, int]:
    """Return the first completion in ``number..last`` and where it is."""
    for at in range(number, last + 1):
        entry = _read(log, at)
        if isinstance(entry, Completion):
            return entry, at
    return None, last


def _read(log: EpochLog, number: int) -> Entry:
    data = log.read(number)
    if data is None:
        raise DamagedStore(
            f"entry {number} of the epoch log is gone, though {log.last()} exists. Restore it from "
            "a copy of the checkpoint."
        )
    return decode_entry(data)
