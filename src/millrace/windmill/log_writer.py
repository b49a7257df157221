"""The writer of the epoch log: one driver's entries, each with the number after the last.

An entry is put only if its number is free, so a driver that was superseded finds its number taken.
One that the store refused is kept, and written before anything else.

Source: MillWheel 6.2, sequencers; docs/architecture.md, "The commit protocol".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from millrace.model.errors import StoreError, ZombieWriter
from millrace.store import EpochLog
from millrace.windmill.fence import superseded_run
from millrace.windmill.manifest import Entry, encode_entry

_Made = TypeVar("_Made")


class LogWriter:
    """Appends to an epoch log in the name of one run.

    Attributes:
        last: Number of the last entry that is known.
        generation: Of the run.
    """

    def __init__(self, log: EpochLog, last: int, generation: int) -> None:
        self._log = log
        self.last = last
        self.generation = generation
        # Bytes not known to be in the log, what to do when they are; whether they perhaps are.
        self._unwritten: tuple[bytes, Callable[[], None]] | None = None
        self._tried = False

    def append(self, entry: Entry, then: Callable[[], None]) -> None:
        """Write an entry, and do something once it is in the log.

        Raises:
            CheckpointUnwritable: It is refused, and :meth:`settle` writes it.
            ZombieWriter: A newer run has claimed the checkpoint.
        """
        assert self._unwritten is None, "what was refused is settled first"
        self._unwritten = encode_entry(entry), then
        self.settle()

    def settle(self) -> None:
        """Write what could not be written before, if there is something; see :meth:`append`."""
        if self._unwritten is None:
            return
        data, then = self._unwritten
        number = self.last + 1
        # A write that failed has perhaps been one all the same. Where none has failed, an equal
        # entry is another run's: two that start at once have equal claims.
        again, self._tried = self._tried, True
        if not self._log.append(number, data) and not (again and self._log.read(number) == data):
            raise superseded_run(self.generation)
        self._unwritten, self._tried, self.last = None, False, number
        then()

    def ours(self, work: Callable[[], _Made]) -> _Made:
        """Return what some work makes of the checkpoint while no newer run may change it.

        Raises:
            ZombieWriter: It failed, and a newer run has claimed the checkpoint: what the work was
                to read has perhaps been collected.
        """
        try:
            return work()
        except StoreError as error:
            if (zombie := self.superseded()) is not None:
                raise zombie from error
            raise

    def superseded(self) -> ZombieWriter | None:
        """Return the error to end with if a newer run has claimed the checkpoint, else None."""
        mine = self.last
        if self._unwritten is not None and self._log.read(mine + 1) == self._unwritten[0]:
            mine += 1  # it was written, and the store said that it was not
        return superseded_run(self.generation) if self._log.last() > mine else None
