"""Families of timers and holds: each pending timer in two rows, each hold in one or two.

A timer has a row in T, to be found when it is due, and one in U, to be found by its tag. If it
holds the low watermark, it has one in H too, where the holds of keys are, which lie in G once more
by key. Where two rows tell of one thing, each can be made from the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from millrace.kernel.row_codec import (
    BYTE,
    SIGN,
    WHOLE,
    after,
    key_row_at,
    key_row_end,
    last_part,
    scan,
    time8,
    time_of,
)
from millrace.model.time import MAX_TIMESTAMP
from millrace.store import View

TIMERS: Final = b"T"
TIMER_BY_TAG: Final = b"U"
HOLDS: Final = b"H"
HOLD_BY_KEY: Final = b"G"

#: A pending timer as the kernel orders it: (at, domain, encoded tag).
Due = tuple[int, int, bytes]

#: What was set under a name: (at, hold, percentile). The name is (domain, encoded tag).
Setting = tuple[int, int | None, int]


class _Timer(msgspec.Struct, array_like=True, frozen=True):
    """The value of a row of timers by time. Without a hold, it has only the first two."""

    key: bytes
    tag: bytes
    hold_us: int | None = None


#: Encoded keys, and so users' tags, begin with s, i, b or m. A record that waits comes before all
#: timers of its instant.
_EXPIRY: Final = b"x"
_WAITING: Final = b"A"
_CALL: Final = b"C"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Timer).decode
_CLOCKS: Final = [TIMERS + clock for clock in BYTE]


class TimerRow(NamedTuple):
    """``T clock time key tag``: a pending timer, in the order in which timers fire.

    Attributes:
        clock: What it waits for, see :func:`clock_of`.
        at_us: When it fires.
        key_row: The part that names its key.
        tag: Encoded.
        key: Encoded.
        hold_us: Where it holds the low watermark; None if at its own time or not at all.
    """

    clock: int
    at_us: int
    key_row: bytes
    tag: bytes
    key: bytes
    hold_us: int | None = None

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> TimerRow:
        """Return what a row says."""
        timer = _decode(value)
        named = key_row_at(row, 10)
        return cls(row[1], time_of(row[2:10]), named, timer.tag, timer.key, timer.hold_us)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        domain, percentile = domain_of(self.clock)
        named = timer_named(self.key_row, domain, self.tag)
        row, _ = timer_rows(named, self.key_row, domain, (self.at_us, None, percentile))
        return row, pack_timer(self.key, self.tag, self.hold_us)

    @property
    def domain(self) -> int:
        """0 for the low watermark, 1 for the wall clock."""
        return domain_of(self.clock)[0]

    @property
    def setting(self) -> Setting:
        """How it was set."""
        return self.at_us, self.hold_us, domain_of(self.clock)[1]

    def tag_row(self) -> TagRow:
        """Return the row that tells of it by tag."""
        return TagRow(self.key_row, self.domain, last_part(self.tag), self.setting)

    def hold_row(self) -> HoldRow | None:
        """Return the row of its hold; None if it has none."""
        if self.hold_us is None:
            return None
        return HoldRow(self.hold_us, self.key_row, self.domain, last_part(self.tag), self.key)


class TagRow(NamedTuple):
    """``U key domain tag``: a pending timer, found by its tag.

    Attributes:
        key_row: The part that names its key.
        domain: 0 for the low watermark, 1 for the wall clock.
        part: The tag, encoded, as the last part of a row.
        setting: How it was set.
    """

    key_row: bytes
    domain: int
    part: bytes
    setting: Setting

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> TagRow:
        """Return what a row says."""
        end = key_row_end(row, 1)
        return cls(row[1:end], row[end], row[end + 1 :], unpack_setting(value))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        row = TIMER_BY_TAG + self.key_row + BYTE[self.domain] + self.part
        return row, pack_setting(self.setting)

    def timer_row(self) -> bytes:
        """Return the row of the same timer by time."""
        return timer_rows(self.pack()[0], self.key_row, self.domain, self.setting)[0]


class HoldRow(NamedTuple):
    """``H time key``, or ``H time key domain tag``: a hold of a key, or of a timer.

    Attributes:
        at_us: Where it holds the low watermark.
        key_row: The part that names its key.
        domain: Of the timer; None for a hold of the key.
        part: The timer's tag, encoded, as the last part of a row; empty for a hold of the key.
        key: Encoded.
    """

    at_us: int
    key_row: bytes
    domain: int | None
    part: bytes
    key: bytes

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> HoldRow:
        """Return what a row says."""
        end = key_row_end(row, 9)
        domain = row[end] if len(row) > end else None
        return cls(time_of(row[1:9]), row[9:end], domain, row[end + 1 :], value)

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        owner = b"" if self.domain is None else BYTE[self.domain] + self.part
        return HOLDS + time8(self.at_us) + self.key_row + owner, self.key

    def tag_row(self) -> bytes | None:
        """Return the row by tag of the timer that holds; None if the key does."""
        if self.domain is None:
            return None
        return TIMER_BY_TAG + self.key_row + BYTE[self.domain] + self.part


class KeyHoldRow(NamedTuple):
    """``G key``: a key's hold, found by its key.

    Attributes:
        key_row: The part that names the key.
        at_us: Where it holds the low watermark.
    """

    key_row: bytes
    at_us: int

    @classmethod
    def unpack(cls, row: bytes, value: bytes) -> KeyHoldRow:
        """Return what a row says."""
        return cls(row[1:], time_of(value))

    def pack(self) -> tuple[bytes, bytes]:
        """Return row and value."""
        return HOLD_BY_KEY + self.key_row, time8(self.at_us)

    def hold_row(self) -> bytes:
        """Return the row of the same hold by time."""
        return key_hold(self.at_us, self.key_row)


def timers(clock: int) -> bytes:
    """Return what the rows of timers begin with that wait for a clock."""
    return _CLOCKS[clock]


def timer_named(key_row: bytes, domain: int, tag: bytes) -> bytes:
    """Return the row by tag of a timer."""
    part = tag if len(tag) <= WHOLE else last_part(tag)
    return TIMER_BY_TAG + key_row + BYTE[domain] + part


def timer_rows(
    named: bytes, key_row: bytes, domain: int, setting: Setting
) -> tuple[bytes, bytes | None]:
    """Return the row by time of a timer, and that of its hold; None if it has none.

    Args:
        named: Its row by tag.
        key_row: The part of it that names its key.
        domain: Of the timer.
        setting: How it is set.
    """
    at_us, hold_us, percentile = setting
    clock = domain if percentile == 100 else clock_of(domain, percentile)
    # Without a call of time8: every timer that is set or has fired passes here.
    row = _CLOCKS[clock] + (at_us + SIGN).to_bytes(8) + key_row + named[len(key_row) + 2 :]
    return row, None if hold_us is None else HOLDS + time8(hold_us) + named[1:]


def pack_timer(key: bytes, tag: bytes, hold_us: int | None) -> bytes:
    """Return the value of a row of timers by time."""
    return _encode((key, tag) if hold_us is None else (key, tag, hold_us))


def due_timers(
    view: View, clock: int, clock_us: int
) -> Iterator[tuple[bytes, bytes, Due, tuple[int | None, int]]]:
    """Yield (key row, key, timer, (hold, percentile)) of what is due by a clock, earliest first."""
    prefix = _CLOCKS[clock]
    domain, percentile = domain_of(clock)
    stop = prefix + time8(min(clock_us, MAX_TIMESTAMP) + 1)
    for row, value in view.scan(prefix, stop):
        timer = _decode(value)
        key = timer.key
        end = 20 + len(key) if len(key) <= WHOLE else key_row_end(row, 10)
        due = (int.from_bytes(row[2:10]) - SIGN, domain, timer.tag)
        yield row[10:end], key, due, (timer.hold_us, percentile)


def pending_us(view: View) -> Iterator[int]:
    """Yield the timestamp that every timer and hold of an interval stands for as pending work."""
    for row, value in view.scan(TIMERS, after(TIMERS)):
        timer = TimerRow.unpack(row, value)
        if (at_us := work_us(timer.domain, timer.tag, timer.setting)) is not None:
            yield at_us
    for row, value in view.scan(HOLD_BY_KEY, after(HOLD_BY_KEY)):
        yield KeyHoldRow.unpack(row, value).at_us


def key_hold(at_us: int, key_row: bytes) -> bytes:
    """Return the row by time of a key's hold."""
    return HOLDS + time8(at_us) + key_row


