"""Stragglers: where enough of a batch's input has been read, the rest of it may be left.

A batch reads injectors in pieces, which are its ranges: the low watermark of a piece goes from the
beginning of time to its end when the piece has been read. The p percent low watermark is at the end
of time when p percent of the pieces of each stream are; then who still reads stops. How much of a
piece was read is decided once, in a slot of its own: so a task that runs again reads as much, as
what was read is all that later stages get to see.

Source: Dataflow patent, "getWatermarkPercentile" (the fraction of ranges with watermark values at
or after a time), and "early termination of a job based on overall progress".
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from millrace.injectors.offsets import Piece
from millrace.model.errors import MillraceError
from millrace.store import Mailbox, mailbox_at

#: Of a piece of which nobody has decided how much is read, and of one that was read to its end.
_UNDECIDED: Final = -2
_ALL: Final = -1
#: How often a task that reads looks how far the others are.
_LOOKS_S: Final = 0.5


class Left(NamedTuple):
    """What a batch has left unread of a piece.

    Attributes:
        process: Of the injector.
        between: The offsets of the piece (start, end).
        rows: How many of its rows were read, from its start on.
    """

    process: str
    between: tuple[object, object]
    rows: int


@dataclass(frozen=True)
class Enough:
    """When a batch may end, as its tasks know it.

    Attributes:
        location: Directory, or URL of an object store, that all tasks reach.
        batch: Tells the batch from all others there; letters and digits.
        percentile: Of the pieces of each stream, so many percent are enough.
        pieces: Injected stream -> how many pieces it has.
    """

    location: str
    batch: str
    percentile: int
    pieces: Mapping[str, int]

    def decisions(self, clock: Callable[[], float] = time.monotonic) -> Decisions:
        """Return what was decided, and what decides."""
        return Decisions(self, mailbox_at(self.location), clock)


class Decisions:
    """How much of each piece is read.

    Args:
        enough: Of the batch.
        mailbox: That has the slots.
        clock: Seconds.
    """

    def __init__(self, enough: Enough, mailbox: Mailbox, clock: Callable[[], float]) -> None:
        self._enough = enough
        self._mailbox = mailbox
        self._clock = clock
        self._due_s = clock()
        self._is_enough = False

    def rows(
        self, stream: str, number: int, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield of the rows of a piece those that the batch takes.

        Args:
            stream: Injected stream.
            number: Of the piece.
            batches: Its rows, the same and in the same order whoever reads them.
        """
        limit, taken, left = self._decided(stream, number), 0, iter(batches)
        while True:
            if limit == _UNDECIDED and self._reached():
                limit = self._decide(stream, number, taken)
            if 0 <= limit <= taken:
                break
            batch = next(left, None)
            if batch is None:
                break
            if limit >= 0:
                batch = batch.slice(0, limit - taken)
            taken += batch.num_rows
            yield batch
        if limit == _UNDECIDED:
            limit = self._decide(stream, number, _ALL)
        if 0 <= limit < taken:
            raise MillraceError(
                f"piece {number} of stream {stream!r} was left after {limit:,} rows by another "
                f"attempt at this task, and this one has read {taken:,}. The next reads as many."
            )

    def anything_left(self) -> bool:
        """Return whether something was left; when all that read have ended."""
        return self._mailbox.read(self._left) is not None

    def left(self, pieces: Mapping[str, Iterable[Piece]]) -> dict[str, list[Left]]:
        """Return what was left of which pieces, by stream."""
        unread: dict[str, list[Left]] = {}
        if self.anything_left():
            for stream, all_of_it in pieces.items():
                for piece in all_of_it:
                    if piece.between is None:
                        continue
                    limit = self._decided(stream, piece.number)
                    if limit >= 0:
                        left = Left(piece.process, piece.between, limit)
                        unread.setdefault(stream, []).append(left)
        return unread

    def forget(self) -> None:
        """Remove all slots, when the batch has ended."""
        names = [name for name in self._mailbox.names() if name.startswith(self._enough.batch)]
        self._mailbox.remove(names)

    @property
    def _left(self) -> str:
        return f"{self._enough.batch}-left"

    def _prefix(self, stream: str) -> str:
        return f"{self._enough.batch}-{zlib.crc32(stream.encode()):08x}"

    def _reached(self) -> bool:
        """Return whether enough has been read, as of a moment ago."""
        if not self._is_enough and (now_s := self._clock()) >= self._due_s:
            self._due_s = now_s + _LOOKS_S
            names = self._mailbox.names()
            # What is left was left after enough had been read, so all other slots say "all".
            read = Counter(name.rpartition("-")[0] for name in names)
            self._is_enough = self._left in names or all(
                100 * read[self._prefix(stream)] >= self._enough.percentile * pieces
                for stream, pieces in self._enough.pieces.items()
            )
        return self._is_enough

    def _decided(self, stream: str, number: int) -> int:
        data = self._mailbox.read(f"{self._prefix(stream)}-{number}")
        return self._noted(_UNDECIDED if data is None else int(data))

    def _decide(self, stream: str, number: int, rows: int) -> int:
        """Say how much is read of a piece; return what was decided, by whoever was first."""
        if self._mailbox.put(f"{self._prefix(stream)}-{number}", str(rows).encode()):
            return self._noted(rows)
        return self._decided(stream, number)

    def _noted(self, limit: int) -> int:
        """Have it known that something is left, before who reads it ends."""
        if limit >= 0:
            self._mailbox.put(self._left, b"")
        return limit
