"""The machine: one bundle of one key interval in, its effects out.

It is pure: it reads rows through the view it is given, calls user code, and returns what would be
committed. It opens nothing, waits for nothing, and knows no clock but those of the attempt.

Order within a bundle, for every key: its records in order of arrival, then its due timers in order
of time, those that a hook sets meanwhile included. Keys do not see each other.

Source: MillWheel, 6.1 (steps upon receipt of a record), 4.5 (late records), 4.6, 6.2; Dataflow,
"Windowing and triggering"; Streaming Engine, "work item".
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from types import CodeType
from typing import Any, TypeVar

import msgspec
from sortedcontainers import SortedDict

from millrace.compile.topology import ComputationSpec, Topology
from millrace.dataflow.calls import PENDING
from millrace.dataflow.operators import operator_of
from millrace.dataflow.side_stream import WAITING
from millrace.kernel import families, timer_families
from millrace.kernel.broadcast import DeferredRecords, SideTables, signal_streams, with_signals
from millrace.kernel.bundle import Bundle, KeyGroup, key_groups_of
from millrace.kernel.calls import OUTCOMES, CallHooks, PendingChange
from millrace.kernel.cells import Bound, CellBinding, assigned_to
from millrace.kernel.migration import Reshaping
from millrace.kernel.results import NO_LOAD, Counters, FirstLate, HookTimer, Load
from millrace.kernel.router import Router, RowsBuilder
from millrace.kernel.timers import DueTimers, KeyRows, KeyTimers, percentiles_of, report_of
from millrace.kernel.user_api import KeyHold, UserApi
from millrace.kernel.user_errors import Failures, Provenance, note, timer_loop
from millrace.model.async_computation import AsyncComputation
from millrace.model.calls import Call
from millrace.model.computation import Computation
from millrace.model.coroutines import refuse_returned
from millrace.model.errors import (
    LETTER_MOST,
    RAISED,
    InvariantViolation,
    StoreError,
    TimeLimitExceeded,
    TimerLoop,
    brief,
)
from millrace.model.keys import decode_key
from millrace.model.pane import Paned, plain
from millrace.model.record import DeadLetter, LateRecord, Record, TimeDomain, Timer
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD, MAX_TIMESTAMP, format_timestamp
from millrace.store import OverView, View
from millrace.watermark.report import Report


def first_late(bundle: Bundle, key: Any, n: int) -> FirstLate:
    """Return what a run is told of its first late record, the n-th of a bundle."""
    records = bundle.records
    return FirstLate(
        brief(key),
        records.stream_of(n),
        records.timestamps[n],
        bundle.attempt.arrival_watermark_us,
        bundle.attempt.epoch,
    )


def late_record(computation: str, bundle: Bundle, key: Any, n: int) -> LateRecord:
    """Return what the stream of late records gets of the n-th record of a bundle."""
    records = bundle.records
    return LateRecord(
        computation=computation,
        stream=records.stream_of(n),
        key=brief(key, LETTER_MOST),
        value=brief(plain(records.original(n)), LETTER_MOST),
        timestamp=records.timestamps[n],
        low_watermark=bundle.attempt.arrival_watermark_us,
        wall_time=bundle.attempt.wall_time_us,
        delivered_in=bundle.attempt.epoch,
    )


#: A hook returns nothing; what a user's returns all the same, as a coroutine, is refused.
Hook = Callable[[Record], Any]
Given = TypeVar("Given", Record, Timer)
#: What calls a hook in its place, with the key at hand and what the hook is given.
Around = Callable[[Callable[[Any], Any], Any, Any], Any]


def hooked(
    topology: Topology,
    spec: ComputationSpec,
    user: Computation,
    calls: UserApi,
    timers: KeyTimers,
    cells: Mapping[str, Any],
    *,
    causes: bool,
    around: Around | None = None,
    asking: CallHooks | None = None,
) -> tuple[Hook, DeferredRecords | None]:
    """Return what is called with each record of a computation, and where records wait.

    Args:
        topology: The pipeline.
        spec: The computation.
        user: Its instance.
        calls: Of the key at hand.
        timers: Likewise.
        cells: Its cells by name; one of them may be of records that wait.
        causes: Whether of each production is said which record it was made of.
        around: Calls the computation's hook with each record, if something is to.
        asking: Of a computation that makes calls, what takes records in the place of its hook.
    """
    if asking is not None:
        hook: Hook = asking.process_record
    else:
        hook = within(around, user, user.process_record)
        if spec.paned:
            hook = taking_panes(calls, hook)
    waiting = None
    if (kept := cells.get(WAITING)) is not None:
        waiting = DeferredRecords(topology.streams, user, kept, timers, calls, hook)
        hook = waiting.process_or_keep
    if spec.starts is not None:
        hook = starting(calls, user, spec.starts, hook)
    return saying_causes(calls, hook) if causes else hook, waiting


def within(
    around: Around | None, user: Computation, hook: Callable[[Given], Any]
) -> Callable[[Given], Any]:
    """Return a hook that something else calls, if something is to."""
    if around is None:
        return hook
    return lambda given: around(hook, user.key, given)


def taking_panes(calls: UserApi, process_record: Hook) -> Hook:
    """Return the hook of a computation some of whose input carries panes beside its values."""

    def process_plain(record: Record) -> Any:
        if type(record.value) is Paned:
            record.pane, record.value = record.value.pane, record.value.value
        calls.pane_at_hand = record.pane
        return process_record(record)

    return process_plain


def starting(calls: UserApi, user: Computation, stream: str, process_record: Hook) -> Hook:
    """Return the hook of a computation that was given keys: a record of theirs begins one."""
    process_start: Callable[[], Any] = user.process_start

    def process_or_start(record: Record) -> Any:
        if record.stream != stream:
            return process_record(record)
        calls.at_hand_us, calls.pane_at_hand = user.wall_time, None
        refuse_returned(process_start(), "process_start")
        return None

    return process_or_start


def saying_causes(calls: UserApi, process_record: Hook) -> Hook:
    """Return a hook that says of its productions which record they were made of."""

    def process_and_say(record: Record) -> Any:
        returned = process_record(record)
        calls.productions.caused_by(record.origin, record.sequence)
        return returned

    return process_and_say


def codes_of(*hooks: Callable[..., Any]) -> frozenset[CodeType]:
    """Return the code of hooks; one that is not a Python function, as if compiled, has none."""
    return frozenset(hook.__code__ for hook in hooks if hasattr(hook, "__code__"))


@dataclass(slots=True)
class Effects:
    """What a bundle changes: nothing has been written yet.

    Attributes:
        mutations: Row -> new value, or None where it is deleted.
        productions: What leaves once that is durable.
        report: What is pending then.
        counters: What happened.
        load: What it cost, but for the commit, which is not made yet.
        calls: That are to be made; see ``kernel/calls.py``, as for the next three.
        pending: Key row -> what changes of what is pending in memory; None if nothing is.
        call_count: How many records were pending in it, and in the bundles before with its number.
        calls_kept: How many more records are pending in rows than before.
    """

    mutations: MutableMapping[bytes, bytes | None]
    productions: RowsBuilder
    report: Report
    counters: Counters = field(default_factory=Counters)
    load: Load = NO_LOAD
    calls: Sequence[Call] = ()
    pending: Mapping[bytes, PendingChange] | None = None
    call_count: int = 0
    calls_kept: int = 0

    def over(self, view: View) -> View:
        """Return a view as these effects leave it; they may have others added while it is used."""
        if not isinstance(self.mutations, SortedDict):
            self.mutations = SortedDict(self.mutations)
        return OverView(view, self.mutations, view.cache_position)

    def then(self, later: Effects) -> None:
        """Add what a later bundle of the interval changes, which commits with this one."""
        self.mutations.update(later.mutations)
        self.productions.extend(later.productions)
        ids_us, version = self.report.ids_us, self.report.version
        self.report = msgspec.structs.replace(later.report, ids_us=ids_us, version=version)
        self.counters.add(later.counters)
        self.load = self.load.then(later.load)
        self.call_count = later.call_count


#: A hook may set timers that are already due; a chain of this many for one key in one bundle is a
#: loop. An hourly chain over a century has 876,600.
_REARMED_MAX = 1_000_000

#: What user code may raise and is a failure of its own. A KeyboardInterrupt is the user's wish.
CAUGHT = (*RAISED, TimeLimitExceeded)
_DOMAINS = tuple(TimeDomain)
_NONE_POISONED: dict[Any, DeadLetter] = {}


class Machine:
    """Runs one computation's bundles. It is bound to the computation, not to an interval.

    Args:
        topology: The pipeline.
        spec: The computation.
        router: Shared by all machines of a process.
        causes: Whether it is asked which record made a production; then there are no timers.
        around: Calls each hook that is given a record or timer, if something is to.
    """

    def __init__(
        self,
        topology: Topology,
        spec: ComputationSpec,
        router: Router,
        *,
        causes: bool = False,
        around: Around | None = None,
    ) -> None:
        self.spec = spec
        self._causes = causes
        self._router = router
        self._dead_letters = topology.dead_letters
        self._late_records = topology.late_records
        self._percentiles = topology.percentiles
        letters = topology.dead_letters is not None
        self._failures = Failures(
            spec.title, letters=letters, provenance=Provenance(topology) if letters else None
        )
        self._rows = KeyRows()
        self._timers = KeyTimers(self._rows)
        self._hold = KeyHold(self._rows)
        self._user = user = copy.copy(spec.instance)
        self._calls = calls = UserApi(topology, spec, user, router, self._timers, self._hold)
        declared, numbers = spec.cells, spec.cell_numbers
        self._cells = CellBinding(declared, numbers, self._rows, self._timers, calls.written_us)
        vars(user).update(self._cells.by_name)
        self._asking: CallHooks | None = None
        if isinstance(user, AsyncComputation):
            cells = dict(self._cells.by_name)
            pending = cells.pop(PENDING)
            bound = [cell for cell in cells.values() if isinstance(cell, Bound)]
            self._asking = CallHooks(
                topology, spec, user, calls, self._timers, self._rows, pending, bound, around
            )
            self._cells.collections.append(self._asking)
        self._process_record, self._waiting = hooked(
            topology, spec, user, calls, self._timers, self._cells.by_name, causes=causes,
            around=around, asking=self._asking,
        )  # fmt: skip
        self._process_timer = within(around, user, user.process_timer)
        self.timer = HookTimer(self._process_record, self._process_timer)
        # A letter of a migration is made of no record, of which weak productions have their ids.
        self._reshaping = Reshaping(spec, self._set_aside, letters=letters and not causes)
        self._sides = SideTables(self._cells.sides, user, calls, self._failures, self._set_aside)
        self._signals = signal_streams(spec)
        operator_of(user).set_refuse(self._refuse_answer)
        self._careful = False
        self._apart: list[DeadLetter] = []
        self._bundle: Bundle
        self._percentiles_us: Mapping[int, int] = {}
        self._overdue: dict[Any, DeadLetter] = {}
        self._counters = Counters()

    def run(self, bundle: Bundle, view: View) -> Effects:
        """Return what the bundle changes.

        Raises:
            UserCodeError: User code raised, and the pipeline declares no dead-letter stream.
        """
        key_rows, calls = self._rows, self._calls
        key_rows.mutations = {}
        key_rows.timed = []
        key_rows.freed = []
        key_rows.counts = [0, 0]
        key_rows.number = bundle.number
        key_rows.goes_on = bundle.goes_on
        calls.begin(bundle)
        asking = self._asking
        if asking is not None:
            asking.begin_bundle(bundle)
        if self._causes:
            calls.productions.causes = []
        self._counters = Counters()
        reshaped, view = self._reshaping.run(bundle, view)
        key_rows.view = view
        self._user.wall_time = bundle.attempt.wall_time_us
        self._bundle = bundle
        self._apart.clear()  # an earlier bundle may have ended with an error
        attempt, report = bundle.attempt, bundle.position.report
        self._percentiles_us = percentiles_of(self.spec, attempt.input_watermarks, report)
        self._timers.clocks = attempt.clocks(self._percentiles_us)
        # Counted only where some computation of the pipeline waits for a percentile.
        key_rows.delta = {} if self._percentiles else None
        self._run_bundle(bundle, view)
        attributes = vars(self._user)
        for name, cell in self._cells.by_name.items():
            if attributes.get(name) is not cell:
                raise assigned_to(type(self._user).__name__, name, cell)
        self._counters.records = bundle.records.count()
        report = self._reshaping.reported(self._report(bundle, view))
        mutations = reshaped | key_rows.mutations if reshaped else key_rows.mutations
        effects = Effects(mutations, calls.productions, report, self._counters)
        if asking is not None:
            effects.calls, effects.pending = asking.calls, asking.changes
            effects.call_count, effects.calls_kept = asking.count, asking.kept
        return effects

    @property
    def key_at_hand(self) -> Any:
        """The key whose part runs, or ran last. Any thread may ask."""
        return getattr(self._user, "key", None)

    @property
    def hooks(self) -> frozenset[CodeType]:
        """The code of what is called with a record or timer, and may be ended by an exception."""
        waits = [] if self._waiting is None else [self._waiting.process]
        return codes_of(self._process_record, self._process_timer, *waits)

    def at_hand(self) -> str:
        """Return what runs, in words, while it runs. Any thread may ask."""
        return f"computation {self.spec.title!r}, key {brief(self.key_at_hand)}"

    def _report(self, bundle: Bundle, view: View) -> Report:
        """Return what pins the low watermark now."""
        return report_of(self._rows, bundle.position.report, self._percentiles_us)

    def _run_bundle(self, bundle: Bundle, view: View) -> None:
        """Run what every key has to do."""
        parts = key_groups_of(bundle, view, self._timers.clocks)
        self._counters.keys = len(parts)
        parts = self._sides.take(bundle, parts, self._note_late)
        bundle, parts = with_signals(bundle, parts, view, self._signals, self._counters)
        if self._asking is not None:
            bundle, parts = self._asking.with_outcomes(bundle, parts, view)
        stored: Iterable[bytes | None] = repeat(None, len(parts))
        if self._cells.scalars is not None:
            stored = view.get_many([families.VALUES + part[0] for part in parts])
        self._run_keys(bundle, parts, stored)

    def _run_keys(
        self, bundle: Bundle, parts: list[KeyGroup], stored: Iterable[bytes | None]
    ) -> None:
        """Run every key's part.

        Nearly all the time that Millrace takes goes by here, so what does not change from key to
        key is at hand, and what a computation does not use is not called.
        """
        key_rows, user, timers = self._rows, self._user, self._timers
        calls, hold = self._calls, self._hold
        counters, edges = self._counters, calls.productions.edges
        begin = None if self._cells.scalars is None else self._cells.scalars.begin
        collections, flush = self._cells.collections, self._flush
        apart = self._apart
        process_record = self.timer.process_record
        records = bundle.records
        values, timestamps = records.values, records.timestamps
        origins, sequences = records.origins, records.sequences
        stream, streams = (
            (records.streams, None) if isinstance(records.streams, str) else ("", records.streams)
        )
        before_us = user.low_watermark = bundle.attempt.arrival_watermark_us
        user.percentile_low_watermarks = bundle.attempt.arrival_percentiles
        n = 0
        for part, raw in zip(parts, stored, strict=True):
            key_rows.key_row, encoded, user.key, start, stop, due = part
            if begin is not None:
                begin(raw)
            for collection in collections:
                collection.begin()
            if due is not None or timers.touched:
                timers.begin(due)
            hold.changed = None
            calls.earliest_late_us = MAX_TIMESTAMP
            before = (len(edges), counters.late, counters.timers)
            key = user.key
            try:
                for n in range(start, stop):
                    calls.at_hand_us = timestamp_us = timestamps[n]
                    if is_late := timestamp_us < before_us:
                        self._note_late(bundle, n)
                    returned = process_record(
                        Record(
                            key,
                            values[n],
                            timestamp_us,
                            stream if streams is None else streams[n],
                            is_late,
                            origins[n],
                            sequences[n],
                        )
                    )
                    if returned is not None:
                        refuse_returned(returned, "process_record")
            except CAUGHT as error:
                self._refused(bundle, key, error, n)
                failed = True
            else:
                failed = bool(timers.heap) and self._fire(bundle, _NONE_POISONED) is not None
            if failed or not flush(encoded):
                self._run_again(bundle, part, raw, before)
            if apart:
                self._send_apart(key)

    def _run_again(
        self, bundle: Bundle, part: KeyGroup, raw: bytes | None, before: tuple[int, int, int]
    ) -> None:
        """Run a key's part again without what fails in it, which becomes dead letters.

        Nothing of a key is written before its part ends, so taking it back is free. This time
        state is verified after every hook, so that a value changed in place to something that
        cannot be stored is laid to the record that did it.
        """
        _, encoded, key, start, stop, due = part
        length, late, fired = before
        # What took too long is not tried again, as that would take as long again.
        poisoned, self._overdue = self._overdue, {}
        self._careful = True
        if self._asking is not None:
            self._asking.poisoned = poisoned
        try:
            while True:
                self._calls.productions.truncate(length)
                self._counters.late, self._counters.timers = late, fired
                self._begin(raw, due)
                failed = self._attempt(bundle, start, stop, poisoned)
                if failed is None:
                    break
                name, dead_letter = failed
                poisoned[name] = dead_letter
        finally:
            self._careful = False
        if not self._flush(encoded):
            raise InvariantViolation(f"state of {self.spec.name} was verified, and refused after")
        for name, dead_letter in poisoned.items():
            self._set_aside(dead_letter, key)
            if self._causes:
                self._calls.productions.caused_by(
                    bundle.records.origins[name], bundle.records.sequences[name]
                )

    def _set_aside(self, dead_letter: DeadLetter, key: Any) -> None:
        """Send a dead letter of a key."""
        at_us = max(EARLIEST_RECORD, min(dead_letter.timestamp or 0, LATEST_RECORD))
        self._router.send(self._calls.productions, str(self._dead_letters), dead_letter, at_us, key)
        self._counters.dead_letters += 1
        note(self._counters.reasons, dead_letter)

    def _refuse_answer(self, error: BaseException, value: Any, at_us: int) -> None:
        """Set aside one of several values that a timer of a built-in computation answers.

        Raises:
            BaseException: The error itself, if no stream takes dead letters.
        """
        error.add_note(f"in the answer to value {brief(value)} ({format_timestamp(at_us)})")
        if self._dead_letters is None:
            raise error
        timer = Timer(value, at_us)
        self._apart.append(self._failures.of_timer(self._bundle, self._user.key, error, timer))

    def _send_apart(self, key: Any) -> None:
        """Send the dead letters of single answers of a key, once its part is done."""
        for dead_letter in self._apart:
            self._set_aside(dead_letter, key)
        self._apart.clear()

    def _attempt(
        self, bundle: Bundle, start: int, stop: int, poisoned: dict[Any, DeadLetter]
    ) -> tuple[Any, DeadLetter] | None:
        """Run a key's records and timers, save the poisoned ones; return what fails besides."""
        records, key, before_us = (
            bundle.records,
            self._user.key,
            bundle.attempt.arrival_watermark_us,
        )
        self._calls.earliest_late_us = MAX_TIMESTAMP
        self._apart.clear()
        for n in range(start, stop):
            self._calls.at_hand_us = timestamp_us = records.timestamps[n]
            if is_late := timestamp_us < before_us:
                self._note_late(bundle, n)
            if n in poisoned:
                continue
            try:
                refuse_returned(
                    self._process_record(records.record(n, key, late=is_late)), "process_record"
                )
                self._cells.verify()
            except CAUGHT as error:
                return self._refused(bundle, key, error, n)
        return self._fire(bundle, poisoned) if self._timers.heap else None

    def _note_late(self, bundle: Bundle, n: int) -> None:
        """Count the n-th record of a bundle, which is late, and tell of it where that is wanted."""
        records, before_us = bundle.records, bundle.attempt.arrival_watermark_us
        timestamp_us, counters = records.timestamps[n], self._counters
        if self.spec.timeless and records.stream_of(n) in self.spec.timeless:
            return
        if records.stream_of(n) == OUTCOMES:
            return  # its record was counted when it came
        self._calls.earliest_late_us = min(self._calls.earliest_late_us, timestamp_us)
        counters.late += 1
        counters.worst_lateness_us = max(counters.worst_lateness_us, before_us - timestamp_us)
        if counters.first_late is None:
            counters.first_late = first_late(bundle, self._user.key, n)
        if self._late_records is not None:
            key, productions = self._user.key, self._calls.productions
            dead_letter = late_record(self.spec.title, bundle, key, n)
            self._router.send(productions, str(self._late_records), dead_letter, timestamp_us, key)
            productions.caused_by(records.origins[n], records.sequences[n])

    def _fire(
        self, bundle: Bundle, poisoned: dict[Any, DeadLetter]
    ) -> tuple[Any, DeadLetter] | None:
        """Fire a key's due timers in order; return what failed, if dead letters take it."""
        user = self._user
        user.low_watermark = bundle.attempt.input_watermark_us
        user.percentile_low_watermarks = self._percentiles_us
        try:
            return self._fire_due(bundle, poisoned)
        finally:
            user.low_watermark = bundle.attempt.arrival_watermark_us
            user.percentile_low_watermarks = bundle.attempt.arrival_percentiles

    def _fire_due(
        self, bundle: Bundle, poisoned: dict[Any, DeadLetter]
    ) -> tuple[Any, DeadLetter] | None:
        timers, fired = self._timers, 0
        self._calls.pane_at_hand = None
        while (popped := timers.pop_due()) is not None:
            due, (_, hold_us, percentile) = popped
            at_us, domain, tag = due
            if (entry := timer_families.waiting_in(tag)) is not None and self._waiting is not None:
                record = self._waiting.taken(entry)
                try:
                    if due not in poisoned:
                        refuse_returned(self._waiting.process(record), "process_record")
                    if self._careful:
                        self._cells.verify()
                except CAUGHT as error:
                    dead_letter = self._failures.of_waiting(bundle, self._user.key, error, *record)
                    return self._failed(due, dead_letter, error)
                self._calls.pane_at_hand = None  # it was the record's
                continue
            if poisoned and due in poisoned:
                failed = Timer(decode_key(tag), at_us, _DOMAINS[domain], hold_us, percentile)
                operator_of(self._user).pass_timer(failed)
                continue
            if (expired := timer_families.expiry_of(tag)) is not None:
                self._cells.expire(*expired)
                continue
            self._calls.at_hand_us = at_us if hold_us is None else hold_us
            timer = Timer(decode_key(tag), at_us, _DOMAINS[domain], hold_us, percentile)
            try:
                if timers.rearmed > _REARMED_MAX:
                    raise TimerLoop(timer_loop(bundle, timer, _REARMED_MAX))
                refuse_returned(self.timer.process_timer(timer), "process_timer")
                if self._careful:
                    self._cells.verify()
            except CAUGHT as error:
                shown = msgspec.structs.replace(
                    timer, tag=operator_of(self._user).display_tag(timer.tag)
                )
                dead_letter = self._failures.of_timer(bundle, self._user.key, error, shown)
                return self._failed(due, dead_letter, error)
            fired += 1
        self._counters.timers += fired
        return None

    def _refused(
        self, bundle: Bundle, key: Any, error: BaseException, n: int
    ) -> tuple[Any, DeadLetter]:
        """Return what failed with the n-th record of a bundle, or with a pending record in it."""
        asking = self._asking
        if asking is None or asking.at_hand is None:
            return self._failed(n, self._failures.of_record(bundle, key, error, n), error)
        name, pending = asking.at_hand
        record = Record(
            key, pending.value, pending.timestamp_us, pending.stream, pending.late,
            pending.origin, pending.sequence,
        )  # fmt: skip
        dead_letter = self._failures.of_pending(bundle, key, error, record)
        return self._failed(name, dead_letter, error)

    def _failed(
        self, name: Any, dead_letter: DeadLetter, error: BaseException
    ) -> tuple[Any, DeadLetter]:
        """Return what failed; remember it if it took too long and its key's part runs again."""
        if isinstance(error, TimeLimitExceeded) and not self._careful:
            self._overdue[name] = dead_letter
        return name, dead_letter

    def _begin(self, raw: bytes | None, due: DueTimers | None) -> None:
        if self._cells.scalars is not None:
            self._cells.scalars.begin(raw)
        for collection in self._cells.collections:
            collection.begin()
        if due is not None or self._timers.touched:
            self._timers.begin(due)
        self._hold.changed = None
        self._calls.counts = {}

    def _flush(self, key: bytes) -> bool:
        """Write what the key's part changed; False, and nothing, if a cell refuses its value.

        A user's coder, or a value within another, may raise anything. Which record did it is found
        when the part runs again.
        """
        mutations, cells = self._rows.mutations, self._cells
        length = len(mutations)
        try:
            if cells.scalars is not None:
                cells.scalars.flush(self._rows)
            for collection in cells.collections:
                collection.flush()
        except RAISED as error:
            if isinstance(error, StoreError | InvariantViolation):
                raise
            # A key's rows are its own, so those written last are all of this attempt.
            while len(mutations) > length:
                mutations.popitem()
            return False
        if self._timers.touched:
            self._timers.flush(key)
        if self._hold.changed is not None:
            self._hold.flush(key)
        if self._calls.counts:
            counted = self._counters.counted
            for name, n in self._calls.counts.items():
                counted[name] = counted.get(name, 0) + n
            self._calls.counts = {}
        return True
