"""The writer of the epoch log, where a write is refused that was made all the same."""

from __future__ import annotations

import pytest

from millrace.epochlog.entries import Completion, encode_entry
from millrace.epochlog.run_log import LogWriter
from millrace.model.errors import CheckpointUnwritable, DamagedStore, StoreError, ZombieWriter
from millrace.store import EpochLog, MemoryBlobs, MemoryHardState

COMPLETION = Completion(
    epoch=1, generation=1, drained=False, wall_time_us=0, after={}, intervals={}, numbers={},
    chains={}, reports={}, counters={},
)  # fmt: skip


class AnswerLost:
    """Writes its first entry, and fails."""

    def __init__(self, log: EpochLog | None = None) -> None:
        self._log = log or MemoryHardState().epochs
        self._failed = False

    def append(self, number: int, entry: bytes) -> bool:
        put = self._log.append(number, entry)
        if self._failed:
            return put
        self._failed = True
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


def test_an_entry_that_was_written_all_the_same_counts() -> None:
    writer, done = LogWriter(AnswerLost(), 0, generation=1), list[int]()  # type: ignore[arg-type]
    with pytest.raises(CheckpointUnwritable):
        writer.append(COMPLETION, lambda: done.append(1))
    writer.settle()
    assert (done, writer.last) == ([1], 1)


def test_one_that_was_written_where_a_newer_runs_collection_had_passed_does_not() -> None:
    """It stays there, as entries come after it; but they are of another history."""
    blobs = MemoryBlobs()
    log, newer = EpochLog(blobs), EpochLog(blobs)
    for number in range(1, 6):
        (log if number < 3 else newer).append(number, b"%d" % number)
    newer.remove_before(4)
    writer, done = LogWriter(AnswerLost(log), 2, generation=1), list[int]()  # type: ignore[arg-type]
    with pytest.raises(CheckpointUnwritable):
        writer.append(COMPLETION, lambda: done.append(1))
    assert log.read(3) == encode_entry(COMPLETION)
    with pytest.raises(ZombieWriter):
        writer.settle()
    assert done == []


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