def clock_of(domain: int, percentile: int) -> int:
    """Return the clock that a timer waits for: 0 low watermark, 1 wall, 128 + p a percentile."""
    return domain if percentile == 100 else 0x80 | percentile


def domain_of(clock: int) -> tuple[int, int]:
    """Return the domain and the percentile of a clock."""
    return (clock, 100) if clock < 0x80 else (0, clock & 0x7F)


def pack_setting(setting: Setting) -> bytes:
    """Return the value of a row of timers by tag: time, hold and percentile as far as there are.

    >>> unpack_setting(pack_setting((5, None, 99)))
    (5, None, 99)
    """
    at_us, hold_us, percentile = setting
    encoded = (at_us + SIGN).to_bytes(8)
    if hold_us is not None:
        encoded += time8(hold_us)
    return encoded if percentile == 100 else encoded + BYTE[percentile]


def unpack_setting(value: bytes) -> Setting:
    """Return how a timer was set, of the value of its row by tag."""
    if len(value) == 8:
        return int.from_bytes(value) - SIGN, None, 100
    hold_us = time_of(value[8:16]) if len(value) >= 16 else None
    return time_of(value[:8]), hold_us, value[-1] if len(value) % 8 else 100


def work_us(domain: int, tag: bytes, setting: Setting) -> int | None:
    """Return the timestamp that a timer stands for as pending work; None if for none.

    Of what only expires nothing comes.
    """
    at_us, hold_us, _ = setting
    if domain or tag[:1] == _EXPIRY:
        return hold_us
    return at_us if hold_us is None else min(at_us, hold_us)


