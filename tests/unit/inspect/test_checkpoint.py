"""A checkpoint read without its pipeline: cells by name, timers, holds, chunks, ids."""

import pickle
from collections import Counter
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.compile.change.registry import Registry
from millrace.epochlog.claims import claim_of
from millrace.epochlog.entries import Completion, decode_entry, encode_entry
from millrace.inspect import (
    Checkpoint,
    DeliveredIds,
    Encoded,
    PendingHold,
    PendingTimer,
    overview_of_run,
)
from millrace.model.errors import CoderError, NotKept, PipelineError
from millrace.store import MemoryHardState
from millrace.testing import harness as harness_module


class Visit(msgspec.Struct):
    page: str
    seconds: int = 0


class Visitor(mr.Computation):
    """Keeps something in every kind of cell."""

    inputs = {"events": mr.by("key")}
    outputs = {}
    visits = mr.MapState(Visit)
    longest = mr.CombiningState(int, max)
    last = mr.ValueState(Visit)
    order = mr.BagState(str)
    secret = mr.ValueState(mr.coders.Pickle())

    def process_record(self, record):
        visit = Visit(record.value["page"], record.value["seconds"])
        self.visits[visit.page] = visit
        self.longest.add(visit.seconds)
        self.last.set(visit)
        self.order.add(visit.page)
        self.secret.set({1, 2})
        self.set_timer(visit.page, at=record.timestamp + mr.MINUTE)
        self.set_timer("bye", at=mr.HOUR, domain=mr.WALL_TIME, hold=record.timestamp)
        self.hold(record.timestamp)

    def process_timer(self, timer):
        self.hold(None)


class Longest(mr.CombineFn):
    """Keeps something that only pickle can carry."""

    accumulator = mr.coders.Pickle()

    def create(self):
        return []

    def add(self, accumulator, value):
        return [*accumulator, value]

    def merge(self, accumulators):
        return [each for one in accumulators for each in one]

    def extract(self, accumulator):
        return max(accumulator)


class Nothing(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {}

    def process_record(self, record):
        pass


def visit(h: Any, key: Any, page: str, seconds: int = 0, at: int = 0) -> None:
    h.inject("events", [({"key": key, "page": page, "seconds": seconds}, at)])


@pytest.fixture
def h(harness):
    return harness(Visitor, Nothing)


def opened(h: Any, **how: Any) -> Checkpoint:
    return Checkpoint(h._durable, **how)


def test_state_of_a_key_is_found_by_the_names_of_cells(h):
    visit(h, "ann", "a", 5)
    visit(h, "ann", "b", 3)
    visit(h, "bob", "c", 9)
    found = opened(h)["Visitor"].get("ann")

    secret = found.pop("secret")
    assert found == {
        "last": {"page": "b", "seconds": 3},
        "longest": 5,
        "order": ["a", "b"],
        "visits": {"a": {"page": "a", "seconds": 5}, "b": {"page": "b", "seconds": 3}},
    }
    assert (secret.coder, type(secret.data)) == ("pickle", bytes)  # and never unpickled


def test_a_key_that_was_never_seen_has_empty_cells(h):
    empty = {"last": None, "longest": None, "order": [], "secret": None, "visits": {}}
    assert opened(h)["Visitor"].get("ann") == empty
    visit(h, "ann", "a")

    assert opened(h)["Visitor"].get("bob") == empty
    assert opened(h)["Nothing"].get("ann") == {}


def test_what_cannot_be_a_key_is_refused(h):
    visit(h, "ann", "a")
    with pytest.raises(CoderError, match="cannot be a key"):
        opened(h)["Visitor"].get(["ann"])


def test_cells_are_described(h):
    visit(h, "ann", "a")
    cells = opened(h)["Visitor"].cells

    assert {name: cell.kind for name, cell in cells.items()} == {
        "last": "ValueState",
        "longest": "CombiningState",
        "order": "BagState",
        "secret": "ValueState",
        "visits": "MapState",
    }
    assert cells["longest"].format == {"coder": "msgpack", "type": {"kind": "int"}}


def test_cells_are_found_by_the_numbers_that_the_registry_has_for_their_names(monkeypatch):
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Visitor)
    built, state = p.build(), MemoryHardState()
    numbers = {"visits": 3, "last": 200, "order": 9, "longest": 1, "secret": 0}  # after years
    registry = Registry(cells={"Visitor": numbers}).assign(built)
    state.epochs.append(1, encode_entry(claim_of(built, registry, 1)))
    monkeypatch.setattr(harness_module, "MemoryHardState", lambda: state)
    with mr.testing.Harness(p) as h:
        visit(h, "ann", "a", 5)
        found = h.checkpoint()["Visitor"].get("ann")

    assert found.pop("secret").coder == "pickle"
    assert found == {
        "last": {"page": "a", "seconds": 5},
        "longest": 5,
        "order": ["a"],
        "visits": {"a": {"page": "a", "seconds": 5}},
    }


