"""What user code calls on itself: ``produce``, ``set_timer``, ``delete_timer``, ``hold``, counters.

Source: MillWheel, figure 3 (the API of a computation), 4.6 (timers), 4.7 (productions).

The hold of one key: an instant before which the low watermark must not pass, by user code.
"""

from __future__ import annotations

import datetime as dt
import operator
from typing import Any, Final

import msgspec

from millrace.compile.topology import ComputationSpec, Topology
from millrace.kernel import row_codec, timer_families
from millrace.kernel.bundle import Bundle
from millrace.kernel.router import Router, RowsBuilder
from millrace.kernel.timers import KeyRows, KeyTimers
from millrace.kernel.user_errors import late_production
from millrace.model.computation import Computation, lacks_hook
from millrace.model.errors import RAISED, LateProduction, PipelineError, brief, brief_error
from millrace.model.keys import encode_key
from millrace.model.pane import Pane, Paned, PanedCoder, Window, decode_pane, encode_pane
from millrace.model.record import LOW_WATERMARK, WALL_TIME, TimeDomain
from millrace.model.time import (
    EARLIEST_RECORD,
    LATEST_RECORD,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Duration,
    Instant,
    duration_us,
    timestamp_us,
)


class KeyHold:
    """The hold of the current key.

    Attributes:
        changed: What user code has set it to, None in it for no hold; None if it set nothing.
    """

    __slots__ = ("_rows", "changed")

    def __init__(self, key_rows: KeyRows) -> None:
        self._rows = key_rows
        self.changed: tuple[int | None] | None = None

    def flush(self, key: bytes) -> None:
        """Write what changed."""
        assert self.changed is not None, "called for a key whose hold changed"
        [at_us] = self.changed
        mutations, key_row = self._rows.mutations, self._rows.key_row
        by_key = timer_families.HOLD_BY_KEY + key_row
        stored, delta = self._rows.view.get(by_key), self._rows.delta
        if delta is not None:
            for held_us, count in (
                (None if stored is None else row_codec.time_of(stored), -1),
                (at_us, 1),
            ):
                if held_us is not None:
                    delta[held_us] = delta.get(held_us, 0) + count
        if stored is not None:
            key_hold = timer_families.key_hold(row_codec.time_of(stored), key_row)
            mutations[key_hold] = None
            self._rows.freed.append(key_hold)
            mutations[by_key] = None
        if at_us is not None:
            mutations[by_key] = row_codec.time8(at_us)
            by_time = timer_families.key_hold(at_us, key_row)
            mutations[by_time] = key
            self._rows.timed.append(by_time)


_DOMAINS = tuple(TimeDomain)
#: What a counter is counted with has 64 bits.
_COUNT_END: Final = 1 << 63


