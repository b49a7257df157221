"""Time as a whole: correct injectors make nothing late, inputs end, and what is stuck is found."""

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr

DELAY = 20


class Windows(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": dict}
    counts = mr.MapState(int)

    def process_record(self, record):
        self.produce("counts", {"key": "late" if record.late else "in time"})
        window = record.timestamp // 10
        self.counts[window] = self.counts.get(window, 0) + 1
        self.set_timer(window, at=(window + 1) * 10)
        if record.value["hold"]:
            self.hold(record.timestamp)
            self.set_timer("let go", at=self.wall_time + 5, domain=mr.WALL_TIME)
        if record.value["carry"]:
            at = self.wall_time + record.value["carry"]
            self.set_timer("carry", at=at, domain=mr.WALL_TIME, hold=record.timestamp)

    def process_timer(self, timer):
        if timer.tag == "let go":
            self.hold(None)
        elif timer.tag == "carry":
            self.produce("counts", {"key": "carried"})
        else:
            self.produce("counts", {"key": "counted"}, timestamp=timer.at - 1)


class Below(mr.Computation):
    inputs = {"counts": mr.by("key")}
    outputs = {"seen": bool}

    def process_record(self, record):
        self.produce("seen", record.late)


record = st.fixed_dictionaries(
    {
        "key": st.sampled_from("abc"),
        "hold": st.booleans(),
        "carry": st.integers(0, 8),
        "ahead": st.integers(-DELAY, 30),
    }
)
step = st.one_of(
    st.tuples(st.just("inject"), st.lists(record, min_size=1, max_size=5)),
    st.tuples(st.just("clock"), st.integers(0, 9)),
    st.tuples(st.just("crash"), st.integers(0, 5)),
)


def play(h, script, check):
    """Play a script whose records come at most the bounded delay after the newest before them."""
    newest, clock = 1_000, 0
    for kind, argument in script:
        if kind == "inject":
            times = [newest + one["ahead"] for one in argument]
            h.inject("events", list(zip(argument, times, strict=True)))
            newest = max(newest, *times)
        elif kind == "clock":
            clock += argument
            h.advance_clock(clock)
        else:
            h.crash()
            h.crash_in_next_epoch(argument)
        check()
    return clock


def harness():
    p = mr.Pipeline("time")
    p.inject("events", low_watermark=mr.BoundedDelay(DELAY))
    p.add(Windows)
    p.add(Below)
    return mr.testing.Harness(p, publish=True)


@given(st.lists(step, max_size=15))
def test_a_delay_that_is_kept_makes_no_record_late_anywhere(script):
    with harness() as h:
        clock = play(h, script, lambda: None)
        h.advance_watermark("events", mr.MAX_TIMESTAMP)
        h.advance_clock(clock + 100)

        assert h.counters("Windows").late == h.counters("Below").late == 0
        assert not any(output.value for output in h.outputs("seen"))


@given(st.lists(step, max_size=15))
def test_when_the_input_ends_and_nothing_is_pending_every_low_watermark_is_at_the_end(script):
    with harness() as h:
        clock = play(h, script, lambda: None)
        h.advance_watermark("events", mr.MAX_TIMESTAMP)
        h.advance_clock(clock + 100)

        for name in ("Windows", "Below"):
            assert h.low_watermark(name) == h.output_low_watermark(name) == mr.MAX_TIMESTAMP
        assert h.explain_watermark().pin.kind == "nothing"


@given(st.lists(step, min_size=1, max_size=15))
def test_there_is_always_one_thing_that_pins_and_it_is_found(script):
    with harness() as h:

        def check():
            if not h.history.moments:
                return
            for name in ("Windows", "Below"):
                found = h.explain_watermark(name)
                pin, end = found.pin, found.path[-1]
                assert found.path[0].computation == name
                if pin.kind == "injector":
                    assert pin.timestamp == end.input
                else:
                    # What was shown stands when a hold is moved back behind it.
                    assert pin.timestamp <= end.shown <= end.input
                    assert pin.timestamp < end.input
                    assert (pin.tag == "carry") == (pin.at is not None)
                    assert pin.key in ("a", "b", "c")

        play(h, script, check)
