"""Cells that expire: by event time and by the wall clock, value by value and entry by entry."""

from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.model.errors import PipelineError

HOUR = 3_600


class Keeps(mr.Computation):
    """Sets, adds to, reads or clears its cells, as the records say."""

    inputs = {"said": mr.by(lambda _: "k")}
    outputs = {"seen": list}
    last = mr.ValueState(int, expires=10)
    items = mr.ValueState(list[int], expires=10)
    total = mr.CombiningState(int, sum, expires=10)
    entries = mr.MapState(int, expires=10)
    lists = mr.MapState(list[int], expires=10)
    clocked = mr.ValueState(int, expires=10, domain=mr.WALL_TIME)
    kept = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        kind, n = record.value
        if kind == "set":
            self.last.set(n)
            self.items.set([n])
            self.total.add(n)
            self.clocked.set(n)
            self.kept.set(n)
        elif kind == "entry":
            self.entries[n] = n
            self.lists[n] = [n]
        elif kind == "append":
            self.items.get([]).append(n)
            self.lists.get(1, []).append(n)
        elif kind == "read":
            self.last.get()
            self.entries.get(n)
        elif kind == "clear":
            self.last.clear()
            self.total.clear()
            self.entries.clear()
        elif kind == "timer":
            self.set_timer("look", at=n)
        self.look()

    def process_timer(self, timer: mr.Timer) -> None:
        self.look()

    def look(self) -> None:
        seen = [self.last.get(), self.total.get(), sorted(self.entries), self.clocked.get()]
        self.produce("seen", [*seen, self.kept.get()])


def run(*steps: Any) -> Any:
    """Do the steps, a crash after each: a record, or (clock, time); return state and timers."""
    p = mr.Pipeline("keeps")
    p.inject("said", format=tuple[str, int])
    p.add(Keeps)
    with mr.testing.Harness(p, intervals=1) as h:
        h.advance_clock(0)
        for step in steps:
            if step[0] == "watermark":
                h.advance_watermark("said", step[1])
            elif step[0] == "clock":
                h.advance_clock(step[1])
            else:
                h.inject("said", [step])
            h.crash()
        inspected = h.checkpoint()["Keeps"]
        state = {name: what for name, what in inspected.get("k").items() if what}
        timers = sorted((timer.tag, timer.at) for timer in inspected.timers())
        return state, timers, [out.value for out in h.outputs("seen")]


SET = (("set", 7), 100)


def test_what_was_not_written_for_so_long_is_forgotten() -> None:
    before, timers, _ = run(SET, ("watermark", 109))
    after, none, _ = run(SET, ("watermark", 110))

    assert before == {"last": 7, "items": [7], "total": 7, "clocked": 7, "kept": 7}
    assert timers == [("(expiry)", 10)] + [("(expiry)", 110)] * 3
    assert after == {"clocked": 7, "kept": 7}
    assert none == [("(expiry)", 10)]


def test_a_cell_may_expire_by_the_wall_clock() -> None:
    assert run(SET, ("clock", 9))[0]["clocked"] == 7
    assert "clocked" not in run(SET, ("clock", 10))[0]


def test_a_write_keeps_it_on_and_a_late_one_does_not_shorten_that() -> None:
    state, timers, _ = run(SET, (("set", 1), 105), (("set", 2), 101), ("watermark", 114))

    assert (state["last"], state["total"]) == (2, 10)
    assert timers[1:] == [("(expiry)", 115)] * 3
    assert "last" not in run(SET, (("set", 1), 105), ("watermark", 115))[0]


