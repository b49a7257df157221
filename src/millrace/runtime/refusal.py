"""Refused records: a dead letter where a stream is declared for them, elsewhere an error.

The message of a refused row, and its place, are read once more from its source. Nothing of it
travels with a row. The id of a row and the name of its process say what to read.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.epochlog.reader import completions_to, end_of
from millrace.injectors.injector import NumberedInjector, Origin
from millrace.injectors.offsets import Piece, SourceOffset
from millrace.injectors.refusals import Refusal
from millrace.kernel.record_ids import LAST_ROW, ROW_BITS, injected_count
from millrace.kernel.user_errors import Provenance
from millrace.model.errors import LETTER_MOST, RecordRejected, brief, brief_trace, cut, encodable
from millrace.model.record import DeadLetter
from millrace.model.time import (
    EARLIEST_RECORD,
    LATEST_RECORD,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    format_timestamp,
    in_microseconds,
    likelier_ranges,
    likelier_unit,
)
from millrace.runtime.values import display_value
from millrace.store import EpochLog


@dataclass(frozen=True)
class EventTimes:
    """Which event times of an injected stream are accepted in an epoch, and why others are not.

    Attributes:
        latest_us: The latest accepted time.
        column: The source's column with them; None if they come from elsewhere.
        bare: Whether they are integers without a declared unit, read as microseconds.
    """

    latest_us: int
    column: str | None = None
    bare: bool = False

    def refusal(self, at_us: int | None) -> str | None:
        """Return why a timestamp is refused, or None if it is not."""
        if at_us is None:
            where = "" if self.column is None else f" (column {self.column!r})"
            return f"the timestamp is null, or could not be parsed{where}"
        if at_us < EARLIEST_RECORD:
            return f"the timestamp {brief(at_us, 60)} us is before 1970"
        if at_us > LATEST_RECORD:
            return (
                f"the timestamp {brief(at_us, 60)} us is after 2262; is it in nanoseconds? Then "
                'say inject(..., unit="ns")'
            )
        if at_us > self.latest_us:
            return (
                f"the timestamp {format_timestamp(at_us)} is after "
                f"{format_timestamp(self.latest_us)}, too far past the wall clock; see "
                "inject(..., ahead=)"
            )
        unit = likelier_unit(at_us, self.latest_us) if self.bare else None
        if unit is None:
            return None
        return (
            f"the timestamp {at_us} (column {self.column!r}) is {format_timestamp(at_us)} in "
            f'microseconds, and {format_timestamp(in_microseconds(at_us, unit))} with unit="{unit}"'
            f'. Say which it is: inject(..., unit="{unit}"), or unit="us" if it is right'
        )

    def accepts_all(self, at_us: npt.NDArray[np.int64]) -> bool:
        """Return whether none of some timestamps, at least one, is refused."""
        within = at_us.min() >= EARLIEST_RECORD and at_us.max() <= LATEST_RECORD
        return bool(within and not self.refused(at_us).any())

    def refused(self, at_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return of each timestamp, none of them before 1970, whether it is refused."""
        refused = at_us > self.latest_us
        if self.bare:
            for first, last in likelier_ranges(self.latest_us).values():
                refused |= (at_us >= first) & (at_us <= last)
        return refused


