"""Bundles: the records of key intervals in order and cut by key, and the attempt at them.

GetWork puts the records that arrived for a computation in order, and cuts them by interval and key.
It works on whole columns: a bundle of a hundred thousand records must not cost a Python call for
each. A key's records and its due timers together are its key group.

Nothing here knows how long an epoch is. An epoch on Spark is one bundle for each interval that has
something to do; any other cut of the same input leads to the same state and productions, for code
that does not look at a clock.

Source: Streaming Engine, GetWork, "work item"; MillWheel 4.2 (processing is serialised per key) and
6.1 (several records in one checkpoint).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.kernel import timer_families
from millrace.kernel.ordering import (
    KeyColumn,
    arrival_order,
    collide,
    collisions_apart,
    cuts_by_hash,
    cuts_by_key,
    decode_keys,
    in_order,
    key_rows,
    keys_at,
)
from millrace.kernel.record_ids import SourceIds
from millrace.kernel.timers import DueTimers, pending_by
from millrace.model.calls import Outcome
from millrace.model.keys import decode_key
from millrace.model.record import LOW_WATERMARK, WALL_TIME, Record
from millrace.model.time import MIN_TIMESTAMP
from millrace.store import View
from millrace.watermark.intervals import IntervalMap, KeyInterval
from millrace.watermark.report import NOTHING_PENDING, Report

Column = npt.NDArray[Any]

#: Returns the n-th value of some records, decoded again: a record that is processed a second time
#: must not be what user code has made of it the first time.
Again = Callable[[int], Any]

#: Up to so many records Python sorts and cuts in less time than NumPy's calls cost, however short
#: the columns: a bundle of 1 record takes 40 us less, of 540, one of 10 takes 55 us less, of 640.
_FEW = 50
#: From so many records a run on, a list is put together from slices: they cost what 16 items do.
_RUN = 16


class ReceivedRecords:
    """Records of one computation, as columns of equal length, in any order.

    Attributes:
        hashes: uint64, the keys' hashes.
        keys: Encoded keys, a list of them or a :class:`KeyColumn`.
        values: Decoded values.
        timestamps: int64, microseconds.
        streams: Name of the stream of each record; or one name, of all of them.
        origins: int64, first half of the record ids.
        sequences: int64, second half.
        ids: Source ids; None where nobody filters duplicates by them.
        weights: How many records each stands for; None if for itself only.
        again: Decodes the n-th value again; None where values cannot change.
    """

    __slots__ = (
        "again", "hashes", "ids", "keys", "origins", "sequences", "streams", "timestamps", "values",
        "weights",
    )  # fmt: skip

    def __init__(
        self,
        hashes: Column,
        keys: Sequence[bytes],
        values: Sequence[Any],
        timestamps: Column,
        streams: Sequence[str] | str,
        origins: Column,
        sequences: Column,
        ids: SourceIds | None = None,
        weights: Column | None = None,
        again: Again | None = None,
    ) -> None:
        self.again = again
        self.hashes = hashes
        self.ids = ids
        self.weights = weights
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.streams = streams
        self.origins = origins
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def concat(cls, parts: Sequence[ReceivedRecords]) -> ReceivedRecords:
        """Return several lots as one."""
        if len(parts) == 1:
            return parts[0]
        empty = np.empty(0, dtype=np.int64)
        return cls(
            np.concatenate([part.hashes for part in parts] or [empty.astype(np.uint64)]),
            list(chain.from_iterable(part.keys for part in parts)),
            list(chain.from_iterable(part.values for part in parts)),
            np.concatenate([part.timestamps for part in parts] or [empty]),
            list(chain.from_iterable(part.stream_names() for part in parts)),
            np.concatenate([part.origins for part in parts] or [empty]),
            np.concatenate([part.sequences for part in parts] or [empty]),
            SourceIds.concat([part.ids or SourceIds.none(len(part)) for part in parts])
            if any(part.ids is not None for part in parts)
            else None,
            np.concatenate(
                [np.ones(len(p), np.int64) if p.weights is None else p.weights for p in parts]
            )
            if any(part.weights is not None for part in parts)
            else None,
            _again_in(parts),
        )

    def stream_names(self) -> Sequence[str]:
        """Return the stream of each record."""
        return [self.streams] * len(self) if isinstance(self.streams, str) else self.streams

    def take(self, order: npt.NDArray[np.intp]) -> ReceivedRecords:
        """Return the records in another order."""
        pick = _picking(order)
        return ReceivedRecords(
            self.hashes[order],
            self.keys.take(order) if isinstance(self.keys, KeyColumn) else pick(self.keys),
            pick(self.values),
            self.timestamps[order],
            self.streams if isinstance(self.streams, str) else pick(self.streams),
            self.origins[order],
            self.sequences[order],
            None if self.ids is None else self.ids.take(order),
            None if self.weights is None else self.weights[order],
            _again_at(self.again, order),
        )

    def of_intervals(self, intervals: IntervalMap) -> dict[int, KeyedRecords]:
        """Return interval id -> its records, of the intervals that have some."""
        return {
            interval.id: records
            for interval, records in self.by_interval(intervals)
            if len(records.cuts) > 1
        }

    def by_interval(
        self, intervals: IntervalMap, *, by_time: bool = False
    ) -> Iterator[tuple[KeyInterval, KeyedRecords]]:
        """Yield the intervals that have records, with theirs.

        Within a key, records are ordered by id: by origin, then by their place in it. That is the
        order of arrival as the sender sent, and, unlike the order in which a shuffle happens to
        fetch its blocks, it is the same on every attempt.

        Args:
            intervals: The computation's interval map.
            by_time: Order the records of a key by timestamp first, for a batch.
        """
        if not len(self):
            return
        if len(self) <= _FEW and not by_time:
            arrived, cuts = self._sorted_by_hand()
        else:
            arrived, cuts = self._sorted(by_time=by_time)
        hashes = arrived.hashes[cuts[:-1]]
        keys = keys_at(arrived.keys, cuts[:-1])
        origins, sequences, ids = arrived.origins, arrived.sequences, arrived.ids
        if ids is not None:
            # From here on the id of a record is that of its source: the same when it comes again.
            origins, sequences = ids.halves_over(origins, sequences)
        records = KeyedRecords(
            key_rows(hashes.astype(">u8").tobytes(), keys),
            keys,
            decode_keys(keys),
            arrived.values,
            arrived.timestamps.tolist(),
            arrived.streams,
            _listed(origins),
            sequences.tolist(),
            cuts,
            ids,
            arrived.weights,
            arrived.again,
        )
        if len(intervals) == 1:
            yield intervals.intervals[0], records
            return
        where = intervals.locate(hashes)
        firsts = [0, *(np.flatnonzero(np.diff(where)) + 1).tolist(), len(where)]
        for first, last in itertools.pairwise(firsts):
            yield intervals.intervals[where[first]], records.of_keys(first, last)

    def _sorted(self, *, by_time: bool) -> tuple[ReceivedRecords, list[int]]:
        """Return the records in order, and where keys begin."""
        arrived = self
        if by_time:
            arrived = arrived.take(
                np.lexsort((self.sequences, self.origins, self.timestamps, self.hashes))
            )
        elif not in_order(self.hashes, self.origins, self.sequences):
            arrived = arrived.take(arrival_order(self.hashes, self.origins, self.sequences))
        cuts = cuts_by_hash(arrived.hashes)
        if not collide(arrived.keys, arrived.hashes, cuts):
            return arrived, cuts
        apart = collisions_apart([*arrived.keys], cuts)
        if apart is not None:
            arrived = arrived.take(apart)
        return arrived, cuts_by_key([*arrived.keys], cuts)

    def _sorted_by_hand(self) -> tuple[ReceivedRecords, list[int]]:
        """Return the same as :meth:`_sorted`, for a few records: without NumPy."""
        ranks = list(
            zip(
                self.hashes.tolist(), self.keys, self.origins.tolist(), self.sequences.tolist(),
                strict=True,
            )
        )  # fmt: skip
        arrived = self
        if any(one > other for one, other in itertools.pairwise(ranks)):
            order = sorted(range(len(ranks)), key=ranks.__getitem__)
            arrived = self.take(np.array(order, dtype=np.intp))
            ranks = [ranks[n] for n in order]
        names = [(hash, key) for hash, key, _, _ in ranks]
        changes = [n for n in range(1, len(names)) if names[n] != names[n - 1]]
        return arrived, [0, *changes, len(names)]


class KeyedRecords:
    """Records of one interval, sorted by key; the records of key k lie in cuts[k]:cuts[k + 1].

    Attributes:
        key_rows: The part of a row that names each key (:mod:`millrace.kernel.families`).
        encoded: The keys, encoded.
        keys: The keys as user code has them.
        values: The records' values; the next columns are by record, too.
        streams: The stream of each record; or one, of all of them.
        cuts: Where keys begin; one more than there are keys.
        ids: Source ids; None where nobody filters duplicates by them.
        weights: How many records each stands for; None if for itself only.
        again: Decodes the n-th value again; None where values cannot change.
    """

    __slots__ = (
        "again", "cuts", "encoded", "ids", "key_rows", "keys", "origins", "sequences", "streams",
        "timestamps", "values", "weights",
    )  # fmt: skip

    def __init__(
        self,
        key_rows: list[bytes],
        encoded: list[bytes],
        keys: list[Any],
        values: Sequence[Any],
        timestamps: list[int],
        streams: Sequence[str] | str,
        origins: list[int],
        sequences: list[int],
        cuts: list[int],
        ids: SourceIds | None = None,
        weights: Column | None = None,
        again: Again | None = None,
    ) -> None:
        self.again = again
        self.ids = ids
        self.weights = weights
        self.key_rows = key_rows
        self.encoded = encoded
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.streams = streams
        self.origins = origins
        self.sequences = sequences
        self.cuts = cuts

    def of_keys(self, first: int, last: int) -> KeyedRecords:
        """Return the same records with only the cuts of some keys: no record is copied."""
        return KeyedRecords(
            self.key_rows[first:last],
            self.encoded[first:last],
            self.keys[first:last],
            self.values,
            self.timestamps,
            self.streams,
            self.origins,
            self.sequences,
            self.cuts[first : last + 1],
            self.ids,
            self.weights,
            self.again,
        )

    def count(self) -> int:
        """Return how many records there are, those that partials stand for included."""
        first, last = self.cuts[0], self.cuts[-1]
        return last - first if self.weights is None else int(self.weights[first:last].sum())

    def only(self, mask: npt.NDArray[np.bool_]) -> KeyedRecords:
        """Return some of the records, without the keys of which none is among them.

        Args:
            mask: One a record, from the first of the first key to the last of the last.
        """
        first, last = self.cuts[0], self.cuts[-1]
        before = np.concatenate(([0], np.cumsum(mask)))[np.array(self.cuts) - first]
        alive, flags = (np.diff(before) > 0).tolist(), mask.tolist()

        def those(column: Sequence[Any]) -> list[Any]:
            return list(itertools.compress(column[first:last], flags))

        return KeyedRecords(
            list(itertools.compress(self.key_rows, alive)),
            list(itertools.compress(self.encoded, alive)),
            list(itertools.compress(self.keys, alive)),
            those(self.values),
            those(self.timestamps),
            self.streams if isinstance(self.streams, str) else those(self.streams),
            those(self.origins),
            those(self.sequences),
            np.unique(before).tolist(),
            None if self.ids is None else self.ids.take(np.flatnonzero(mask) + first),
            None if self.weights is None else self.weights[first:last][mask],
            None if self.again is None else _again_at(self.again, np.flatnonzero(mask) + first),
        )

    def stream_of(self, n: int) -> str:
        """Return the stream of the n-th record."""
        return self.streams if isinstance(self.streams, str) else self.streams[n]

    def original(self, n: int) -> Any:
        """Return the n-th value as it arrived, whatever user code has done to it since."""
        return self.values[n] if self.again is None else self.again(n)

    def again_among(self, values: Sequence[Any], places: Sequence[int | None]) -> Again | None:
        """Return what decodes values again of which some are of these records.

        Args:
            values: Those, in any order.
            places: Which record each is of; None for one of no record, which stays as it is.
        """
        decode = self.again
        if decode is None:
            return None

        def again(n: int) -> Any:
            place = places[n]
            return values[n] if place is None else decode(place)

        return again

    def record(self, n: int, key: Any, *, late: bool) -> Record:
        """Return the n-th record, of a key, as it arrived."""
        return Record(
            key, self.original(n), self.timestamps[n], self.stream_of(n), late, self.origins[n],
            self.sequences[n],
        )  # fmt: skip


def _listed(origins: Column) -> list[int]:
    """Return a column as a list: one number over and over, where one process was read."""
    if (first := int(origins.min())) == int(origins.max()):
        return [first] * len(origins)
    return origins.tolist()  # type: ignore[no-any-return]


NO_RECORDS = KeyedRecords([], [], [], [], [], "", [], [], [0])


def _again_at(again: Again | None, order: npt.NDArray[np.intp]) -> Again | None:
    """Return what decodes values again that are in another order now."""
    return None if again is None else lambda n: again(int(order[n]))


def _again_in(parts: Sequence[ReceivedRecords]) -> Again | None:
    """Return what decodes values of several lots again, which are one now."""
    if all(part.again is None for part in parts):
        return None
    starts = [0, *itertools.accumulate(map(len, parts))]

    def again(n: int) -> Any:
        part = bisect.bisect_right(starts, n) - 1
        of, within = parts[part], n - starts[part]
        return of.values[within] if of.again is None else of.again(within)

    return again


def _picking(order: npt.NDArray[np.intp]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return what returns the items of a list in another order.

    Where parts that are in order come together, long runs stay as they are.
    """
    starts = [0, *(np.flatnonzero(np.diff(order) != 1) + 1).tolist()]
    if len(starts) * _RUN > len(order):
        positions = order.tolist()
        return lambda items: list(map(items.__getitem__, positions))
    lengths = np.diff(starts, append=len(order)).tolist()
    runs = [
        slice(first, first + length)
        for first, length in zip(order[starts].tolist(), lengths, strict=True)
    ]
    return lambda items: list(chain.from_iterable(items[run] for run in runs))


