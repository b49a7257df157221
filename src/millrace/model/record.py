"""Record and Timer: the two things that call user code.

Source: MillWheel, "Core concepts" (4), "Timers" (4.6), figure 8.
"""

from __future__ import annotations

import datetime as dt
import enum
import struct
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from millrace.model.errors import PipelineError
from millrace.model.time import datetime_of

if TYPE_CHECKING:
    # Typing's own has no default before Python 3.13; only a type checker asks for it.
    from typing_extensions import TypeVar

    #: What a record has as its value.
    Value = TypeVar("Value", default=Any)
    #: What a computation produces.
    Produced = TypeVar("Produced", default=Any)
else:
    from typing import TypeVar

    Value = TypeVar("Value")
    Produced = TypeVar("Produced")


class TimeDomain(enum.IntEnum):
    """The clock that a timer waits for."""

    LOW_WATERMARK = 0
    WALL_TIME = 1


LOW_WATERMARK = TimeDomain.LOW_WATERMARK
WALL_TIME = TimeDomain.WALL_TIME


class Record(msgspec.Struct, Generic[Value], gc=False):
    """One element of a stream, as a computation sees it.

    For a type checker ``Record[Payment]`` has a Payment as its value:
    ``def process_record(self, record: mr.Record[Payment])``.

    Attributes:
        key: What the consumer's key extractor made of it.
        value: The value, of the stream's record format.
        timestamp: Event time in microseconds since the Unix epoch, UTC.
        stream: Name of the stream that it came by.
        late: Whether ``timestamp`` was behind the low watermark when the record was delivered.
        pane: The :class:`~millrace.model.pane.Pane` that the value is, if it came out of a
            grouping by window, or out of a computation that makes retractions of retractions; else
            None. What ``produce`` sends while this record is at hand carries it too.
    """

    key: Any
    value: Value
    timestamp: int
    stream: str
    late: bool = False
    origin: int = 0
    sequence: int = 0
    pane: Any = None

    @property
    def time(self) -> dt.datetime:
        """``timestamp`` as a datetime, UTC.

        >>> Record("k", "v", timestamp=1_500_000, stream="s").time.isoformat()
        '1970-01-01T00:00:01.500000+00:00'
        """
        return datetime_of(self.timestamp)

    @property
    def window(self) -> Any:
        """The :class:`~millrace.model.pane.Window` that the value is a result of; else None."""
        return None if self.pane is None else self.pane.window

    @property
    def id(self) -> bytes:
        """The unique id of this record: 16 bytes, the same on every redelivery.

        The first half names the origin (stream and epoch, or computation and commit number), the
        second the place in it (source partition and row, or key interval and index).
        """
        return struct.pack(">qq", self.origin, self.sequence)


class Timer(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A per-key hook that fires when its clock reaches ``at``.

    Attributes:
        tag: Names the timer within its key and domain; setting a tag again moves the timer.
        at: Microseconds since the Unix epoch, UTC.
        domain: ``LOW_WATERMARK`` or ``WALL_TIME``.
        hold: Where it held the low watermark that its computation shows, in microseconds; None if
            it was set without.
        percentile: The share of the low watermark that it waited for; 100 is the low watermark.

    >>> Timer("flush", at=10)
    Timer(tag='flush', at=10)
    """

    tag: Any
    at: int
    domain: TimeDomain = LOW_WATERMARK
    hold: int | None = None
    percentile: int = 100

    @property
    def time(self) -> dt.datetime:
        """``at`` as a datetime, UTC."""
        return datetime_of(self.at)


class LateRecord(msgspec.Struct, frozen=True):
    """A record that came behind the low watermark: the format of a stream of late records.

    Attributes:
        computation: Who it was late for; another consumer may have had it in time.
        stream: The stream it came by.
        key: The key, as text.
        value: The value, as text.
        timestamp: Event time in microseconds.
        low_watermark: Of the computation's input when it was delivered, in microseconds.
        wall_time: Clock of the epoch in which it was delivered, in microseconds.
        delivered_in: That epoch.
    """

    computation: str
    stream: str
    key: str
    value: str
    timestamp: int
    low_watermark: int
    wall_time: int
    delivered_in: int


class DeadLetter(msgspec.Struct, frozen=True):
    """A record or timer that could not be processed: the format of every dead-letter stream.

    Attributes:
        stream: The stream it came by; empty for a timer.
        computation: Where it failed; empty when its injector or record format refused it.
        reason: What was wrong, in words.
        error: The user code's traceback; empty when no user code was involved.
        key: The key, as text.
        value: The value or timer tag, as text.
        timestamp: Event time in microseconds, or None if it had no usable one.
        refused_in: The epoch in which it was refused.
        place: Where the record comes from, as far as that is known: topic, partition and offset, or
            a file, line and byte. Else an injected stream and the offset in it, or the computation
            that produced it.
        raw: The record, for people and other programs: the original bytes of the line or message,
            or JSON of the value. It is the original if the injector refused the record, or if the
            value contains it (Kafka without a schema). ``mr.sources.Kafka`` also reads the original
            once more for a record that is refused later. None for a message whose value is null.
            Empty for a timer, and for a value that JSON cannot represent.
        raw_key: The original bytes of the message's key; None if it has none.
        encoded: What ``millrace dead-letters --send`` sends again: the value, encoded by its
            stream's format, with its pane, and the key. Empty for a timer or a migrated value,
            which have no stream, and for rows of side inputs. Also empty for a record that was
            refused for its time, or before it was decoded.
    """

    stream: str
    computation: str
    reason: str
    error: str
    key: str
    value: str
    timestamp: int | None
    refused_in: int
    place: str = ""
    raw: bytes | None = b""
    raw_key: bytes | None = None
    encoded: bytes = b""


class DeadLetterLimit(msgspec.Struct, frozen=True):
    """How many dead letters a run may send before it stops.

    Attributes:
        share: Of the records of the last five minutes, from 0 to 1; None: any share.
        count: Since the run started; None: any number.

    >>> DeadLetterLimit.of("5 %"), DeadLetterLimit.of(1000)
    (DeadLetterLimit(share=0.05, count=None), DeadLetterLimit(share=None, count=1000))
    """

    share: float | None = None
    count: int | None = None

    @classmethod
    def of(cls, at_most: str | int) -> DeadLetterLimit:
        """Return the limit that a user gives.

        Raises:
            PipelineError: It is neither a number nor a percentage.
        """
        if isinstance(at_most, str):
            number, sign, rest = at_most.partition("%")
            try:
                share = float(number) / 100
            except ValueError:
                share = -1.0
            if sign and not rest.strip() and 0 <= share <= 1:
                return cls(share=share)
        elif isinstance(at_most, int) and not isinstance(at_most, bool) and at_most >= 0:
            return cls(count=at_most)
        raise PipelineError(
            f"dead_letter(at_most={at_most!r}): expected a share of the records, such as "
            '"5 %", or a number of dead letters, such as 1000.'
        )

    def __str__(self) -> str:
        if self.share is None:
            return f"{self.count:,} since the run started"
        return f"{100 * self.share:g} % of the records of five minutes"
