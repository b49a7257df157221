"""Low watermarks: the minimum over senders, pinned by pending work, never moving back."""

import millrace as mr


class Pass(mr.Computation):
    """Passes on; a value with ``timer`` sets one, and one with ``hold`` holds (None lets go)."""

    inputs = {"events": mr.by("key")}
    outputs = {"passed": dict}

    def process_record(self, record):
        value = record.value
        if "timer" in value:
            self.set_timer("t", at=value["timer"])
        if "wall" in value:
            self.set_timer("t", at=value["wall"], domain=mr.WALL_TIME)
        if "cancel" in value:
            self.delete_timer("t")
        if "hold" in value:
            self.hold(value["hold"])
        self.produce("passed", value)

    def process_timer(self, timer):
        if timer.domain == mr.WALL_TIME:
            self.hold(None)


class Below(mr.Computation):
    inputs = {"passed": mr.by("key")}

    def process_record(self, record):
        pass


def put(h, key="k", at=0, **value):
    h.inject("events", [({"key": key, **value}, at)])


def shown(h):
    return h.output_low_watermark("Pass")


def test_it_is_before_time_until_an_injector_says_otherwise(harness):
    h = harness(Pass, Below)
    put(h)

    assert h.low_watermark("Pass") == h.low_watermark("Below") == mr.MIN_TIMESTAMP


def test_it_crosses_the_whole_pipeline_in_one_epoch(harness):
    h = harness(Pass, Below)
    h.advance_watermark("events", 100)

    assert h.low_watermark("Pass") == h.low_watermark("Below") == 100


def test_it_is_the_minimum_over_all_senders(harness):
    class Both(Pass):
        inputs = {"events": mr.by("key"), "others": mr.by("key")}

    h = harness(Both, streams=("events", "others"))
    h.advance_watermark("events", 100)
    assert h.low_watermark("Both") == mr.MIN_TIMESTAMP

    h.advance_watermark("others", 50)
    assert h.low_watermark("Both") == 50

    h.advance_watermark("others", 200)
    assert h.low_watermark("Both") == 100


def test_a_pending_timer_pins_what_consumers_see_but_not_the_input(harness):
    h = harness(Pass, Below)
    put(h, timer=70)
    h.advance_watermark("events", 60)
    assert (h.low_watermark("Pass"), shown(h), h.low_watermark("Below")) == (60, 60, 60)

    put(h, key="later", timer=150)
    h.advance_watermark("events", 100)
    assert (h.low_watermark("Pass"), shown(h), h.low_watermark("Below")) == (100, 100, 100)

    h.advance_watermark("events", 200)
    assert shown(h) == 200


def test_a_timer_in_a_chain_pins_until_the_chain_has_passed(harness):
    class Chain(Pass):
        def process_timer(self, timer):
            if timer.at < 100:
                self.set_timer("t", at=150)

    h = harness(Chain)
    put(h, timer=50)
    h.advance_watermark("events", 120)
    assert h.output_low_watermark("Chain") == 120

    h.advance_watermark("events", 149)
    assert h.output_low_watermark("Chain") == 149


def test_a_wall_time_timer_pins_nothing(harness):
    h = harness(Pass)
    put(h, wall=10)
    h.advance_watermark("events", 100)

    assert shown(h) == 100


def test_a_hold_pins_what_consumers_see(harness):
    h = harness(Pass, Below)
    put(h, hold=70)
    h.advance_watermark("events", 100)

    assert (h.low_watermark("Pass"), shown(h), h.low_watermark("Below")) == (100, 70, 70)


def test_a_released_hold_lets_go(harness):
    h = harness(Pass, Below)
    put(h, hold=70)
    h.advance_watermark("events", 100)
    put(h, hold=None)

    assert h.low_watermark("Below") == 100


def test_a_hold_moves_forward(harness):
    h = harness(Pass)
    put(h, hold=70)
    h.advance_watermark("events", 100)
    put(h, hold=80)

    assert shown(h) == 80


def test_a_hold_that_moves_back_does_not_take_the_low_watermark_with_it(harness):
    h = harness(Pass)
    put(h, hold=70)
    h.advance_watermark("events", 100)
    put(h, hold=30)
    assert shown(h) == 70

    put(h, hold=90)
    assert shown(h) == 90


def test_a_hold_at_the_same_time_again_stays(harness):
    h = harness(Pass)
    put(h, hold=70)
    put(h, hold=70)
    h.advance_watermark("events", 100)

    assert shown(h) == 70


def test_releasing_what_is_not_held_is_nothing(harness):
    h = harness(Pass)
    put(h, hold=None)
    h.advance_watermark("events", 100)

    assert shown(h) == 100


def test_each_key_holds_for_itself_and_the_oldest_counts(harness):
    h = harness(Pass)
    for key, at in (("a", 70), ("b", 60), ("c", 80)):
        put(h, key=key, hold=at)
    h.advance_watermark("events", 100)
    assert shown(h) == 60

    put(h, key="b", hold=None)
    assert shown(h) == 70


def test_the_last_hold_of_a_bundle_counts(harness):
    h = harness(Pass)
    h.inject("events", [({"key": "k", "hold": 10}, 0), ({"key": "k", "hold": 70}, 0)])
    h.advance_watermark("events", 100)

    assert shown(h) == 70


def test_a_timer_may_release_a_hold(harness):
    h = harness(Pass)
    put(h, hold=70, wall=10)
    h.advance_watermark("events", 100)
    h.advance_clock(10)

    assert shown(h) == 100


def test_a_record_held_back_is_on_time_below_when_it_is_let_go(harness):
    class Buffer(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"passed": dict}
        buffered = mr.BagState(int)

        def process_record(self, record):
            self.buffered.add(record.timestamp)
            self.hold(min(self.buffered))
            self.set_timer("flush", at=10, domain=mr.WALL_TIME)

        def process_timer(self, timer):
            for at in self.buffered:
                self.produce("passed", {"key": "k"}, timestamp=at)
            self.buffered.clear()
            self.hold(None)

    h = harness(Buffer, Below)
    put(h, at=60)
    put(h, at=50)
    h.advance_watermark("events", 100)
    h.advance_clock(10)

    assert (h.counters("Below").records, h.counters("Below").late) == (2, 0)
    assert h.low_watermark("Below") == 100


def test_a_cancelled_timer_pins_no_more(harness):
    h = harness(Pass)
    put(h, timer=50, hold=20)
    put(h, cancel=True, hold=None)
    h.advance_watermark("events", 100)

    assert shown(h) == 100