def refuse(
    topology: Topology,
    stream: str,
    computation: str,
    refusal: Refusal,
    value: Any,
    at_us: int | None,
    epoch: int,
    *,
    timely: bool,
    ids: tuple[int, int] | None = None,
    origin: Origin | None = None,
    cause: BaseException | None = None,
) -> DeadLetter:
    """Return the dead letter of a refused record.

    Args:
        topology: The pipeline.
        stream: It came by.
        computation: Whose key it has none for; empty if it is not about one.
        refusal: Why it is refused, and what is known of it if it has no value.
        value: Its value, as far as that could be read.
        at_us: Its event time, if it has one.
        epoch: Now.
        timely: Whether its event time is accepted; one that is not cannot be sent again.
        ids: Both halves of its id, where it has one already.
        origin: What it was in its source, where that is known.
        cause: What user code raised.

    Raises:
        RecordRejected: The pipeline declares no dead-letter stream.
    """
    said, provenance, encoded = refusal.value, Provenance(topology), b""
    if said is None:
        said = brief(value, LETTER_MOST)
        raw, raw_key = provenance.raw(value)
        if timely:
            encoded = provenance.encoded_row(stream, value)
    else:
        raw, raw_key = refusal.raw, refusal.raw_key
    place = refusal.place or provenance.place(value, ids)
    if origin is not None and _made(origin, value):
        place, raw, raw_key = origin.place, origin.raw, origin.raw_key
    if topology.dead_letters is None:
        consumer = f" for computation {computation!r}" if computation else ""
        raise RecordRejected(
            f"epoch {epoch}: a record of stream {stream!r} was refused{consumer}: "
            f"{refusal.reason}\n"
            f"  value {cut(said, 400)}, timestamp {brief(at_us, 60)}{place and f', {place}'}\n"
            "Nothing of this epoch was applied. Filter such records out of the source, or declare "
            'a dead-letter stream, p.dead_letter("rejects"), to set them aside and go on.'
        ) from cause
    return DeadLetter(
        stream=stream,
        computation=computation,
        reason=cut(encodable(refusal.reason), LETTER_MOST),
        error="" if cause is None else brief_trace(cause),
        key="",
        value=cut(said, LETTER_MOST),
        # Of one that no letter can hold, the reason tells.
        timestamp=at_us if at_us is None or MIN_TIMESTAMP <= at_us <= MAX_TIMESTAMP else None,
        refused_in=epoch,
        place=place,
        raw=raw,
        raw_key=raw_key,
        encoded=encoded,
    )


def _made(origin: Origin, value: Any) -> bool:
    """Return whether a value was made of what was read again, as far as its fields show."""
    if not isinstance(value, Mapping):
        return True
    names = [name for name in origin.row.schema.names if name in value]
    read = {name: display_value(origin.row.column(name), 0) for name in names}
    was = {name: value[name] for name in names}
    return read == was or repr(read) == repr(was)  # NaN is no NaN, and yet the same


def refuse_again(
    dead_letter: DeadLetter, reason: str, epoch: int, cause: BaseException | None
) -> DeadLetter:
    """Return the dead letter of one that was to be sent again, and cannot be.

    Args:
        dead_letter: As it was sent.
        reason: Why it cannot be.
        epoch: Now.
        cause: What was raised.
    """
    return msgspec.structs.replace(
        dead_letter,
        reason=cut(encodable(f"sent again: {reason}"), LETTER_MOST),
        error="" if cause is None else brief_trace(cause),
        refused_in=epoch,
    )


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
        self._source_offsets: tuple[int, Mapping[str, Mapping[str, SourceOffset]]] | None = None
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
        offsets = self._known(manifest).get(stream, {})
        if self._live:
            names = {place.number: name for name, place in offsets.items()}
            names |= {number: name for name, number in self.numbers.get(stream, {}).items()}
            return self.of_offsets(
                stream,
                [(names.get(low >> ROW_BITS), injected_count((high, low))) for high, low in ids],
            )
        return self._rows(
            stream,
            [
                ((name, offsets[name].offset if name in offsets else None), low & LAST_ROW)
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
            for process, offsets in wanted.items()
            for some in _runs(sorted(offsets))
            for origin in self._read(stream, process, some[0], some[-1] - some[0] + 1, some[-1])
            if origin.offset in offsets
        }

    def _rows(
        self, stream: str, rows: Sequence[tuple[tuple[str, object], int]]
    ) -> dict[int, Origin]:
        """Return origins by position, of rows counted from an offset of a process."""
        wanted: defaultdict[tuple[str, object], dict[int, int]] = defaultdict(dict)
        for position, (start, row) in enumerate(rows):
            wanted[start][row] = position
        origins = dict[int, Origin]()
        for (process, first), offsets in wanted.items():
            count, offset = 0, first
            passed = self._passed.get((stream, process))
            if passed is not None and passed[0] == first and passed[1] <= min(offsets):
                _, count, offset = passed
            if min(offsets) - count > _FAR:
                _log.info(
                    "stream %r, process %r: the messages of refused records lie more than %s rows "
                    "behind the last one that was read again; their dead letters have the value "
                    "as JSON.",
                    stream,
                    process,
                    f"{_FAR:,}",
                )
                continue
            for origin in self._read(stream, process, offset, max(offsets) + 1 - count):
                if count in offsets:
                    origins[offsets[count]] = origin
                count += 1
                self._passed[stream, process] = first, count, origin.offset + 1
        return origins

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
        if self._source_offsets is None or self._source_offsets[0] != at:
            completions = (
                end_of(self._log).completions if self._live else completions_to(self._log, at)
            )
            self._source_offsets = at, completions[-1].source_offsets if completions else {}
        return self._source_offsets[1]


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
