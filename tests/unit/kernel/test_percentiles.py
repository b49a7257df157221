"""Percentile low watermarks: timers that do not wait for the stragglers, across levels."""

import pytest

import millrace as mr
from millrace.kernel.timers import percentiles_of
from millrace.model.errors import UserCodeError, WatermarkRegression
from millrace.watermark.report import Report
from tests.live import Feeds


class Early(mr.Computation):
    """Sets timers as records say: tag -> (at, percentile)."""

    inputs = {"events": mr.by("key")}
    outputs = {"fired": list}
    percentiles = (90, 99)

    def process_record(self, record):
        for tag, arguments in record.value.get("timers", {}).items():
            self.set_timer(tag, **arguments)
        if "hold" in record.value:
            self.hold(record.value["hold"])

    def process_timer(self, timer):
        self.produce("fired", [timer.tag, timer.at, timer.percentile])


class Below(mr.Computation):
    inputs = {"fired": mr.by_key()}
    outputs = {"below": list}

    def process_record(self, record):
        pass


@pytest.fixture
def h(harness):
    return harness(Early, Below)


def put(h, key="k", at=1_000, **value):
    h.inject("events", [({"key": key, **value}, at)])


def fired(h):
    return [tuple(output.value) for output in h.outputs("fired")]


def inputs(h, name):
    return [h.low_watermark(name, percentile=p) for p in (90, 99, 100)]


def shown(h, name="Early"):
    return [h.output_low_watermark(name, percentile=p) for p in (90, 99, 100)]


def test_a_percentile_timer_fires_before_the_low_watermark_is_there(h):
    put(h, timers={"early": {"at": 50, "percentile": 99}, "sure": {"at": 50}})
    h.advance_watermark("events", 50, percentile=99)
    assert fired(h) == [("early", 50, 99)]

    h.advance_watermark("events", 50)
    assert fired(h) == [("early", 50, 99), ("sure", 50, 100)]


class Remembering(Early):
    """Keeps something for a while, of which nothing comes when it is forgotten."""

    seen = mr.ValueState(int, expires=60)

    def process_record(self, record):
        super().process_record(record)
        self.seen.set(1)


def test_what_only_expires_is_no_pending_work(harness):
    h = harness(Remembering, Below)
    put(h, at=10)
    h.advance_watermark("events", 20)
    h.advance_watermark("events", 500, percentile=90)
    assert shown(h, "Remembering") == [500, 20, 20]


@pytest.mark.parametrize(("to", "fires"), [(49, False), (50, True), (51, True)])
def test_it_fires_once_its_percentile_has_reached_it(h, to, fires):
    put(h, timers={"t": {"at": 50, "percentile": 99}})
    h.advance_watermark("events", to, percentile=99)

    assert fired(h) == ([("t", 50, 99)] if fires else [])


def test_a_lower_percentile_is_never_behind_a_higher_one(h):
    put(h, timers={"t": {"at": 50, "percentile": 90}})
    h.advance_watermark("events", 50, percentile=99)

    assert inputs(h, "Early") == [50, 50, mr.MIN_TIMESTAMP]
    assert fired(h) == [("t", 50, 90)]


def test_a_percentile_is_never_behind_the_low_watermark_itself(h):
    h.advance_watermark("events", 30, percentile=99)
    h.advance_watermark("events", 80)

    assert inputs(h, "Early") == inputs(h, "Below") == [80, 80, 80]


def test_they_cross_the_levels_in_one_epoch(h):
    h.advance_watermark("events", 10)
    h.advance_watermark("events", 50, percentile=99)

    assert inputs(h, "Below") == [50, 50, 10]


def test_the_oldest_tenth_of_what_is_pending_does_not_hold_the_other_nine_back(h):
    for n in range(10):
        put(h, key=n, hold=100 + n)
    h.advance_watermark("events", 1_000)

    assert shown(h) == [101, 100, 100]
    assert inputs(h, "Below") == [101, 100, 100]


def test_pending_timers_count_as_pending_work(h):
    """A result that is still to come pins everybody's percentiles as far as it counts."""
    put(h, timers={"sure": {"at": 500}})
    h.advance_watermark("events", 400)
    h.advance_watermark("events", 900, percentile=90)

    assert shown(h) == [500, 400, 400]


