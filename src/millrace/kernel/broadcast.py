"""What goes to every key of an interval: signals, rows of side inputs, records that wait for them.

Signals and rows come once to an interval. A signal is a record of every key that has windows, or
elements in the same bundle. So it costs what those keys cost, and keys that are not there yet have
nothing that could fire. Rows go to the tables of side inputs, before any key of the bundle runs.

A record that waits until side inputs have come so far is an entry of a hidden map of its key. Its
timer fires when the low watermark has passed it, and holds that at the record's timestamp.

Source: Dataflow patent, "any other relevant external signals (data injection requests ...)".
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec, StreamSpec
from millrace.kernel import families, row_codec, timer_families
from millrace.kernel.bundle import Bundle, KeyedRecords, KeyGroup, Signal
from millrace.kernel.results import Counters
from millrace.kernel.row_codec import ALL_KEYS_ROW
from millrace.kernel.side_tables import BoundSide, TableChange
from millrace.kernel.timers import KeyTimers
from millrace.kernel.user_api import UserApi
from millrace.kernel.user_errors import Failures
from millrace.model.computation import Computation
from millrace.model.errors import RAISED
from millrace.model.keys import decode_key, encode_key
from millrace.model.pane import Paned
from millrace.model.record import DeadLetter, Record
from millrace.model.state import SideInput
from millrace.model.time import MIN_TIMESTAMP
from millrace.store import View

#: Counter of keys that have windows and were not told, for they are too long to stand in a row.
UNTOLD = "signals_untold"


def signal_streams(spec: ComputationSpec) -> frozenset[str]:
    """Return the streams whose records are for every key; rows of side inputs are for none."""
    everywhere = {stream for stream, taken in spec.side_streams.items() if taken.everywhere}
    tables = (cell for cell in spec.cells.values() if isinstance(cell, SideInput))
    return frozenset(everywhere.difference(table.stream for table in tables))


def signals_in(records: KeyedRecords, streams: Collection[str]) -> list[Signal]:
    """Return the signals among the records of an interval, in order."""
    return [
        (records.timestamps[n], records.values[n], records.stream_of(n), records.origins[n],
         records.sequences[n])
        for n in range(records.cuts[0], records.cuts[-1])
        if records.stream_of(n) in streams
    ]  # fmt: skip


def with_signals(
    bundle: Bundle, parts: list[KeyGroup], view: View, streams: Collection[str], counters: Counters
) -> tuple[Bundle, list[KeyGroup]]:
    """Return a bundle and parts in which the signals are records of each key, after its others.

    In a batch, where they are in order of time, they come after what is not later.

    Args:
        bundle: The bundle.
        parts: Of each key.
        view: The rows of its interval, as they were before it.
        streams: As :func:`signal_streams` has them.
        counters: Takes :data:`UNTOLD`.
    """
    records, before = bundle.records, bundle.signals
    signals = [*(before or ()), *signals_in(records, streams)] if streams else []
    if not signals:
        return bundle, parts
    by_key: dict[bytes, KeyGroup] = {
        part[0]: part
        for part in parts
        if part[3] == part[4] or records.stream_of(part[3]) not in streams
    }
    for key_row in _with_windows(view):
        if key_row in by_key:
            continue
        encoded = row_codec.key_in(key_row)
        if encoded is None:
            counters.counted[UNTOLD] = counters.counted.get(UNTOLD, 0) + 1
            continue
        by_key[key_row] = key_row, encoded, decode_key(encoded), 0, 0, None
    made, groups, places = list[Signal](), list[KeyGroup](), list[int | None]()
    for key_row, encoded, key, start, stop, due in (by_key[row] for row in sorted(by_key)):
        first = len(made)
        made += [
            (records.timestamps[n], records.values[n], records.stream_of(n), records.origins[n],
             records.sequences[n])
            for n in range(start, stop)
        ]  # fmt: skip
        places += range(start, stop)
        for signal in signals:
            at = len(made)
            if before is not None:
                at = bisect.bisect_right(made, signal[0], lo=first, key=_time)
            made.insert(at, signal)
            places.insert(at, None)
        groups.append((key_row, encoded, key, first, len(made), due))
    columns = [list(column) for column in zip(*made, strict=True)] or [[], [], [], [], []]
    timestamps, values, of, origins, sequences = columns
    spread = KeyedRecords(
        [part[0] for part in groups],
        [part[1] for part in groups],
        [part[2] for part in groups],
        values,
        timestamps,
        of,
        origins,
        sequences,
        [0, *(part[4] for part in groups)],
        again=records.again_among(values, places),
    )
    return replace(bundle, records=spread), groups


def _with_windows(view: View) -> Iterator[bytes]:
    """Yield the keys that have entries in maps, which windows are, as rows name them."""
    last = ALL_KEYS_ROW
    for row, _ in row_codec.scan(view, families.MAP):
        key_row = row_codec.key_row_at(row, 1)
        if key_row not in (last, ALL_KEYS_ROW):
            yield key_row
        last = key_row


def _time(signal: Signal) -> int:
    return signal[0]


class _Came(NamedTuple):
    """Rows as a bundle brings them: what, beside a table, decides what becomes of it."""

    fired_watermark_us: int
    keys: list[bytes]
    firsts: list[int]
    streams: Sequence[str]
    timestamps: list[int]
    values: Sequence[Any]

    @classmethod
    def of(cls, bundle: Bundle, ours: list[KeyGroup]) -> _Came:
        """Return the rows of a bundle, with what lies between them, which is next to nothing."""
        records, first, last = bundle.records, ours[0][3], ours[-1][4]
        streams = records.streams
        return cls(
            bundle.attempt.fired_watermark_us,
            [part[1] for part in ours],
            [part[3] - first for part in ours],
            streams if isinstance(streams, str) else streams[first:last],
            records.timestamps[first:last],
            records.values[first:last],
        )

    def is_like(self, other: _Came) -> bool:
        """Return whether other rows are the same: equal ones of a user's class may not be."""
        return (
            self[:-1] == other[:-1]
            and len(self.values) == len(other.values)
            and all(map(operator.is_, self.values, other.values))
        )


