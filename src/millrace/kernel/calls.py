"""Calls of a computation: from records to calls, and from outcomes to responses.

A call is an effect of a bundle, and its outcome comes with a later one. The record is pending
meanwhile. Where a bundle has a memory of what is pending, as within an epoch, it is kept there.
Else it is state of its key: an entry of a hidden map, and a timer that waits for the end of time
and holds the low watermark at the record's timestamp. That timer is never due; it makes an interval
tell that calls are pending, and finds them.

Names of pending records are in the order of their arrival: number of the commit, and of the call in
it.

Source: docs/design/2026-11-28-calls.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NoReturn

import msgspec
from msgspec.structs import replace

from millrace.compile.change.identity import Routes
from millrace.compile.topology import ComputationSpec, Topology
from millrace.kernel import timer_families
from millrace.kernel.bundle import Bundle, KeyedRecords, KeyGroup
from millrace.kernel.cells import Bound, read_only
from millrace.kernel.timers import KeyRows, KeyTimers
from millrace.kernel.user_api import UserApi
from millrace.model.async_computation import AsyncComputation
from millrace.model.calls import Call, Outcome
from millrace.model.coder import Coder, is_immutable
from millrace.model.coroutines import refuse_returned, refuse_unrun
from millrace.model.errors import InvariantViolation, PipelineError
from millrace.model.keys import decode_key, encode_key
from millrace.model.pane import Paned, plain
from millrace.model.record import WALL_TIME, DeadLetter, Record
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import View

#: The stream of outcomes, from a computation to itself. No stream of a user's is called so.
OUTCOMES: Final = "\0outcomes"


class CallSource(msgspec.Struct, frozen=True, gc=False):
    """Where an outcome belongs.

    Attributes:
        computation: Its name.
        interval: The key interval.
        key_row: The part of a row that names the key.
        encoded: The key, encoded.
        name: Of the pending record.
        timestamp_us: Of the record.
    """

    computation: str
    interval: int
    key_row: bytes
    encoded: bytes
    name: bytes
    timestamp_us: int


class PendingRecord(msgspec.Struct, frozen=True, gc=False):
    """A record whose call has no outcome.

    Attributes:
        stream: That it came by.
        value: With its pane, if it has one.
        timestamp_us: Its event time.
        late: Whether it was behind the low watermark when it arrived.
        origin: Upper half of its id.
        sequence: Lower half.
        data: The value, encoded; None where nobody can change it in place. A call may.
    """

    stream: str
    value: Any
    timestamp_us: int
    late: bool
    origin: int
    sequence: int
    data: bytes | None = None


class PendingChange(msgspec.Struct, frozen=True):
    """What a bundle changes of what is pending of a key, where it is kept in memory.

    Attributes:
        added: Name -> record, in order.
        removed: Names.
    """

    added: dict[bytes, PendingRecord]
    removed: set[bytes]


#: Key row -> name -> record, in order of arrival.
PendingRecords = dict[bytes, dict[bytes, PendingRecord]]


def remember(pending: PendingRecords, changes: Mapping[bytes, PendingChange]) -> None:
    """Change what is pending as a bundle says."""
    for key_row, change in changes.items():
        of_key = pending.get(key_row)
        if of_key is None:
            of_key = pending[key_row] = {}
        of_key |= change.added
        for name in change.removed:
            of_key.pop(name, None)
        if not of_key:
            del pending[key_row]


class _Again:
    """Stands in the place of an outcome: what is pending of a key is to be asked again."""


_AGAIN: Final = _Again()
#: What a computation calls on itself.
_CALLS: Final = ("produce", "set_timer", "delete_timer", "hold", "increment")
_NONE: Final[dict[bytes, PendingRecord]] = {}
_NONE_POISONED: Final[dict[Any, DeadLetter]] = {}
_NONE_COUNTED: Final[dict[bytes, int]] = {}
#: So many rows of an interval's pending calls are read for each key of a bundle at most: that takes
#: as long as one scan.
_COUNTED_MOST: Final = 16


class CallHooks:
    """The hooks of a computation that makes calls; and, to its machine, a cell of each key.

    Args:
        topology: The pipeline.
        spec: The computation.
        user: Its instance.
        api: Of the key at hand.
        timers: Likewise.
        key_rows: Likewise.
        cell: The hidden map.
        cells: Those of the user's.
        around: Calls each hook that is given a record, if something is to.

    Attributes:
        calls: That the bundle makes.
        changes: Key row -> what the bundle changes of what is pending in memory.
        at_hand: Name of the pending record at hand, and the record; None if it is none.
        poisoned: Names of pending records that fail.
        count: How many records were pending in the bundle, and in those before with its number.
        kept: How many more records are pending in rows than before; of a bundle that asks again,
            than none.
    """

    def __init__(
        self,
        topology: Topology,
        spec: ComputationSpec,
        user: AsyncComputation,
        api: UserApi,
        timers: KeyTimers,
        key_rows: KeyRows,
        cell: Any,
        cells: Iterable[Bound],
        around: Callable[[Callable[[Any], Any], Any, Any], Any] | None,
    ) -> None:
        self._streams = topology.streams
        #: Stream -> what decodes a request that is its value; None where nobody can change one.
        self._decoders = {
            name: None if is_immutable(stream.coder) else partial(_decoded, stream.coder)
            for name, stream in topology.streams.items()
        }
        self._spec = spec
        #: Input stream -> the text by which rows know it; and the other way.
        self._routes = Routes(topology).of_inputs(spec)
        self._by_route = {route: stream for stream, route in self._routes.items()}
        self._user = user
        self._api = api
        self._timers = timers
        self._rows = key_rows
        self._cell = cell
        #: Each cell, its class, and that which it has while a request is made.
        self._cells = [(bound, type(bound), read_only(type(bound))) for bound in cells]
        self._api_calls = {name: vars(user)[name] for name in _CALLS}
        self._refused_calls = {name: partial(_refuse, spec.title, name) for name in _CALLS}
        self._around = around
        self._paned = spec.paned
        self._one_by_one = user._reads_state and user.calls.order == "key"
        self._needs_all = not user._reads_state
        #: Whether the request is the value: then no user code is called for it.
        self._asks_value = type(user).request is AsyncComputation.request
        #: Stream -> what names calls of its records, with key and id.
        self._salts: dict[str, bytes] = {}
        self.calls: list[Call] = []
        self.changes: dict[bytes, PendingChange] = {}
        self.at_hand: tuple[bytes, PendingRecord] | None = None
        self.poisoned: Mapping[Any, DeadLetter] = _NONE_POISONED
        self._bundle: Bundle
        self._within: PendingRecords | None = None
        self.count = self.kept = 0
        #: What names of the bundle's pending records begin with.
        self._numbered = b""
        # Of the key at hand: its calls, how many more are kept, and what changes in memory.
        self._asked: list[Call] = []
        self._more = 0
        self._encoded: bytes | None = None
        self._added: dict[bytes, PendingRecord] = {}
        self._removed: set[bytes] = set()
        #: Whether a record of the key is known to be pending.
        self._waits = False
        #: Key row -> how many records were pending in rows before the bundle; None: not counted.
        self._counts: Mapping[bytes, int] | None = None

    # -- of a bundle -------------------------------------------------------------------------------

    def begin_bundle(self, bundle: Bundle) -> None:
        """Start a bundle."""
        self.calls, self.changes = [], {}
        self.at_hand, self.poisoned = None, _NONE_POISONED
        self._bundle, self._within, self._counts = bundle, bundle.within, None
        self.count, self.kept = bundle.calls_before, 0
        self._numbered = bundle.number.to_bytes(8)

    def with_outcomes(
        self, bundle: Bundle, parts: list[KeyGroup], view: View
    ) -> tuple[Bundle, list[KeyGroup]]:
        """Return a bundle and parts in which outcomes are records of their keys, before its others.

        Args:
            bundle: The bundle.
            parts: Of each key.
            view: The rows of its interval, as they were before it.
        """
        events: dict[bytes, _KeyEvents] = {}
        if bundle.again:
            for key_row, encoded in _keys_pending(view):
                events[key_row] = _KeyEvents(encoded, decode_key(encoded), [_AGAIN], [0])
        for outcome in bundle.outcomes:
            source: CallSource = outcome.call.source
            of_key = events.get(source.key_row)
            if of_key is None:
                of_key = _KeyEvents(source.encoded, outcome.call.key, [], [])
                events[source.key_row] = of_key
            of_key.values.append(outcome)
            of_key.timestamps.append(source.timestamp_us)
        if self._one_by_one and self._within is None and not bundle.again:
            # To find the first that is pending of a key takes a scan, where all of them take one.
            pending, keys = bundle.position.report.wall_timers, len(parts) + len(events)
            if pending <= _COUNTED_MOST * keys:
                self._counts = timer_families.count_calls(view) if pending else _NONE_COUNTED
        if not events:
            return bundle, parts
        return _spliced(bundle, parts, events)

    # -- of a key: as a cell is --------------------------------------------------------------------

    def begin(self) -> None:
        """Start a key."""
        self._asked, self._added, self._removed = [], {}, set()
        self._waits, self._more = False, 0
        self.at_hand = self._encoded = None

    def flush(self) -> None:
        """Take what the key's part asked and changed."""
        if self._asked:
            self.calls += self._asked
        self.kept += self._more
        if self._added or self._removed:
            self.changes[self._rows.key_row] = PendingChange(self._added, self._removed)

    # -- hooks -------------------------------------------------------------------------------------

    def process_record(self, record: Record) -> None:
        """Take a record, or an outcome."""
        if record.stream is OUTCOMES or record.stream == OUTCOMES:
            if record.value is _AGAIN:
                self._ask_again()
            else:
                self._take(record.value)
            return
        data = None
        if self._decoders[record.stream] is not None:
            data = self._encode(record.stream, record.value)
        pending = PendingRecord(
            record.stream, record.value, record.timestamp, record.late, record.origin,
            record.sequence, data,
        )  # fmt: skip
        if self._one_by_one:
            self._keep_or_ask(pending)
        else:
            self._ask(None, pending)

    def _keep_or_ask(self, pending: PendingRecord) -> None:
        """Ask for a record, unless one of its key waits that must be answered first."""
        if self._one_by_one and (self._waits or self._first() is not None):
            self._keep(pending)
        else:
            self._ask(None, pending)

    def _take(self, outcome: Outcome) -> None:
        """Take the outcome of a call; nothing happens if its record is not pending."""
        name = outcome.call.source.name
        pending = self._pop(name)
        if pending is None:
            return
        if name not in self.poisoned:
            self.at_hand = name, pending
            if outcome.error is not None:
                raise outcome.error.with_traceback(_of_others(outcome.error.__traceback__))
            self._answer(pending, outcome.response)
        self.at_hand = None
        if self._one_by_one:
            self._ask_first()

    def _ask_first(self) -> None:
        """Ask for the first of the key's pending records that needs a call."""
        while (first := self._first()) is not None:
            name, pending = first
            if self._ask_pending(name, pending):
                return

    def _ask_again(self) -> None:
        """Ask for what is pending of the key in rows, as nobody does."""
        names = [*self._cell]
        self._more += len(names)
        if self._within is None and self._one_by_one:
            self._ask_first()
            return
        for name in names:
            pending = self._stored(name)
            if self._within is None:
                self._ask_pending(name, pending)
                continue
            # From here on it is kept in memory, like those that this epoch brings.
            self._remove_row(name, pending)
            if name in self.poisoned:
                continue
            self.at_hand = name, pending
            self._keep_or_ask(pending)
            self.at_hand = None

    def _ask_pending(self, name: bytes, pending: PendingRecord) -> bool:
        """Ask for a pending record; return whether it waits for an outcome now."""
        if name in self.poisoned:
            self._pop(name)
            return False
        self.at_hand = name, pending
        waits = self._ask(name, pending)
        self.at_hand = None
        return waits

    def _ask(self, name: bytes | None, pending: PendingRecord) -> bool:
        """Ask for a record, pending by a name or not; return whether it waits for an outcome."""
        user = self._user
        if self._asks_value:
            request = pending.value
            if self._paned and type(request) is Paned:
                request = request.value
        else:
            request = self._requested(pending)
        if request is None and not self._needs_all:
            if name is not None:
                self._pop(name)
            self._answer(pending, None)
            return False
        if name is None:
            name = self._keep(pending)
        key_row, encoded = self._rows.key_row, self._encoded
        if encoded is None:
            encoded = self._encoded = encode_key(user.key)
        source = CallSource(
            self._spec.name, self._bundle.interval.id, key_row, encoded, name, pending.timestamp_us
        )
        data = pending.data if self._asks_value else None
        decode = self._decoders[pending.stream]
        self._asked.append(
            Call(self._id(key_row, pending), user.key, request, source, data, decode)
        )
        return True

    def _encode(self, stream: str, value: Any) -> bytes:
        return bytes(self._streams[stream].coder.encode(value))

    def _unchanged(self, pending: PendingRecord) -> PendingRecord:
        """Return a pending record as it came, whatever a call has made of its value."""
        if pending.data is None:
            return pending
        return replace(pending, value=self._streams[pending.stream].coder.decode(pending.data))

    def _requested(self, pending: PendingRecord) -> Any:
        """Return what user code asks for a record."""
        user = self._user
        self._api.at_hand_us = pending.timestamp_us
        record, around = self._record(pending), self._around
        # It may be called again after a failure: what it changed would be changed twice.
        for cell, _, reading in self._cells:
            cell.__class__ = reading
        vars(user).update(self._refused_calls)
        try:
            if around is None:
                request = user.request(record)
            else:
                request = around(user.request, user.key, record)
        finally:
            for cell, kind, _ in self._cells:
                cell.__class__ = kind
            vars(user).update(self._api_calls)
        refuse_unrun(request, "request")
        return request

    def _answer(self, pending: PendingRecord, response: Any) -> None:
        """Have user code take a response."""
        self._api.at_hand_us = pending.timestamp_us
        user, record, around = self._user, self._record(pending), self._around
        process_response: Callable[[Record, Any], Any] = user.process_response
        if around is None:
            returned = process_response(record, response)
        else:
            returned = around(lambda record: process_response(record, response), user.key, record)
        refuse_returned(returned, "process_response")

    def _record(self, pending: PendingRecord) -> Record:
        """Return a pending record as hooks are given it."""
        value = pending.value
        record = Record(
            self._user.key, value, pending.timestamp_us, pending.stream, pending.late,
            pending.origin, pending.sequence,
        )  # fmt: skip
        if self._paned:
            if type(value) is Paned:
                record.pane, record.value = value.pane, value.value
            self._api.pane_at_hand = record.pane
        return record

    def _id(self, key_row: bytes, pending: PendingRecord) -> bytes:
        """Return what names a call to a service: the same whenever it is made."""
        ids = _packed(pending.origin & _MASK, pending.sequence & _MASK)
        salt = self._salts.get(pending.stream)
        if salt is None:
            place = [*self._routes].index(pending.stream)
            salt = self._salts[pending.stream] = f"{self._spec.name}\0{place}\0".encode()
        return blake2b(salt + key_row + ids, digest_size=16).digest()

    # -- what is pending ---------------------------------------------------------------------------

    def _keep(self, pending: PendingRecord) -> bytes:
        """Keep a record until its outcome is there; return its name."""
        name = self._numbered + self.count.to_bytes(4)
        self.count += 1
        self._waits = True
        if self._within is not None:
            self._added[name] = pending
            return name
        stream, at_us = pending.stream, pending.timestamp_us
        data = pending.data if pending.data is not None else self._encode(stream, pending.value)
        route = self._routes[stream]
        self._cell[name] = (route, data, at_us, pending.late, pending.origin, pending.sequence)
        self._more += 1
        # Behind the low watermark nothing can be held.
        hold_us = None if pending.late else at_us
        self._timers.set(_tag(name), WALL_TIME, (MAX_TIMESTAMP, hold_us, 100))
        return name

    def _pop(self, name: bytes) -> PendingRecord | None:
        """Return a record that is not pending any more; None if it was not."""
        self._waits = False
        if self._within is None:
            if name not in self._cell:
                return None
            pending = self._stored(name)
            self._remove_row(name, pending)
            return pending
        if name in self._added:
            return self._unchanged(self._added.pop(name))
        if name in self._removed:
            return None
        found = self._within.get(self._rows.key_row, _NONE).get(name)
        if found is None:
            return None
        self._removed.add(name)
        return self._unchanged(found)

    def _first(self) -> tuple[bytes, PendingRecord] | None:
        """Return the first pending record of the key, and its name."""
        if self._within is None:
            counts = self._counts
            if counts is not None and counts.get(self._rows.key_row, 0) + self._more <= 0:
                return None
            name = next(iter(self._cell), None)
            return None if name is None else (name, self._stored(name))
        for kept in (self._within.get(self._rows.key_row, _NONE), self._added):
            for name, pending in kept.items():
                if name not in self._removed:
                    return name, self._unchanged(pending)
        return None

    def _stored(self, name: bytes) -> PendingRecord:
        route, data, at_us, late, origin, sequence = self._cell[name]
        stream = self._by_route.get(route)
        if stream is None:
            # A plan lets steps in front of the only input change, and refuses it of several.
            if len(self._routes) > 1:
                raise InvariantViolation(
                    f"computation {self._spec.title!r} has a pending record of an input "
                    f"{route!r}, and has the inputs {sorted(self._by_route)}."
                )
            (stream,) = self._routes
        value = self._streams[stream].coder.decode(data)
        return PendingRecord(stream, value, at_us, late, origin, sequence, data)

    def _remove_row(self, name: bytes, pending: PendingRecord) -> None:
        del self._cell[name]
        self._more -= 1
        self._timers.delete(_tag(name), WALL_TIME)