def test_a_scan_finds_every_key_once_in_the_order_of_hashes(h):
    keys = ["ann", 7, ("eve", 1), b"raw", "k" * 158]
    for key in keys:
        visit(h, key, "a", 1)
        visit(h, key, "b", 2)
    found = list(opened(h)["Visitor"].scan())

    assert sorted(map(repr, keys)) == sorted(repr(one.key) for one in found)
    assert [one.hash for one in found] == sorted(one.hash for one in found)
    assert all(one.cells == opened(h)["Visitor"].get(one.key) for one in found)


def test_a_key_too_long_for_a_row_is_found_by_name_and_scanned_without(h):
    key = "k" * 1_000
    visit(h, key, "a", 5)
    (scanned,) = opened(h)["Visitor"].scan()

    assert scanned.key is None
    assert scanned.cells == opened(h)["Visitor"].get(key)
    assert scanned.cells["longest"] == 5


def test_timers_and_holds_are_pending(h):
    visit(h, "ann", "a", at=10)
    found = opened(h)["Visitor"]
    ours = [
        PendingTimer(
            key="ann", tag="a", at=10 + mr.MINUTE, domain="LOW_WATERMARK", percentile=100, hold=None
        ),
        PendingTimer(key="ann", tag="bye", at=mr.HOUR, domain="WALL_TIME", percentile=100, hold=10),
    ]

    assert list(found.timers()) == list(found.timers("ann")) == ours
    assert list(found.timers("bob")) == list(found.holds("bob")) == []
    holds = [
        PendingHold(key="ann", at=10, timer=None),
        PendingHold(key="ann", at=10, timer=ours[1]),
    ]
    assert list(found.holds()) == list(found.holds("ann")) == holds
    assert (found.next_timer, found.next_wall_timer, found.hold) == (10 + mr.MINUTE, mr.HOUR, 10)


def test_windows_kept_as_columns_are_pending_chunks():
    p = mr.Pipeline("p")
    keyed = p.inject("events", format=int).key_by(lambda value: value % 2)
    keyed.window(mr.FixedWindows(100)).sum().to("sums")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("events", [(1, 10), (2, 20), (3, 150)])
        found = opened(h)["sums"]
        assert [(chunk.at, chunk.commit) for chunk in found.chunks()] == [(100, 1), (200, 1)]
        assert found.next_timer == 100
        h.advance_watermark("events", 100)
        assert [chunk.at for chunk in opened(h)["sums"].chunks()] == [200]


def test_windows_kept_key_by_key_are_told_with_what_is_in_them():
    p = mr.Pipeline("p")
    keyed = p.inject("events", format=dict).key_by("user")
    keyed.window(mr.FixedWindows(100), trigger=mr.Repeat(mr.AfterCount(2))).sum("n").to("sums")
    keyed.window(mr.Sessions(50)).aggregate(Longest(), "n").to("longest")
    keyed.window(trigger=mr.Repeat(mr.AfterCount(2))).group("n").to("ever")
    with mr.testing.Harness(p) as h:
        values = [("ann", 3, 5), ("ann", 4, 15), ("ann", 5, 150), ("bob", 6, 150)]
        h.inject("events", [({"user": user, "n": n}, at) for user, n, at in values])
        checkpoint = opened(h)
        found = {
            name: sorted(
                (key, one.start, one.end, one.size, one.pending, one.panes, one.accumulator)
                for key, one in checkpoint[name].windows()
            )
            for name in ("sums", "ever")
        }
        sessions = {
            (key, one.start, one.end, one.accumulator)
            for key, one in checkpoint["longest"].windows()
        }

    assert found["sums"] == [
        ("ann", 0, 100, 2, 0, 1, 7),
        ("ann", 100, 200, 1, 1, 0, 5),
        ("bob", 100, 200, 1, 1, 0, 6),
    ]
    assert found["ever"] == [
        ("ann", None, None, 3, 1, 1, [3, 4, 5]),
        ("bob", None, None, 1, 1, 0, [6]),
    ]
    assert sessions == {
        ("ann", 5, 65, Encoded("pickle", pickle.dumps([3, 4], protocol=5))),
        ("ann", 150, 200, Encoded("pickle", pickle.dumps([5], protocol=5))),
        ("bob", 150, 200, Encoded("pickle", pickle.dumps([6], protocol=5))),
    }