def test_setting_a_timer_again_changes_its_percentile(h):
    put(h, timers={"t": {"at": 50, "percentile": 99}})
    put(h, timers={"t": {"at": 50}})
    h.advance_watermark("events", 60, percentile=99)
    assert fired(h) == []

    put(h, timers={"t": {"at": 55, "percentile": 90}})
    assert fired(h) == [("t", 55, 90)]


def test_a_due_timer_that_is_set_again_for_the_low_watermark_waits_for_it(harness):
    class Changes(Early):
        def process_record(self, record):
            self.set_timer("t", at=50, percentile=99)
            self.set_timer("t", at=50)

    h = harness(Changes)
    h.advance_watermark("events", 60, percentile=99)
    put(h)
    assert fired(h) == []

    h.advance_watermark("events", 60)
    assert fired(h) == [("t", 50, 100)]


def test_a_deleted_timer_does_not_fire(harness):
    class Deletes(Early):
        def process_record(self, record):
            super().process_record(record)
            if "delete" in record.value:
                self.delete_timer(record.value["delete"])

    h = harness(Deletes)
    put(h, timers={"t": {"at": 50, "percentile": 99}})
    put(h, delete="t")
    h.advance_watermark("events", 60, percentile=99)

    assert fired(h) == []


def test_a_percentile_timer_may_hold(h):
    put(h, timers={"t": {"at": 80, "percentile": 99, "hold": 40}})
    h.advance_watermark("events", 60)
    assert shown(h) == [40, 40, 40]

    h.advance_watermark("events", 80, percentile=99)
    assert fired(h) == [("t", 80, 99)]
    assert [output.timestamp for output in h.outputs("fired")] == [40]
    assert shown(h) == [80, 80, 60]


@pytest.mark.parametrize("writes", range(8))
def test_through_a_crash_it_fires_exactly_once(h, writes):
    put(h, timers={"t": {"at": 50, "percentile": 99}, "u": {"at": 50, "percentile": 90}})
    h.crash()
    h.crash_in_next_epoch(writes)
    h.advance_watermark("events", 50, percentile=99)
    h.crash()

    assert sorted(fired(h)) == [("t", 50, 99), ("u", 50, 90)]
    assert inputs(h, "Below") == [50, 50, mr.MIN_TIMESTAMP]


def test_at_the_end_of_the_input_every_percentile_is_at_the_end(h):
    put(h, timers={"t": {"at": 50, "percentile": 99}})
    h.advance_watermark("events", mr.MAX_TIMESTAMP)

    assert fired(h) == [("t", 50, 99)]
    assert shown(h, "Below") == [mr.MAX_TIMESTAMP] * 3


def test_a_percentile_that_moves_back_is_refused(h):
    h.advance_watermark("events", 50, percentile=99)
    with pytest.raises(WatermarkRegression):
        h.advance_watermark("events", 49, percentile=99)


def test_a_percentile_that_nobody_waits_for_is_refused(h):
    with pytest.raises(mr.MillraceError, match=r"percentile=95.*they declare \[90, 99\]"):
        h.advance_watermark("events", 50, percentile=95)


@pytest.mark.parametrize(
    "arguments", [{"percentile": 95}, {"percentile": 99, "domain": mr.WALL_TIME}]
)
def test_a_timer_for_a_percentile_that_is_not_declared_is_refused(h, arguments):
    with pytest.raises(UserCodeError, match=r"expected one of \[90, 99, 100\], of the low waterm"):
        put(h, timers={"t": {"at": 50, **arguments}})


@pytest.mark.parametrize("percentile", [0, 100, 99.5, "99", True])
def test_a_declaration_that_is_no_percentile_is_refused_when_built(percentile):
    class Wrong(Early):
        percentiles = (percentile,)

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Wrong)
    with pytest.raises(mr.MillraceError, match="is no percentile"):
        p.build()
    Wrong.percentiles = percentile
    with pytest.raises(mr.MillraceError, match=r"Expected whole numbers.*\(90,\)"):
        p.build()


def test_a_pipeline_without_percentiles_keeps_no_count(harness):
    class Plain(Early):
        percentiles = ()

    h = harness(Plain)
    put(h, hold=50)

    assert h._run_log.authority.report("Plain", 0).outstanding is None


