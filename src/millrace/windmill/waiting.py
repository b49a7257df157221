"""Waiting: records that are kept until the side inputs of their computation have come so far.

A kept record is an entry of a hidden map of its key, with a timer that fires when the low watermark
has passed it, and holds that at the record's timestamp until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millrace.compile.topology import StreamSpec
from millrace.model.computation import Computation
from millrace.model.keys import decode_key, encode_key
from millrace.model.record import Record
from millrace.windmill import rows
from millrace.windmill.calls import Calls
from millrace.windmill.timers import KeyTimers


class Waited(NamedTuple):
    """A record as it was kept: as it came, with its id."""

    stream: str
    value: Any
    timestamp_us: int
    origin: int
    sequence: int


class Waiting:
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
        calls: Calls,
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
        tag = rows.waiting_tag(encode_key(name))
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