def test_each_key_of_a_bundle_has_an_expiry_of_its_own() -> None:
    """One whose write moves no expiry is followed by others, which have none yet."""

    class Last(mr.Computation):
        inputs: ClassVar = {"said": mr.by(lambda word: word)}
        last = mr.ValueState(str, expires=10)

        def process_record(self, record: mr.Record) -> None:
            self.last.set(record.value)

    p = mr.Pipeline("last")
    p.inject("said", format=str)
    p.add(Last)
    with mr.testing.Harness(p, intervals=1) as h:
        for word in "abcd":
            h.inject("said", [(word, 105)])
            h.inject("said", [(word, 101)] + [(f"{word}{n}", 102) for n in range(8)])
        expiries = [(timer.key, timer.at) for timer in h.checkpoint()["Last"].timers()]
        h.advance_watermark("said", 112)
        left = sorted(one.key for one in h.checkpoint()["Last"].scan() if one.cells)

    assert sorted(expiries) == sorted(
        [(word, 115) for word in "abcd"] + [(f"{w}{n}", 112) for w in "abcd" for n in range(8)]
    )
    assert left == ["a", "b", "c", "d"]


def test_what_is_written_too_late_to_be_kept_is_not() -> None:
    state, _, seen = run(("watermark", 200), SET)

    assert "last" not in state
    assert seen[-1][0] == 7, "it is there while the record is at hand"


def test_reading_keeps_only_what_may_be_changed_in_place() -> None:
    state, _, _ = run(SET, (("read", 0), 105), (("append", 8), 106), ("watermark", 110))

    assert "last" not in state
    assert state["items"] == [7, 8]
    assert "items" not in run(SET, (("append", 8), 106), ("watermark", 116))[0]


def test_entries_of_a_map_expire_one_by_one() -> None:
    steps: Any = [(("entry", n), 100 + n) for n in range(5)]

    state, _, _ = run(*steps, (("append", 9), 109), ("watermark", 112))

    assert state["entries"] == {3: 3, 4: 4}
    assert state["lists"] == {1: [1, 9], 3: [3], 4: [4]}
    assert run(*steps, ("watermark", mr.MAX_TIMESTAMP))[:2] == ({}, [])


def test_what_is_cleared_waits_for_nothing() -> None:
    _, timers, _ = run((("entry", 1), 100), SET, (("clear", 0), 101))

    assert timers == [("(expiry)", 10), ("(expiry)", 110), ("(expiry)", 110)]


def test_it_is_gone_for_timers_behind_its_end_and_there_for_those_before() -> None:
    _, _, seen = run(
        SET, (("timer", 109), 100), ("watermark", 100), (("timer", 111), 100), ("watermark", 500)
    )
    assert [values[0] for values in seen] == [7, 7, 7, None]
    _, _, seen = run(SET, (("timer", 109), 100), ("watermark", 500))
    assert [values[0] for values in seen] == [7, 7, 7]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mr.ValueState(int, expires=0), "expires at once is never seen"),
        (lambda: mr.MapState(int, expires="soon"), "is not a duration"),
        (lambda: mr.ValueState(int, domain=mr.WALL_TIME), "nothing expires"),
        (lambda: mr.ValueState(int, expires=1, domain=7), "expected mr.LOW_WATERMARK"),  # type: ignore[arg-type]
    ],
)
def test_an_expiry_that_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make()


at = st.integers(0, 40)
said = st.tuples(st.sampled_from(["set", "entry", "clear"]), st.integers(0, 3))
steps_of = st.lists(
    st.one_of(st.tuples(said, at), st.tuples(st.just("watermark"), st.integers(0, 60))), max_size=10
)


@settings(max_examples=50)  # each is a dozen epochs
@given(steps=steps_of)
def test_what_is_kept_is_what_was_written_less_than_that_ago(steps: Any) -> None:
    low_watermark, last, entries = 0, None, {}
    done: list[Any] = []
    for step in steps:
        if step[0] == "watermark":
            if step[1] < low_watermark:
                continue
            low_watermark = step[1]
        else:
            (kind, n), at_us = step
            if kind == "set":
                last = n, max(at_us + 10, last[1] if last else 0)
            elif kind == "entry":
                entries[n] = max(at_us + 10, entries.get(n, 0))
            else:
                last, entries = None, {}
        done.append(step)
        if last and last[1] <= low_watermark:
            last = None
        entries = {n: end_us for n, end_us in entries.items() if end_us > low_watermark}
    state, _, _ = run(*done)

    assert state.get("last") == (last[0] or None if last else None)
    assert set(state.get("entries", ())) == set(entries)
