"""Numbered files of key intervals in a directory: ``<computation>/<interval>-<number>``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from millrace.store.disk import Disk
from millrace.store.durable import remove, translated
from millrace.store.names import file_name, slot_name, slot_numbers


class Slots:
    """The slots of all computations under one folder.

    Args:
        folder: Of the checkpoint's commits, or of its snapshots.
        disk: What it is on.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._disk = disk
        self._of: dict[str, str] = {}

    def folder(self, computation: str) -> str:
        """Return the folder of a computation, which may not be there yet."""
        found = self._of.get(computation)
        if found is None:
            found = self._of[computation] = str(self._folder / file_name(computation))
        return found

    def path(self, computation: str, interval: int, number: int) -> str:
        """Return the name of a slot."""
        return f"{self.folder(computation)}/{slot_name(interval, number)}"

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """Return interval -> numbers of the slots in a computation's folder, ascending."""
        folder = self.folder(computation)
        with translated(folder):
            try:
                names = self._disk.listdir(folder)
            except FileNotFoundError:
                return {}
        return slot_numbers(names)

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> int:
        """Remove slots, in the order given; one that has gone is passed over."""
        paths = [self.path(computation, interval, number) for number in numbers]
        remove(paths, self._disk)
        return len(paths)
