"""Crash points: hard state that stops its process at a chosen durable write."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.store import Commit, CommitLog, EpochLog, HardState


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
        self.commits: CommitLog = _Commits(state.commits, self)
        self.epochs: EpochLog = _Epochs(state.epochs, self)
        self.uuid = state.uuid

    def step(self) -> None:
        """Count one write, or crash instead of it."""
        if self.writes is None:
            return
        if self.writes == 0:
            raise Crash
        self.writes -= 1


class _Commits:
    def __init__(self, log: CommitLog, owner: CrashingState) -> None:
        self._log = log
        self._owner = owner
        self.read = log.read
        self.exists = log.exists

    def append(self, commits: Sequence[Commit]) -> list[bool]:
        """Write each commit on its own, so that a crash can fall between two intervals."""
        won = []
        for commit in commits:
            self._owner.step()
            won += self._log.append([commit])
        return won


class _Epochs:
    def __init__(self, log: EpochLog, owner: CrashingState) -> None:
        self._log = log
        self._owner = owner
        self.read = log.read
        self.last = log.last

    def append(self, number: int, entry: bytes) -> bool:
        self._owner.step()
        return self._log.append(number, entry)
