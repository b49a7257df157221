"""Failures of user code: an error that names where it happened, or a dead letter.

Source: docs/guide.md, "Errors and dead letters".
"""

from __future__ import annotations

import textwrap
import traceback
from pathlib import Path
from typing import Any

import msgspec

from millrace.model.brief import (
    LETTER_MOST,
    TRACE_MOST,
    brief,
    brief_error,
    brief_trace,
    cut,
    encodable,
)
from millrace.model.errors import InvariantViolation, StoreError, TimerLoop, UserCodeError
from millrace.model.pane import Paned, plain
from millrace.model.record import DeadLetter, Timer
from millrace.model.time import (
    EARLIEST_RECORD,
    LATEST_RECORD,
    MAX_TIMESTAMP,
    SECOND,
    format_duration,
    format_timestamp,
)
from millrace.windmill.bundle import Bundle
from millrace.windmill.cells import sides
from millrace.windmill.dead_letters import Provenance

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
        letter = self.of_waiting(
            bundle, key, error, records.stream_of(n), records.original(n), records.timestamps[n]
        )
        if letter.place or self._provenance is None:
            return letter
        ids = int(records.origins[n]), int(records.sequences[n])
        return msgspec.structs.replace(letter, place=self._provenance.place(None, ids))

    def of_waiting(
        self,
        bundle: Bundle,
        key: Any,
        error: BaseException,
        stream: str,
        value: Any,
        timestamp_us: int,
        *_: int,
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
        letter = self._letter(error, stream, key, value, timestamp_us, bundle)
        if self._letters and self._provenance is not None:
            raw, raw_key = self._provenance.raw(value)
            letter = msgspec.structs.replace(
                letter,
                place=self._provenance.place(value, None),
                raw=raw,
                raw_key=raw_key,
                encoded=self._provenance.encoded(stream, self._computation, came, key),
            )
        return self._letter_or_raise("process_record", where, letter, error)

    def of_timer(self, bundle: Bundle, key: Any, error: BaseException, timer: Timer) -> DeadLetter:
        """Return the dead letter of a timer.

        Raises:
            UserCodeError: No stream takes dead letters.
            TimerLoop: It is about timers that set themselves without end.
        """
        at, epoch = format_timestamp(timer.at), bundle.attempt.epoch
        where = f"key {brief(key)}, {brief(timer)} ({at}), epoch {epoch}"
        letter = self._letter(error, "", key, timer.tag, timer.at, bundle)
        return self._letter_or_raise("process_timer", where, letter, error)

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
        letter = self._letter(error, "", key, value, at_us, bundle)
        return self._letter_or_raise(f"migration of {cell!r}", where, letter, error)

    def _letter(
        self,
        error: BaseException,
        stream: str,
        key: Any,
        value: Any,
        timestamp_us: int,
        bundle: Bundle,
    ) -> DeadLetter:
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
        self, hook: str, where: str, letter: DeadLetter, error: BaseException
    ) -> DeadLetter:
        if isinstance(error, StoreError):
            raise error  # Of the store, met by user code as it read state: not the record's fault.
        if self._letters and not isinstance(error, InvariantViolation):
            return letter
        kind = TimerLoop if isinstance(error, TimerLoop) else UserCodeError
        raise kind(
            f"{hook} of {self._computation} raised {letter.reason}\n  {where}\n{_place(error)}\n"
            "Nothing of this epoch was applied. Mend the code and start again from the same "
            "checkpoint, or declare a dead-letter stream, p.dead_letter(...), to set such records "
            "aside."
        ) from error


def late_production(computation: str, stream: str, at_us: int, shown_us: int, bound_us: int) -> str:
    """Return what to say of a production behind what its computation has shown."""
    behind = f"{(shown_us - at_us) / SECOND:,.6f}".rstrip("0").rstrip(".")
    allowed = f", and may produce {format_duration(bound_us)} late" if bound_us else ""
    return (
        f"{computation} produced to stream {stream!r} with timestamp {at_us} us "
        f"({format_timestamp(at_us)}), {behind} s behind the low watermark {shown_us} us "
        f"({format_timestamp(shown_us)}) that it has shown its consumers{allowed}. They were "
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
    """Return the user's part of a traceback: their lines, and what they called of others."""
    told = traceback.TracebackException.from_exception(error)
    _leave_ours_out(told)
    if told.stack:
        text = cut(encodable("".join(told.format()).rstrip()), TRACE_MOST)
        return textwrap.indent(text, "  ")
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename == sides.__file__ for frame in frames):
        return "  in the side input, which is Millrace's own, because of what it was given"
    if any("dataflow" in Path(frame.filename).parts for frame in frames):
        return "  in the grouping, which is Millrace's own, because of what it was given"
    return "  when what it had changed in place was to be stored"


def _leave_ours_out(told: traceback.TracebackException) -> None:
    """Leave Millrace's own frames out of a traceback, and of those of its causes."""
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
    for cause in (told.__cause__, told.__context__):
        if cause is not None:
            _leave_ours_out(cause)
