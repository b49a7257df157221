"""Reading beside a run that goes on, and collects what is being read."""

from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.inspect import Checkpoint, explain_watermark, read_latest
from millrace.inspect.overview import moments
from millrace.model.errors import DamagedStore, NotKept
from millrace.store import (
    HardState,
    MemoryCache,
    MemoryHardState,
    SnapshotHead,
    bring,
    encode_snapshot,
)


class Sum(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {}
    total = mr.ValueState(int)

    def process_record(self, record):
        self.total.set(self.total.get(0) + record.value["value"])
        self.hold(record.timestamp)


@pytest.fixture
def h(harness):
    return harness(Sum, intervals=1)


def add(h: Any, value: int) -> None:
    h.inject("events", [({"key": "k", "value": value}, 50)])


def collect(state: HardState) -> None:
    """Write a snapshot of the last commit, and remove all that is before."""
    number = max(state.commits.numbers("Sum")[0])
    cache = MemoryCache("Sum", 0)
    bring(cache, state, "Sum", 0, number)
    head = SnapshotHead("Sum", 0, number, cache.cache_position.chain)
    with cache.view() as view:
        state.snapshots.put("Sum", 0, number, encode_snapshot(head, view.everything()))
    state.commits.remove("Sum", 0, range(1, number + 1))


class Meanwhile:
    """A store in which something happens when a commit is read for the first time."""

    def __init__(self, state: MemoryHardState, happens: Any) -> None:
        self._state, self._happens = state, happens
        self.snapshots, self.epochs, self.uuid = state.snapshots, state.epochs, state.uuid
        self.commits, self.incarnations = self, state.incarnations

    def read(self, *slot: Any) -> Any:
        if self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        return self._state.commits.read(*slot)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state.commits, name)


def test_what_a_run_has_collected_since_is_not_kept_and_is_there_in_the_latest(h):
    add(h, 1)
    checkpoint = Checkpoint(h._durable)
    add(h, 2)
    collect(h._durable)

    gone = r"'Sum' after epoch 0 is not kept any more.*Ask for a later epoch"
    with pytest.raises(NotKept, match=gone):
        checkpoint["Sum"].get("k")
    assert checkpoint.latest()["Sum"].get("k") == {"total": 3}


def test_an_answer_that_is_collected_in_mid_read_is_looked_for_again(h):
    add(h, 1)

    def goes_on() -> None:
        add(h, 2)
        collect(h._durable)

    state: Any = Meanwhile(h._durable, goes_on)
    epochs = []

    def read(checkpoint: Checkpoint) -> Any:
        epochs.append(checkpoint.epoch)
        return checkpoint["Sum"].get("k")

    assert read_latest(state, read) == {"total": 3}
    assert epochs == [0, 1]


def test_an_explanation_that_is_collected_in_mid_read_is_made_again(h):
    add(h, 1)
    h.advance_watermark("events", 100)

    def goes_on() -> None:
        add(h, 2)
        collect(h._durable)

    found = explain_watermark(Meanwhile(h._durable, goes_on), "Sum")  # type: ignore[arg-type]

    assert (found.pin.kind, found.pin.key, found.epoch) == ("hold", "k", 2)


class Collected:
    """An epoch log from which a run removes the first entries, once, while they are read."""

    def __init__(self, log: Any, happens: Any) -> None:
        self._log, self._happens = log, happens

    def read(self, number: int) -> Any:
        if self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        return self._log.read(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def test_entries_of_the_log_that_are_collected_in_mid_read_are_passed_over():
    log: Any = MemoryHardState().epochs
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Sum)
    for _ in range(2):  # two runs, each with an epoch
        state: Any = SimpleNamespace(epochs=log)
        run_log = RunLog(p.build(), state, intervals=1)
        manifest = run_log.begin(run_log.completed + 1, wall_time_us=0, injectors={})
        run_log.complete(manifest, [])
    assert [moment.epoch for moment in moments(log)] == [0, 1]
    second_claim = log.last() - 2

    found = moments(Collected(log, lambda: log.remove_before(second_claim)))  # type: ignore[arg-type]

    assert [moment.epoch for moment in found] == [1]


def test_damage_is_not_taken_for_collection(h):
    add(h, 1)
    state = h._durable.copy()
    state.commits.remove("Sum", 0, [1])

    with pytest.raises(DamagedStore, match="cannot be brought to commit 1"):
        Checkpoint(state)["Sum"].get("k")
