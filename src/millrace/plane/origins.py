"""Origins of refused rows: their message and its place, read once more from their source.

Nothing of it travels with a row. The id of a row and the name of its process say what to read.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from millrace.compile.topology import Topology
from millrace.injectors.offsets import Piece
from millrace.injectors.origins import NumberedInjector, Origin
from millrace.store import EpochLog
from millrace.windmill.epoch_log import completions_to, end_of
from millrace.windmill.manifest import Manifest
from millrace.windmill.record_ids import LAST_ROW, ROW_BITS, injected_count
from millrace.windmill.source_state import SourceOffset

_log = logging.getLogger("millrace")

#: Offsets that lie nearer to each other are read in one go.
_NEAR: Final = 1_000
#: After a row that is refused, so many times as many as before are read with the next one.
_GROWTH: Final = 8
_MOST: Final = 1 << 15
#: So many rows are read again for the sake of one behind them. It takes some seconds.
_FAR: Final = 1 << 18

#: Positions in a batch -> the origins of those rows of which they are known.
FindOrigins = Callable[[Sequence[int]], Mapping[int, Origin]]


class Origins:
    """Finds what rows of injectors were.

    Args:
        topology: The pipeline.
        log: The epoch log, which says how far processes were read; None of a batch.
        live: Whether tasks do not end.

    Attributes:
        numbers: Injected stream -> process -> its number, of those that no complete mark knows.
    """

    def __init__(self, topology: Topology, log: EpochLog | None, *, live: bool) -> None:
        self._injectors = {
            spec.name: spec.injection.source
            for spec in topology.injected()
            if spec.injection is not None and isinstance(spec.injection.source, NumberedInjector)
        }
        self._log = log
        self._live = live
        self._places: tuple[int, Mapping[str, Mapping[str, SourceOffset]]] | None = None
        # (Stream, process) -> from where rows were counted last, how many, and the next offset: who
        # refuses many rows of a piece must not read all that comes before each of them again.
        self._passed: dict[tuple[str, str], tuple[object, int, int]] = {}
        self.numbers: dict[str, dict[str, int]] = {}

    def of(self, stream: str) -> bool:
        """Return whether the rows of an injected stream have origins."""
        return stream in self._injectors

    def of_ids(
        self,
        manifest: Manifest,
        stream: str,
        ids: Sequence[tuple[int, int]],
        processes: Sequence[str],
    ) -> dict[int, Origin]:
        """Return origins, by position, of rows that came through a shuffle.

        Args:
            manifest: Of the epoch, or of the turn.
            stream: The injected stream.
            ids: Both halves of their ids.
            processes: The names of their processes; ignored in real time, where ids tell.
        """
        if stream not in self._injectors:
            return {}
        places = self._known(manifest).get(stream, {})
        if self._live:
            names = {place.number: name for name, place in places.items()}
            names |= {number: name for name, number in self.numbers.get(stream, {}).items()}
            return self.of_offsets(
                stream,
                [(names.get(low >> ROW_BITS), injected_count((high, low))) for high, low in ids],
            )
        return self._rows(
            stream,
            [
                ((name, places[name].offset if name in places else None), low & LAST_ROW)
                for name, (_, low) in zip(processes, ids, strict=True)
            ],
        )

    def of_piece(self, stream: str, piece: Piece, rows: Sequence[int]) -> dict[int, Origin]:
        """Return origins, by position, of rows of a piece, by their numbers in it."""
        if stream not in self._injectors or piece.between is None:
            return {}
        return self._rows(stream, [((piece.process, piece.between[0]), row) for row in rows])

    def of_offsets(
        self, stream: str, offsets: Sequence[tuple[str | None, int]]
    ) -> dict[int, Origin]:
        """Return origins, by position, of rows by their process and their offset in it."""
        if stream not in self._injectors:
            return {}
        wanted: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for position, (process, offset) in enumerate(offsets):
            if process is not None:
                wanted[process][offset] = position
        return {
            wanted[process][origin.offset]: origin
            for process, of in wanted.items()
            for some in _runs(sorted(of))
            for origin in self._read(stream, process, some[0], some[-1] - some[0] + 1, some[-1])
            if origin.offset in of
        }

    def _rows(
        self, stream: str, rows: Sequence[tuple[tuple[str, object], int]]
    ) -> dict[int, Origin]:
        """Return origins by position, of rows counted from an offset of a process."""
        wanted: defaultdict[tuple[str, object], dict[int, int]] = defaultdict(dict)
        for position, (start, row) in enumerate(rows):
            wanted[start][row] = position
        found = dict[int, Origin]()
        for (process, first), of in wanted.items():
            count, offset = 0, first
            passed = self._passed.get((stream, process))
            if passed is not None and passed[0] == first and passed[1] <= min(of):
                _, count, offset = passed
            if min(of) - count > _FAR:
                _log.info(
                    "stream %r, process %r: the messages of refused records lie more than %s rows "
                    "behind the last one that was read again; their dead letters have the value "
                    "as JSON.",
                    stream,
                    process,
                    f"{_FAR:,}",
                )
                continue
            for origin in self._read(stream, process, offset, max(of) + 1 - count):
                if count in of:
                    found[of[count]] = origin
                count += 1
                self._passed[stream, process] = first, count, origin.offset + 1
        return found

    def _read(
        self, stream: str, process: str, offset: object, count: int, last: int | None = None
    ) -> Iterator[Origin]:
        """Yield so many origins from an offset on, or those up to a last offset."""
        source: Iterable[Origin] = ()
        try:
            source = self._injectors[stream].origins(process, offset, count)
            for origin in islice(source, count):
                yield origin
                if last is not None and origin.offset >= last:  # it may be compacted away
                    return
        except Exception as error:  # noqa: BLE001  a letter without its message is still a letter
            _log.warning(
                "stream %r, process %r: the messages of refused records cannot be read again: "
                "%s. Their dead letters have the value as JSON.",
                stream,
                process,
                error,
            )
        finally:
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _known(self, manifest: Manifest) -> Mapping[str, Mapping[str, SourceOffset]]:
        """Return how far processes had been read when the epoch began; in real time, of late."""
        at = manifest.epoch if self._live else manifest.follows
        if self._log is None or (not self._live and not at):
            return {}
        if self._places is None or self._places[0] != at:
            said = end_of(self._log).completions if self._live else completions_to(self._log, at)
            self._places = at, said[-1].places if said else {}
        return self._places[1]


class BatchOrigins:
    """Origins of the rows of one batch that are refused, asked for in order.

    Where many are refused, they are read many at once.

    Args:
        find: Finds them.
        count: Rows of the batch.

    >>> import pyarrow as pa
    >>> asked, row = [], pa.record_batch({"n": [1]})
    >>> def find(positions):
    ...     asked.append(len(positions))
    ...     return {n: Origin(n, f"offset {n}", b"", None, row) for n in positions}
    >>> origins = BatchOrigins(find, 100)
    >>> [origins.at(n).place for n in (2, 3, 4, 99)], asked
    (['offset 2', 'offset 3', 'offset 4', 'offset 99'], [1, 8, 1])
    """

    def __init__(self, find: FindOrigins, count: int) -> None:
        self._find = find
        self._count = count
        self._known: Mapping[int, Origin] = {}
        self._next = 0
        self._ahead = 1

    def at(self, position: int) -> Origin | None:
        """Return the origin of a row; None if it is not known."""
        if position >= self._next:
            self._next = min(self._count, position + self._ahead)
            self._known = self._find(range(position, self._next))
            if not self._known:
                self._next = self._count  # nobody waits for the same trouble again
            self._ahead = min(_GROWTH * self._ahead, _MOST)
        return self._known.get(position)


def _runs(offsets: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield offsets that lie near each other, given all of them in order.

    >>> list(_runs([1, 2, 5000]))
    [[1, 2], [5000]]
    """
    first = 0
    for n in range(1, len(offsets) + 1):
        if n == len(offsets) or offsets[n] - offsets[n - 1] > _NEAR:
            yield offsets[first:n]
            first = n