class UserApi:
    """The calls of one computation's instance, to the key at hand.

    Args:
        topology: The pipeline.
        spec: The computation.
        user: Its instance, which gets the calls as attributes.
        router: Where productions go.
        timers: Of the key at hand.
        hold: Of the key at hand.

    Attributes:
        productions: Of the bundle.
        at_hand_us: Timestamp of the record or timer at hand.
        pane_at_hand: Its pane; None if it has none.
        earliest_late_us: Timestamp of the oldest late record of the key; MAX_TIMESTAMP if none.
        counts: What the key has counted.
    """

    def __init__(
        self,
        topology: Topology,
        spec: ComputationSpec,
        user: Computation,
        router: Router,
        timers: KeyTimers,
        hold: KeyHold,
    ) -> None:
        self._spec = spec
        self._user = user
        self._router = router
        self._timers = timers
        self._hold = hold
        self._outputs = {stream: _panes(topology, stream) for stream in spec.outputs}
        self._waits_for = spec.percentiles
        self._alone = spec.fed_by_timers
        self._checks_panes = type(user).__module__.partition(".")[0] != "millrace"
        self._has_process_timer = not lacks_hook(user, "process_timer")
        self._output_watermark_us = MIN_TIMESTAMP
        self._floor_us = MIN_TIMESTAMP
        self.productions = RowsBuilder()
        self.at_hand_us = 0
        self.pane_at_hand: Pane | None = None
        self.earliest_late_us = MAX_TIMESTAMP
        self.counts: dict[str, int] = {}
        bound: dict[str, Any] = {
            "produce": self._produce,
            "set_timer": self._set_timer,
            "delete_timer": self._delete_timer,
            "hold": self._set_hold,
            "increment": self._increment,
        }
        vars(user).update(bound)

    def begin(self, bundle: Bundle) -> None:
        """Start a bundle."""
        self.productions = RowsBuilder()
        self.counts = {}  # an earlier bundle may have ended amid a key
        self.pane_at_hand = None
        self._output_watermark_us = bundle.attempt.output_watermark_us
        self._floor_us = max(
            MIN_TIMESTAMP, bundle.attempt.output_watermark_us - self._spec.may_produce_late_us
        )

    @property
    def floor_us(self) -> int:
        """What productions may be as old as, whatever they answer."""
        return self._floor_us

    def written_us(self, clock: int) -> int:
        """Return the time of a write now: of the record or timer at hand, or the wall clock's."""
        return self.at_hand_us if clock == LOW_WATERMARK else self._user.wall_time

    def _produce(
        self,
        stream: str,
        value: Any,
        timestamp: Instant | None = None,
        key: Any = None,
        *,
        pane: Pane | None = None,
        retraction: bool | None = None,
    ) -> None:
        try:
            panes = self._outputs[stream]
        except KeyError:
            raise PipelineError(
                f"{self._spec.title} produced to stream {stream!r}, which it does not declare. "
                f'Declare it, outputs = {{"{stream}": <format>}}, or use one of: '
                f"{', '.join(sorted(self._outputs)) or 'none declared'}."
            ) from None
        if timestamp is None:
            at_us = self.at_hand_us
            if not EARLIEST_RECORD <= at_us <= LATEST_RECORD:
                # A timer may be at any time, a record may not.
                at_us = max(EARLIEST_RECORD, min(at_us, LATEST_RECORD))
        else:
            if type(timestamp) is int and EARLIEST_RECORD <= timestamp <= LATEST_RECORD:
                at_us = timestamp
            else:
                at_us = _record_time(timestamp)
            # The answer to what was late itself may be as old as that.
            if at_us < self._floor_us and at_us < min(self.at_hand_us, self.earliest_late_us):
                name, allowed_us = self._spec.title, self._spec.may_produce_late_us
                raise LateProduction(
                    late_production(name, stream, at_us, self._output_watermark_us, allowed_us)
                )
        if panes is not None or pane is not None or retraction:
            value = self._paned(stream, panes, value, pane, retraction)
        self._router.send(
            self.productions, stream, value, at_us, self._user.key if key is None else key
        )

    def _paned(
        self,
        stream: str,
        panes: PanedCoder | None,
        value: Any,
        pane: Pane | None,
        retraction: bool | None,
    ) -> Any:
        """Return a value with the pane that it is produced as; without, if it is none."""
        if retraction is not None and type(retraction) is not bool:
            raise PipelineError(
                f"produce(retraction={brief(retraction, 120)}): expected True or False."
            )
        if pane is not None and self._checks_panes:
            pane = _readable(pane)
        if pane is None:
            pane = self.pane_at_hand
            if pane is None and not retraction:
                return value
            if pane is None:
                pane = Pane(Window(), production_time=self._user.wall_time)
        if retraction is not None and retraction is not pane.retraction:
            pane = msgspec.structs.replace(pane, retraction=retraction)
        if panes is None or (pane.retraction and not panes.retracts):
            description = "a retraction" if pane.retraction else "a pane"
            raise PipelineError(
                f"{self._spec.title} produced {description} to stream {stream!r}, and no input of "
                f"{self._spec.title} has retractions, so that consumers and sinks of {stream!r} do "
                "not look for any. Say that they may come: "
                f'outputs = {{"{stream}": mr.coders.Paned(<format>, retracts=True)}}.'
            )
        return Paned(value, pane)

    def _set_timer(
        self,
        tag: Any,
        at: Instant | None = None,
        domain: TimeDomain = LOW_WATERMARK,
        *,
        after: Duration | None = None,
        hold: Instant | None = None,
        percentile: int = 100,
    ) -> None:
        if at is None or after is not None:
            at = self._from_now(tag, at, after, domain)
        at_us = _instant(at, "set_timer")
        hold_us = None if hold is None else _instant(hold, "set_timer, hold")
        if self._alone and hold_us is None and domain == WALL_TIME:
            hold_us = at_us
        if not self._has_process_timer:
            raise PipelineError(
                f"set_timer({brief(tag, 120)}): {self._spec.title} has no process_timer, so the "
                "timer could not fire. Define process_timer(self, timer)."
            )
        if domain is not LOW_WATERMARK:
            _check_domain("set_timer", tag, domain)
        if percentile != 100 and (domain != LOW_WATERMARK or percentile not in self._waits_for):
            raise PipelineError(
                f"set_timer({brief(tag, 120)}, percentile={brief(percentile, 120)}): expected one "
                f"of {[*sorted(self._waits_for), 100]}, of the low watermark. Declare it in "
                f"{self._spec.title}: percentiles = (95, 99)."
            )
        self._timers.set(encode_key(tag), int(domain), (at_us, hold_us, percentile))

    def _from_now(
        self, tag: Any, at: Instant | None, after: Duration | None, domain: TimeDomain
    ) -> int:
        if after is None or at is not None:
            raise PipelineError(
                f"set_timer({brief(tag, 120)}, at={brief(at, 120)}, after={brief(after, 120)}): "
                "expected one of the two: at, the time at which to fire, or "
                'after="10 s", how long from now.'
            )
        now_us = self._user.wall_time if domain == WALL_TIME else self.at_hand_us
        return min(now_us + duration_us(after, "set_timer(after)"), MAX_TIMESTAMP)

    def _delete_timer(self, tag: Any, domain: TimeDomain = LOW_WATERMARK) -> None:
        _check_domain("delete_timer", tag, domain)
        self._timers.delete(encode_key(tag), int(domain))

    def _increment(self, counter: str, n: int = 1) -> None:
        counts = self.counts
        if (
            type(n) is not int
            or not -_COUNT_END <= n < _COUNT_END
            or type(counter) is not str
            or counter not in counts
        ):
            # It would be refused where reports are written: after the commit, and without a name.
            n = _count(counter, n)
        counts[counter] = counts.get(counter, 0) + n

    def _set_hold(self, at: Instant | None) -> None:
        self._hold.changed = (None if at is None else _instant(at, "hold"),)


