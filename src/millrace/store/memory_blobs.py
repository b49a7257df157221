"""Blobs in dictionaries, and hard state made of them, for the Harness and for simulations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from millrace.store.blobs import PieceAppender
from millrace.store.commit_log import CommitLog
from millrace.store.epoch_log import EpochLog
from millrace.store.incarnations import Incarnations
from millrace.store.mailbox import Mailbox
from millrace.store.snapshots import Snapshots

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class MemoryBlobs:
    """The :class:`~millrace.store.Blobs` of a checkpoint that lives as long as the object.

    >>> blobs = MemoryBlobs()
    >>> blobs.put_if_absent("epochs/1", b"mine"), blobs.put_if_absent("epochs/1", b"theirs")
    (True, False)
    >>> blobs.read("epochs/1"), blobs.read("epochs/2"), blobs.names("epochs")
    (b'mine', None, ['epochs/1'])
    """

    where = "in memory"
    far = False

    def __init__(self) -> None:
        # Folder -> name -> content, so that to list a folder costs nothing of the others. A tuple
        # is a call's own, where equal bytes may be one object.
        self._folders: dict[str, dict[str, tuple[bytes]]] = {}

    def turns(self) -> AbstractContextManager[object]:
        """See :meth:`millrace.store.Blobs.turns`."""
        return threading.RLock()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See :meth:`millrace.store.Blobs.put_if_absent`."""
        blob = (data,)
        # Atomic under the interpreter's lock, so threads may share the blobs.
        return self._in(name).setdefault(name, blob) is blob

    def put_pieces(self, name: str, pieces: Iterable[bytes]) -> bool:
        """See :meth:`millrace.store.Blobs.put_pieces`."""
        return not self.exists(name) and self.put_if_absent(name, b"".join(pieces))

    def replace(self, name: str, data: bytes) -> None:
        """See :meth:`millrace.store.Blobs.replace`."""
        self._in(name)[name] = (data,)

    def appender(self, name: str) -> PieceAppender:
        """See :meth:`millrace.store.Blobs.appender`."""
        return PieceAppender(self, name)

    def read(self, name: str) -> bytes | None:
        """See :meth:`millrace.store.Blobs.read`."""
        blob = self._in(name).get(name)
        return None if blob is None else blob[0]

    def read_range(self, name: str, start: int, stop: int) -> bytes | None:
        """See :meth:`millrace.store.Blobs.read_range`."""
        data = self.read(name)
        return None if data is None else data[start:stop]

    def stream(self, name: str) -> Iterator[bytes] | None:
        """See :meth:`millrace.store.Blobs.stream`."""
        data = self.read(name)
        return None if data is None else iter((data,))

    def exists(self, name: str) -> bool:
        """See :meth:`millrace.store.Blobs.exists`."""
        return name in self._in(name)

    def names(self, folder: str) -> list[str]:
        """See :meth:`millrace.store.Blobs.names`."""
        return sorted(self._folders.get(folder, ()))

    def sizes(self, folder: str) -> dict[str, int]:
        """See :meth:`millrace.store.Blobs.sizes`."""
        there = self._folders.get(folder, {})
        return {name: len(data) for name, (data,) in list(there.items())}

    def map(self, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
        """See :meth:`millrace.store.Blobs.map`."""
        return [call(item) for item in items]

    def remove(self, names: Iterable[str], *, durable: bool = False) -> None:
        """See :meth:`millrace.store.Blobs.remove`."""
        for name in names:
            self._in(name).pop(name, None)

    def copy(self) -> MemoryBlobs:
        """Return a copy, which later puts to either one leave alone."""
        copied = MemoryBlobs()
        copied._folders = {folder: dict(blobs) for folder, blobs in self._folders.items()}
        return copied

    def _in(self, name: str) -> dict[str, tuple[bytes]]:
        return self._folders.setdefault(name.rpartition("/")[0], {})


class MemoryHardState:
    """Hard state that lives as long as the object; a crash is simulated by dropping all the rest.

    Args:
        uuid: As it would be in ``FORMAT``; a constant, so that simulations repeat.

    >>> from millrace.store import Commit
    >>> state = MemoryHardState()
    >>> commit = Commit("count", 0, 1, epoch=1, generation=1, mutations=[(b"Sk", b"1")])
    >>> [state.commits.of_task("count", epoch=1, task=0).put([commit]) for _ in range(2)]
    [True, False]
    >>> state.commits.read("count", 0, 1) == commit
    True
    """

    def __init__(self, *, uuid: str = "memory") -> None:
        self.uuid = uuid
        self.blobs = MemoryBlobs()
        self._open()

    def copy(self) -> MemoryHardState:
        """Return a copy that what is written to either one later leaves alone."""
        copied = MemoryHardState(uuid=self.uuid)
        copied.blobs = self.blobs.copy()
        copied._open()
        return copied

    def _open(self) -> None:
        self.incarnations = Incarnations(self.blobs)
        self.commits = CommitLog(self.blobs, self.incarnations)
        self.snapshots = Snapshots(self.blobs)
        self.epochs = EpochLog(self.blobs)
        self.mailbox = Mailbox(self.blobs)

    def __repr__(self) -> str:
        return "MemoryHardState()"
