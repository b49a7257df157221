"""Failures of user code: an error that names where it happened, or a dead letter.

Dead letters are counted by reason: what went wrong, without what differs from record to record,
such as numbers and quoted values. What is counted goes with the commits and the reports of tasks,
so a restart counts nothing twice.

Source: docs/guide.md, "Errors and dead letters".
"""

from __future__ import annotations

import logging
import re
import textwrap
import traceback
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from millrace.compile.sink_limits import fields_of
from millrace.compile.topology import Topology
from millrace.dataflow.calls import CallEach
from millrace.dataflow.partials.partial import Partial, PartialCoder
from millrace.kernel.bundle import Bundle
from millrace.kernel.cells import Bound
from millrace.kernel.record_ids import place_in_words
from millrace.kernel.side_tables import BoundSide
from millrace.model.coder import JsonCoder, MsgpackCoder, struct_fields
from millrace.model.errors import (
    LETTER_MOST,
    TRACE_MOST,
    DeadLettersExceeded,
    InvariantViolation,
    StoreError,
    TimerLoop,
    UserCodeError,
    brief,
    brief_error,
    brief_trace,
    cut,
    encodable,
)
from millrace.model.keys import encode_key
from millrace.model.pane import Paned, plain
from millrace.model.record import DeadLetter, DeadLetterLimit, Record, Timer
from millrace.model.time import (
    EARLIEST_RECORD,
    LATEST_RECORD,
    MAX_TIMESTAMP,
    MINUTE,
    SECOND,
    format_duration,
    format_timestamp,
)

_log = logging.getLogger("millrace")

#: Of more reasons than this only the number is known. Who has so many has none that stands out.
_REASONS: Final = 20
_OTHERS: Final = "other reasons"
#: What differs from one record to the next.
_VALUES: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d._TZ+-]*")
_WORDS: Final = 200

#: A share is judged over the epochs of so long, once so many records have come in them.
_WINDOW_US: Final = 5 * MINUTE
_JUDGED: Final = 100


class Sample(msgspec.Struct, array_like=True, frozen=True):
    """The first dead letter of a reason, in brief.

    Attributes:
        stream: The stream it came by; empty for a timer.
        computation: Where it failed; empty where it was refused before.
        reason: What was wrong, in words.
        key: The key, as text.
        value: The value or timer tag, as text.
        timestamp: Event time in microseconds, or None.
        epoch: When.
        place: Where the record came from.
    """

    stream: str
    computation: str
    reason: str
    key: str
    value: str
    timestamp: int | None
    epoch: int
    place: str


class Counted(msgspec.Struct, array_like=True, frozen=True):
    """The dead letters of one reason.

    Attributes:
        count: How many there are.
        first: One of them: the first that was met.
    """

    count: int
    first: Sample


#: Reason -> the dead letters that have it.
Reasons = dict[str, Counted]


def reason_of(dead_letter: DeadLetter) -> str:
    """Return why a record is a dead letter, without what is its own.

    >>> said = "ValueError: invalid literal for int() with base 10: 'x17'"
    >>> reason_of(DeadLetter("s", "c", said, "", "", "", 0, 0))
    'ValueError: invalid literal for int() with base ...: ...'
    """
    first, _, _ = dead_letter.reason.partition("\n")
    return _VALUES.sub("...", first)[:_WORDS]


def note(reasons: Reasons, dead_letter: DeadLetter) -> None:
    """Count a dead letter."""
    sample = Sample(
        dead_letter.stream,
        dead_letter.computation,
        dead_letter.reason[:_WORDS],
        dead_letter.key[:_WORDS],
        dead_letter.value[:_WORDS],
        dead_letter.timestamp,
        dead_letter.refused_in,
        dead_letter.place,
    )
    merge(reasons, {reason_of(dead_letter): Counted(1, sample)})