def start(percentiles, earlier=None):
    """Return a Harness of a pipeline that waits for these; on the checkpoint of an earlier one."""

    class Grows(Early):
        pass

    Grows.percentiles = percentiles
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Grows, name="Grows")
    h = mr.testing.Harness(p, intervals=1)
    if earlier is not None:
        h._durable = earlier._durable
        h.crash()
    return h


def test_timers_whose_percentile_is_not_declared_any_more_wait_for_the_low_watermark():
    h = start((90,))
    put(h, timers={"t": {"at": 50, "percentile": 90}, "u": {"at": 70, "percentile": 90}})
    later = start((), h)
    later.advance_watermark("events", 49)
    put(later)
    assert fired(later) == []

    later.advance_watermark("events", 50)
    assert fired(later) == [("t", 50, 90)]
    later.crash()
    later.advance_watermark("events", 70)
    assert fired(later) == [("t", 50, 90), ("u", 70, 90)]
    later.close()


def test_a_pipeline_that_asks_later_counts_what_was_pending_before():
    """The checkpoint has no counts yet; each interval makes its own when it next has work."""
    h = start(())
    for n in range(10):
        put(h, key=n, hold=100 + n)
    h.advance_watermark("events", 1_000)
    later = start((90,), h)
    assert later.output_low_watermark("Grows", percentile=90) == 100

    put(later, key="new", hold=2_000)
    assert later.output_low_watermark("Grows", percentile=90) == 101
    later.close()


def test_an_injector_estimates_its_percentiles_from_how_far_ahead_records_come():
    """Nine records in ten come ten seconds ahead of the low watermark."""
    p = mr.Pipeline("p")
    p.inject("events", low_watermark=mr.BoundedDelay("1 min"))
    p.add(Early)
    with mr.testing.Harness(p, publish=True) as h:
        h.inject("events", [({"key": "k"}, mr.HOUR)])
        for n in range(20):
            low_us = h.low_watermark("Early")
            assert low_us == mr.HOUR + n * mr.SECOND - mr.MINUTE
            ahead = [low_us + 61 * mr.SECOND] + [low_us + 50 * mr.SECOND] * 18 + [low_us]
            h.inject("events", [({"key": "k"}, at_us) for at_us in ahead])

        at_90, at_99, at_100 = inputs(h, "Early")
        assert at_99 == at_100
        assert 44 * mr.SECOND < at_90 - at_100 <= 50 * mr.SECOND


def test_user_code_can_ask_where_they_stand(harness):
    class Asks(Early):
        outputs = {"asked": list}

        def process_record(self, record):
            self.produce("asked", [self.low_watermark, dict(self.percentile_low_watermarks)])
            self.set_timer("t", at=0)

        def process_timer(self, timer):
            self.produce("asked", [self.low_watermark, dict(self.percentile_low_watermarks)])

    h = harness(Asks)
    h.advance_watermark("events", 10)
    h.advance_watermark("events", 50, percentile=99)
    put(h)

    assert [output.value for output in h.outputs("asked")] == [[10, {90: 50, 99: 50}]] * 2


class Says(mr.BoundedDelay):
    """A policy that knows its percentiles, epoch by epoch."""

    def percentile_us(self, percentile, epoch):
        return {90: [0, 700, 800], 99: [0, 600, 600]}[percentile][min(epoch, 2)]


def test_what_a_policy_says_of_percentiles_is_not_estimated():
    p = mr.Pipeline("says")
    p.inject("events", low_watermark=Says(500))
    p.add(Early)
    with mr.testing.Harness(p, publish=True) as h:
        put(h, at=900)

        assert inputs(h, "Early") == [800, 600, 400]


def test_a_percentile_of_which_nothing_is_known_is_the_low_watermark():
    """Of the computation's own percentiles, and of those that a timer waits for as it did once."""
    pipeline = mr.Pipeline("percentiles")
    pipeline.inject("events", Feeds("key string, at long", {}), timestamp="at")
    pipeline.add(Early)
    pipeline.add(Below)
    early, below = map(pipeline.build().computation, ("Early", "Below"))
    assert percentiles_of(early, {100: 5}, Report()) == {90: 5, 99: 5}
    assert percentiles_of(early, {100: 5, 90: 7}, Report()) == {90: 7, 99: 5}
    assert percentiles_of(below, {100: 5}, Report(percentile_timers=((75, 3),))) == {75: 5}
    assert percentiles_of(below, {100: 5}, Report()) == {}