def test_delivered_ids_are_counted_by_when_they_are_forgotten():
    p = mr.Pipeline("p")
    p.inject("events", id="id", low_watermark=mr.BoundedDelay(0))
    p.add(Nothing)
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("events", [({"key": "a", "id": n}, 70) for n in (1, 1, 2)])
        (found,) = opened(h)["Nothing"].delivered_ids()

    assert isinstance(found, DeliveredIds)
    assert (found.commit, found.count, found.expires >= 70) == (1, 2, True)


def test_what_an_earlier_epoch_left_is_read_by_its_number(h):
    visit(h, "ann", "a", 1)
    first = opened(h).epoch
    visit(h, "ann", "b", 2)

    assert opened(h, epoch=first)["Visitor"].get("ann")["order"] == ["a"]
    assert opened(h)["Visitor"].get("ann")["order"] == ["a", "b"]


def test_an_epoch_that_the_log_does_not_have_is_said(h):
    visit(h, "ann", "a")
    with pytest.raises(NotKept, match=r"epoch 7 is not in the epoch log .* there are 0 to 0"):
        opened(h, epoch=7)


def test_an_unknown_computation_is_refused(h):
    visit(h, "ann", "a")
    with pytest.raises(PipelineError, match="no computation 'Visit'; there are Nothing, Visitor"):
        opened(h)["Visit"]


def test_the_overview_of_a_run_is_that_of_its_checkpoint(h):
    visit(h, "ann", "a", at=10)
    h.advance_clock(mr.SECOND)
    h.advance_watermark("events", 5 * mr.MINUTE)
    of_log = opened(h).overview

    assert overview_of_run(h._run_log) == of_log
    assert of_log.computations["Visitor"].oldest_work is not None or of_log.epoch >= 1
    assert of_log.streams["events"].injected == 1


def test_it_reads_and_does_not_claim(h):
    visit(h, "ann", "a")
    log = h._durable.epochs
    before = [log.read(n) for n in range(log.first(), log.last() + 1)]
    list(opened(h)["Visitor"].scan())

    assert [log.read(n) for n in range(log.first(), log.last() + 1)] == before
    assert any(isinstance(decode_entry(entry), Completion) for entry in before if entry)


class Converted(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {}
    rates = mr.SideInput("rates", "currency")
    seen = mr.ValueState(int)

    def process_record(self, record):
        self.seen.set(record.value["n"]) if record.value["n"] else self.seen.clear()


def test_the_table_of_a_side_input_is_read_once_under_the_key_that_means_all(harness):
    """Each interval has it. A user's key may have that name, and has its own hash."""
    h = harness(Converted, streams=("events", "rates"))
    h.inject("rates", [({"currency": "USD", "euros": 9}, 1)])
    h.advance_watermark("rates", 5)
    found = opened(h)["Converted"]
    table = {"USD": [({"currency": "USD", "euros": 9}, 1)]}
    assert len(found.intervals) == 4
    assert found.get("all keys")["rates"] == table
    assert found.get("all keys")["seen"] is None

    keys = [f"k{n}" for n in range(8)]
    h.inject("events", [({"key": key, "n": 7}, 2) for key in (*keys, "all keys")])
    h.advance_watermark("events", 3)
    found = opened(h)["Converted"]
    assert (found.get("all keys")["rates"], found.get("all keys")["seen"]) == (table, 7)
    assert found.get("k1")["rates"] == {}
    scanned = list(found.scan())
    assert [state.hash for state in scanned] == sorted(state.hash for state in scanned)
    assert Counter(state.key for state in scanned) == Counter([*keys, *2 * ["all keys"]])
    apart = [state for n in range(4) for state in found.only(n).scan()]
    assert apart == scanned


def test_what_became_of_a_side_input_is_told_once(harness):
    h = harness(Converted, streams=("events", "rates"))
    h.inject("rates", [({"currency": "USD", "euros": 9}, 1)])
    h.advance_watermark("rates", 5)
    keys = [f"k{n}" for n in range(8)]
    h.inject("events", [({"key": key, "n": 7}, 2) for key in keys])
    h.advance_watermark("events", 3)
    before = opened(h)["Converted"]
    h.inject("events", [({"key": key, "n": 0}, 4) for key in keys])
    h.advance_watermark("events", 5)
    h.inject("rates", [({"currency": "USD", "euros": 8}, 6)])

    changes = {change.key: change for change in opened(h)["Converted"].changes_since(before)}
    assert changes.keys() == {*keys, "all keys"}
    table = changes.pop("all keys")
    assert [len(side["rates"]["USD"]) for side in (table.before, table.after)] == [1, 2]
    assert [change.after for change in changes.values()] == [None] * 8