class Position(msgspec.Struct, frozen=True):
    """Where an interval stands: after its last commit.

    Attributes:
        number: Of that commit; 0 before the first.
        chain: That commit's, by which a cache of another history is told.
        report: What pinned its low watermark then.
    """

    number: int = 0
    chain: int = 0
    report: Report = NOTHING_PENDING


#: A record for every key: its timestamp, value, stream, and both parts of its id.
Signal = tuple[int, Any, str, int, int]


class Attempt(msgspec.Struct, frozen=True):
    """One attempt at bundles of a computation: in whose name they commit, and what time it is.

    Attributes:
        epoch: That the commits belong to.
        generation: Of the run.
        wall_time_us: The wall clock.
        arrival_watermark_us: Input low watermark while the records were on their way: one behind it
            is late.
        input_watermarks: Percentile -> input low watermark now that they are here; it fires timers.
            100 is the low watermark itself.
        output_watermark_us: Low watermark that the computation had shown its consumers before: what
            it produces behind it reaches them late.
        arrival_percentiles: Percentile -> its low watermark while the records were on their way.
        fired_watermark_us: Input low watermark up to which timers have fired, and source ids have
            been collected.
        intervals: How many intervals the computation has. They share the worker's memory for source
            ids.
        task: Which of the epoch's tasks it is; of a live one, 0: its segment is grown.
        wall_timers_us: Up to when wall-clock timers fire, if that is not the wall clock: at the end
            of a batch the end of time.
    """

    epoch: int
    generation: int
    wall_time_us: int
    arrival_watermark_us: int
    input_watermarks: Mapping[int, int]
    output_watermark_us: int = MIN_TIMESTAMP
    arrival_percentiles: Mapping[int, int] = {}
    fired_watermark_us: int = MIN_TIMESTAMP
    intervals: int = 1
    task: int = 0
    wall_timers_us: int | None = None

    @property
    def input_watermark_us(self) -> int:
        """Input low watermark now that the records are here."""
        return self.input_watermarks[100]

    def clocks(self, percentiles: Mapping[int, int]) -> dict[int, int]:
        """Return clock -> its time; timers up to there are due.

        Args:
            percentiles: Percentile -> low watermark of that share of the input.
        """
        wall_us = self.wall_time_us if self.wall_timers_us is None else self.wall_timers_us
        clocks: dict[int, int] = {LOW_WATERMARK: self.input_watermarks[100], WALL_TIME: wall_us}
        for percentile, us in percentiles.items():
            clocks[timer_families.clock_of(LOW_WATERMARK, percentile)] = us
        return clocks


