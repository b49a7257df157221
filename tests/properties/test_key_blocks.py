"""A computation over columns does what the same does record by record."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.dataflow.operators import ColumnOperator
from millrace.kernel.blocks import KeyBlockMachine

_BREAKS = 13


class Payment(msgspec.Struct):
    card: str
    amount: int
    note: str | None = None


class Spent(msgspec.Struct):
    total: int
    note: str | None


class ByRecord(mr.Computation):
    inputs = {"payments": mr.by("card")}
    outputs = {"spent": Spent, "cards": int}
    total = mr.ValueState(int)
    note = mr.ValueState(str)

    def process_record(self, record: mr.Record) -> None:
        payment = record.value
        if payment.amount == _BREAKS:
            raise ValueError("an amount that breaks")
        total = self.total.get(0) + payment.amount
        if total == 0:
            self.total.clear()
        else:
            self.total.set(total)
        if payment.note is not None:
            self.note.set(payment.note)
        self.produce("spent", Spent(total, self.note.get()))


class ByColumns(mr.ColumnComputation):
    inputs = ByRecord.inputs
    outputs = ByRecord.outputs
    total = mr.ValueState(int)
    note = mr.ValueState(str)

    def process_batch(self, block: mr.KeyBlock) -> None:
        amounts = block.records["amount"].to_numpy()
        if (amounts == _BREAKS).any():
            raise ValueError("an amount that breaks")
        before = block.state["total"].fill_null(0).to_numpy()
        sums = np.cumsum(amounts)
        ahead = np.concatenate(([0], sums))[block.starts]
        running = sums - ahead[block.key_of] + before[block.key_of]
        notes, known = [], block.state["note"].to_pylist()
        for key, note in zip(block.key_of.tolist(), block.records["note"].to_pylist(), strict=True):
            known[key] = known[key] if note is None else note
            notes.append(known[key])
        totals = running[np.append(block.starts[1:], len(block)) - 1]
        block.set_state(total=[n or None for n in totals.tolist()], note=known)
        block.produce("spent", {"total": running, "note": notes})


payments = st.tuples(
    st.sampled_from("abc"),
    st.one_of(st.integers(-3, 9), st.just(_BREAKS)),
    st.sampled_from([None, "x", "y"]),
    st.integers(0, 60),
)
steps = st.one_of(
    st.lists(payments, min_size=1, max_size=12).map(lambda batch: ("records", batch)),
    st.integers(0, 80).map(lambda to: ("watermark", to)),
    st.integers(0, 4).map(lambda writes: ("crash in the next", writes)),
    st.just(("crash", None)),
)


def run(script: Any, computation: type[mr.Computation]) -> tuple[Any, ...]:
    p = mr.Pipeline("spending")
    p.inject("payments", format=Payment)
    p.add(computation, name="spending")
    p.dead_letter("letters")
    p.late_records("late")
    with mr.testing.Harness(p, intervals=2) as h:
        for what, with_what in [*script, ("watermark", mr.MAX_TIMESTAMP)]:
            if what == "records":
                h.inject("payments", [(Payment(*values[:3]), values[3]) for values in with_what])
            elif what == "watermark":
                if with_what >= h.low_watermark("spending"):
                    h.advance_watermark("payments", with_what)
            elif what == "crash":
                h.crash()
            else:
                h.crash_in_next_epoch(after_writes=with_what)
        found = defaultdict[Any, list[Any]](list)
        for out in h.outputs("spent"):
            found[out.key].append((out.value, out.timestamp))
        counters = h.counters("spending")
        letters = sorted(
            repr((o.value.key, o.value.value, o.value.reason)) for o in h.outputs("letters")
        )
        late = sorted((late.key, late.value, late.timestamp) for late in h.late_records())
    return found, counters.records, counters.late, counters.worst_lateness_us, letters, late


@settings(deadline=None, max_examples=40)
@given(st.lists(steps, max_size=6))
@example(
    [("records", [("a", 1, "x", 5), ("b", 13, None, 5), ("a", 13, "y", 6), ("a", 2, None, 7)])] * 2
)
def test_it_does_what_the_same_does_record_by_record(script: Any) -> None:
    blocks = run(script, ByColumns)
    event(f"{bool(blocks[0])} outputs, {bool(blocks[4])} letters")

    assert blocks == run(script, ByRecord)


@settings(deadline=None, max_examples=20)
@given(st.lists(steps, max_size=4))
def test_a_block_of_one_record_has_the_same_meaning(script: Any) -> None:
    blocks = run(script, ByColumns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ColumnOperator, "in_blocks", lambda *_: False)
        assert blocks == run(script, ByColumns)


def test_keys_run_in_one_block_and_those_that_fail_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    answer = KeyBlockMachine._answer

    def counted(self: KeyBlockMachine, bundle: Any, parts: Any, stored: Any) -> Any:
        sizes.append(len(parts))
        return answer(self, bundle, parts, stored)

    monkeypatch.setattr(KeyBlockMachine, "_answer", counted)
    p = mr.Pipeline("spending")
    p.inject("payments", format=Payment)
    p.add(ByColumns)
    p.dead_letter("letters")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("payments", [(Payment(card, 1), 5) for card in "abcdefgh"])
        assert sizes == [8]
        h.inject(
            "payments", [(Payment("c", 13), 6), *((Payment(card, 1), 6) for card in "abcdefgh")]
        )
        assert len(sizes) == 1 + 7  # one of all, and two halves thrice
        (letter,) = h.outputs("letters")
        assert "an amount that breaks" in letter.value.reason
        assert [out.value.total for out in h.outputs("spent")] == [1] * 8 + [2] * 8


def test_a_bundle_without_records_is_no_block() -> None:
    """A remap makes bundles that only bring rows."""
    p = mr.Pipeline("spending")
    p.inject("payments", format=Payment)
    p.add(ByColumns, name="spending")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("payments", [(Payment(card, 1), 5) for card in "ab"])
        h.remap("spending", [mr.ops.Split(0)])
        h.inject("payments", [(Payment("a", 1), 6)])
        h.advance_watermark("payments", 10)
        assert sorted(out.value.total for out in h.outputs("spent")) == [1, 1, 2]


class Wrong(ByColumns):
    def process_batch(self, block: mr.KeyBlock) -> None:
        self.act(block)

    def act(self, block: mr.KeyBlock) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda _, b: b.produce("spent", {"total": [1, 2]}), "it has 2 values, and there"),
        (lambda _, b: b.produce("spent", {"total": [1], "note": ["a", "b"]}), "of one length"),
        (lambda _, b: b.produce("spent", {"cents": [1]}), "cannot be made of the columns cents"),
        (lambda _, b: b.produce("spend", {"total": [1]}), "which it does not declare"),
        (lambda _, b: b.produce("cards", [1], key_of=[3]), "positions from 3 to 3"),
        (lambda _, b: b.set_state(totals=[1]), "names no cell of it. It has: total, note"),
        (lambda _, b: b.set_state(total=["one"]), "a column of int64 was expected"),
        (lambda c, _: c.produce("spent", Spent(1, None)), "Only there a key is current"),
        (lambda c, _: c.total.get(), "outside"),
    ],
)  # fmt: skip
def test_what_a_block_refuses(act: Any, message: str) -> None:
    p = mr.Pipeline("spending")
    p.inject("payments", format=Payment)
    p.add(type("Wrongly", (Wrong,), {"act": act}))
    with (
        mr.testing.Harness(p) as h,
        pytest.raises(mr.MillraceError, match=re.escape(message)),
    ):
        h.inject("payments", [(Payment("a", 1), 5)])


class Keeps(mr.ColumnComputation):
    inputs = {"payments": mr.by("card")}
    seen = mr.MapState(int)

    def process_batch(self, block: mr.KeyBlock) -> None: ...


class Forgets(mr.ColumnComputation):
    inputs = {"payments": mr.by("card")}
    seen = mr.ValueState(int, expires="1 h")

    def process_batch(self, block: mr.KeyBlock) -> None: ...


class Waits(mr.ColumnComputation):
    inputs = {"payments": mr.by("card")}

    def process_batch(self, block: mr.KeyBlock) -> None: ...

    def process_timer(self, timer: mr.Timer) -> None: ...


class Nothing(mr.ColumnComputation):
    inputs = {"payments": mr.by("card")}


@pytest.mark.parametrize(
    ("computation", "format", "message"),
    [
        (Keeps, Payment, "Keeps.seen is MapState"),
        (Forgets, Payment, "without expires"),
        (Waits, Payment, "has process_timer, which would never be called"),
        (Nothing, Payment, "has no process_batch"),
        (ByColumns, dict, "which says no fields that make columns"),
    ],
)
def test_what_is_refused_when_the_pipeline_is_built(
    computation: Any, format: Any, message: str
) -> None:
    p = mr.Pipeline("spending")
    p.inject("payments", format=format)
    p.add(computation)
    with pytest.raises(mr.MillraceError, match=message):
        p.build()
