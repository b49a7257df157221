"""The writer of the epoch log, where a write is refused that was made all the same."""

from __future__ import annotations

import pytest

from millrace.epochlog.entries import Completion
from millrace.epochlog.run_log import LogWriter
from millrace.model.errors import CheckpointUnwritable, DamagedStore, StoreError, ZombieWriter
from millrace.store import EpochLog, MemoryHardState

COMPLETION = Completion(
    epoch=1, generation=1, drained=False, wall_time_us=0, after={}, intervals={}, numbers={},
    chains={}, reports={}, counters={},
)  # fmt: skip


class AnswerLost:
    """Writes an entry, and fails."""

    def __init__(self) -> None:
        self._log = MemoryHardState().epochs

    def append(self, number: int, entry: bytes) -> bool:
        self._log.append(number, entry)
        raise CheckpointUnwritable("the test refuses it")

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


def failing() -> None:
    raise DamagedStore("the test cannot read it")


def test_a_run_whose_own_entry_is_perhaps_written_does_not_take_it_for_a_newer_runs() -> None:
    writer = LogWriter(AnswerLost(), 0, generation=1)  # type: ignore[arg-type]
    with pytest.raises(CheckpointUnwritable):
        writer.append(COMPLETION, lambda: None)
    assert writer.superseded() is None
    with pytest.raises(DamagedStore):
        writer.ours(failing)


def test_an_entry_of_another_run_is_one() -> None:
    log = MemoryHardState().epochs
    writer = LogWriter(log, 0, generation=1)
    assert writer.superseded() is None
    log.append(1, b"another's")
    assert isinstance(writer.superseded(), ZombieWriter)
    with pytest.raises(ZombieWriter):
        writer.ours(failing)


def test_a_log_that_cannot_be_read_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(MemoryHardState().epochs, 0, generation=1)

    def refused(_: EpochLog) -> int:
        raise StoreError("no route")

    monkeypatch.setattr(EpochLog, "last", refused)
    with pytest.raises(DamagedStore, match="the test cannot read it"):
        writer.ours(failing)