_Known = TypeVar("_Known")


class RecentIntervals(dict[int, _Known]):
    """What is known of the intervals of a computation that were last at hand.

    There is room for as many as the computation has, so those that a remap has ended go.

    >>> recent = RecentIntervals[str]()
    >>> for interval in (0, 1, 0, 2):
    ...     recent.put(interval, "known", intervals=2)
    >>> list(recent)
    [0, 2]
    """

    def put(self, interval: int, known: _Known, intervals: int) -> None:
        """Take what is known of an interval; it is the last one at hand.

        Args:
            interval: Its id.
            known: What is known of it.
            intervals: How many the computation has.
        """
        self.pop(interval, None)
        self[interval] = known
        while len(self) > max(1, intervals):
            del self[next(iter(self))]


class Bundle(msgspec.Struct, frozen=True):
    """Records for one interval, where it stands, and the attempt; its due timers come with them.

    Attributes:
        interval: The interval.
        position: Where it stands.
        attempt: At this bundle, and at those of other intervals.
        records: What arrived; none if only timers are due.
        signals: Of a batch, whose records are in order of time: those for every key that came in
            earlier bundles. None: it is no batch.
        outcomes: Of calls that were pending in the interval; see ``kernel/calls.py``, as for the
            next four.
        again: Whether the calls that are pending in its rows are to be made again.
        within: What is pending in memory; None where it is kept in rows.
        goes_on: Whether bundles before commit together with it.
        calls_before: How many records were pending in those.
    """

    interval: KeyInterval
    position: Position
    attempt: Attempt
    records: KeyedRecords = NO_RECORDS
    signals: Sequence[Signal] | None = None
    outcomes: Sequence[Outcome] = ()
    again: bool = False
    within: dict[bytes, dict[bytes, Any]] | None = None
    goes_on: bool = False
    calls_before: int = 0

    @property
    def number(self) -> int:
        """The number that its commit will have."""
        return self.position.number + 1


