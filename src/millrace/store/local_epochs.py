"""LocalEpochLog: the epoch log of a checkpoint in a directory, an entry a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from millrace.model.errors import InvariantViolation
from millrace.store.disk import Disk, exists, read_file
from millrace.store.durable import put_if_absent, remove, sync_directory, translated
from millrace.store.entry import with_line, without_line
from millrace.store.epoch_numbers import EpochNumbers
from millrace.store.log import check_removal

_EPOCH_NAME = re.compile(r"(\d{10,})\.json")


class LocalEpochLog(EpochNumbers):
    """The epoch log of a :class:`LocalHardState`.

    A file is the caller's entry, a line end, and one line of JSON with the number and the XXH3 64
    of the entry: text, and still refused when a bit of it changes.
    """

    def __init__(self, path: Path, disk: Disk = os) -> None:
        self._slots = path / "epochs"
        self._collected = path / "epochs" / "COLLECTED"
        self._scratch = path / "tmp"
        self._disk = disk

    def append(self, number: int, entry: bytes) -> bool:
        """See :meth:`millrace.store.EpochLog.append`. Cost: two fsyncs."""
        if number < 1 or (number > 1 and not self.exists(number - 1)):
            if 1 <= number <= self.last():
                return False
            raise InvariantViolation(
                f"epoch log {self._slots}: entry {number} would leave a gap; numbers start at 1 "
                f"and the last one is {self.last()}"
            )
        data = with_line(number, entry)
        slot = self._slot(number)
        if not put_if_absent(data, [slot], scratch=self._scratch, disk=self._disk)[0]:
            return False
        if self._was_collected(number):
            if not self.exists(number + 1):
                remove([slot], self._disk)
            return False
        return True

    def read(self, number: int) -> bytes | None:
        """See :meth:`millrace.store.EpochLog.read`."""
        slot = self._slot(number)
        with translated(slot):
            try:
                data = read_file(slot, self._disk)
            except FileNotFoundError:
                return None
            sync_directory(slot.parent, self._disk)
        return without_line(slot, number, data)

    def exists(self, number: int) -> bool:
        """See :meth:`millrace.store.EpochLog.exists`."""
        slot = self._slot(number)
        with translated(slot):
            return exists(slot, self._disk)

    def remove_before(self, number: int) -> int:
        """See :meth:`millrace.store.EpochLog.remove_before`."""
        check_removal(str(self._slots), number, self.last())
        old = [self._slot(known) for known in self._listed() if known < number]
        if old:
            put_if_absent(b"", [self._collected], scratch=self._scratch, disk=self._disk)
        remove(old, self._disk)
        return len(old)

    def _was_collected(self, number: int) -> bool:
        """Return whether the slot just put was free only because its entry had been removed."""
        if number > 1:
            return not self.exists(number - 1)
        return exists(self._collected, self._disk)

    def _listed(self) -> list[int]:
        with translated(self._slots):
            names = self._disk.listdir(self._slots)
        return sorted(int(match[1]) for name in names if (match := _EPOCH_NAME.fullmatch(name)))

    def _slot(self, number: int) -> Path:
        return self._slots / f"{number:010d}.json"
