"""An injector that makes the load's records itself, by the clock: no broker, no producer.

A record's send time is the time at which it is due, so it does not depend on when it is made, and
what lies between two offsets is always the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import millrace as mr

_SECOND_NS = 1_000_000_000
#: The most that is made at once.
_CHUNK = 10_000


class Synthetic(mr.sources.Injector):
    """Makes records at a rate, as soon as there is a file that says when to begin.

    Args:
        begin_path: Holds nanoseconds since 1970 once it is there.
        rate: Records a second, of all processes together.
        records: How many there are in all.
        keys: Keys are below it.
        processes: So many, which make records in turn.
        every_ms: What is due within so many milliseconds is sent at their end; 0: each by itself.
    """

    schema = "sent long, key long"
    # As in Kafka: what lies between two offsets is the same, however it is cut.
    seamless = True

    def __init__(
        self,
        begin_path: Path,
        *,
        rate: int,
        records: int,
        keys: int,
        processes: int,
        every_ms: int = 0,
    ) -> None:
        self._begin_path = begin_path
        self._begin_ns: int | None = None
        self._rate = rate
        self._records = records
        self._keys = keys
        self._processes = processes
        self._every_ns = every_ms * 1_000_000

    def processes(self) -> Iterable[str]:
        """Return ``"0"``, ``"1"`` and so on."""
        return [str(number) for number in range(self._processes)]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        """Return how many records of the process are due."""
        begin_ns = self._begin()
        if begin_ns is None:
            return mr.sources.Advance(offset)
        since_ns = time.time_ns() - begin_ns
        if self._every_ns:
            since_ns -= since_ns % self._every_ns
        due = min(self._records, since_ns * self._rate // _SECOND_NS + 1) if since_ns >= 0 else 0
        done = offset or 0
        own = (due - int(process) + self._processes - 1) // self._processes
        if own <= done:
            return mr.sources.Advance(offset)
        end = min(own, done + _CHUNK)
        return mr.sources.Advance(end, self._sent_ns(int(process) + end * self._processes) // 1_000)

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterator[pa.RecordBatch]:
        """Make the records between two offsets."""
        numbers = int(process) + np.arange(start or 0, end) * self._processes
        yield pa.RecordBatch.from_pydict(
            {"sent": self._sent_ns(numbers), "key": keys_of(numbers, self._keys)}
        )

    def _begin(self) -> int | None:
        if self._begin_ns is None and self._begin_path.exists():
            self._begin_ns = int(self._begin_path.read_text())
        return self._begin_ns

    def _sent_ns(self, numbers: Any) -> Any:
        begin_ns = self._begin()
        assert begin_ns is not None
        return sent_ns(numbers, begin_ns, self._rate, self._every_ns)


def sent_ns(numbers: Any, begin_ns: int, rate: int, every_ns: int = 0) -> Any:
    """Return when records are sent, by their numbers from 0: when they are due, or a batch is.

    >>> sent_ns(np.arange(3), 1000, 500_000_000).tolist()
    [1000, 1002, 1004]
    >>> sent_ns(np.arange(6), 1000, 500_000_000, every_ns=4).tolist()
    [1000, 1004, 1004, 1008, 1008, 1012]
    """
    due_ns = numbers * _SECOND_NS // rate
    return begin_ns + (-(-due_ns // every_ns) * every_ns if every_ns else due_ns)


def keys_of(numbers: np.ndarray, keys: int) -> np.ndarray:
    """Return the keys of records by their numbers: drawn, but always the same.

    >>> found = keys_of(np.arange(10_000), 10)
    >>> sorted(set(found.tolist())) == list(range(10)), abs(int((found == 3).sum()) - 1000) < 100
    (True, True)
    """
    # The last step of splitmix64: neighbours have nothing in common.
    x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) % np.uint64(keys)).astype(np.int64)
