"""The epoch log as a history: what stands at its end, and the epochs that it still has.

It only reads, so it may look at the checkpoint of a live run.
"""

from __future__ import annotations

from collections.abc import Iterator

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


def _read(log: EpochLog, number: int) -> Entry:
    data = log.read(number)
    if data is None:
        raise DamagedStore(
            f"entry {number} of the epoch log is gone, though {log.last()} exists. Restore it from "
            "a copy of the checkpoint."
        )
    return decode_entry(data)