def merge(reasons: Reasons, more: Mapping[str, Counted]) -> None:
    """Add what was counted elsewhere."""
    for reason, counted in more.items():
        name = reason if reason in reasons or len(reasons) < _REASONS else _OTHERS
        known = reasons.get(name)
        count = counted.count + (0 if known is None else known.count)
        reasons[name] = Counted(count, counted.first if known is None else known.first)


def total(reasons: Mapping[str, Counted]) -> int:
    """Return how many dead letters there are."""
    return sum(counted.count for counted in reasons.values())


def commonest(reasons: Mapping[str, Counted]) -> list[tuple[str, Counted]]:
    """Return reasons, the most frequent first."""
    return sorted(reasons.items(), key=lambda item: (-item[1].count, item[0]))


def tell_first(where: str, reasons: Mapping[str, Counted]) -> None:
    """Say in the log that the first dead letter of a computation or stream was sent, and why."""
    first = next(iter(reasons.values())).first
    _log.warning(
        "%s: the first dead letter: %s\n  %svalue %s, epoch %d%s. Later ones are only "
        "counted: `millrace dead-letters CHECKPOINT` lists them.",
        where,
        first.reason,
        first.key and f"key {first.key}, ",  # of a line that cannot be read there is none
        first.value,
        first.epoch,
        first.place and f", {first.place}",
        extra={"millrace": {"event": "dead_letter", "where": where, "epoch": first.epoch}},
    )


class DeadLetterWatch:
    """Sums dead letters of a run, against the limit that its pipeline declares.

    Args:
        limit: The limit; None: there is none.
    """

    def __init__(self, limit: DeadLetterLimit | None) -> None:
        self._limit = limit
        self._sent = 0
        self._epochs: deque[tuple[int, int, int, Reasons]] = deque()

    def add(self, wall_time_us: int, records: int, reasons: Iterable[Reasons]) -> None:
        """Take an epoch that has completed: its clock, records read, and its dead letters."""
        if self._limit is None:
            return
        together: Reasons = {}
        for reason in reasons:
            merge(together, reason)
        letters = total(together)
        self._sent += letters
        self._epochs.append((wall_time_us, records, letters, together))
        while self._epochs[0][0] <= wall_time_us - _WINDOW_US:
            self._epochs.popleft()

    def check(self) -> None:
        """Stop the run if there are too many.

        Raises:
            DeadLettersExceeded: There are.
        """
        limit = self._limit
        if limit is None or not self._epochs:
            return
        letters = sum(letters for _, _, letters, _ in self._epochs)
        records = max(letters, sum(records for _, records, _, _ in self._epochs))
        if limit.count is not None and self._sent > limit.count:
            said = f"{self._sent:,} dead letters"
        elif limit.share is not None and records >= _JUDGED and letters > limit.share * records:
            said = f"{letters:,} of {records:,} records became dead letters"
        else:
            return
        reasons: Reasons = {}
        for _, _, _, count in self._epochs:
            merge(reasons, count)
        reason, counted = commonest(reasons)[0]
        first = counted.first
        where = first.computation or f"stream {first.stream!r}"
        sample = f"key {first.key}, value {first.value}{first.place and f', {first.place}'}"
        raise DeadLettersExceeded(
            f"{said}, and dead_letter(at_most=) allows {limit}.\n"
            f"The most frequent reason, {counted.count:,} times, in {where}: {reason}\n"
            f"  such as {sample}\n"
            "Nothing is lost: the epoch has completed, and its dead letters are in their stream. "
            "Mend the code or the input and start again, or allow more."
        )


class Envelope(msgspec.Struct, array_like=True, frozen=True):
    """What a dead letter carries to be sent again.

    Attributes:
        value: As its stream's coder has it, with its pane.
        key: The key that its consumer had for it, encoded; empty where it had none yet.
    """

    value: bytes
    key: bytes = b""


_enclose = msgspec.msgpack.Encoder().encode
#: Opens an :class:`Envelope`.
opened = msgspec.msgpack.Decoder(Envelope).decode


