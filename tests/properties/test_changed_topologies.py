"""Whatever computations come and go, each has counted what came since it was added."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr

KEYS = "abcd"
NAMES = ["A", "B", "C", "D", "E"]


class Counts(mr.Computation):
    """Counts by key, and says so; behind another it counts what that one says."""

    count = mr.ValueState(int)

    def __init__(self, name: str, behind: str | None) -> None:
        self.inputs = {f"{behind} said": mr.by_key()} if behind else {"in": mr.by(str)}  # type: ignore[misc]
        self.outputs = {f"{name} said": int}  # type: ignore[misc]
        self._said = f"{name} said"

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)
        self.produce(self._said, self.count.get())


def pipeline(there: dict[str, str | None], gone: set[str]) -> mr.Pipeline:
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    for name, behind in there.items():
        p.add(Counts(name, behind), name=name)
    for name in gone:
        p.remove(name)
    return p


@given(st.data())
@settings(max_examples=30)
def test_what_is_there_counts_on_and_what_is_new_begins(data: st.DataObject) -> None:
    there: dict[str, str | None] = {"A": None}
    gone: set[str] = set()
    counted: dict[str, Counter[str]] = {"A": Counter()}
    h = mr.testing.Harness(pipeline(there, gone))
    for _ in range(data.draw(st.integers(1, 6))):
        for key in data.draw(st.lists(st.sampled_from(KEYS), max_size=4)):
            if data.draw(st.booleans()):
                h.crash_in_next_epoch(data.draw(st.integers(0, 8)))
            h.inject("in", [(key, 1)])
            for name in there:
                counted[name][key] += 1
        _check(h, there, gone, counted)
        free = [name for name in NAMES if name not in there and name not in gone]
        if free and data.draw(st.booleans()):
            behind: Any = data.draw(st.sampled_from([None, *there]))
            there[free[0]] = behind
            counted[free[0]] = Counter()
        leaves = [name for name in there if name not in there.values()]
        if len(there) > 1 and data.draw(st.booleans()):
            dropped = data.draw(st.sampled_from(leaves))
            # One that was added just now, and never claimed, has nothing that could be dropped.
            del there[dropped]
            gone.add(dropped)
        h.update(pipeline(there, gone))
        if data.draw(st.booleans()):
            h.crash()
    h.inject("in", [(key, 1) for key in KEYS])
    for name in there:
        counted[name].update(KEYS)
    _check(h, there, gone, counted)
    h.close()


def _check(
    h: mr.testing.Harness,
    there: dict[str, str | None],
    gone: set[str],
    counted: dict[str, Counter[str]],
) -> None:
    checkpoint = h.checkpoint()
    assert sorted(checkpoint.computations) == sorted(there)
    for name in there:
        found = {key: checkpoint[name].get(key).get("count") or 0 for key in KEYS}
        assert found == {key: counted[name][key] for key in KEYS}
    if h.history.moments and gone:
        h.inject("in", [])  # an epoch: what is dropped is collected after it
        assert not any(h._durable.commits.numbers(name) for name in gone)
