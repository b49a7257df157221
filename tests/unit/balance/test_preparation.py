"""Preparations: what a remap reads is read beside epochs, and only what came since in the pause."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.balance.preparation import Preparation
from millrace.balance.transfer import remap
from millrace.model.errors import PipelineError, StoreError
from millrace.store import CommitLog


class Event(msgspec.Struct):
    key: int
    n: int


class Sums(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"sums": int}
    total = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.add(record.value.n)
        self.produce("sums", self.total.get())


def harness() -> mr.testing.Harness:
    p = mr.Pipeline("shop")
    p.inject("events", format=Event)
    p.add(Sums)
    return mr.testing.Harness(p, intervals=4)


def step(h: mr.testing.Harness, n: int) -> None:
    h.inject("events", [(Event(key, n * 100 + key), n) for key in range(20)])


def sums(h: mr.testing.Harness) -> list[tuple[Any, Any]]:
    h.check()
    return sorted((one.key, one.value) for one in h.outputs("sums"))


def expected(steps: int) -> list[tuple[Any, Any]]:
    h = harness()
    for n in range(steps):
        step(h, n)
    return sums(h)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Commits that were read from the log: interval and number."""
    found: list[tuple[int, int]] = []
    read = CommitLog.read

    def reading(self: Any, computation: str, interval: int, number: int) -> Any:
        found.append((interval, number))
        return read(self, computation, interval, number)

    monkeypatch.setattr(CommitLog, "read", reading)
    return found


def test_the_remap_reads_what_was_committed_since_and_no_more(
    reads: list[tuple[int, int]],
) -> None:
    h = harness()
    step(h, 0)
    step(h, 1)
    preparation = Preparation(h._run_log, {"Sums": [mr.ops.Split(0), mr.ops.Merge(2, 3)]})
    assert not preparation.is_near()
    reads.clear()
    preparation.read()
    assert reads == [(0, 1), (0, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    step(h, 2)
    assert preparation.is_near()
    reads.clear()
    made = remap(h._run_log, preparation.remaps, ready=preparation.ready)
    assert reads == [(0, 3), (2, 3), (3, 3)]
    assert len(made["Sums"].intervals) == 4
    assert preparation.ready == {"Sums": {}}
    step(h, 3)
    assert sums(h) == expected(4)


def test_what_nobody_ever_wrote_is_near_at_once() -> None:
    h = harness()
    h.advance_watermark("events", 1)
    assert Preparation(h._run_log, {"Sums": [mr.ops.Split(0)]}).is_near()
    step(h, 0)
    assert not Preparation(h._run_log, {"Sums": [mr.ops.Split(0)]}).is_near()
    assert Preparation(h._run_log, {"Sums": []}).is_near()


def test_it_reads_on_while_epochs_go_on_but_not_for_ever() -> None:
    h = harness()
    step(h, 0)
    preparation = Preparation(h._run_log, {"Sums": [mr.ops.Split(0)]})
    for rounds in range(3):
        assert not preparation.is_near()
        step(h, 1 + 2 * rounds)
        step(h, 2 + 2 * rounds)
        preparation.read()
        assert not preparation.under_way
    assert preparation.is_near()
    remap(h._run_log, preparation.remaps, ready=preparation.ready)
    step(h, 7)
    assert sums(h) == expected(8)


def test_one_that_another_remap_has_overtaken_is_refused() -> None:
    h = harness()
    step(h, 0)
    preparation = Preparation(h._run_log, {"Sums": [mr.ops.Split(0)]})
    assert not preparation.is_near()
    preparation.read()
    h.remap("Sums", [mr.ops.Merge(0, 1)])
    last = h._durable.epochs.last()
    with pytest.raises(PipelineError, match="interval 0 is not there"):
        preparation.is_near()
    assert h._durable.epochs.last() == last
    step(h, 1)
    assert sums(h) == expected(2)


def test_what_cannot_be_is_refused_before_anything_is_read(reads: list[tuple[int, int]]) -> None:
    h = harness()
    with pytest.raises(PipelineError, match="no complete epoch yet"):
        Preparation(h._run_log, {"Sums": [mr.ops.Split(0)]}).is_near()
    step(h, 0)
    reads.clear()
    with pytest.raises(PipelineError, match="expected neighbours"):
        Preparation(h._run_log, {"Sums": [mr.ops.Merge(0, 2)]}).is_near()
    with pytest.raises(PipelineError, match="no computation 'Nobody'"):
        Preparation(h._run_log, {"Nobody": []}).is_near()
    assert reads == []


def test_what_it_does_not_read_the_remap_reads(
    reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    h = harness()
    step(h, 0)
    preparation = Preparation(h._run_log, {"Sums": [mr.ops.Split(0), mr.ops.Split(1)]})
    assert not preparation.is_near()

    def refusing(*_: object) -> None:
        raise StoreError("the disk is tired")

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "millrace"):
        patch.setattr(CommitLog, "read", refusing)
        preparation.read()
    assert "[('Sums', 0)] are read while the run waits" in caplog.text
    assert "the disk is tired" in caplog.text
    assert (preparation.ready, preparation.is_near()) == ({"Sums": {}}, True)
    reads.clear()
    remap(h._run_log, preparation.remaps, ready=preparation.ready)
    assert reads == [(0, 1), (1, 1)]
    step(h, 1)
    assert sums(h) == expected(2)


def test_it_keeps_no_more_than_it_may(reads: list[tuple[int, int]], caplog: Any) -> None:
    h = harness()
    step(h, 0)
    whole = Preparation(h._run_log, {"Sums": [mr.ops.Split(n) for n in range(4)]})
    assert not whole.is_near()
    whole.read()
    sizes = {n: cache.size_bytes for n, cache in whole.ready["Sums"].items()}
    most = sizes[0] + sizes[1]
    less = Preparation(h._run_log, whole.remaps, most_bytes=most)
    assert not less.is_near()
    reads.clear()
    with caplog.at_level(logging.INFO, "millrace"):
        less.read()
    assert [*less.ready["Sums"]] == [0, 1]
    # One was read to see that it is too much; the last was not.
    assert [interval for interval, _ in reads] == [0, 1, 2]
    those = "[('Sums', 2), ('Sums', 3)]"
    said = f"rows of {those} are read while the run waits: they have more than {most:,} bytes"
    assert said in caplog.text
    assert less.is_near()
    remap(h._run_log, less.remaps, ready=less.ready)
    step(h, 1)
    assert sums(h) == expected(2)


def test_who_ends_reads_no_more(reads: list[tuple[int, int]]) -> None:
    h = harness()
    step(h, 0)
    preparation = Preparation(h._run_log, {"Sums": [mr.ops.Split(0), mr.ops.Split(1)]})
    assert not preparation.is_near()
    reads.clear()
    going = iter([True, False])
    preparation.read(lambda: next(going))
    assert reads == [(0, 1)]
    assert not preparation.under_way


def test_what_is_collected_while_it_waits_is_read_from_newer_snapshots() -> None:
    h = harness()
    step(h, 0)
    preparation = Preparation(h._run_log, {"Sums": [mr.ops.Split(0)]})
    assert not preparation.is_near()
    preparation.read()
    steps = 1
    while h._durable.commits.exists("Sums", 0, 2) or steps < 3:
        step(h, steps)
        steps += 1
        assert steps < 400, "nothing is ever collected"
    assert not preparation.is_near()
    preparation.read()
    assert preparation.is_near()
    remap(h._run_log, preparation.remaps, ready=preparation.ready)
    step(h, steps)
    assert sums(h) == expected(steps + 1)