class SideTables:
    """The tables of one computation.

    Args:
        sides: Its side inputs.
        user: Its instance.
        calls: Of the key at hand.
        failures: Of the computation.
        set_aside: Takes the dead letter of a key.
    """

    def __init__(
        self,
        sides: Sequence[BoundSide],
        user: Computation,
        calls: UserApi,
        failures: Failures,
        set_aside: Callable[[DeadLetter, Any], None],
    ) -> None:
        self._by_stream = {side.stream: side for side in sides}
        self._user = user
        self._calls = calls
        self._failures = failures
        self._set_aside = set_aside
        self._fired_watermark_us = MIN_TIMESTAMP
        #: The rows that came last, and what they made of each table. Every interval of a task is
        #: brought the same rows, and most have the same tables; a row is worked on once for all.
        self._last: tuple[_Came, list[TableChange]] | None = None
        for side in sides:
            side.as_of = self._as_of

    def take(
        self, bundle: Bundle, parts: list[KeyGroup], note_late: Callable[[Bundle, int], None]
    ) -> list[KeyGroup]:
        """Take the rows among the records of a bundle; return the parts that are not rows.

        Args:
            bundle: The bundle.
            parts: Of each key. Those of rows hash to the first of the interval's hashes.
            note_late: Called with the number of a row that is late.

        Raises:
            UserCodeError: A row cannot be taken, and no stream takes dead letters.
        """
        if not self._by_stream:
            return parts
        records, ours, others = bundle.records, list[KeyGroup](), list[KeyGroup]()
        self._fired_watermark_us = bundle.attempt.fired_watermark_us
        for side in self._by_stream.values():
            side.begin(bundle.attempt.fired_watermark_us)
        stream_of, by_stream = _streams(records), self._by_stream
        for part in parts:
            row = part[3] < part[4] and stream_of(part[3]) in by_stream
            (ours if row else others).append(part)
        last, self._last = self._last, None
        if not ours:
            return others
        came = _Came.of(bundle, ours)
        if last is not None and last[0].is_like(came) and self._repeat(last[1]):
            self._last = last
            for _, _, self._user.key, start, stop, *_ in ours:
                for n in range(start, stop):
                    if records.timestamps[n] < bundle.attempt.arrival_watermark_us:
                        note_late(bundle, n)
        elif (changes := self._take(bundle, ours, note_late)) is not None:
            self._last = came, changes
        return others

    def _take(
        self, bundle: Bundle, ours: list[KeyGroup], note_late: Callable[[Bundle, int], None]
    ) -> list[TableChange] | None:
        """Take rows one by one; return what that made of each table, None if some were refused."""
        records, refused = bundle.records, False
        stream_of, timestamps = _streams(records), records.timestamps
        coming: dict[str, list[bytes]] = {}
        for _, encoded, _, start, stop, *_ in ours:
            for n in range(start, stop):
                coming.setdefault(stream_of(n), []).append(encoded)
        for stream, side in self._by_stream.items():
            side.read(coming.get(stream, ()))
        for _, encoded, key, start, stop, *_ in ours:
            self._user.key = key
            for n in range(start, stop):
                if timestamps[n] < bundle.attempt.arrival_watermark_us:
                    note_late(bundle, n)
                row, back = records.values[n], False
                if type(row) is Paned:
                    row, back = row.value, row.pane.retraction
                try:
                    side = self._by_stream[stream_of(n)]
                    side.take(encoded, row, timestamps[n], back=back)
                except RAISED as error:  # it says which row it is
                    refused = True
                    self._set_aside(self._failures.of_record(bundle, key, error, n), key)
        changes = [side.flush() for side in self._by_stream.values()]
        return None if refused else changes

    def _repeat(self, changes: list[TableChange]) -> bool:
        """Make of the tables what was made in another interval; return whether that is right."""
        sides = self._by_stream.values()
        if not all(side.would_repeat(change) for side, change in zip(sides, changes, strict=True)):
            return False
        for side, change in zip(sides, changes, strict=True):
            side.repeat(change)
        return True

    def _as_of(self) -> int:
        """Return the time whose rows the record or timer at hand sees.

        Those that a bundle before has passed may be gone, those that the low watermark has not
        passed may not be here yet.
        """
        return min(
            max(self._calls.at_hand_us, self._fired_watermark_us - 1), self._user.low_watermark - 1
        )


