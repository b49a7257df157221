"""User errors: what they name, what they keep, and that nothing of the epoch was applied."""

import traceback

import pytest

import millrace as mr
from millrace.model.errors import UserCodeError


class Touchy(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": int}
    n = mr.ValueState(int)
    seen = mr.BagState(int)

    def process_record(self, record):
        self.n.set(self.n.get(0) + 1)
        self.seen.add(record.value["n"])
        self.produce("counts", self.n.get())
        if record.value["n"] < 0:
            raise ZeroDivisionError("the user's own words")
        if "timer" in record.value:
            self.set_timer("t", at=record.value["timer"])

    def process_timer(self, timer):
        raise ZeroDivisionError("a timer's own words")


@pytest.fixture
def h():
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Touchy)
    return mr.testing.Harness(p)


def event(n, key="JFK", **more):
    return {"key": key, "n": n, **more}


def test_an_error_in_process_record_names_computation_key_record_and_epoch(h):
    h.advance_clock(0)
    with pytest.raises(UserCodeError) as failed:
        h.inject("events", [(event(-1), 1_000_000)])

    message = str(failed.value)
    for part in (
        "process_record of Touchy raised ZeroDivisionError: the user's own words",
        "key 'JFK'",
        "stream 'events'",
        "1970-01-01T00:00:01Z",
        "epoch 1",
        "'n': -1",
    ):
        assert part in message


def test_an_error_in_process_timer_names_computation_key_timer_and_epoch(h):
    h.inject("events", [(event(1, timer=10), 0)])
    with pytest.raises(UserCodeError) as failed:
        h.advance_watermark("events", 10)

    message = str(failed.value)
    for part in (
        "process_timer of Touchy raised ZeroDivisionError: a timer's own words",
        "key 'JFK'",
        "tag='t'",
        "epoch 1",
    ):
        assert part in message


def test_the_users_exception_is_the_cause_with_its_own_traceback(h):
    with pytest.raises(UserCodeError) as failed:
        h.inject("events", [(event(-1), 0)])

    cause = failed.value.__cause__
    assert type(cause) is ZeroDivisionError
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "process_record"


def test_a_huge_value_does_not_flood_the_message(h):
    with pytest.raises(UserCodeError) as failed:
        h.inject("events", [(event(-1, text="x" * 100_000), 0)])

    assert len(str(failed.value)) < 2_000


def test_nothing_of_the_epoch_is_emitted(h):
    with pytest.raises(UserCodeError):
        h.inject("events", [(event(1, "a"), 0), (event(-1, "b"), 0), (event(1, "c"), 0)])

    assert h.outputs("counts") == []
    assert h.counters("Touchy").records == 0


def test_nothing_of_the_epoch_is_kept_in_state(h):
    with pytest.raises(UserCodeError):
        h.inject("events", [(event(n, key), 0) for key in "abcdefgh" for n in (1, -1)])
    h.inject("events", [(event(1, key), 0) for key in "abcdefgh"])

    assert [output.value for output in h.outputs("counts")] == [1] * 8


def test_nothing_is_kept_above_the_computation_that_failed():
    class Fails(mr.Computation):
        inputs = {"counts": mr.by_key()}

        def process_record(self, record):
            if record.key == "bad":
                raise ZeroDivisionError

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Touchy)
    p.add(Fails)
    h = mr.testing.Harness(p)
    with pytest.raises(UserCodeError):
        h.inject("events", [(event(1, "good"), 0), (event(1, "bad"), 0)])
    h.inject("events", [(event(1, "good"), 0)])

    assert [output.value for output in h.outputs("counts")] == [1]


def test_the_epoch_after_a_failed_one_has_its_own_watermark(h):
    with pytest.raises(UserCodeError):
        h.inject("events", [(event(-1), 0)])
    h.advance_watermark("events", 100)

    assert h.low_watermark("Touchy") == 100


def test_the_epoch_after_a_failed_one_has_its_own_clock():
    class Clock(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        outputs = {"times": int}

        def process_record(self, record):
            if record.value:
                raise ZeroDivisionError
            self.produce("times", self.wall_time)

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Clock)
    h = mr.testing.Harness(p)
    with pytest.raises(UserCodeError):
        h.inject("events", [(True, 0)])
    h.advance_clock(50)
    h.inject("events", [(False, 0)])

    assert [output.value for output in h.outputs("times")] == [50]
