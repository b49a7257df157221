"""Datetimes without a zone: no column of instants takes one for an instant in UTC."""

import datetime as dt
from typing import Any

import msgspec
import numpy as np
import pytest

import millrace as mr

NOON = dt.datetime(2026, 11, 22, 12, tzinfo=dt.UTC)
WHY = "datetime.datetime(2026, 11, 22, 12, 0) has no time zone, so it names no instant"


class Timed(msgspec.Struct):
    name: str
    at: dt.datetime


def timed(name: str) -> Timed:
    """Return a value of noon, of whose time a step has lost the zone."""
    return Timed(name, NOON.replace(tzinfo=None) if name.startswith("naive") else NOON)


def pipeline(computation: Any = None) -> mr.Pipeline:
    p = mr.Pipeline("times")
    values = p.inject("names", format=str).map(timed)
    values.to("timed", Timed)
    p.dead_letter("dead")
    if computation is not None:
        p.add(computation, name="C")
    return p


def reasons(h: mr.testing.Harness) -> list[str]:
    return [letter.value.reason for letter in h.outputs("dead")]


@pytest.mark.parametrize("names", [["naive", "aware"], ["aware", "naive", "naive 2", "aware"]])
def test_expressions_refuse_them(names: list[str]) -> None:
    p = pipeline()
    before = NOON - dt.timedelta(hours=1)
    p.stream("timed").filter(mr.col("at") > before).select("at").to("late")
    p.sink("late", mr.sinks.Memory())
    with mr.testing.Harness(p) as h:
        h.inject("names", [(name, 0) for name in names])
        for name in names:  # one by one, too
            h.inject("names", [(name, 0)])

        aware, naive = names.count("aware"), len(names) - names.count("aware")
        assert [out.value for out in h.outputs("late")] == [{"at": NOON}] * 2 * aware
        assert len(reasons(h)) == 2 * naive


class Reads(mr.ColumnComputation):
    inputs = {"timed": mr.by("name")}
    outputs = {"out": dt.datetime}
    last = mr.ValueState(dt.datetime)

    def process_batch(self, block: mr.KeyBlock) -> None:
        block.produce("out", block.records["at"])


class Keeps(mr.Computation):
    inputs = Reads.inputs
    outputs = Reads.outputs
    last = mr.ValueState(dt.datetime)

    def process_record(self, record: mr.Record) -> None:
        self.last.set(record.value.at)


class ReadsState(Reads):
    def process_batch(self, block: mr.KeyBlock) -> None:
        block.produce("out", block.state["last"], key_of=range(len(block.keys)))


class Produces(Reads):
    def process_batch(self, block: mr.KeyBlock) -> None:
        column = [timed(key).at for key in block.keys]
        block.produce("out", column, key_of=range(len(block.keys)))


class Sets(Reads):
    def process_batch(self, block: mr.KeyBlock) -> None:
        block.set_state(last=[timed(key).at for key in block.keys])
        block.produce("out", [NOON] * len(block.keys), key_of=range(len(block.keys)))


class SetsArrays(Reads):
    """NumPy has no zones, and what it makes of instants are instants."""

    def process_batch(self, block: mr.KeyBlock) -> None:
        earlier = block.records["at"].to_numpy() - np.timedelta64(1, "h")
        block.set_state(last=earlier)
        block.produce("out", earlier)


@pytest.mark.parametrize("computation", [Reads, ReadsState, Produces, Sets])
def test_blocks_refuse_them(computation: Any) -> None:
    with mr.testing.Harness(pipeline(Keeps)) as h:
        h.inject("names", [(name, 0) for name in ("naive", "aware", "naive 2")])
        h.update(pipeline(computation))
        h.inject("names", [(name, 1) for name in ("naive", "aware", "naive 2")])

        assert [out.value for out in h.outputs("out")] == [NOON]
        assert len(reasons(h)) == 2
        assert all("names no instant" in reason for reason in reasons(h))
        state = h.checkpoint()["C"]
        assert state.get("naive") == {"last": NOON.replace(tzinfo=None)}


def test_arrays_of_numpy_are_instants() -> None:
    with mr.testing.Harness(pipeline(SetsArrays)) as h:
        h.inject("names", [("aware", 0)])
        earlier = NOON - dt.timedelta(hours=1)
        assert [out.value for out in h.outputs("out")] == [earlier]
        assert h.checkpoint()["C"].get("aware") == {"last": earlier}


def test_it_is_said_which() -> None:
    with mr.testing.Harness(pipeline(Reads)) as h:
        h.inject("names", [("naive", 0)])
        assert WHY in reasons(h)[0]
