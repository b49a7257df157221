"""Shapes of pipelines: fan-out, fan-in, diamonds, many streams of one computation."""

import millrace as mr


def relay(name, source, *targets):
    """Return a computation that copies each record to every target, with its name added."""

    class Relay(mr.Computation):
        inputs = {stream: mr.by_key() for stream in source.split()}
        outputs = dict.fromkeys(targets, list)

        def process_record(self, record):
            for target in targets:
                self.produce(target, [*record.value, name])

    Relay.__name__ = Relay.__qualname__ = name
    return Relay


class Source(mr.Computation):
    inputs = {"events": mr.by(lambda value: value)}
    outputs = {"s": list}

    def process_record(self, record):
        self.produce("s", [record.value])


def values(h, stream):
    return sorted(output.value for output in h.outputs(stream))


def test_every_subscriber_of_a_stream_gets_every_record(harness):
    h = harness(Source, relay("A", "s", "a"), relay("B", "s", "b"))
    h.inject("events", [("x", 0), ("y", 0)])

    assert values(h, "a") == [["x", "A"], ["y", "A"]]
    assert values(h, "b") == [["x", "B"], ["y", "B"]]


def test_a_computation_publishes_several_streams(harness):
    h = harness(Source, relay("A", "s", "a1", "a2"))
    h.inject("events", [("x", 0)])

    assert values(h, "a1") == values(h, "a2") == [["x", "A"]]


def test_several_computations_publish_one_stream(harness):
    h = harness(Source, relay("A", "s", "ab"), relay("B", "s", "ab"), relay("Join", "ab", "joined"))
    h.inject("events", [("x", 0)])

    assert values(h, "joined") == [["x", "A", "Join"], ["x", "B", "Join"]]


def test_a_diamond_delivers_both_sides_in_the_same_epoch(harness):
    h = harness(
        relay("Join", "left right", "joined"),
        relay("L", "s", "left"),
        relay("R", "s", "right"),
        Source,
    )
    h.inject("events", [("x", 0)])

    assert values(h, "joined") == [["x", "L", "Join"], ["x", "R", "Join"]]


def test_a_diamond_waits_for_its_slower_side(harness):
    class Slow(relay("Slow", "s", "slow")):
        def process_record(self, record):
            self.hold(30)

    h = harness(Source, Slow, relay("Fast", "s", "fast"), relay("Join", "fast slow", "joined"))
    h.inject("events", [("x", 40)])
    h.advance_watermark("events", 50)

    assert h.low_watermark("Join") == 30


def test_a_short_cut_past_a_level_arrives_in_the_same_epoch(harness):
    h = harness(Source, relay("Mid", "s", "m"), relay("Join", "s m", "joined"))
    h.inject("events", [("x", 0)])

    assert values(h, "joined") == [["x", "Join"], ["x", "Mid", "Join"]]


def test_a_computation_knows_by_which_stream_a_record_came(harness):
    class Names(mr.Computation):
        inputs = {"events": mr.by(lambda value: value), "others": mr.by(lambda value: value)}
        outputs = {"names": str}

        def process_record(self, record):
            self.produce("names", record.stream)

    h = harness(Names, streams=("events", "others"))
    h.inject("others", [("x", 0)])
    h.inject("events", [("x", 0)])

    assert [output.value for output in h.outputs("names")] == ["others", "events"]


def test_consumers_of_one_stream_choose_different_keys(harness):
    class Keyed(mr.Computation):
        def __init__(self, stream, *fields):
            self.inputs = {"events": mr.by(*fields)}
            self.outputs = {stream: str}
            self.stream = stream

        def process_record(self, record):
            self.produce(self.stream, repr(self.key))

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Keyed("origins", "origin"), name="by origin")
    p.add(Keyed("legs", "origin", "dest"), name="by leg")
    with mr.testing.Harness(p) as h:
        h.inject("events", [({"origin": "JFK", "dest": "LAX"}, 0)])

        assert values(h, "origins") == ["'JFK'"]
        assert values(h, "legs") == ["('JFK', 'LAX')"]


def test_timers_of_two_levels_fire_in_one_epoch_when_the_watermark_passes_both(harness):
    class Upper(mr.Computation):
        inputs = {"events": mr.by(lambda value: value)}
        outputs = {"s": str}

        def process_record(self, record):
            self.set_timer("t", at=10)

        def process_timer(self, timer):
            self.produce("s", "from timer", timestamp=9)

    class Lower(mr.Computation):
        inputs = {"s": mr.by_key()}
        outputs = {"out": list}

        def process_record(self, record):
            self.set_timer("t", at=20)
            self.produce("out", [record.value, record.late])

        def process_timer(self, timer):
            self.produce("out", ["timer", timer.at])

    h = harness(Upper, Lower)
    h.inject("events", [("x", 0)])
    h.advance_watermark("events", 20)

    assert [output.value for output in h.outputs("out")] == [["from timer", False], ["timer", 20]]