class Provenance:
    """Says where records come from, and gives their bytes, for dead letters."""

    def __init__(self, topology: Topology) -> None:
        self._specs = topology.streams
        titles = topology.titles
        #: A row of a side input fails in each key interval, and goes to all of them.
        self._everywhere = {
            (edge.stream, titles[str(edge.computation)])
            for edge in topology.edges
            if edge.everywhere
        }
        self._computations = {spec.number: spec.title for spec in topology.computations}
        self._streams = {spec.number: spec.name for spec in topology.injected()}

    def place(self, value: Any, ids: tuple[int, int] | None) -> str:
        """Return where a record comes from; "" if that is not known.

        Args:
            value: Its value; a message of Kafka may say itself.
            ids: Both halves of its id, if it has one.
        """
        topic, partition, offset = (
            _part(value, name) for name in ("kafka_topic", "kafka_partition", "kafka_offset")
        )
        if None not in (topic, partition, offset):
            return f"topic {topic!r}, partition {partition}, offset {offset}"
        if ids is None:
            return ""
        return place_in_words(*ids, self._computations, self._streams)

    def encoded(self, stream: str, computation: str, value: Any, key: Any) -> bytes:
        """Return a record as it can be sent again; empty if it cannot.

        Args:
            stream: It came by.
            computation: That failed on it; "" if none.
            value: As it came, with its pane.
            key: The computation's for it; None if it has none.
        """
        coder = self._specs[stream].coder
        parts = type(value) is Partial and not isinstance(coder, PartialCoder)
        if parts or (stream, computation) in self._everywhere:
            return b""
        try:
            named = b"" if key is None else encode_key(key)
            return _enclose(Envelope(bytes(coder.encode(value)), named))
        except Exception:  # noqa: BLE001  a dead letter may be of a value that nothing encodes
            return b""

    def encoded_row(self, stream: str, row: Any) -> bytes:
        """Return as :meth:`encoded` what an injector gave: a value, or a row of no such format.

        A row is encoded as a value would be, so that a format that was mended can decode it.
        """
        if encoded := self.encoded(stream, "", row, None):
            return encoded
        spec = self._specs[stream]
        if not isinstance(row, dict) or not isinstance(spec.coder, MsgpackCoder | JsonCoder):
            return b""
        part = row
        if fields_of(spec.format) is None:
            (part, *more) = row.values()
            if more:
                return b""
        elif isinstance(spec.format, type) and issubclass(spec.format, msgspec.Struct):
            names = {field.name: field.encode_name for field in struct_fields(spec.format)}
            part = {names.get(name, name): value for name, value in row.items()}
        encode = _enclose if isinstance(spec.coder, MsgpackCoder) else msgspec.json.encode
        try:
            return _enclose(Envelope(encode(part)))
        except Exception:  # noqa: BLE001  see above
            return b""

    def raw(self, value: Any) -> tuple[bytes | None, bytes | None]:
        """Return the bytes of a message, or JSON of a value, and the bytes of the message's key.

        Both may be null: a message without a value is a tombstone, and not an empty one.
        """
        key, message = _part(value, "kafka_key"), _part(value, "value")
        known = key if isinstance(key, bytes) else None
        if isinstance(message, bytes) and _part(value, "kafka_offset") is not None:
            return message, known
        if _part(value, "value", b"") is None and _part(value, "kafka_headers") is not None:
            return None, known
        if isinstance(value, bytes):
            return value, known
        try:
            return msgspec.json.encode(value), known
        except Exception:  # noqa: BLE001  a dead letter may be of anything
            return b"", known


def _part(value: Any, name: str, default: Any = None) -> Any:
    """Return a field of a record, whatever it is; the default if it has none."""
    get = value.get if isinstance(value, dict) else partial(getattr, value)
    return get(name, default)


_OURS = f"{Path(__file__).parents[1]}/"


