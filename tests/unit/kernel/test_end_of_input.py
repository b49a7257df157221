"""The end of the input: every timer fires, and user code is told."""

import millrace as mr


class Windows(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"out": list}
    n = mr.CombiningState(int)

    def process_record(self, record):
        self.n.add(1)
        self.set_timer("far", at=record.value["at"])

    def process_timer(self, timer):
        self.produce("out", [timer.at, self.n.get(), self.low_watermark == mr.MAX_TIMESTAMP])


def test_every_pending_low_watermark_timer_fires_at_the_end(harness):
    h = harness(Windows)
    h.inject("events", [({"key": key, "at": at}, 0) for key, at in (("a", 10), ("b", 2**60))])
    h.advance_watermark("events", mr.MAX_TIMESTAMP)

    assert sorted(output.value for output in h.outputs("out")) == [[10, 1, True], [2**60, 1, True]]


def test_the_end_crosses_every_level_at_once(harness):
    class Below(Windows):
        inputs = {"out": mr.by_key()}
        outputs = {"below": list}

        def process_record(self, record):
            self.set_timer("t", at=2**61)

        def process_timer(self, timer):
            self.produce("below", [self.low_watermark])

    h = harness(Windows, Below)
    h.inject("events", [({"key": "k", "at": 10}, 0)])
    h.advance_watermark("events", mr.MAX_TIMESTAMP)

    assert [output.value for output in h.outputs("below")] == [[mr.MAX_TIMESTAMP]]
    assert h.low_watermark("Below") == mr.MAX_TIMESTAMP


def test_the_end_may_be_told_twice(harness):
    h = harness(Windows)
    h.inject("events", [({"key": "k", "at": 10}, 0)])
    h.advance_watermark("events", mr.MAX_TIMESTAMP)
    h.advance_watermark("events", mr.MAX_TIMESTAMP)

    assert len(h.outputs("out")) == 1


def test_one_ended_input_of_two_ends_nothing(harness):
    class Both(Windows):
        inputs = {"events": mr.by("key"), "others": mr.by("key")}

    h = harness(Both, streams=("events", "others"))
    h.inject("events", [({"key": "k", "at": 10}, 0)])
    h.advance_watermark("events", mr.MAX_TIMESTAMP)
    assert h.outputs("out") == []

    h.advance_watermark("others", 10)
    assert [output.value for output in h.outputs("out")] == [[10, 1, False]]


def test_a_wall_time_timer_does_not_fire_at_the_end_of_the_input(harness):
    class Wall(Windows):
        def process_record(self, record):
            self.set_timer("t", at=10, domain=mr.WALL_TIME)

    h = harness(Wall)
    h.inject("events", [({"key": "k"}, 0)])
    h.advance_watermark("events", mr.MAX_TIMESTAMP)

    assert h.outputs("out") == []
