"""EpochLog: run claims, epoch manifests and epoch completions in one numbered list, over blobs.

.. code-block:: text

    epochs/<number, 10 digits>.json   an entry: JSON, and a line with its number and checksum
    epochs/COLLECTED                  there once the first entry has been removed

Because all entries share one numbering, a driver that has been superseded fails at its next put.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

import xxhash

from millrace.model.errors import DamagedStore, InvariantViolation
from millrace.store.blobs import Blobs

_FOLDER = "epochs"
_COLLECTED = f"{_FOLDER}/COLLECTED"
_NAME = re.compile(rf"{_FOLDER}/(\d{{10,}})\.json")
_LINE = re.compile(rb'\{"number":(\d+),"xxh3_64":"([0-9a-f]{16})","attempt":"([0-9a-f]+)"\}\n')


class EpochLog:
    """The epoch log of a checkpoint: one totally ordered list of entries.

    Args:
        blobs: Of the checkpoint.

    >>> from millrace.store import MemoryBlobs
    >>> log = EpochLog(MemoryBlobs())
    >>> log.append(1, b'{"claim": 1}'), log.append(1, b'{"claim": 2}'), log.last()
    (True, False, 1)
    >>> log.read(1), log.read(2)
    (b'{"claim": 1}', None)
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._where = f"{blobs.where}/{_FOLDER}"
        # To list is the dear part: the last entry is found by a list once, and then by looking for
        # what came after it.
        self._last = 0

    def append(self, number: int, entry: bytes) -> bool:
        """Put ``entry`` at ``number`` if that is free; True when this call put it. Durable.

        A number that was taken once counts as taken for ever, also when its entry has been
        removed: after its put the log looks whether ``number - 1`` is still there, and says that
        the number was taken if not: the last entry stays, and removal goes upwards. It takes the
        entry back then, unless ``number + 1`` is there. Who slept between the put and the look may
        find that others have gone on from its entry, and removed those before it, and theirs would
        be lost without it; an entry that is in nobody's way goes with the next removal. For number
        1, which has none before it, a mark is left before anything is removed.

        Cost: a put, and a look.

        Args:
            number: ``last() + 1`` as the caller knows it; numbers start at 1 and have no gaps.
            entry: UTF-8 JSON, so that a checkpoint can be read without Millrace.

        Raises:
            StoreError: the entry may be there or not; entries made before are safe.
            InvariantViolation: ``number`` is beyond ``last() + 1``.
        """
        if 1 <= number <= self._last:
            return False
        if number < 1 or (number > self._last + 1 and not self.exists(number - 1)):
            last = self.last()
            if 1 <= number <= last:
                return False
            if number != last + 1:
                raise InvariantViolation(
                    f"epoch log {self._where}: entry {number} would leave a gap; numbers start at "
                    f"1 and the last one is {last}"
                )
        name = _name(number)
        if not self._blobs.put_if_absent(name, _with_line(number, entry, uuid.uuid4().hex)):
            return False
        if self._was_collected(number):
            if not self.exists(number + 1):
                self._blobs.remove([name])
            return False
        # Housekeeping asks while the driver appends.
        self._last = max(self._last, number)
        return True

    def read(self, number: int) -> bytes | None:
        """Return the entry at ``number``, which is durable by then, or None when there is none.

        Raises:
            DamagedStore: the entry fails its checksum.
        """
        name = _name(number)
        data = self._blobs.read(name)
        return None if data is None else _without_line(f"{self._blobs.where}/{name}", number, data)

    def has(self, number: int, entry: bytes) -> bool:
        """Return whether ``entry`` is at ``number``, by an :meth:`append` that said it failed.

        One that was put where others had been removed is none, as by :meth:`append`.
        """
        return self.read(number) == entry and not self._was_collected(number)

    def read_together(self, numbers: Sequence[int]) -> list[bytes | DamagedStore | None]:
        """Return what :meth:`read` does of each, and the error of one that is damaged.

        Some are read at a time where each is a request.
        """

        def entry(number: int) -> bytes | DamagedStore | None:
            try:
                return self.read(number)
            except DamagedStore as damaged:
                return damaged

        return self._blobs.map(entry, numbers)

    @property
    def far(self) -> bool:
        """Whether each look at it is a request to another machine."""
        return self._blobs.far

    def exists(self, number: int) -> bool:
        """Return whether an entry is at ``number``."""
        return self._blobs.exists(_name(number))

    def first(self) -> int:
        """Return the lowest number from which on there is no gap, 0 when the log is empty.

        Cost: a list.
        """
        first = 0
        for number in reversed(self._listed()):
            if first and number != first - 1:
                break
            first = number
        return first

    def last(self) -> int:
        """Return the highest number, 0 when the log is empty. Cost: a list once, then two looks."""
        last = self._last or max(self._listed(), default=0)
        while True:
            while self.exists(last + 1):
                last += 1
            # In this order: entries go from the lowest up, so what came after one that is there
            # has not gone. Who slept before this look may find that all he knew has.
            if self.exists(last) if last else not self._listed():
                break
            last = max(self._listed(), default=0)
        self._last = max(self._last, last)
        return last

    def remove_before(self, number: int) -> int:
        """Remove the entries before ``number``, from the lowest up; return how many there were.

        Args:
            number: At most ``last()``: the last entry always stays.

        Raises:
            InvariantViolation: ``number`` is beyond ``last()``.
            StoreError: what could not be removed, and all after it, is still there.
        """
        last = self.last()
        if number > last:
            raise InvariantViolation(
                f"epoch log {self._where}: asked to remove the entries before {number}, but the "
                f"last one is {last}, and it stays: what comes after it is numbered by it"
            )
        old = [known for known in self._listed() if known < number]
        if old:
            self._blobs.put_if_absent(_COLLECTED, b"")
        self._blobs.remove(map(_name, old))
        return len(old)

    def _was_collected(self, number: int) -> bool:
        """Return whether the name just put was free only because its entry had been removed."""
        return not self.exists(number - 1) if number > 1 else self._blobs.exists(_COLLECTED)

    def _listed(self) -> list[int]:
        """Return the numbers of all entries, in order."""
        names = map(_NAME.fullmatch, self._blobs.names(_FOLDER))
        return sorted(int(match[1]) for match in names if match)


def _name(number: int) -> str:
    return f"{_FOLDER}/{number:010d}.json"


def _with_line(number: int, entry: bytes, attempt: str) -> bytes:
    """Return what is stored for an entry: text, and still refused when a bit of it changes."""
    return entry + b"\n" + _line(number, entry, attempt.encode())


def _without_line(where: str, number: int, data: bytes) -> bytes:
    """Return the entry, without the line that was checked.

    Args:
        where: Of the blob, for messages.
        number: The number that the name promises.
        data: Its content.

    Raises:
        DamagedStore: It fails its checksum under that number.
    """
    cut = data.rfind(b"\n", 0, -1)
    entry, checksum = data[: max(cut, 0)], data[cut + 1 :]
    match = _LINE.fullmatch(checksum)
    expected = _line(number, entry, match[3] if match else b"")
    if cut < 0 or checksum != expected:
        raise DamagedStore(
            f"epoch log entry {where}: damaged at offset {cut + 1}: expected the line "
            f"{expected!r}, found {checksum[:80]!r}. It was truncated or altered after it "
            f"was written. Restore it from a copy of the checkpoint."
        )
    return entry


def _line(number: int, entry: bytes, attempt: bytes) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(entry + attempt)
    return b'{"number":%d,"xxh3_64":"%016x","attempt":"%s"}\n' % (number, checksum, attempt)
