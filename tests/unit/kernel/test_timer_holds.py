"""A timer that holds the low watermark: as long as it is pending, and no longer."""

import pytest

import millrace as mr
from millrace.model.errors import UserCodeError


class Delay(mr.Computation):
    """Sets and deletes timers as records say; what fires is sent on at the timer's time."""

    inputs = {"events": mr.by("key")}
    outputs = {"fired": list}

    def process_record(self, record):
        for tag, arguments in record.value["timers"].items():
            if arguments is None:
                self.delete_timer(tag, domain=mr.WALL_TIME)
            else:
                self.set_timer(tag, **arguments)

    def process_timer(self, timer):
        self.produce("fired", [timer.tag, timer.at, timer.hold])


class Below(mr.Computation):
    inputs = {"fired": mr.by_key()}

    def process_record(self, record):
        pass


@pytest.fixture
def h(harness):
    return harness(Delay, Below)


def put(h, key="k", **timers):
    h.inject("events", [({"key": key, "timers": timers}, 1_000)])


def wall(at, hold):
    return {"at": at, "domain": mr.WALL_TIME, "hold": hold}


def shown(h):
    return h.output_low_watermark("Delay")


def test_a_wall_clock_timer_holds_until_it_fires_and_produces_there(h):
    put(h, t=wall(10, 70))
    h.advance_watermark("events", 100)
    assert (h.low_watermark("Delay"), shown(h)) == (100, 70)

    h.advance_clock(10)
    assert [(o.value, o.timestamp) for o in h.outputs("fired")] == [(["t", 10, 70], 70)]
    assert shown(h) == h.low_watermark("Below") == 100
    assert h.counters("Below").late == 0


def test_a_low_watermark_timer_holds_earlier_than_its_time(h):
    put(h, t={"at": 90, "hold": 70})
    h.advance_watermark("events", 80)
    assert shown(h) == 70

    h.advance_watermark("events", 90)
    assert [o.timestamp for o in h.outputs("fired")] == [70]
    assert shown(h) == 90


def test_a_hold_after_its_timer_changes_nothing_for_a_low_watermark_timer(h):
    put(h, t={"at": 60, "hold": 70})
    h.advance_watermark("events", 59)
    assert shown(h) == 59

    h.advance_watermark("events", 60)
    assert shown(h) == 60


def test_setting_it_again_replaces_the_hold(h):
    put(h, t=wall(10, 70))
    put(h, t=wall(10, 80))
    h.advance_watermark("events", 100)
    assert shown(h) == 80

    put(h, t={"at": 10, "domain": mr.WALL_TIME})
    assert shown(h) == 100


def test_deleting_it_lets_go(h):
    put(h, t=wall(10, 70))
    h.advance_watermark("events", 100)
    put(h, t=None)

    assert shown(h) == 100


def test_holds_of_several_timers_and_of_the_key_count_each(harness):
    class Both(Delay):
        def process_record(self, record):
            self.hold(50)
            super().process_record(record)

        def process_timer(self, timer):
            if timer.tag == "a":
                self.hold(None)

    h = harness(Both)
    put(h, a=wall(10, 50), b=wall(20, 50), c=wall(30, 60))
    h.advance_watermark("events", 100)
    assert h.output_low_watermark("Both") == 50
    h.advance_clock(10)
    assert h.output_low_watermark("Both") == 50
    h.advance_clock(20)
    assert h.output_low_watermark("Both") == 60
    h.crash()
    assert h.output_low_watermark("Both") == 60
    h.advance_clock(30)
    assert h.output_low_watermark("Both") == 100


def test_a_timer_that_fires_in_its_own_bundle_holds_nothing(h):
    h.advance_clock(10)
    put(h, t=wall(10, 70))
    h.advance_watermark("events", 100)

    assert len(h.outputs("fired")) == 1
    assert shown(h) == 100


def test_two_settings_of_one_name_may_be_due_at_once(harness):
    """The same time and tag, with and without a hold: one of them counts, and they compare."""

    class Twice(Delay):
        def process_record(self, record):
            self.set_timer("t", at=5, domain=mr.WALL_TIME)
            self.set_timer("t", at=5, domain=mr.WALL_TIME, hold=3)

    h = harness(Twice)
    h.advance_clock(10)
    put(h)

    assert [o.value for o in h.outputs("fired")] == [["t", 5, 3]]


@pytest.mark.parametrize("hold", ["soon", 1.5, True])
def test_a_hold_that_is_no_time_is_refused(h, hold):
    with pytest.raises(UserCodeError, match=r"set_timer, hold: .* is not (a time|an instant)"):
        put(h, t=wall(10, hold))


def test_a_long_tag_and_key_hold_too(harness):
    h = harness(Delay)
    key, tag = "k" * 500, "t" * 500
    h.inject("events", [({"key": key, "timers": {tag: wall(10, 70)}}, 0)])
    h.advance_watermark("events", 100)
    assert shown(h) == 70

    h.advance_clock(10)
    assert shown(h) == 100
