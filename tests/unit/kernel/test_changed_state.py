"""Cells come, go, change their name and are made anew: each value once, the others stay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.epochlog.reader import end_of
from millrace.model.errors import CheckpointMismatch, PipelineError, UserCodeError

KEYS = ["tea", "rum", "gin", "oat", "fig", "soy"]


class Euros(msgspec.Struct):
    euros: float


class Cents(msgspec.Struct):
    cents: int
    currency: str


def to_cents(old: dict[str, float]) -> Cents:
    return Cents(round(old["euros"] * 100), "EUR")


def not_for_rum(old: dict[str, float]) -> Cents:
    if old["euros"] == 1.0:
        raise ValueError("one euro is not enough")
    return to_cents(old)


def doubled(old: int) -> int:
    return 2 * old


def nothing(old: Any) -> None:
    return None


class Shop(mr.Computation):
    """Says what it has, and changes nothing but a counter."""

    inputs = {"asks": mr.by(str)}
    outputs = {"told": list}

    def tell(self) -> list[Any]:
        return []

    def process_record(self, record: mr.Record) -> None:
        self.produce("told", [self.key, *self.tell()])


class First(Shop):
    """As it was at first: it fills its cells."""

    price = mr.ValueState(Euros)

    def process_record(self, record: mr.Record) -> None:
        self.price.set(Euros(float(KEYS.index(self.key))))


class Many(Shop):
    price = mr.ValueState(Euros)
    sold = mr.CombiningState(int)
    bag = mr.BagState(int)
    per_day = mr.MapState(int)

    def process_record(self, record: mr.Record) -> None:
        n = KEYS.index(self.key)
        self.price.set(Euros(float(n)))
        self.sold.add(n)
        self.bag.add(n)
        self.bag.add(10 * n)
        self.per_day["mon"] = n
        self.per_day["x" * 200] = 7 + n  # a row has but a digest of it


def shop(computation: Any, **how: Any) -> mr.Pipeline:
    p = mr.Pipeline("shop")
    p.inject("asks", format=str)
    p.add(computation, name="Shop", **how)
    p.dead_letter("letters")
    return p


def after(first: Any) -> mr.testing.Harness:
    h = mr.testing.Harness(shop(first))
    h.inject("asks", [(key, 1) for key in KEYS])
    return h


def told(h: mr.testing.Harness, *keys: str) -> list[Any]:
    before = len(h.outputs("told"))
    h.inject("asks", [(key, 2) for key in keys or KEYS])
    return sorted(output.value for output in h.outputs("told")[before:])


def state(h: mr.testing.Harness, *keys: str) -> dict[str, Any]:
    inspected = h.checkpoint()["Shop"]
    return {key: inspected.get(key) for key in keys or KEYS}


class Second(Shop):
    """A value cell beside the only one: rows are laid anew."""

    n = mr.ValueState(int)
    price = mr.ValueState(Euros)

    def tell(self) -> list[Any]:
        self.n.set(self.n.get(0) + 1)
        return [self.price.get().euros, self.n.get()]


def test_a_cell_that_is_added_is_empty_and_the_only_one_before_stays() -> None:
    with after(First) as h:
        h.update(shop(Second))
        assert state(h, "rum") == {"rum": {"n": None, "price": {"euros": 1.0}}}
        assert told(h, "rum", "fig") == [["fig", 4.0, 1], ["rum", 1.0, 1]]
        h.crash()
        assert told(h) == [[k, float(n), 1 + (k in ("rum", "fig"))] for k, n in sorted_keys()]
        assert state(h, "rum") == {"rum": {"n": 2, "price": {"euros": 1.0}}}


def sorted_keys() -> list[tuple[str, int]]:
    return sorted((key, n) for n, key in enumerate(KEYS))


class Fewer(Shop):
    cost = mr.ValueState(Euros, was="price")
    per_day = mr.MapState(int)

    def tell(self) -> list[Any]:
        return [self.cost.get().euros, dict(self.per_day)["mon"]]


def test_cells_that_are_named_go_with_their_rows_and_one_has_another_name() -> None:
    h = after(Many)
    with pytest.raises(CheckpointMismatch) as refused:
        h.update(shop(Fewer))
    text = str(refused.value)
    assert "state 'bag': in the checkpoint, gone from the pipeline" in text
    assert "p.add(..., dropped=['sold'])" in text
    assert "renamed   computation 'Shop', state 'cost': was 'price'" in text

    with h:
        h.update(shop(Fewer, dropped=["bag", "sold"]))
        assert state(h, "rum")["rum"].keys() == {"cost", "per_day"}
        assert told(h) == [[key, float(n), n] for key, n in sorted_keys()]
        _run_three_epochs(h)
        families = {row[:1] for row in _rows(h)}
        assert families == {b"V", b"M"}
        # They may stay named, and one that comes back begins empty.
        h.update(shop(Fewer, dropped=["bag", "sold"]))
        h.update(shop(Back, dropped=["bag"]))
        assert told(h, "rum") == [["rum", 1.0, None]]


def test_a_dropped_cell_leaves_its_number_unused_and_no_name() -> None:
    h = after(Many)

    def numbers() -> dict[str, int]:
        claim = end_of(h._durable.epochs).claim
        assert claim is not None
        return claim.registry.cells["Shop"]

    with h:
        before = numbers()
        highest = max(before.values())
        for n in range(3):  # each that comes back is another
            h.update(shop(Fewer, dropped=["bag", "sold"]))
            names = numbers()
            assert names.keys() == {"cost", "per_day"}
            assert (names["cost"], names["per_day"]) == (before["price"], before["per_day"])
            _run_three_epochs(h)
            h.update(shop(Back, dropped=["bag"]))
            assert numbers() == names | {"sold": highest + 1 + n}
            assert told(h, "rum")[-1] == ["rum", 1.0, None]
            _run_three_epochs(h)


def _run_three_epochs(h: mr.testing.Harness) -> None:
    """Let intervals without records take a change, too."""
    for _ in range(3):
        h.advance_clock(h._wall_time_us + 1)


class Back(Fewer):
    sold = mr.CombiningState(int)

    def tell(self) -> list[Any]:
        return [self.cost.get().euros, self.sold.get()]


def _rows(h: mr.testing.Harness) -> list[bytes]:
    checkpoint, found = h.checkpoint(), []
    for interval in checkpoint.intervals("Shop"):
        with checkpoint.rows("Shop", interval) as view:
            found += [row for row, _ in view.scan(b"A", b"[")]
    return found


class InCents(Shop):
    price = mr.ValueState(Cents)
    sold = mr.CombiningState(int)
    bag = mr.BagState(int)
    per_day = mr.MapState(int)

    def tell(self) -> list[Any]:
        price = self.price.get()
        cents = None if price is None else price.cents
        return [cents, self.sold.get(), sorted(self.bag), sorted(self.per_day.values())]


MIGRATIONS: dict[str, Callable[..., Any]] = {
    "price": to_cents, "sold": doubled, "bag": doubled, "per_day": doubled,
}  # fmt: skip


def in_cents(n: int) -> list[Any]:
    return [100 * n, 2 * n, sorted([2 * n, 20 * n]), sorted([2 * n, 14 + 2 * n])]


@pytest.mark.parametrize("writes", [None, *range(9)])
def test_a_migration_runs_once_for_every_value_whatever_dies(writes: int | None) -> None:
    with after(Many) as h:
        with pytest.raises(CheckpointMismatch, match="state 'price': field 'euros' is gone"):
            h.update(shop(InCents))
        h.update(shop(InCents, migrate=MIGRATIONS))
        assert state(h, "fig")["fig"]["price"] == {"euros": 4.0}
        if writes is not None:
            h.crash_in_next_epoch(writes)
        assert told(h, "tea") == [["tea", *in_cents(0)]]
        h.crash()
        assert told(h) == [[key, *in_cents(n)] for key, n in sorted_keys()]
        # The checkpoint knows that it has run, also when the program does not say it for a while.
        h.update(shop(InCents))
        h.update(shop(InCents, migrate=MIGRATIONS))
        assert told(h) == [[key, *in_cents(n)] for key, n in sorted_keys()]
        assert state(h, "fig")["fig"]["price"] == {"cents": 400, "currency": "EUR"}


def test_what_a_migration_raises_for_is_a_dead_letter_and_the_others_go_on() -> None:
    with after(Many) as h:
        h.update(shop(InCents, migrate={"price": not_for_rum}))
        assert [row[:2] for row in told(h)] == [
            [key, None if n == 1 else 100 * n] for key, n in sorted_keys()
        ]
        (letter,) = [output.value for output in h.outputs("letters")]
        assert (letter.computation, letter.key) == ("Shop", "'rum'")
        assert letter.reason == "ValueError: one euro is not enough"
        assert letter.value == "{'euros': 1.0}"


def test_without_a_stream_for_it_the_epoch_fails_and_the_function_is_mended() -> None:
    def silent(migration: Any) -> mr.Pipeline:
        p = shop(InCents, migrate={"price": migration})
        p.dead_letters = None
        del p.formats["letters"]
        return p

    h = after(Many)
    h.update(silent(not_for_rum))
    with pytest.raises(UserCodeError, match=r"migration of 'price' .*one euro is not enough"):
        h.inject("asks", [(key, 2) for key in KEYS])
    not_for_rum_mended = type(to_cents)(to_cents.__code__, globals(), "not_for_rum")
    not_for_rum_mended.__qualname__ = "not_for_rum"
    h.update(silent(not_for_rum_mended))
    assert [row[:2] for row in told(h)] == [[key, 100 * n] for key, n in sorted_keys()]


def test_a_second_change_waits_until_all_intervals_have_taken_the_first() -> None:
    h = mr.testing.Harness(shop(First), intervals=64)
    h.inject("asks", [(f"{KEYS[n % 6]}", 1) for n in range(6)])
    h.update(shop(OnlyCents, migrate={"price": to_cents}))
    with pytest.raises(CheckpointMismatch, match=r"6 of 6 key intervals have yet .* another"):
        h.update(shop(OnlyCents, migrate={"price": also_to_cents}))
    with pytest.raises(CheckpointMismatch, match=r"keep migrate=\{'price': to_cents\}"):
        h.update(shop(OnlyCents))
    h.inject("asks", [("tea", 2)])
    h.advance_clock(1)
    h.update(shop(OnlyCents))
    h.update(shop(OnlyCents, migrate={"price": also_to_cents}))
    assert told(h) == [[key, 100 * n + 1] for key, n in sorted_keys()]
    h.close()


def test_a_migration_that_has_run_does_not_run_again_under_another_name_of_the_cell() -> None:
    with after(First) as h:
        h.update(shop(OnlyCents, migrate={"price": to_cents}))
        h.advance_clock(1)
        h.update(shop(Renamed, migrate={"cost": also_to_cents}))
        h.advance_clock(2)
        h.update(shop(RenamedAgain, migrate={"pennies": also_to_cents}))
        assert told(h) == [[key, 100 * n + 1] for key, n in sorted_keys()]


class OnlyCents(Shop):
    price = mr.ValueState(Cents)

    def tell(self) -> list[Any]:
        return [self.price.get().cents]


class Renamed(Shop):
    cost = mr.ValueState(Cents, was="price")

    def tell(self) -> list[Any]:
        return [self.cost.get().cents]


class RenamedAgain(Shop):
    pennies = mr.ValueState(Cents, was="cost")

    def tell(self) -> list[Any]:
        return [self.pennies.get().cents]


def also_to_cents(old: Cents) -> Cents:
    return Cents(old.cents + 1, old.currency)


def test_a_migration_may_leave_nothing() -> None:
    with after(Many) as h:
        h.update(shop(Many, migrate={"bag": nothing, "per_day": nothing, "sold": nothing}))
        h.advance_clock(1)
        assert state(h, "fig")["fig"] == {
            "price": {"euros": 4.0}, "sold": None, "bag": [], "per_day": {},
        }  # fmt: skip


def test_a_plan_says_what_becomes_of_cells(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millrace")
    h = after(First)
    h.update(shop(Second, migrate={"price": also}))
    said = [record.getMessage() for record in caplog.records]
    assert any(
        "migrated: computation 'Shop', state 'price': by also, each value" in s for s in said
    )
    assert any("added: computation 'Shop', state 'n': new in the pipeline" in s for s in said)


def also(old: Euros) -> Euros:
    return Euros(old.euros)


def test_what_cannot_be_a_migration_is_said() -> None:
    with pytest.raises(PipelineError, match="expected a function with a name of its own"):
        shop(InCents, migrate={"price": lambda old: old})
    with pytest.raises(PipelineError, match="has no cell 'prices'"):
        shop(InCents, migrate={"prices": to_cents}).build()
    with pytest.raises(PipelineError, match="both has and drops the cell 'bag'"):
        shop(InCents, dropped=["bag"]).build()
    with pytest.raises(PipelineError, match="both has and renames the cell 'sold'"):
        shop(type("Both", (InCents,), {"cost": mr.ValueState(int, was="sold")})).build()
