"""Blobs: what each kind of storage does for a checkpoint; all logs are written over it, once.

A blob has a name and bytes, which are there whole or not at all. Names are within the checkpoint: a
folder, perhaps more of them, and a last part, with ``/`` between. :class:`.LocalBlobs`
keeps them in a directory, :class:`.ObjectBlobs` in an object store, :class:`.MemoryBlobs` in
dictionaries.

Put-if-absent at a name that all attempts know is the whole concurrency control: that name is
MillWheel's sequencer (section 6.2 "State Manipulation"), so that a writer that was left behind
finds its name taken instead of overwriting its successor's work.

Why: ``docs/design/2026-11-27-one-commit-log.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class Appender(Protocol):
    """Appends to one blob, for the one writer that makes it."""

    def append(self, data: bytes, *, durable: bool = True) -> bool:
        """Append; return whether this call did, False if another writer has the name.

        The first call makes the blob. Where it returns True, all that was appended is durable, in
        order; a crash meanwhile may leave any beginning of this call's data, or bytes that are
        none of it.

        Args:
            data: What to append.
            durable: False for what may be lost or torn by a crash after the return, too. Nothing
                may be appended after it.

        Raises:
            CheckpointUnwritable: Nobody knows what of it is there, and what of that is durable: it
                may come to be there yet. Nothing may be appended any more.
        """
        ...

    def close(self) -> None:
        """Give back what it holds; nothing more can be appended."""
        ...


class Blobs(Protocol):
    """The blobs of one checkpoint. Threads may share it.

    Every operation raises :class:`~millrace.model.errors.StoreError` where the storage fails: what
    writes raises its subclass ``CheckpointUnwritable``, and ``DamagedStore`` where the place of the
    checkpoint has gone.
    """

    @property
    def where(self) -> str:
        """The place of the checkpoint, for messages: a path or a URL."""
        ...

    @property
    def far(self) -> bool:
        """Whether each operation is a request to another machine, which costs money."""
        ...

    def turns(self) -> AbstractContextManager[object]:
        """Return a new lock for threads that share what they know of the blobs; reentrant."""
        ...

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put a blob unless the name is taken; return whether this call put it.

        What has the name on return is durable, whoever put it.

        Args:
            name: Of the blob.
            data: Its content. Where the caller has to know whether it is its own, the content is
                unlike that of anybody else who tries: a store whose answer was lost is asked what
                has the name now.

        Raises:
            CheckpointUnwritable: The blob may be there or not; if so, it is whole.
        """
        ...

    def put_pieces(self, name: str, pieces: Iterable[bytes]) -> bool:
        """Put a blob of any size unless there is one; return whether this call put it.

        Durable on return. Of two that put it at the same time, a store that cannot put parts under
        a condition lets the later one replace the other's, and tells both that they did: so it is
        for content that is the same whoever puts it.

        Args:
            name: Of the blob.
            pieces: Its bytes in order; taken one by one, so that all need not fit into memory, and
                not taken where there is a blob. An exception that they raise leaves nothing behind.

        Raises:
            CheckpointUnwritable: Nothing was put.
        """
        ...

    def replace(self, name: str, data: bytes) -> None:
        """Put a blob in place of one that is there, or where there is none; durable on return.

        Readers see the one or the other, whole; so does who reads after a crash.

        Raises:
            CheckpointUnwritable: One of the two is there.
        """
        ...

    def appender(self, name: str) -> Appender:
        """Return what appends to a new blob; nothing is there before the first call of that.

        A store that cannot append has what a later call appended as a *piece*, a blob of its own
        with its offset in its name: see :func:`piece_name`. Who reads such blobs looks for pieces
        on every kind of storage, so that a checkpoint can be copied blob by blob.
        """
        ...

    def read(self, name: str) -> bytes | None:
        """Return a blob's content, or None when there is none.

        The name is durable by then: its writer may have died before it made it so.
        """
        ...

    def read_range(self, name: str, start: int, stop: int) -> bytes | None:
        """Return bytes ``[start, stop)`` of a blob, or None when there is none.

        There are fewer, or none, where it ends before. The name may not be durable.
        """
        ...

    def stream(self, name: str) -> Iterator[bytes] | None:
        """Return a blob's content in pieces of any size, or None when there is none.

        The name may not be durable: for what is checked against something that is.

        Raises:
            StoreError: Also while iterating; what is removed meanwhile may vanish in mid-read.
        """
        ...

    def exists(self, name: str) -> bool:
        """Return whether there is a blob of that name, as all other hosts see it now."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, whole and sorted; none if it is not there.

        Names that are put or removed meanwhile may be among them or not. So may what is no blob, as
        files of an editor are; and in a store without folders, what is in folders below.
        """
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Return name -> bytes of what is in a folder, as :meth:`names` lists it, in no order.

        Names may not be durable.
        """
        ...

    def map(self, call: Callable[[_Item], _Answer], items: Sequence[_Item]) -> list[_Answer]:
        """Return what a call that reads makes of each item; some at a time where that is faster.

        Raises: what a call raises.
        """
        ...

    def remove(self, names: Iterable[str], *, durable: bool = False) -> None:
        """Remove blobs, in the order given; pass over those that are not there.

        Args:
            names: Of the blobs.
            durable: Whether a power cut must not bring them back after the return.

        Raises:
            CheckpointUnwritable: That blob and all after it are still there.
        """
        ...


def piece_name(name: str, offset: int) -> str:
    """Return the name of what was appended to a blob at an offset.

    >>> piece_name("incarnations/a", 0), piece_name("incarnations/a", 4096)
    ('incarnations/a', 'incarnations/a.000000001000')
    """
    return f"{name}.{offset:012x}" if offset else name


class PieceAppender:
    """The :class:`Appender` of a store that cannot append: each call puts a piece.

    Args:
        blobs: Of the store. What is there is whole and durable.
        name: Of the blob.
    """

    def __init__(self, blobs: Blobs, name: str) -> None:
        self._blobs = blobs
        self._name = name
        self._offset = 0

    def append(self, data: bytes, *, durable: bool = True) -> bool:
        """See :meth:`Appender.append`. Cost: a put; what is put must be unlike any other's."""
        if not self._blobs.put_if_absent(piece_name(self._name, self._offset), data):
            return False
        self._offset += len(data)
        return True

    def close(self) -> None:
        """See :meth:`Appender.close`."""
