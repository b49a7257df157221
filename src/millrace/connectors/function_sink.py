"""A sink that is a function of the user's that is given the records in the tasks, as Arrow batches.

Sinks that take rows as they come, on either plane, and may be given a row again.

Nothing is published and nothing remembered: a row that comes again has the id that it had. The
functions of users travel by value to where they are called.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from millrace.model.coroutines import parameters_refusing
from millrace.model.errors import PipelineError, SinkError
from millrace.runtime.by_value import pickle_by_value


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

    def begin(self, incarnation: int, generation: int, task: int) -> _TurnsOfTaking:
        """Return what a task writes with in an incarnation."""
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


if TYPE_CHECKING:
    from millrace.runtime.sink_contract import Binding


class ArrowSink:
    """Calls a function with batches of records, in the tasks that made them.

    It is called when the records' commits are durable: on the epoch plane within the epoch, on the
    real-time plane in every turn, in the Harness too. A batch has one row or more, and at least the
    columns of the record format (or ``value``), ``_key`` (text), ``_timestamp`` and ``_id`` (16
    bytes). Records of one key come in the order in which they were produced.

    Each record is given at least once. After a failure those since the last epoch or mark that
    completed come again, with the ids they had, in batches that may be cut otherwise. So ``_id``
    makes it exactly once: as a primary key, or as the idempotency key of a request.

    Args:
        write: The function. It is sent to the workers, so it must be picklable; it makes
            connections when it is first called, and may keep them. What it raises ends the run.

    Raises:
        PipelineError: It cannot be called.

    >>> import millrace as mr
    >>> p = mr.Pipeline("words")
    >>> _ = p.inject("words", format=str)
    >>> p.sink("words", mr.sinks.Function(lambda rows: print(rows.column("value").to_pylist())))
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("words", [("tea", 0), ("mate", 1)])
    ['tea', 'mate']
    """

    def __init__(self, write: Callable[[pa.RecordBatch], Any]) -> None:
        if isinstance(write, type) or not callable(write):
            raise PipelineError(
                f"sinks.Function({write!r}): expected a function of an Arrow batch."
            )
        if (parameters := parameters_refusing(write, 1)) is not None:
            raise PipelineError(
                f"sinks.Function({write!r}) would be called with (batch), and has the parameters "
                f"{parameters}. Expected a function of an Arrow batch."
            )
        self.function = write
        self._streams: list[str] = []

    def bind(self, binding: Binding) -> None:
        """Learn the stream, for messages."""
        if binding.stream not in self._streams:
            self._streams.append(binding.stream)

    def for_tasks(self) -> ByEpoch:
        """Return what the tasks of an epoch call the function with."""
        return ByEpoch(self._calls())

    def publish(self, epoch: int, receipts: list[bytes]) -> None:
        """Do nothing: the function has been called."""

    def live(self) -> ByTurn:
        """Return what tasks call the function with in every turn."""
        return ByTurn(self._calls())

    def _calls(self) -> _Calls:
        streams = " and ".join(map(repr, self._streams))
        return _Calls(self.function, f"{self!r}, the sink of stream {streams}")

    def __repr__(self) -> str:
        function = self.function
        return f"sinks.Function({getattr(function, '__qualname__', None) or repr(function)})"


@dataclass(frozen=True)
class _Calls:
    """Calls the function; it opens itself, as it holds nothing that is one task's."""

    write: Callable[[pa.RecordBatch], Any]
    where: str

    def __call__(self) -> _Calls:
        return self

    def take(self, rows: pa.RecordBatch) -> None:
        try:
            self.write(rows)
        except Exception as error:
            first = rows.column("_id")[0].as_py().hex()
            raise SinkError(
                f"{self.where}, raised {type(error).__name__} at a batch of {rows.num_rows} "
                f"records, the first with id {first}: {error}. The records of failed calls are "
                "sent again, with the same ids."
            ) from error

    def flush(self) -> None:
        pass

    def leave(self) -> None:
        pass
