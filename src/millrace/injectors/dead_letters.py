"""Letters: the injector of dead letters that are sent again, and the log of those that were.

The log is a sequence of messages in the checkpoint's mailbox, ``letters-1``, ``letters-2``, and so
on, each put once and never changed. An injector reads it, and it also records which dead letters
were sent: each is in it once. An offset is the number of the last message that was read.

Source: docs/design/2026-11-27-dead-letters-sent-again.md.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
import xxhash

from millrace.compile.topology import Topology
from millrace.injectors.advance import Advance, Advances
from millrace.injectors.injector import Injector
from millrace.model.errors import DamagedStore, InputLost, StoreError
from millrace.model.record import DeadLetter
from millrace.model.time import MAX_TIMESTAMP, Instant
from millrace.store import Mailbox, is_object_store, local_path, mailbox_at

_log = logging.getLogger("millrace")

#: Letters that a message has, at the most, and about how many bytes; one letter may have more.
_LETTERS: Final = 1_000
_BYTES: Final = 4 << 20
#: Messages that one advance takes.
_MOST: Final = 10
#: How often a mailbox in an object store is looked into, at a request each.
_LOOKED_S: Final = 5.0
#: The one process, by which a completed epoch knows how far the log was read.
PROCESS: Final = "millrace-letters"
# Letters sort behind the digits that requests begin with, of which old ones are removed.
_PREFIX: Final = "letters-"
_CHECKSUM: Final = 8


class SentLetter(msgspec.Struct, array_like=True, frozen=True):
    """A dead letter in the log.

    Attributes:
        id: Of its row, as its sink has it.
        letter: The dead letter.
    """

    id: bytes
    letter: DeadLetter


class Appended(NamedTuple):
    """What came of putting letters into the log.

    Attributes:
        new: How many were put.
        known: How many were in it before.
    """

    new: int
    known: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SentLetter]).decode
#: Reads what :class:`Letters` gives as a row.
letter_in = msgspec.msgpack.Decoder(DeadLetter).decode


class LetterLog:
    """The dead letters that were sent again.

    >>> from millrace.store import MemoryBlobs
    >>> log = LetterLog(Mailbox(MemoryBlobs()))
    >>> letter = DeadLetter("s", "c", "no", "", "", "", 0, 7)
    >>> log.append([(b"1", letter), (b"2", letter)]), log.append([(b"2", letter), (b"3", letter)])
    (Appended(new=2, known=0), Appended(new=1, known=1))
    >>> log.last(), [one.id for one in log.read(2)], sorted(log.ids())
    (2, [b'3'], [b'1', b'2', b'3'])
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def last(self) -> int:
        """Return the number of the last message; 0 if there is none. Cost: a listing."""
        return max(self._numbers(), default=0)

    def has(self, number: int) -> bool:
        """Return whether there is a message of a number."""
        return self._mailbox.read(_name(number)) is not None

    def read(self, number: int) -> list[SentLetter]:
        """Return the letters of a message.

        Raises:
            InputLost: It is gone.
            DamagedStore: It fails its checksum.
        """
        data = self._mailbox.read(_name(number))
        if data is None:
            raise InputLost(
                f"message {_name(number)!r} is gone from the checkpoint's mailbox, and with it the "
                "dead letters that it sent again. Restore the checkpoint from a copy."
            )
        try:
            if xxhash.xxh3_64_digest(data[_CHECKSUM:]) == data[:_CHECKSUM]:
                return _decode(data[_CHECKSUM:])
        except msgspec.MsgspecError:
            pass
        raise DamagedStore(
            f"message {_name(number)!r} of the checkpoint's mailbox, with dead letters that are "
            "sent again, fails its checksum. Restore the checkpoint from a copy."
        )

    def ids(self, since: int = 0) -> set[bytes]:
        """Return the ids of the letters of all messages after one."""
        return {one.id for n in range(since + 1, self.last() + 1) for one in self.read(n)}

    def append(
        self, letters: Iterable[tuple[bytes, DeadLetter]], limit: int | None = None
    ) -> Appended:
        """Put letters into the log that are not in it.

        They are durable when this returns. If it is cut off, some are, and to call it again puts
        the others.

        Args:
            letters: With their ids.
            limit: To put so many, at the most; then the rest is not looked at.

        Raises:
            InputLost: A message is gone.
            DamagedStore: One fails its checksum.
        """
        last, known, new, passed = self.last(), self.ids(), 0, 0

        def unknown() -> Iterator[SentLetter]:
            nonlocal passed
            for id, letter in letters:
                if id in known:
                    passed += 1
                    continue
                known.add(id)
                yield SentLetter(id, letter)

        for some in _messages(itertools.islice(unknown(), limit)):
            left = some
            while left:
                last += 1
                if self._put(last, left):
                    new += len(left)
                    break
                # Somebody else has sent letters meanwhile.
                theirs = {one.id for one in self.read(last)}
                known |= theirs
                passed += sum(one.id in theirs for one in left)
                left = [one for one in left if one.id not in theirs]
        return Appended(new, passed)

    def copy_to(self, other: LetterLog, until: int) -> None:
        """Put the messages up to a number into another log, which has none of them or the same."""
        for number in range(1, until + 1):
            other._put(number, self.read(number))

    def truncate(self, after: int) -> None:
        """Remove the messages after a number."""
        # The last goes first: if it is cut off, there is no gap.
        for number in reversed(self._numbers()):
            if number > after:
                self._mailbox.remove([_name(number)])

    def _numbers(self) -> list[int]:
        return sorted(
            int(name.removeprefix(_PREFIX))
            for name in self._mailbox.names()
            if name.startswith(_PREFIX)
        )

    def _put(self, number: int, letters: list[SentLetter]) -> bool:
        data = _encode(letters)
        return self._mailbox.put(_name(number), xxhash.xxh3_64_digest(data) + data)