class Failures:
    """What becomes of the exceptions of one computation.

    Args:
        computation: Its name.
        letters: Whether the pipeline declares a dead-letter stream.
        provenance: Says where records come from.
    """

    def __init__(
        self, computation: str, *, letters: bool, provenance: Provenance | None = None
    ) -> None:
        self._provenance = provenance
        self._computation = computation
        self._letters = letters

    def of_record(self, bundle: Bundle, key: Any, error: BaseException, n: int) -> DeadLetter:
        """Return the dead letter of the n-th record of a bundle.

        Raises:
            UserCodeError: No stream takes dead letters.
        """
        records = bundle.records
        dead_letter = self.of_waiting(
            bundle, key, error, records.stream_of(n), records.original(n), records.timestamps[n]
        )
        if dead_letter.place or self._provenance is None:
            return dead_letter
        ids = int(records.origins[n]), int(records.sequences[n])
        return msgspec.structs.replace(dead_letter, place=self._provenance.place(None, ids))

    def of_waiting(
        self,
        bundle: Bundle,
        key: Any,
        error: BaseException,
        stream: str,
        value: Any,
        timestamp_us: int,
        *_: int,
        hook: str = "process_record",
    ) -> DeadLetter:
        """Return the dead letter of a record that may be of an earlier bundle, and has waited.

        Raises:
            UserCodeError: No stream takes dead letters.
        """
        retraction = type(value) is Paned and value.pane.retraction
        came, value = value, plain(value)
        where = (
            f"key {brief(key)}, stream {stream!r}, timestamp {format_timestamp(timestamp_us)}, "
            f"epoch {bundle.attempt.epoch}\n  value {brief(value)}{', a retraction' * retraction}"
        )
        dead_letter = self._letter(error, stream, key, value, timestamp_us, bundle)
        if self._letters and self._provenance is not None:
            raw, raw_key = self._provenance.raw(value)
            dead_letter = msgspec.structs.replace(
                dead_letter,
                place=self._provenance.place(value, None),
                raw=raw,
                raw_key=raw_key,
                encoded=self._provenance.encoded(stream, self._computation, came, key),
            )
        return self._letter_or_raise(hook, where, dead_letter, error)

    def of_pending(
        self, bundle: Bundle, key: Any, error: BaseException, record: Record
    ) -> DeadLetter:
        """Return the dead letter of a record whose call was pending, and failed.

        Args:
            bundle: In which it failed.
            key: Of the record.
            error: What was raised.
            record: The record, with its pane beside the value if it has one.

        Raises:
            UserCodeError: No stream takes dead letters.
        """
        stream, value, timestamp_us = record.stream, record.value, record.timestamp
        dead_letter = self.of_waiting(
            bundle, key, error, stream, value, timestamp_us, hook="the call, or process_response,"
        )
        if dead_letter.place or self._provenance is None:
            return dead_letter
        place = self._provenance.place(None, (record.origin, record.sequence))
        return msgspec.structs.replace(dead_letter, place=place)

    def of_timer(self, bundle: Bundle, key: Any, error: BaseException, timer: Timer) -> DeadLetter:
        """Return the dead letter of a timer.

        Raises:
            UserCodeError: No stream takes dead letters.
            TimerLoop: It is about timers that set themselves without end.
        """
        at, epoch = format_timestamp(timer.at), bundle.attempt.epoch
        where = f"key {brief(key)}, {brief(timer)} ({at}), epoch {epoch}"
        dead_letter = self._letter(error, "", key, timer.tag, timer.at, bundle)
        return self._letter_or_raise("process_timer", where, dead_letter, error)

    def of_migration(
        self, bundle: Bundle, key: Any, error: BaseException, cell: str, value: Any
    ) -> DeadLetter:
        """Return the dead letter of a value that its cell's migration raised for.

        Its time is the low watermark, as a value has none of its own.

        Raises:
            UserCodeError: No stream takes dead letters.
        """
        attempt = bundle.attempt
        at_us = max(EARLIEST_RECORD, min(attempt.input_watermark_us, LATEST_RECORD))
        where = f"key {brief(key)}, state {cell!r}, epoch {attempt.epoch}\n  value {brief(value)}"
        dead_letter = self._letter(error, "", key, value, at_us, bundle)
        return self._letter_or_raise(f"migration of {cell!r}", where, dead_letter, error)

    def _letter(
        self,
        error: BaseException,
        stream: str,
        key: Any,
        value: Any,
        timestamp_us: int,
        bundle: Bundle,
    ) -> DeadLetter:
        if isinstance(error, StoreError):
            raise error  # Of the store, met by user code as it read state: not the record's fault.
        return DeadLetter(
            stream=stream,
            computation=self._computation,
            reason=brief_error(error),
            error=brief_trace(error),
            key=brief(key, LETTER_MOST),
            value=brief(value, LETTER_MOST),
            timestamp=timestamp_us,
            refused_in=bundle.attempt.epoch,
        )

    def _letter_or_raise(
        self, hook: str, where: str, dead_letter: DeadLetter, error: BaseException
    ) -> DeadLetter:
        if self._letters and not isinstance(error, InvariantViolation):
            return dead_letter
        kind = TimerLoop if isinstance(error, TimerLoop) else UserCodeError
        raise kind(
            f"{hook} of {self._computation} raised {dead_letter.reason}\n  {where}\n{_place(error)}"
            "Nothing of this epoch was applied. Mend the code and start again from the same "
            "checkpoint, or declare a dead-letter stream, p.dead_letter(...), to set such records "
            "aside."
        ) from error


