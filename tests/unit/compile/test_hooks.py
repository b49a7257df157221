"""Hooks that a computation lacks: said when the pipeline is built, or at the first set_timer."""

import pytest

import millrace as mr
from millrace.model.errors import PipelineError, UserCodeError


class Silent(mr.Computation):
    inputs = {"events": mr.by("key")}


class Recording(Silent):
    def process_record(self, record):
        pass


class SetsTimers(Silent):
    def process_record(self, record):
        self.set_timer("t", at=0, domain=mr.WALL_TIME)


class SetsTimersElsewhere(Silent):
    def process_record(self, record):
        self.flush_later(record.timestamp)

    def flush_later(self, at):
        for tag in "ab":
            [self.set_timer(tag, at=at + n) for n in range(2)]


class SetsTimersInClosure(Silent):
    def process_record(self, record):
        def later():
            self.set_timer("t", at=0)

        later()


class Overrides(SetsTimers):
    def process_record(self, record):
        pass  # what its base class did is not done


class OtherClock(Silent):
    clock = None

    def process_record(self, record):
        if self.clock is not None:
            self.clock.set_timer("another object's")


class TimersByName(Silent):
    def process_record(self, record):
        getattr(self, "set_timer")("t", at=0, domain=mr.WALL_TIME)  # noqa: B009  # out of sight


class HookGiven(SetsTimers):
    def __init__(self, hook):
        self.process_timer = hook


def build(computation):
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(computation)
    p.build()
    return p


def test_a_computation_without_process_record_is_refused_when_the_pipeline_is_built():
    with pytest.raises(PipelineError, match="'Silent' has inputs but no process_record"):
        build(Silent)


@pytest.mark.parametrize(
    ("computation", "where"),
    [
        (SetsTimers, "SetsTimers.process_record"),
        (SetsTimersElsewhere, "SetsTimersElsewhere.flush_later"),
        (SetsTimersInClosure, "SetsTimersInClosure.process_record"),
    ],
)
def test_one_that_sets_timers_without_process_timer_is_refused_too(computation, where):
    with pytest.raises(PipelineError, match="but has no process_timer") as refused:
        build(computation)

    message = str(refused.value)
    assert f"computation {computation.__name__!r} sets timers ({where} calls" in message
    assert "process_timer(self, timer)" in message


class Constants(Silent):
    def process_record(self, record, nothing=(), *, said=("a", "self")):
        nothing = nothing or ()
        return [nothing, said, (), ("a", "self").count(record)]


@pytest.mark.parametrize("computation", [Recording, Overrides, OtherClock, TimersByName, Constants])
def test_one_that_is_not_seen_to_set_timers_needs_no_process_timer(computation):
    build(computation)


def test_a_hook_that_the_instance_was_given_counts():
    fired = []
    p = build(HookGiven(fired.append))
    mr.testing.Harness(p).inject("events", [({"key": "k"}, 0)])

    assert [timer.tag for timer in fired] == ["t"]


def test_a_timer_that_was_set_out_of_sight_is_refused_where_it_is_set():
    h = mr.testing.Harness(build(TimersByName))
    with pytest.raises(UserCodeError, match="TimersByName has no process_timer") as failed:
        h.inject("events", [({"key": "k"}, 0)])

    assert "in process_record" in str(failed.value)


def test_everything_that_is_wrong_is_said_at_once():
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(Silent)
    p.add(SetsTimers)
    p.sink("nowhere", print)
    with pytest.raises(PipelineError, match="has 3 problems"):
        p.build()