def _refuse(title: str, call: str, *_arguments: Any, **_options: Any) -> NoReturn:
    """Refuse a call of a request on itself."""
    done = "produced a value" if call == "produce" else f"called {call}"
    raise PipelineError(
        f"{title}.request {done}. It may be called again after a failure, so it must change "
        "nothing. Do that in process_response."
    )


_HERE: Final = f"{Path(__file__).parent}/"


def _of_others(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the pool on: an error that was raised here before has more."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    return trace


_MASK: Final = (1 << 64) - 1
_packed: Final = struct.Struct(">QQ").pack


def _decoded(coder: Coder, data: bytes) -> Any:
    return plain(coder.decode(data))


def _tag(name: bytes) -> bytes:
    return timer_families.call_tag(encode_key(name))


def _keys_pending(view: View) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys of an interval with pending calls: as rows name them, and encoded."""
    last = b""
    for row in timer_families.pending_calls(view):
        if row.key_row != last:
            last = row.key_row
            yield row.key_row, row.key


class _KeyEvents(msgspec.Struct, gc=False):
    """Outcomes of a key, or that it is to be asked again.

    Attributes:
        encoded: The key, encoded.
        key: The key.
        values: What takes the place of records' values.
        timestamps: Of each, in microseconds.
    """

    encoded: bytes
    key: Any
    values: list[Any]
    timestamps: list[int]


def _spliced(
    bundle: Bundle, parts: list[KeyGroup], events: Mapping[bytes, _KeyEvents]
) -> tuple[Bundle, list[KeyGroup]]:
    """Return a bundle and parts with the events of keys, each before the records of its key.

    They stand behind all records; the records of those keys do so once more.
    """
    records = bundle.records
    count = len(records.values)
    values, timestamps = [*records.values], [*records.timestamps]
    streams: list[str]
    streams = [records.streams] * count if isinstance(records.streams, str) else [*records.streams]
    origins, sequences, places = (
        [*records.origins],
        [*records.sequences],
        list[int | None](range(count)),
    )
    by_key = {part[0]: part for part in parts}
    for key_row, of_key in events.items():
        first, more = len(values), len(of_key.values)
        values += of_key.values
        timestamps += of_key.timestamps
        streams += [OUTCOMES] * more
        origins += [0] * more
        sequences += [0] * more
        places += [None] * more
        part = by_key.get(key_row)
        encoded, key, due = of_key.encoded, of_key.key, None
        if part is not None:
            _, encoded, key, start, stop, due = part
            values += values[start:stop]
            timestamps += timestamps[start:stop]
            streams += streams[start:stop]
            origins += origins[start:stop]
            sequences += sequences[start:stop]
            places += range(start, stop)
        by_key[key_row] = (key_row, encoded, key, first, len(values), due)
    groups = [by_key[key_row] for key_row in sorted(by_key)]
    spliced = KeyedRecords(
        [part[0] for part in groups],
        [part[1] for part in groups],
        [part[2] for part in groups],
        values,
        timestamps,
        streams,
        origins,
        sequences,
        [0, len(values)],
        again=records.again_among(values, places),
    )
    return replace(bundle, records=spliced), groups
