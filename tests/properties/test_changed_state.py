"""Whatever becomes of a computation's cells, keys have what a dict would have."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr

KEYS = "abcdef"
NAMES = ["p", "q", "r", "s"]
KINDS: dict[str, Any] = {"value": mr.ValueState, "sum": mr.CombiningState, "map": mr.MapState}


def written(kind: str, before: Any, n: int) -> Any:
    """Return what a cell has after a record with a number."""
    if kind == "value":
        return n
    if kind == "sum":
        return (before or 0) + n
    return {**(before or {}), n % 3: n}


def made(kind: str, value: Any, add: int) -> Any:
    """Return what a migration by a number leaves."""
    if value is None:
        return None
    return {e: v + add for e, v in value.items()} if kind == "map" else value + add


def program(cells: dict[str, str], renamed: dict[str, str], **how: Any) -> mr.Pipeline:
    def process_record(self: Any, record: mr.Record) -> None:
        cell, n = record.value["cell"], record.value["n"]
        if cell not in cells:
            return
        if cells[cell] == "value":
            getattr(self, cell).set(n)
        elif cells[cell] == "sum":
            getattr(self, cell).add(n)
        else:
            getattr(self, cell)[n % 3] = n

    members: dict[str, Any] = {"inputs": {"in": mr.by("key")}, "process_record": process_record}
    for name, kind in cells.items():
        members[name] = KINDS[kind](int, was=renamed.get(name))
    p = mr.Pipeline("p")
    p.inject("in", format=dict)
    p.add(type("C", (mr.Computation,), members)(), **how)
    return p


@given(st.data())
@settings(max_examples=60)
def test_cells_through_changes_are_what_a_dict_would_be(data: st.DataObject) -> None:
    first = data.draw(st.sets(st.sampled_from(NAMES), min_size=1))
    cells = {name: data.draw(st.sampled_from([*KINDS])) for name in sorted(first)}
    h = mr.testing.Harness(program(cells, {}))
    truth: dict[str, dict[str, Any]] = {key: {} for key in KEYS}
    for change in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(0, 3))):
            key, n = data.draw(st.sampled_from(KEYS)), data.draw(st.integers(-9, 9))
            cell = data.draw(st.sampled_from(sorted(cells)))
            if data.draw(st.booleans()):
                h.crash_in_next_epoch(data.draw(st.integers(0, 4)))
            h.inject("in", [({"key": key, "cell": cell, "n": n}, 1)])
            truth[key][cell] = written(cells[cell], truth[key].get(cell), n)
        _check(h, cells, truth)
        left = list(cells)
        dropped = data.draw(st.sets(st.sampled_from(left), max_size=len(left) - 1))
        kept = {name: kind for name, kind in cells.items() if name not in dropped}
        free = [name for name in NAMES if name not in cells]
        renamed = {}
        if free and data.draw(st.booleans()):
            old, new = data.draw(st.sampled_from(sorted(kept))), free.pop()
            renamed[new] = old
            kept[new] = kept.pop(old)
        migrated = data.draw(st.sets(st.sampled_from(sorted(kept))))
        migrations = {}
        for cell in migrated:

            def add(old: int, by: int = change + 1) -> int:
                return old + by

            add.__qualname__ = add.__name__ = f"add_{cell}_{change}"
            migrations[cell] = add
        for state in truth.values():
            for name in dropped:
                state.pop(name, None)
            for new, old in renamed.items():
                if old in state:
                    state[new] = state.pop(old)
            for cell in migrated & state.keys():
                state[cell] = made(kept[cell], state[cell], change + 1)
        cells = dict(kept)
        for name in free:
            if data.draw(st.booleans()):
                cells[name] = data.draw(st.sampled_from([*KINDS]))
        h.update(program(cells, renamed, dropped=sorted(dropped), migrate=migrations))
        if data.draw(st.booleans()):
            h.crash()
        h.advance_clock(change + 1)  # all intervals take the change
        _check(h, cells, truth)
    h.close()


def _check(h: mr.testing.Harness, cells: dict[str, str], truth: dict[str, dict[str, Any]]) -> None:
    found = h.checkpoint()["C"]
    for key, state in truth.items():
        empty = {name: {} if kind == "map" else None for name, kind in cells.items()}
        assert found.get(key) == empty | state