#: A key group of a bundle: its row, its key encoded and as it is, its first record and past its
#: last, its due timers.
KeyGroup = tuple[bytes, bytes, Any, int, int, DueTimers | None]

#: Row of a key -> the key, encoded, and its due timers.
_Due = dict[bytes, tuple[bytes, DueTimers]]

_NONE_DUE: _Due = {}


def key_groups_of(bundle: Bundle, view: View, clocks: Mapping[int, int]) -> list[KeyGroup]:
    """Return what each key has to do, sorted by row.

    Args:
        bundle: The bundle.
        view: The rows of its interval, as they were before it.
        clocks: Clock -> its time; timers up to there are due.
    """
    due = (
        _NONE_DUE
        if bundle.position.report == NOTHING_PENDING
        else _due(bundle.position.report, view, clocks)
    )
    records = bundle.records
    cuts = records.cuts
    timers: Iterable[DueTimers | None] = repeat(None, len(records.keys))
    if due:
        nothing: tuple[bytes, None] = (b"", None)
        timers = [due.pop(key_row, nothing)[1] for key_row in records.key_rows]
    parts: list[KeyGroup] = list(
        zip(
            records.key_rows, records.encoded, records.keys, cuts[:-1], cuts[1:], timers,
            strict=True,
        )
    )  # fmt: skip
    if due:
        parts += [
            (key_row, encoded, decode_key(encoded), 0, 0, alone)
            for key_row, (encoded, alone) in due.items()
        ]
        parts.sort(key=itemgetter(0))
    return parts


def _due(report: Report, view: View, clocks: Mapping[int, int]) -> _Due:
    due: _Due = {}
    for clock, clock_us in clocks.items():
        if pending_by(report, clock) > clock_us:
            continue
        for key_row, key, timer, setting in timer_families.due_timers(view, clock, clock_us):
            due.setdefault(key_row, (key, {}))[1][timer] = setting
    return due