class Letters(Injector):
    """Brings the dead letters of a checkpoint's log; and promises the end of time."""

    schema = "letter binary, at long"
    seamless = True

    def __init__(self) -> None:
        self._location = ""
        self._due_s = 0.0
        self._mailbox: Mailbox | None = None

    def bind(self, at: str | Mailbox) -> None:
        """Take letters from the checkpoint at a path or URL from now on, or from a mailbox.

        Before it is sent to another process, which can be told of a path or URL only.
        """
        if not isinstance(at, str):
            self._location, self._mailbox = "bound", at
            return
        self._location = at if is_object_store(at) else str(local_path(at))
        self._mailbox, self._due_s = None, 0.0

    def processes(self) -> list[str]:
        """Return the one there is."""
        return [PROCESS]

    def advance(self, process: str, offset: Any) -> Advance:
        """Return the last of the messages that have come, some at a time."""
        number, now_s = offset or 0, time.monotonic()
        if self._location and now_s >= self._due_s:
            until = number + _MOST
            try:
                while number < until and self._sent.has(number + 1):
                    number += 1
            except (StoreError, OSError) as error:
                _log.warning("dead letters that are sent again cannot be read, and wait: %s", error)
            if is_object_store(self._location) and number < until:
                self._due_s = now_s + _LOOKED_S
        return Advance(number, low_watermark=MAX_TIMESTAMP)

    def until_now(self, process: str, before: Instant | None = None) -> list[Advance]:
        """Return that there are none: a batch has no checkpoint to which they could be sent."""
        return [Advance(0, low_watermark=MAX_TIMESTAMP)]

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[bytes, int | None]]:
        """Yield the letters of the messages between two numbers, with their own times."""
        for number in range((start or 0) + 1, end + 1):
            for one in self._sent.read(number):
                yield _encode(one.letter), one.letter.timestamp

    @property
    def _sent(self) -> LetterLog:
        if self._mailbox is None:
            self._mailbox = mailbox_at(self._location)
        return LetterLog(self._mailbox)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_mailbox": None, "_due_s": 0.0}

    def __repr__(self) -> str:
        return "Letters()"


def bind_letters(topology: Topology, at: str | Mailbox) -> None:
    """Have dead letters taken from the checkpoint at a path or URL, or from a mailbox."""
    if topology.again is None:
        return
    injection = topology.streams[topology.again].injection
    if injection is not None and isinstance(injection.source, Letters):
        injection.source.bind(at)


def letters_read(offset: Any) -> int:
    """Return the number of the last message that an offset of :class:`Letters` has behind it.

    >>> letters_read(None), letters_read(7)
    (0, 7)
    """
    return int(Advances.of(offset).last or 0)


def _messages(letters: Iterable[SentLetter]) -> Iterator[list[SentLetter]]:
    """Yield letters, as many at once as a message takes."""
    some, size = list[SentLetter](), 0
    for one in letters:
        letter = one.letter
        more = len(letter.encoded) + len(letter.raw or b"") + len(letter.value) + len(letter.error)
        if some and (len(some) == _LETTERS or size + more > _BYTES):
            yield some
            some, size = [], 0
        some.append(one)
        size += more
    if some:
        yield some


def _name(number: int) -> str:
    return f"{_PREFIX}{number:012d}"
