"""Sealing: where the journals of older sessions end, in an order that keeps causes with effects.

A task may go on after its session is over, and append while lengths are taken. What it appends
sends productions on, and deeper tasks of its session append what came of them. So lengths are taken
deepest level first: what made a commit that is inside was durable before, and is looked at later.
For the same reason the newest part of a task comes before its older ones, which are finished by
then. Names are listed anew for each level, as a journal may have been made meanwhile.

.. code-block:: text

    file      magic "MRSL" | format u16 | format u16 with every bit inverted | attempt, 16 bytes
              | msgpack array [session, lengths, notes, tails] | xxh3_64 u64 of all before it
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, TypeVar

import msgspec
import xxhash

from millrace.model.errors import CheckpointMismatch, DamagedStore
from millrace.store.journal import JournalName, Sealing

MAGIC = b"MRSL"
FORMAT = 1

_HEADER = struct.Struct("<4sHH16s")
_CHECKSUM = struct.Struct("<Q")
_COMPLEMENT = 0xFFFF

_Said = TypeVar("_Said")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Sealing).decode

#: Lists the journals that are there -> their size; 0 where there is no group for sure.
Sizes = Callable[[], Mapping[JournalName, int]]


class End(NamedTuple):
    """Where a journal ends.

    Attributes:
        length: As in :class:`Sealing`.
        note: Of its last group.
        tail: As in :class:`Sealing`; empty if there is none.
    """

    length: int
    note: bytes
    tail: bytes = b""


#: Takes a journal, its size, and whether it is its task's newest; None if it has no group.
EndOf = Callable[[JournalName, int, bool], End | None]


def sealing_of(session: int, previous: Sealing | None, sizes: Sizes, end_of: EndOf) -> Sealing:
    """Return what the seal of a session has to say.

    Args:
        session: Its number. Every older session is fenced.
        previous: The last seal; what that one says stands.
        sizes: Called once, and once more for each level.
        end_of: Called for journals that may have an end to be found.

    >>> writers = {JournalName(1, 1, 0, part): 9 for part in (1, 2)}
    >>> sealing_of(2, None, lambda: writers, lambda name, size, newest: End(size - 1, b"n"))
    Sealing(session=2, lengths={'00000001-01-0000-00000002': 8, '00000001-01-0000-00000001': 9}, \
notes={'00000001-01-0000-00000002': b'n'}, tails={})
    """
    there = sizes()
    names = {str(name) for name in there}
    old = previous or Sealing(0)
    sealing = Sealing(
        session, _kept(old.lengths, names), _kept(old.notes, names), _kept(old.tails, names)
    )
    deepest = max((name.level for name in there), default=-1)
    for level in range(deepest, -1, -1):
        later = sizes()
        for parts in _tasks(there, level, range(old.session, session)):
            # The sizes of finished parts are those of a listing that began after the newest part
            # was there; that of the newest is the earlier one, which is what the level above is
            # looked at after.
            _add(sealing, parts, {**later, parts[0]: there[parts[0]]}, end_of)
        there = later
    return sealing


def _kept(said: Mapping[str, _Said], there: Collection[str]) -> dict[str, _Said]:
    return {name: value for name, value in said.items() if name in there}


def _tasks(
    there: Mapping[JournalName, int], level: int, sessions: range
) -> list[list[JournalName]]:
    """Return the parts of each task of a level, newest first."""
    tasks: dict[tuple[int, int], list[JournalName]] = {}
    for name in sorted(there, reverse=True):
        if name.level == level and name.session in sessions:
            tasks.setdefault((name.session, name.task), []).append(name)
    return list(tasks.values())


def _add(
    sealing: Sealing, parts: list[JournalName], sizes: Mapping[JournalName, int], end_of: EndOf
) -> None:
    noted = False
    for name in parts:
        size, newest = sizes.get(name, 0), name is parts[0]
        if not size:
            continue
        if noted:
            sealing.lengths[str(name)] = size
            continue
        end = end_of(name, size, newest)
        if end is None:
            continue
        noted = True
        sealing.lengths[str(name)] = end.length
        sealing.notes[str(name)] = end.note
        if end.tail:
            sealing.tails[str(name)] = end.tail


def encode_sealing(sealing: Sealing) -> bytes:
    """Return the content of a seal, unlike that of any other."""
    head = _HEADER.pack(MAGIC, FORMAT, FORMAT ^ _COMPLEMENT, os.urandom(16))
    data = head + _encode(sealing)
    return data + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(data))


def decode_sealing(data: bytes, session: int, where: str) -> Sealing:
    """Return what a seal says, checked.

    Args:
        data: Its content.
        session: The number that its name promises.
        where: Its name, for messages.

    Raises:
        DamagedStore: It is not what was written.
        CheckpointMismatch: It is of a newer format.

    >>> decode_sealing(encode_sealing(Sealing(3)), 3, "seal 3").session
    3
    """
    if len(data) >= _HEADER.size + _CHECKSUM.size:
        magic, version, complement, _ = _HEADER.unpack_from(data)
        if magic == MAGIC and version ^ _COMPLEMENT == complement:
            if version != FORMAT:
                raise CheckpointMismatch(
                    f"{where}: format {version} at offset 4, this Millrace reads format {FORMAT}. "
                    f"The checkpoint was written by another version: start the run with that "
                    f"version or a later one."
                )
            body, checksum = data[: -_CHECKSUM.size], _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0]
            if xxhash.xxh3_64_intdigest(body) == checksum:
                sealing = _decode(body[_HEADER.size :])
                if sealing.session == session:
                    return sealing
    raise DamagedStore(
        f"{where}: it is not what was written: its {len(data)} bytes were truncated or altered. "
        f"Restore it from a copy of the checkpoint; without it nobody knows where journals end."
    )