def late_production(
    computation: str, stream: str, at_us: int, output_us: int, bound_us: int
) -> str:
    """Return what to say of a production behind what its computation has shown."""
    behind = f"{(output_us - at_us) / SECOND:,.6f}".rstrip("0").rstrip(".")
    allowed = f", and may produce {format_duration(bound_us)} late" if bound_us else ""
    return (
        f"{computation} produced to stream {stream!r} with timestamp {at_us} us "
        f"({format_timestamp(at_us)}), {behind} s behind the low watermark {output_us} us "
        f"({format_timestamp(output_us)}) that it has shown its consumers{allowed}. They were "
        "promised that nothing so old would come. Hold the low watermark while such work is "
        "pending, self.hold(timestamp) or set_timer(..., hold=timestamp); or let the records be "
        'late: may_produce_late = "10 min", or mr.UNBOUNDED_PAST, in the class.'
    )


def timer_loop(bundle: Bundle, timer: Timer, rearmed: int) -> str:
    """Return what to say of a hook that keeps setting timers which are due already."""
    ended = bundle.attempt.input_watermark_us >= MAX_TIMESTAMP
    return (
        f"{rearmed:,} timers that were already due were set in one bundle, the last being "
        f"{brief(timer)}. "
        + (
            "The input has ended: process_timer must not set the next timer of a chain when "
            "self.low_watermark == mr.MAX_TIMESTAMP."
            if ended
            else "Does process_timer set a timer at or before its own time?"
        )
    )


def _place(error: BaseException) -> str:
    """Return the user's part of a traceback: their lines, and what they called of others.

    Without such lines it is what Millrace did; empty for a call, which is named before.
    """
    told = traceback.TracebackException.from_exception(error)
    _leave_ours_out(told)
    if told.stack:
        text = cut(encodable("".join(told.format()).rstrip()), TRACE_MOST)
        return f"{textwrap.indent(text, '  ')}\n"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(isinstance(frame.f_locals.get("self"), BoundSide) for frame in frames):
        return "  in the side input, which is Millrace's own, because of what it was given\n"
    if any(isinstance(frame.f_locals.get("self"), CallEach) for frame in frames):
        return ""
    if any("dataflow" in Path(frame.f_code.co_filename).parts for frame in frames):
        return "  in the grouping, which is Millrace's own, because of what it was given\n"
    if any(isinstance(frame.f_locals.get("self"), Bound) for frame in frames):
        return "  when what it had changed in place was to be stored\n"
    return ""


def _leave_ours_out(told: traceback.TracebackException) -> None:
    """Leave Millrace's own frames out of a traceback, and of those of its causes."""
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
    for cause in (told.__cause__, told.__context__):
        if cause is not None:
            _leave_ours_out(cause)