def _panes(topology: Topology, stream: str) -> PanedCoder | None:
    """Return the coder of a stream whose values carry panes; None if they do not."""
    coder = topology.streams[stream].coder
    return coder if isinstance(coder, PanedCoder) else None


def _check_domain(call: str, tag: Any, domain: Any) -> None:
    """Refuse what is no clock."""
    if domain not in _DOMAINS:
        raise PipelineError(
            f"{call}({brief(tag, 120)}, domain={brief(domain, 120)}): expected LOW_WATERMARK or "
            "WALL_TIME."
        )


def _readable(pane: Any) -> Pane:
    """Return a user's pane, or refuse it: what was committed, consumers must be able to read."""
    try:
        if isinstance(pane, Pane):
            decoded: Pane = decode_pane(encode_pane(pane))
            return decoded
        refused = "it is no mr.Pane"
    except RAISED as error:  # msgspec's of several kinds
        refused = brief_error(error)
    raise PipelineError(
        f"produce(pane={brief(pane, 200)}): {refused}. Expected that of a record, or mr.Pane("
        "mr.Window(start, end)) with both in microseconds."
    )


def _count(counter: Any, n: Any) -> int:
    """Return what is added to a counter, as an int."""
    try:
        count = operator.index(n)
        is_name = isinstance(counter, str) and bool(counter.encode())
    except (TypeError, UnicodeEncodeError):
        is_name = False
    if not is_name or not -_COUNT_END <= count < _COUNT_END:
        more = "" if type(n) is int and n == 1 else f", {brief(n, 120)}"
        raise PipelineError(
            f"increment({brief(counter, 120)}{more}): expected the name of a counter, and what to "
            'add, an int of 64 bits: self.increment("bytes", len(record.value)).'
        )
    return count


def _instant(at: Any, call: str) -> int:
    if type(at) is int and -MAX_TIMESTAMP <= at <= MAX_TIMESTAMP:
        return at
    if isinstance(at, dt.datetime | str):
        try:
            return timestamp_us(at)
        except PipelineError as wrong:
            more = ' For so long from now on say after="10 s".' if call == "set_timer" else ""
            raise PipelineError(f"{call}: {wrong}{more}") from None
    try:
        at_us = at.__index__() if not isinstance(at, bool | TimeDomain) else None
    except AttributeError:
        at_us = None
    if at_us is None or not -MAX_TIMESTAMP <= at_us <= MAX_TIMESTAMP:
        more = f" Did you mean domain=mr.{at.name}?" if isinstance(at, TimeDomain) else ""
        raise PipelineError(
            f"{call}: {brief(at, 120)} is not a time. Expected microseconds since 1970 (UTC) as an "
            "int, for seconds multiply by mr.SECOND; a datetime with a time zone; or text such as "
            f'"2026-11-22T10:00:00Z".{more}'
        )
    return int(at_us)


def _record_time(timestamp: Any) -> int:
    at_us = _instant(timestamp, "produce")
    if not EARLIEST_RECORD <= at_us <= LATEST_RECORD:
        raise PipelineError(
            f"produce: timestamp {at_us} us is before 1970 or after 2262. At the end of the input "
            "self.low_watermark is MAX_TIMESTAMP: use a time of the data instead."
        )
    return at_us
