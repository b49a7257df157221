"""A computation that re-arms a due timer without end is stopped with what to do."""

import pytest

import millrace as mr
from millrace.kernel import machine
from millrace.model.errors import TimerLoop


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(machine, "_REARMED_MAX", 100)


class Chain(mr.Computation):
    """Sets the next timer a step later, so many times."""

    inputs = {"events": mr.by(lambda _: "k")}
    outputs = {"fired": int}

    def __init__(self, step, links):
        self.step, self.links = step, links

    def process_record(self, record):
        self.set_timer(0, at=1)

    def process_timer(self, timer):
        self.produce("fired", timer.tag)
        if timer.tag < self.links:
            self.set_timer(timer.tag + 1, at=timer.at + self.step)


def open_chain(step, links, dead=False):
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Chain(step, links))
    if dead:
        p.dead_letter("dead")
    h = mr.testing.Harness(p)
    h.inject("events", [(1, 0)])
    return h


def test_a_timer_that_sets_itself_in_place_is_a_loop():
    h = open_chain(step=0, links=10_000)

    with pytest.raises(TimerLoop, match="at or before its own time"):
        h.advance_watermark("events", 1)


def test_a_chain_without_end_at_the_end_of_the_input_is_a_loop():
    h = open_chain(step=mr.HOUR, links=10_000)

    with pytest.raises(TimerLoop, match=r"self\.low_watermark == mr\.MAX_TIMESTAMP"):
        h.advance_watermark("events", mr.MAX_TIMESTAMP)


@pytest.mark.parametrize("links", [99, 100])
def test_a_chain_of_as_many_as_are_allowed_runs_through(links):
    h = open_chain(step=1, links=links)
    h.advance_watermark("events", mr.MAX_TIMESTAMP)

    assert [output.value for output in h.outputs("fired")] == list(range(links + 1))


def test_a_long_chain_that_waits_for_its_clock_is_no_loop():
    h = open_chain(step=1, links=300)
    for at in range(10, 400, 10):
        h.advance_watermark("events", at)

    assert len(h.outputs("fired")) == 301


def test_the_limit_is_for_each_key_and_bundle_of_its_own():
    class PerKey(Chain):
        inputs = {"events": mr.by(lambda value: value)}

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(PerKey(step=1, links=60))
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("events", [(key, 0) for key in "abc"])
        h.advance_watermark("events", 1_000)

        assert len(h.outputs("fired")) == 3 * 61


def test_a_loop_goes_to_the_dead_letters_and_ends():
    h = open_chain(step=1, links=10_000, dead=True)
    h.advance_watermark("events", mr.MAX_TIMESTAMP)

    (letter,) = h.outputs("dead")
    assert letter.value.reason.startswith("TimerLoop")
