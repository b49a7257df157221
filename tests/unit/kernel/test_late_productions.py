"""Productions behind what was shown to consumers: refused, unless they answer what was late."""

import pytest

import millrace as mr
from millrace.model.errors import LateProduction, UserCodeError


class Stamp(mr.Computation):
    """Produces with the timestamps that a record or timer tag lists; None is the default."""

    inputs = {"events": mr.by("key")}
    outputs = {"out": str}

    def process_record(self, record):
        for at in record.value.get("at", ()):
            self.produce("out", "record", timestamp=at)
        for tag, at, domain in record.value.get("timers", ()):
            self.set_timer(tag, at=at, domain=domain)

    def process_timer(self, timer):
        self.produce("out", "timer", timestamp=None if timer.tag == "default" else timer.tag)


class Below(mr.Computation):
    inputs = {"out": mr.by_key()}

    def process_record(self, record):
        pass


def put(h, at_us, **value):
    h.inject("events", [({"key": "k", **value}, at_us)])


def times(h):
    return [output.timestamp for output in h.outputs("out")]


@pytest.fixture
def h(harness):
    opened = harness(Stamp, Below)
    opened.advance_watermark("events", 100)
    return opened


def test_what_is_at_the_low_watermark_shown_is_allowed_and_not_late_below(h):
    put(h, 150, at=[100])

    assert times(h) == [100]
    assert h.counters("Below").late == 0


def test_what_is_behind_it_is_refused_and_nothing_is_applied(h):
    with pytest.raises(UserCodeError) as refused:
        put(h, 150, at=[150, 99])

    assert isinstance(refused.value.__cause__, LateProduction)
    message = str(refused.value)
    for said in (
        "Stamp produced to stream 'out' with timestamp 99 us",
        "0.000001 s behind the low watermark 100 us",
        "self.hold(timestamp)",
        "may_produce_late",
        "key 'k'",
        "test_late_productions.py",
    ):
        assert said in message
    assert times(h) == []


def test_the_low_watermark_that_counts_is_what_consumers_were_shown_and_not_the_input(harness):
    class Held(Stamp):
        def process_record(self, record):
            if "hold" in record.value:
                self.hold(record.value["hold"])
            super().process_record(record)

    h = harness(Held, Below)
    put(h, 50, hold=50)
    h.advance_watermark("events", 100)
    put(h, 150, at=[50])
    assert times(h) == [50]
    assert h.counters("Below").late == 0

    with pytest.raises(UserCodeError, match="timestamp 49 us"):
        put(h, 150, at=[49])


def test_the_answer_to_a_late_record_may_be_as_old_as_that_record(h):
    put(h, 60, at=[None, 60, 80])

    assert times(h) == [60, 60, 80]
    assert h.counters("Below").late == 3


def test_the_answer_to_a_late_record_may_not_be_older(h):
    with pytest.raises(UserCodeError, match="timestamp 59 us"):
        put(h, 60, at=[59])


def test_a_timer_of_the_bundle_may_answer_its_late_record(h):
    """As a window does whose end has passed: it reports again, with its last instant."""
    put(h, 60, timers=[(79, 80, mr.LOW_WATERMARK)])

    assert times(h) == [79]
    with pytest.raises(UserCodeError, match="timestamp 59 us"):
        put(h, 60, timers=[(59, 80, mr.LOW_WATERMARK)])


def test_a_late_record_of_another_key_excuses_nothing(h):
    with pytest.raises(UserCodeError, match="timestamp 80 us"):
        h.inject("events", [({"key": "a"}, 60), ({"key": "b", "at": [80]}, 150)])


def test_a_late_record_of_an_earlier_bundle_excuses_nothing(h):
    put(h, 60, timers=[(60, 1_000, mr.WALL_TIME)])

    with pytest.raises(UserCodeError, match="process_timer of Stamp raised LateProduction"):
        h.advance_clock(1_000)


@pytest.mark.parametrize("domain", [mr.LOW_WATERMARK, mr.WALL_TIME], ids=lambda d: d.name)
def test_a_timer_may_always_produce_at_its_own_time(harness, domain):
    h = harness(Stamp, Below)
    put(h, 0, timers=[("default", 50, domain)])
    h.advance_watermark("events", 100)
    h.advance_clock(100)

    assert times(h) == [50]


@pytest.mark.parametrize(("at", "allowed"), [(40, True), (39, False)])
def test_a_bound_allows_what_is_late_within_it(harness, at, allowed):
    class Bounded(Stamp):
        may_produce_late = 60

    h = harness(Bounded, Below)
    h.advance_watermark("events", 100)
    if not allowed:
        with pytest.raises(UserCodeError, match=r"and may produce 0.06 ms late"):
            put(h, 150, at=[at])
        return
    put(h, 150, at=[at])

    assert times(h) == [at]
    assert (h.counters("Below").late, h.counters("Below").worst_lateness_us) == (1, 60)


def test_the_unbounded_past_allows_everything(harness):
    class Historian(Stamp):
        may_produce_late = mr.UNBOUNDED_PAST

    h = harness(Historian, Below)
    h.advance_watermark("events", mr.MAX_TIMESTAMP)
    put(h, 150, at=[0])

    assert times(h) == [0]


def test_an_instance_may_have_a_bound_of_its_own(harness):
    stamp = Stamp()
    stamp.may_produce_late = "1 min"
    h = harness(stamp)
    h.advance_watermark("events", 100)
    put(h, 150, at=[0])

    assert times(h) == [0]


@pytest.mark.parametrize("bound", [-1, "soon", None])
def test_a_bound_that_is_no_duration_is_refused_when_built(bound):
    class Wrong(Stamp):
        may_produce_late = bound

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Wrong)
    with pytest.raises(mr.MillraceError, match=r"'Wrong', may_produce_late = .*UNBOUNDED_PAST"):
        p.build()


def test_a_late_production_may_be_a_dead_letter(harness):
    h = harness(Stamp, dead=True)
    h.advance_watermark("events", 100)
    put(h, 150, at=[99])

    (letter,) = [output.value for output in h.outputs("dead")]
    assert letter.reason.startswith("LateProduction: ")
