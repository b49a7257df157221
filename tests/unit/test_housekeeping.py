"""The driver's thread for collection: needs PySpark's package, and no session."""

from __future__ import annotations

import threading

import pytest

from millrace.model.errors import CheckpointUnwritable
from millrace.spark.housekeeping import Housekeeping
from millrace.store import Collectable, MemoryHardState


@pytest.fixture
def state() -> MemoryHardState:
    state = MemoryHardState()
    for number in range(1, 8):
        state.epochs.append(number, b"{}")
    return state


def until(done: threading.Event) -> None:
    assert done.wait(60), "the thread did nothing in a minute"


def test_what_is_offered_is_collected(state, monkeypatch) -> None:
    done = threading.Event()
    remove = state.epochs.remove_before

    def removing(number):
        removed = remove(number)
        done.set()
        return removed

    monkeypatch.setattr(state.epochs, "remove_before", removing)
    beside = Housekeeping(state)
    beside.offer(Collectable({}, 5))
    until(done)
    beside.close()
    assert (state.epochs.first(), beside.collected.entries, beside.failed) == (5, 4, 0)


@pytest.mark.parametrize("error", [CheckpointUnwritable("read-only"), ZeroDivisionError()])
def test_a_failure_is_counted_and_logged_and_ends_nothing(
    state, monkeypatch, caplog, error
) -> None:
    done = threading.Event()

    def failing(_number):
        done.set()
        raise error

    monkeypatch.setattr(state.epochs, "remove_before", failing)
    beside = Housekeeping(state)
    beside.offer(Collectable({}, 5))
    until(done)
    beside.close()
    assert (beside.failed, beside.collected.entries) == (1, 0)
    assert "could not be collected; it is tried again" in caplog.text


def test_after_the_end_nothing_begins(state) -> None:
    beside = Housekeeping(state)
    beside.close()
    beside.offer(Collectable({}, 5))
    beside.close()
    assert state.epochs.first() == 1
