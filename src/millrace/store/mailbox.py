"""The mailbox of a checkpoint: messages by name, each put once, beside the logs.

Whoever can write the checkpoint can ask its run for something, and be answered, from any host. No
part of the commit protocol rests on it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final
from uuid import uuid4

from millrace.store.blobs import Blobs

_FOLDER = "mailbox"
_BELL = "bell"
#: Who puts a message may die before it rings: so often a mailbox is looked at all the same.
_LISTED_S: Final = 60.0


class Mailbox:
    """Messages by name. Names are of letters, digits, ``-`` and ``.``.

    Args:
        blobs: Of the checkpoint.

    >>> from millrace.store import MemoryBlobs
    >>> mailbox = Mailbox(MemoryBlobs())
    >>> mailbox.put("1.request", b"stop"), mailbox.put("1.request", b"go"), mailbox.names()
    (True, False, ['1.request'])
    >>> mailbox.read("1.request"), mailbox.read("2.request")
    (b'stop', None)
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    @property
    def far(self) -> bool:
        """Whether to look into it is a request to another machine, which costs money."""
        return self._blobs.far

    def ring(self) -> None:
        """Have who looks into the mailbox now and then look at all of it the next time."""
        self._blobs.replace(f"{_FOLDER}/{_BELL}", uuid4().bytes)

    def rung(self) -> bytes | None:
        """Return the bell's value, which each ring changes: far cheaper to read than a listing."""
        return self._blobs.read(f"{_FOLDER}/{_BELL}")

    def put(self, name: str, data: bytes) -> bool:
        """Put a message, durably; return False, and change nothing, if there is one.

        In an object store it is taken for put, too, where there is one with the same content.
        """
        return self._blobs.put_if_absent(f"{_FOLDER}/{name}", data)

    def replace(self, name: str, data: bytes) -> None:
        """Put a message in place of one that is there, or where there is none; durably."""
        self._blobs.replace(f"{_FOLDER}/{name}", data)

    def read(self, name: str) -> bytes | None:
        """Return a message; None if there is none."""
        return self._blobs.read(f"{_FOLDER}/{name}")

    def names(self) -> list[str]:
        """Return the names of all messages, sorted."""
        names = (name.rpartition("/")[2] for name in self._blobs.names(_FOLDER))
        return [name for name in names if name != _BELL]

    def remove(self, names: Iterable[str]) -> None:
        """Remove messages; those that are not there are passed over."""
        self._blobs.remove(f"{_FOLDER}/{name}" for name in names)


class MailboxWatch:
    """Says when all of a mailbox is to be looked at: when somebody has rung, and once a minute.

    Args:
        mailbox: Which.

    >>> from millrace.store import MemoryBlobs
    >>> mailbox = Mailbox(MemoryBlobs())
    >>> watch = MailboxWatch(mailbox)
    >>> watch.due(), watch.looked(), watch.due()
    (True, None, False)
    >>> mailbox.ring()
    >>> watch.due(), watch.due()
    (True, True)
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._before: bytes | None = None
        self._now: bytes | None = None
        self._listed_s = -_LISTED_S

    def due(self) -> bool:
        """Return whether it is time, until :meth:`looked`; at the cost of reading one message."""
        self._now = self._mailbox.rung()
        return self._now != self._before or time.monotonic() >= self._listed_s + _LISTED_S

    def looked(self) -> None:
        """Take it that everything was seen that was there when it was :meth:`due`."""
        self._before, self._listed_s = self._now, time.monotonic()