def expiry_tag(cell: bytes, entry: bytes) -> bytes:
    r"""Return the tag of the timer by which a cell, or an entry of a map, expires; no user's is so.

    >>> expiry_tag(b"\0", b"sJFK"), expiry_of(expiry_tag(b"\0", b"sJFK")), expiry_of(b"sJFK")
    (b'x\x00sJFK', (0, b'sJFK'), None)
    """
    return _EXPIRY + cell + entry


def expiry_of(tag: bytes) -> tuple[int, bytes] | None:
    """Return the cell's number, and the entry, that expires by a timer; None if nothing does."""
    return (tag[1], tag[2:]) if tag[:1] == _EXPIRY else None


def waiting_tag(entry: bytes) -> bytes:
    """Return the tag of the timer that a record waits for, by its entry; no user's is so.

    >>> waiting_tag(b"sJFK"), waiting_in(waiting_tag(b"sJFK")), waiting_in(b"sJFK")
    (b'AsJFK', b'sJFK', None)
    """
    return _WAITING + entry


def waiting_in(tag: bytes) -> bytes | None:
    """Return the entry of the record that waits for a timer; None if none does."""
    return tag[1:] if tag[:1] == _WAITING else None


def call_tag(entry: bytes) -> bytes:
    """Return the tag of the timer of a pending call, by the entry of its record; no user's is so.

    >>> call_tag(b"sJFK"), is_call(call_tag(b"sJFK")), is_call(b"sJFK")
    (b'CsJFK', True, False)
    """
    return _CALL + entry


def is_call(tag: bytes) -> bool:
    """Return whether a tag is that of a pending call."""
    return tag[:1] == _CALL


def count_calls(view: View) -> dict[bytes, int]:
    """Return key row -> how many calls of the key are pending at most; keys without one lack."""
    counts: dict[bytes, int] = {}
    for row, _ in scan(view, _CLOCKS[1] + time8(MAX_TIMESTAMP)):
        key_row = key_row_at(row, 10)
        counts[key_row] = counts.get(key_row, 0) + 1
    return counts


def pending_calls(view: View) -> Iterator[TimerRow]:
    """Yield the timers of an interval's pending calls: by key, in order of arrival."""
    for row, value in scan(view, _CLOCKS[1] + time8(MAX_TIMESTAMP)):
        timer = TimerRow.unpack(row, value)
        if is_call(timer.tag):
            yield timer
