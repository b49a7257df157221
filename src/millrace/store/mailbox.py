"""The mailbox of a checkpoint: messages by name, each put once, beside the logs.

Whoever can write the checkpoint can ask its run for something, and be answered, from any host. No
part of the commit protocol rests on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from millrace.store.disk import Disk, read_file
from millrace.store.durable import make_directory, put_if_absent, remove, translated
from millrace.store.object_blobs import ObjectBlobs

_FOLDER = "mailbox"


class Mailbox(Protocol):
    """Messages by name. Names are of letters, digits, ``-`` and ``.``."""

    def put(self, name: str, data: bytes) -> bool:
        """Put a message, durably; return False, and change nothing, if there is one."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a message; None if there is none."""
        ...

    def names(self) -> list[str]:
        """Return the names of all messages, sorted."""
        ...

    def remove(self, names: Iterable[str]) -> None:
        """Remove messages; those that are not there are passed over."""
        ...


class LocalMailbox:
    """The mailbox of a checkpoint in a directory: a file a message.

    >>> import tempfile
    >>> from millrace.store import LocalHardState
    >>> mailbox = LocalHardState.create_or_open(tempfile.mkdtemp(), pipeline="p").mailbox
    >>> mailbox.put("1.request", b"stop"), mailbox.put("1.request", b"go"), mailbox.names()
    (True, False, ['1.request'])
    >>> mailbox.read("1.request"), mailbox.read("2.request")
    (b'stop', None)
    """

    def __init__(self, path: Path, disk: Disk = os) -> None:
        self._folder = path / _FOLDER
        self._scratch = path / "tmp"
        self._disk = disk

    def put(self, name: str, data: bytes) -> bool:
        """See :meth:`Mailbox.put`."""
        for folder in (self._folder, self._scratch):
            make_directory(folder, self._disk)
        slot = self._folder / name
        return put_if_absent(data, [slot], scratch=self._scratch, disk=self._disk)[0]

    def read(self, name: str) -> bytes | None:
        """See :meth:`Mailbox.read`."""
        with translated(self._folder):
            try:
                return read_file(self._folder / name, self._disk)
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """See :meth:`Mailbox.names`."""
        with translated(self._folder):
            try:
                return sorted(self._disk.listdir(self._folder))
            except FileNotFoundError:
                return []

    def remove(self, names: Iterable[str]) -> None:
        """See :meth:`Mailbox.remove`."""
        remove([self._folder / name for name in names], self._disk)


class ObjectMailbox:
    """The mailbox of a checkpoint in an object store: an object a message."""

    def __init__(self, bucket: ObjectBlobs) -> None:
        self._bucket = bucket

    def put(self, name: str, data: bytes) -> bool:
        """See :meth:`Mailbox.put`. Cost: a PUT."""
        return self._bucket.put_if_absent(f"{_FOLDER}/{name}", data)

    def read(self, name: str) -> bytes | None:
        """See :meth:`Mailbox.read`. Cost: a GET."""
        return self._bucket.read(f"{_FOLDER}/{name}")

    def names(self) -> list[str]:
        """See :meth:`Mailbox.names`. Cost: a LIST."""
        return sorted(name.rpartition("/")[2] for name in self._bucket.names(_FOLDER))

    def remove(self, names: Iterable[str]) -> None:
        """See :meth:`Mailbox.remove`. Cost: a DELETE each."""
        self._bucket.remove(f"{_FOLDER}/{name}" for name in names)


class MemoryMailbox:
    """A mailbox in a dictionary, for the Harness."""

    def __init__(self) -> None:
        self._messages: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> bool:
        """See :meth:`Mailbox.put`."""
        if name in self._messages:
            return False
        self._messages[name] = data
        return True

    def read(self, name: str) -> bytes | None:
        """See :meth:`Mailbox.read`."""
        return self._messages.get(name)

    def names(self) -> list[str]:
        """See :meth:`Mailbox.names`."""
        return sorted(self._messages)

    def remove(self, names: Iterable[str]) -> None:
        """See :meth:`Mailbox.remove`."""
        for name in names:
            self._messages.pop(name, None)
