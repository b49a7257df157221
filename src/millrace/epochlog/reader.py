"""The epoch log as a history: its last entries, and the epochs that it still has.

It only reads, so it may look at the checkpoint of a live run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from millrace.epochlog.entries import Claim, Completion, Entry, Manifest, decode_entry
from millrace.model.errors import DamagedStore
from millrace.store import EpochLog

_Value = TypeVar("_Value")
_Reader = Callable[[int], Entry]

#: Entries that are read at a time, at the most, where each is a request.
_TOGETHER_MOST = 16


@dataclass
class LogTail:
    """The end of an epoch log.

    Attributes:
        last: Number of its last entry.
        claim: The last claim.
        completions: The last one that says where every interval stands, and those after it.
        completed: Number of the last completion's entry; 0 if there is none.
        whole: Number of the first one's.
        manifest: The manifest that follows the last completion, or is in it: its epoch is open.
    """

    last: int
    claim: Claim | None = None
    completions: Sequence[Completion] = ()
    completed: int = 0
    whole: int = 0
    manifest: Manifest | None = None

    @property
    def completion(self) -> Completion | None:
        """The last completion, with all that it adds to."""
        return together(self.completions) if self.completions else None


def end_of(log: EpochLog, known: LogTail | None = None) -> LogTail:
    """Return what stands at the end of a log.

    Cost: reading the entries from the last claim on, or from the last completion that is whole.
    With what stood there before, reading those that came since.

    Args:
        log: The log.
        known: What stood at its end before, if that is known.

    Raises:
        DamagedStore: An entry that is needed is gone or cannot be read.
    """
    while True:
        last = log.last()
        try:
            return _end(log, last, known if known is not None and known.last <= last else None)
        except DamagedStore:
            # A run may have gone on meanwhile, and collected what was being read.
            if log.last() == last:
                raise


def latest(log: EpochLog) -> tuple[Claim | None, Completion | None, Manifest | None]:
    """Return the last claim, the last completion, and the manifest of an epoch that is open.

    The completion says where every interval stands, whatever the entry itself says.

    Raises:
        DamagedStore: An entry that is needed is gone or cannot be read.
    """
    end = end_of(log)
    return end.claim, end.completion, end.manifest


def completions(log: EpochLog) -> Iterator[Completion]:
    """Yield every completion that the log still has, oldest first, as the entries are."""
    if not log.last():
        return
    for number in range(log.first(), log.last() + 1):
        entry = _read(log, number)
        if isinstance(entry, Completion):
            yield entry


def completion_of(log: EpochLog, epoch: int) -> Completion | None:
    """Return an epoch's completion, with all that it adds to; None if the log does not have both.

    Raises:
        DamagedStore: An entry cannot be read.
    """
    first = max(1, log.first())
    for number in range(log.last(), first - 1, -1):
        entry = _read(log, number)
        if isinstance(entry, Completion) and entry.epoch == epoch:
            said, at = [entry], entry.since
            while at is not None and at >= first:
                said += [earlier := _completion(partial(_read, log), at)]
                at = earlier.since
            return None if at is not None else together(said[::-1])
    return None


def claim_before(log: EpochLog, epoch: int) -> Claim | None:
    """Return the claim under which an epoch was completed; None if the log has not both any more.

    Raises:
        DamagedStore: An entry cannot be read.
    """
    met = False
    for number in range(log.last(), max(1, log.first()) - 1, -1):
        entry = _read(log, number)
        met = met or (isinstance(entry, Completion) and entry.epoch == epoch)
        if met and isinstance(entry, Claim):
            return entry
    return None


def completions_to(log: EpochLog, number: int, *, after: int = 0) -> list[Completion]:
    """Return what says where intervals stand after a completion: a whole one, and what adds to it.

    Args:
        log: The log.
        number: Of the completion's entry; 0 for none.
        after: Entry of an earlier one, after which it is known where they stand. What adds to that
            is all, unless a whole one came since.

    Raises:
        DamagedStore: One of them is gone or cannot be read.
    """
    return [completion for _, completion in _back_from(partial(_read, log), number, after)][::-1]


def _end(log: EpochLog, last: int, known: LogTail | None) -> LogTail:
    end, read = LogTail(last), _Entries(log)
    first = max(1, log.first()) if known is None else known.last + 1
    for number in range(last, first - 1, -1):
        entry = read(number)
        if isinstance(entry, Claim):
            end.claim = end.claim or entry
        elif isinstance(entry, Completion):
            if not end.completed:
                end.completed, end.manifest = number, end.manifest or entry.begins
        elif not end.completed:
            end.manifest = end.manifest or entry
        if end.claim is not None and end.completed:
            break
    else:
        if known is None and first > 1:
            raise _gone(log, first - 1)
    if known is None:
        known = LogTail(0)
    end.claim = end.claim or known.claim
    if not end.completed:
        end.completed, end.manifest = known.completed, end.manifest or known.manifest
    after = end.completed if end.completed == known.completed else known.completed
    completions = list(_back_from(read, end.completed, after))
    end.completions = [completion for _, completion in reversed(completions)]
    if completions and completions[-1][1].since is None:
        end.whole = completions[-1][0]
    else:  # what came since adds to it
        end.whole, end.completions = known.whole, [*known.completions, *end.completions]
    return end


class _Entries:
    """Reads entries of a log, mostly one after the other towards the first: some at a time."""

    def __init__(self, log: EpochLog) -> None:
        self._log = log
        self._together = 1
        self._read: dict[int, bytes | DamagedStore | None] = {}

    def __call__(self, number: int) -> Entry:
        """Return an entry.

        Raises:
            DamagedStore: It is gone or cannot be read.
        """
        if number not in self._read:
            first = max(1, number - self._together + 1)
            numbers = [n for n in range(number, first - 1, -1) if n not in self._read]
            self._read.update(zip(numbers, self._log.read_together(numbers), strict=True))
            if self._log.far:  # few are read where few are needed
                self._together = min(2 * self._together, _TOGETHER_MOST)
        data = self._read[number]
        if data is None:
            raise _gone(self._log, number)
        if isinstance(data, DamagedStore):
            raise data
        return decode_entry(data)


def _back_from(read: _Reader, number: int, after: int = 0) -> Iterator[tuple[int, Completion]]:
    at: int | None = number
    while at and at != after:
        entry = _completion(read, at)
        yield at, entry
        at = entry.since


def _completion(read: _Reader, number: int) -> Completion:
    entry = read(number)
    if not isinstance(entry, Completion):
        raise DamagedStore(f"entry {number} of the epoch log is no completion, and should be one.")
    return entry


def together(said: Sequence[Completion]) -> Completion:
    """Return the last of some completions as if it were whole; the first is."""
    return replace(
        said[-1],
        since=None,
        numbers=_merged([completion.numbers for completion in said]),
        chains=_merged([completion.chains for completion in said]),
        reports=_merged([completion.reports for completion in said]),
    )


def _merged(said: Sequence[dict[str, dict[int, _Value]]]) -> dict[str, dict[int, _Value]]:
    merged: dict[str, dict[int, _Value]] = {}
    for changes in said:
        for name, values in changes.items():
            merged.setdefault(name, {}).update(values)
    return merged


def _read(log: EpochLog, number: int) -> Entry:
    data = log.read(number)
    if data is None:
        raise _gone(log, number)
    return decode_entry(data)


def _gone(log: EpochLog, number: int) -> DamagedStore:
    return DamagedStore(
        f"entry {number} of the epoch log is gone, though {log.last()} exists. Restore it from a "
        "copy of the checkpoint; without it the state of the run is unknown."
    )
