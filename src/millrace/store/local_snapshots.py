"""LocalSnapshots: the snapshots of a checkpoint in a directory, each a file of its own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from millrace.store.disk import Disk, exists
from millrace.store.durable import make_directory, put_if_absent, unreadable
from millrace.store.local_slots import Slots

# Large enough that calls do not count, small beside the memory of a worker.
_PIECE_BYTES = 1 << 20


class LocalSnapshots:
    """The snapshots of a :class:`LocalHardState`."""

    def __init__(self, path: Path, disk: Disk = os) -> None:
        self._slots = Slots(path / "snapshots", disk)
        self._scratch = path / "tmp"
        self._disk = disk

    def put(self, computation: str, interval: int, number: int, pieces: Iterable[bytes]) -> bool:
        """See :meth:`millrace.store.Snapshots.put`. Cost: one fsync of data and two of names."""
        slot = self._slots.path(computation, interval, number)
        make_directory(self._slots.folder(computation), self._disk)
        if exists(slot, self._disk):
            return False
        return put_if_absent(pieces, [slot], scratch=self._scratch, disk=self._disk)[0]

    def read(self, computation: str, interval: int, number: int) -> Iterator[bytes] | None:
        """See :meth:`millrace.store.Snapshots.read`."""
        slot = self._slots.path(computation, interval, number)
        try:
            fd = self._disk.open(slot, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(slot, error) from error
        return _pieces(slot, fd, self._disk)

    def numbers(self, computation: str) -> dict[int, list[int]]:
        """See :meth:`millrace.store.Snapshots.numbers`."""
        return self._slots.numbers(computation)

    def remove(self, computation: str, interval: int, numbers: Iterable[int]) -> None:
        """See :meth:`millrace.store.Snapshots.remove`."""
        self._slots.remove(computation, interval, numbers)


def _pieces(slot: str, fd: int, disk: Disk) -> Iterator[bytes]:
    offset = 0
    try:
        while piece := disk.pread(fd, _PIECE_BYTES, offset):
            yield piece
            offset += len(piece)
    except OSError as error:
        raise unreadable(slot, error) from error
    finally:
        disk.close(fd)