def _streams(records: KeyedRecords) -> Callable[[int], str]:
    """Return what returns the stream of a record."""
    streams = records.streams
    return (lambda _: streams) if isinstance(streams, str) else streams.__getitem__


class Waited(NamedTuple):
    """A record as it was kept: as it came, with its id."""

    stream: str
    value: Any
    timestamp_us: int
    origin: int
    sequence: int


class DeferredRecords:
    """The waiting records of one computation.

    Args:
        streams: Of the pipeline.
        user: Its instance.
        cell: Keeps them.
        timers: Of the key at hand.
        calls: Likewise.
        process_record: What is called with a record when its time has come.
    """

    def __init__(
        self,
        streams: Mapping[str, StreamSpec],
        user: Computation,
        cell: Any,
        timers: KeyTimers,
        calls: UserApi,
        process_record: Callable[[Record], Any],
    ) -> None:
        self._streams = streams
        self._user = user
        self._cell = cell
        self._timers = timers
        self._calls = calls
        self._process_record = process_record

    def process_or_keep(self, record: Record) -> Any:
        """Keep a record, unless it is late: then nothing that it could wait for will come."""
        if record.late:
            return self._process_record(record)
        name = (record.timestamp, record.origin, record.sequence)
        coder = self._streams[record.stream].coder
        self._cell[name] = (record.stream, coder.encode(record.value))
        tag = timer_families.waiting_tag(encode_key(name))
        self._timers.set(tag, 0, (record.timestamp + 1, record.timestamp, 100))
        return None

    def taken(self, entry: bytes) -> Waited:
        """Return a record of the key at hand, which does not wait any more."""
        name = decode_key(entry)
        stream, data = self._cell.pop(name)
        return Waited(stream, self._streams[stream].coder.decode(data), *name)

    def process(self, waited: Waited) -> Any:
        """Have user code process a record that has waited."""
        stream, value, at_us, origin, sequence = waited
        self._calls.at_hand_us = at_us
        record = Record(self._user.key, value, at_us, stream, False, origin, sequence)
        return self._process_record(record)
