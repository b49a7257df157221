"""Faults that a test injects: a crash at a chosen durable write, and user code that hangs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from millrace.model.errors import TimeLimitExceeded
from millrace.store import Appender, Blobs, CommitLog, EpochLog, HardState, Incarnations, Snapshots


def exceed_time_limit() -> NoReturn:
    """End the hook that this is called in, as ``start(time_limit=)`` ends one that takes too long.

    A test calls it where a service that the hook asks would hang. The Harness ends nothing of its
    own accord: it has no clock but the test's.

    >>> import millrace as mr
    >>> class Lookup(mr.Computation):
    ...     inputs = {"words": mr.by(lambda value: value)}
    ...     outputs = {"found": str}
    ...
    ...     def process_record(self, record):
    ...         try:
    ...             if record.value == "tea":
    ...                 mr.testing.exceed_time_limit()
    ...         except Exception:
    ...             pass  # it is no Exception
    ...         self.produce("found", record.value)
    >>> p = mr.Pipeline("lookup")
    >>> p.inject("words", format=str)
    Stream('words')
    >>> p.add(Lookup)
    >>> p.dead_letter("rejects")
    Stream('rejects')
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("words", [("tea", 5), ("milk", 6)])
    ...     [output.value for output in h.outputs("found")]
    ...     [output.value.reason for output in h.outputs("rejects")]
    ['milk']
    ['TimeLimitExceeded: the test said so']
    """
    raise TimeLimitExceeded("the test said so")


class Crash(BaseException):
    """The simulated death of the process. Not an Exception: nothing may catch and survive it."""


class CrashingState:
    """Hard state whose process dies right before its n-th durable write from now.

    Args:
        state: The state that survives.
        writes: How many writes still succeed; None never crashes.
    """

    def __init__(self, state: HardState, writes: int | None = None) -> None:
        self.writes = writes
        self.blobs: Blobs = _Blobs(state.blobs, self)
        self.incarnations = Incarnations(_Blobs(state.incarnations.blobs, self))
        self.commits = CommitLog(self.blobs, self.incarnations)
        self.snapshots = Snapshots(self.blobs)
        self.epochs = EpochLog(self.blobs)
        self.mailbox = state.mailbox
        self.uuid = state.uuid

    def step(self) -> None:
        """Count one write, or crash instead of it."""
        if self.writes is None:
            return
        if self.writes == 0:
            raise Crash
        self.writes -= 1


class _Blobs:
    """Blobs that are put and removed one at a time, so that a crash can fall between any two."""

    def __init__(self, blobs: Blobs, owner: CrashingState) -> None:
        self._blobs = blobs
        self._owner = owner
        self.where = blobs.where
        self.far = blobs.far
        self.turns = blobs.turns
        self.read = blobs.read
        self.read_range = blobs.read_range
        self.stream = blobs.stream
        self.exists = blobs.exists
        self.names = blobs.names
        self.sizes = blobs.sizes
        self.map = blobs.map

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._owner.step()
        return self._blobs.put_if_absent(name, data)

    def put_pieces(self, name: str, pieces: Iterable[bytes]) -> bool:
        self._owner.step()
        return self._blobs.put_pieces(name, pieces)

    def replace(self, name: str, data: bytes) -> None:
        self._owner.step()
        self._blobs.replace(name, data)

    def remove(self, names: Iterable[str], *, durable: bool = False) -> None:
        for name in names:
            self._owner.step()
            self._blobs.remove([name], durable=durable)

    def appender(self, name: str) -> Appender:
        return _Appender(self._blobs.appender(name), self._owner)


class _Appender:
    def __init__(self, appender: Appender, owner: CrashingState) -> None:
        self._appender = appender
        self._owner = owner
        self.close = appender.close

    def append(self, data: bytes, *, durable: bool = True) -> bool:
        self._owner.step()
        return self._appender.append(data, durable=durable)
