"""What a computation keeps as columns."""

import datetime as dt
import json
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace.inspect import batches, columns_of
from millrace.model.errors import PipelineError


class Visit(msgspec.Struct):
    page: str
    at: dt.datetime
    tags: list[str] = []
    within: "Visit | None" = None


class Visitor(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {}
    last = mr.ValueState(Visit)
    either = mr.ValueState(int | str)
    visits = mr.MapState(float)
    order = mr.BagState(str)
    raw = mr.ValueState(mr.coders.Bytes())
    secret = mr.ValueState(mr.coders.Pickle())

    def process_record(self, record):
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        self.last.set(Visit("a", at, ["x"], Visit("b", at)))
        self.either.set("text")
        self.visits[7] = 0.5
        self.order.add("a")
        self.raw.set(b"\xff")
        self.secret.set({1})
        self.set_timer(("t", 1), at=mr.MINUTE, hold=5)

    def process_timer(self, timer):
        pass


@pytest.fixture
def found(harness):
    h = harness(Visitor)
    h.inject("events", [({"key": key}, 10) for key in ("ann", 7, b"ab", "k" * 1_000)])
    return h.checkpoint()["Visitor"]


def rows(found: Any, what: str) -> list[dict[str, Any]]:
    return pa.Table.from_batches(batches(found, what), columns_of(found, what)).to_pylist()


def test_cells_are_columns_typed_by_the_schemas_of_the_checkpoint(found):
    types = {field.name: str(field.type) for field in columns_of(found)}

    assert types == {
        "key": "string",
        "hash": "int64",
        "either": "string",
        "last": "struct<page: string, at: timestamp[us, tz=UTC], tags: list<item: string>, "
        "within: string>",
        "order": "list<item: string>",
        "raw": "binary",
        "secret": "string",
        "visits": "map<string, double>",
    }
    by_key = {row["key"]: row for row in rows(found, "cells")}
    assert by_key.keys() == {"ann", "7", "0x6162", None}
    ann = by_key["ann"]
    assert (ann["last"]["page"], ann["last"]["tags"], ann["either"]) == ("a", ["x"], '"text"')
    assert '"page":"b"' in ann["last"]["within"]
    assert (ann["order"], ann["visits"], ann["raw"]) == (["a"], [("7", 0.5)], b"\xff")
    assert '"coder":"pickle"' in ann["secret"]


def test_what_is_pending_is_columns(found):
    timers, holds = rows(found, "timers"), rows(found, "holds")

    assert {row["key"] for row in timers} == {"ann", "7", "0x6162", "k" * 1_000}
    assert {(row["tag"], row["at"], row["hold"]) for row in timers} == {('["t",1]', mr.MINUTE, 5)}
    assert {(row["at"], row["timer"] is None) for row in holds} == {(5, False)}
    assert rows(found, "windows") == rows(found, "chunks") == rows(found, "ids") == []


def test_key_intervals_apart_are_all_of_it(found):
    apart = [row for n in range(len(found.intervals)) for row in rows(found.only(n), "cells")]

    assert apart == rows(found, "cells")


def test_what_cannot_be_read_is_refused(found):
    with pytest.raises(PipelineError, match="'cell' cannot be read of a computation"):
        columns_of(found, "cell")


class Large(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {}
    sums = mr.MapState(list[int])

    def process_record(self, record):
        self.sums["a"] = [1, 2**64 - 1]


def test_an_int_that_no_column_holds_is_named_with_its_key(harness):
    h = harness(Large)
    h.inject("events", [({"key": "ann"}, 10)])

    with pytest.raises(PipelineError, match=r"'sums' of key ann: .*18446744073709551615.* int64"):
        rows(h.checkpoint()["Large"], "cells")


class Placed(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {}
    seen = mr.ValueState(set[mr.Window])
    counts = mr.ValueState(dict[mr.Window, int])
    left = mr.ValueState(Visit)

    def process_record(self, record):
        self.seen.set({mr.Window(0, 5)})
        self.counts.set({mr.Window(0, 5): 7})


def test_objects_in_sets_and_as_keys_are_columns_too(harness):
    h = harness(Placed)
    h.inject("events", [({"key": "ann"}, 10)])

    (row,) = rows(h.checkpoint()["Placed"], "cells")
    assert (row["seen"][0]["start"], row["seen"][0]["end"]) == (0, 5)
    ((key, count),) = row["counts"]
    assert (count, '"end":5' in key) == (7, True)


class Converted(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {}
    rates = mr.SideInput("rates", "currency")

    def process_record(self, record):
        pass


def test_a_side_input_is_a_map_with_its_rows(harness):
    h = harness(Converted, streams=("events", "rates"), intervals=1)
    h.inject("rates", [({"currency": "USD", "euros": euros}, at) for euros, at in ((9, 1), (8, 2))])

    (row,) = rows(h.checkpoint()["Converted"], "cells")
    ((currency, history),) = row["rates"]
    assert (row["key"], row["hash"], currency) == ("all keys", 0, "USD")
    assert [json.loads(one) for one in history] == [
        [{"currency": "USD", "euros": 9}, 1],
        [{"currency": "USD", "euros": 8}, 2],
    ]


class Clock(mr.Computation):
    """Keeps a time of day, in a zone or in none."""

    inputs = {"events": mr.by("key")}
    outputs = {}
    seen = mr.ValueState(dt.datetime)

    def process_record(self, record):
        hours = record.value["zone"]
        zone = None if hours is None else dt.timezone(dt.timedelta(hours=hours))
        self.see(dt.datetime(2026, 1, 2, 3, tzinfo=zone))

    def see(self, at):
        self.seen.set(at)


class Within(Clock):
    seen = mr.MapState(Visit)

    def see(self, at):
        self.seen["a"] = Visit("a", at, within=Visit("b", at))


def test_a_datetime_of_any_zone_is_its_instant(harness):
    h = harness(Clock, Within)
    h.inject("events", [({"key": "a", "zone": 2}, 1)])

    instant = dt.datetime(2026, 1, 2, 1, tzinfo=dt.UTC)
    (row,) = rows(h.checkpoint()["Clock"], "cells")
    assert row["seen"] == instant
    (row,) = rows(h.checkpoint()["Within"], "cells")
    ((_, visit),) = row["seen"]
    assert visit["at"] == instant
    assert json.loads(visit["within"])["at"] == "2026-01-02T01:00:00Z"


@pytest.mark.parametrize("computation", [Clock, Within])
def test_a_datetime_without_a_zone_is_not_shown_as_one_in_utc(harness, computation):
    """It names no instant, and a column of instants has no other form for it."""
    h = harness(computation)
    h.inject("events", [({"key": "a", "zone": None}, 1)])
    found = h.checkpoint()[computation.__name__]

    with pytest.raises(PipelineError) as refused:
        rows(found, "cells")
    assert str(refused.value) == (
        "'seen' of key a: datetime.datetime(2026, 1, 2, 3, 0) has no time zone, so it names no "
        "instant, and does not fit in a column of instants. Read it with `millrace state get`, or "
        "in Python by mr.ops.open_checkpoint(...)[computation].get(key)."
    )
    assert "2026, 1, 2, 3, 0)" in repr(found.get("a")["seen"])
