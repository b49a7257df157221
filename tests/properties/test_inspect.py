"""The read model says what user code wrote, through commits, snapshots, collections and crashes."""

from __future__ import annotations

import copy
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

import millrace as mr
from millrace.inspect import overview_of_run
from millrace.model.keys import encode_key, hash_key


class Keeper(mr.Computation):
    """Does to its cells what records say."""

    inputs = {"events": mr.by("key")}
    outputs = {}
    value = mr.ValueState(list[int])
    entries = mr.MapState(int)
    bag = mr.BagState(int)
    total = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        name, n = record.value["do"]
        match name:
            case "set":
                self.value.set([n])
            case "append":
                self.value.set([*self.value.get([]), n])
            case "put":
                self.entries[n] = n
            case "drop":
                self.entries.pop(n, None)
            case "add":
                self.bag.add(n)
                self.total.add(n)
            case "clear":
                for cell in (self.value, self.entries, self.bag, self.total):
                    cell.clear()
            case "wait":
                self.set_timer(n, at=100 + n)
            case "forget":
                self.delete_timer(n)

    def process_timer(self, timer: mr.Timer) -> None:
        raise AssertionError("no low watermark comes so far")


KEYS = ("a", 7, "k" * 200)
NAMES = ("set", "append", "put", "drop", "add", "clear", "wait", "forget")
STEPS = st.tuples(st.sampled_from(KEYS), st.sampled_from(NAMES), st.integers(0, 3))
EMPTY = {"bag": [], "entries": {}, "total": None, "value": None}


def play(kept: dict[Any, dict[str, Any]], waiting: set[Any], step: tuple[Any, str, int]) -> None:
    """Do to plain Python values what the computation does to its cells."""
    key, name, n = step
    had = kept.setdefault(key, {**EMPTY, "bag": [], "entries": {}})
    match name:
        case "set":
            had["value"] = [n]
        case "append":
            had["value"] = [*(had["value"] or []), n]
        case "put":
            had["entries"][n] = n
        case "drop":
            had["entries"].pop(n, None)
        case "add":
            had["bag"].append(n)
            had["total"] = (had["total"] or 0) + n
        case "clear":
            kept[key] = {**EMPTY, "bag": [], "entries": {}}
        case "wait":
            waiting.add((key, n))
        case "forget":
            waiting.discard((key, n))


@given(
    st.lists(st.lists(STEPS, min_size=1, max_size=4) | st.just("crash"), max_size=8),
    st.integers(0, 8),
)
def test_what_is_read_is_what_was_written(script: list[Any], since: int) -> None:
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Keeper)
    kept: dict[Any, dict[str, Any]] = {}
    waiting: set[Any] = set()
    with mr.testing.Harness(p, intervals=2) as h:
        h.inject("events", [])
        earlier, was = h.checkpoint(), dict[Any, dict[str, Any]]()
        for n, epoch in enumerate(script):
            if n == since:
                earlier, was = h.checkpoint(), copy.deepcopy(kept)
            if epoch == "crash":
                h.crash()
                continue
            h.inject("events", [({"key": key, "do": (do, n)}, 0) for key, do, n in epoch])
            for step in epoch:
                play(kept, waiting, step)
        checkpoint = h.checkpoint()
        found = checkpoint["Keeper"]

        assert {key: found.get(key) for key in KEYS} == {key: kept.get(key, EMPTY) for key in KEYS}
        assert {one.hash: one.cells for one in found.scan()} == {
            hash_key(encode_key(key)): had for key, had in kept.items() if had != EMPTY
        }
        assert {(timer.key, timer.tag) for timer in found.timers()} == waiting
        assert {
            (key, timer.tag) for key in KEYS for timer in found.timers(key) if timer.key == key
        } == waiting
        was, now = (
            {hash_key(encode_key(key)): had for key, had in of.items() if had != EMPTY}
            for of in (was, kept)
        )
        assert {
            one.hash: (one.before, one.after) for one in found.changes_since(earlier["Keeper"])
        } == {
            key: (was.get(key), now.get(key))
            for key in was.keys() | now.keys()
            if was.get(key) != now.get(key)
        }
        assert checkpoint.overview == overview_of_run(h._run_log)
