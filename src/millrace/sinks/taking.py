"""Sinks that take rows as they come, on either plane, and may be given a row again.

Nothing is published and nothing remembered: a row that comes again has the id that it had. The
functions of users travel by value to where they are called.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from millrace.plane.by_value import pickle_by_value


class Taking(Protocol):
    """What takes a task's rows."""

    def take(self, rows: pa.RecordBatch) -> None:
        """Take rows; they may be on their way still when this returns."""
        ...

    def flush(self) -> None:
        """Return when what was taken is durable."""
        ...

    def leave(self) -> None:
        """Give up what was not flushed."""
        ...


@dataclass(frozen=True)
class ByEpoch:
    """Lets the tasks of an epoch, or of a mark, have their rows taken.

    Attributes:
        open: Returns what takes a task's rows; picklable.
        key_type: What it takes in the column ``_key``: text, or bytes.
    """

    open: Callable[[], Taking]
    key_type: type = str

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (ByEpoch, pickle_by_value(self.open), self.key_type)

    def begin(self, epoch: int, task: int) -> _EpochOfTaking:
        """Return what an attempt at a task writes to."""
        return _EpochOfTaking(self.open())


@dataclass(frozen=True)
class ByTurn:
    """Lets tasks have their rows taken in every turn.

    Attributes:
        open: Returns what takes a task's rows; picklable.
        key_type: What it takes in the column ``_key``: text, or bytes.
    """

    open: Callable[[], Taking]
    key_type: type = str

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (ByTurn, pickle_by_value(self.open), self.key_type)

    def begin(self, session: int, generation: int, task: int) -> _TurnsOfTaking:
        """Return what a task writes with in a session."""
        return _TurnsOfTaking(self.open())


def _arrived(kind: Callable[[Callable[[], Taking], type], Any], open: bytes, key: type) -> Any:
    # Written by the driver of this very run, never read from a checkpoint or a stream.
    return kind(pickle.loads(open), key)


class _EpochOfTaking:
    def __init__(self, taking: Taking) -> None:
        self._taking = taking

    def write(self, rows: pa.RecordBatch) -> None:
        self._taking.take(rows)

    def close(self) -> bytes:
        try:
            self._taking.flush()
        finally:
            self._taking.leave()
        return b""

    def abort(self) -> None:
        self._taking.leave()


class _TurnsOfTaking:
    def __init__(self, taking: Taking) -> None:
        self._taking = taking

    def write(self, rows: pa.RecordBatch, origins: Any, sequences: Any) -> None:
        self._taking.take(rows)

    def flush(self) -> None:
        self._taking.flush()

    def close(self) -> None:
        self._taking.leave()
