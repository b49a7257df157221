"""What holds for every injector: monotonic, conservative, and at its end when its processes are."""

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.injectors.watermark_publisher import WatermarkAggregate, WatermarkPublisher
from millrace.watermark.report import ProcessState

NAMES = ("a", "b", "c")


class Late(mr.Computation):
    inputs = {"events": mr.by(lambda value: value)}
    outputs = {"late": bool, "fired": int}

    def process_record(self, record):
        self.produce("late", record.late)
        self.set_timer(record.timestamp, at=record.timestamp + 1)

    def process_timer(self, timer):
        self.produce("fired", timer.tag)


def harness(policy, **options):
    p = mr.Pipeline("injectors")
    p.inject("events", format=int, low_watermark=policy, process="who", **options)
    p.add(Late)
    return mr.testing.Harness(p, publish=True)


#: (process, how far its newest moves ahead, how far behind that its records are), per delivery.
deliveries = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(0, 50),
        st.lists(st.integers(0, 20), min_size=1, max_size=4),
    ),
    max_size=15,
)


@given(deliveries, st.integers(0, 20))
def test_no_record_within_the_delay_is_late_and_all_timers_fire_in_the_end(script, delay):
    newest = dict.fromkeys(NAMES, 1000)
    fired = []
    with harness(mr.BoundedDelay(delay), expected=NAMES) as h:
        for name, ahead, behind in script:
            newest[name] += ahead
            times = [newest[name], *(newest[name] - min(back, delay) for back in behind)]
            h.inject("events", [(at % 5, at) for at in times], process=name)
            fired += times
        assert not any(out.value for out in h.outputs("late"))
        for name in NAMES:
            h.inject("events", [(0, max(newest.values()) + delay + 1)], process=name)
        assert {out.value for out in h.outputs("fired")} >= set(fired)


@given(deliveries, st.data())
def test_no_record_of_a_process_that_keeps_its_word_is_late(script, data):
    claims = dict.fromkeys(NAMES, 1000)
    with harness(mr.WatermarkColumn("claim"), expected=NAMES) as h:
        for name, ahead, behind in script:
            records = [(0, claims[name] + back) for back in behind]
            claims[name] += data.draw(st.integers(0, ahead))
            # A claim is about what comes after; the records beside it keep the claim before.
            h.inject("events", records, process=name, low_watermark=claims[name])
        assert not any(out.value for out in h.outputs("late"))
        for name in NAMES:
            h.inject("events", [], process=name, low_watermark=mr.MAX_TIMESTAMP)
        assert h.low_watermark("Late") == mr.MAX_TIMESTAMP


processes = st.builds(ProcessState, *(st.integers(0, 100) for _ in range(3)))
steps = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(NAMES), processes), st.integers(0, 60)), max_size=12
)


@given(
    steps,
    st.sampled_from([mr.BoundedDelay(7), mr.ArrivalTime(7, every=3), mr.WatermarkColumn("w")]),
    st.none() | st.integers(0, 50),
)
def test_what_is_published_never_moves_back_and_is_changed_only_when_said(script, policy, idle):
    publisher = WatermarkPublisher({"s": WatermarkAggregate(policy, ("a", "b"), idle)})
    known, before, clock = {}, {"s": mr.MIN_TIMESTAMP}, 0
    for seen, passed in script:
        clock += passed
        for name, process in publisher.process_states({"s": seen}, {"s": known}, clock)[
            "s"
        ].items():
            known[name] = known.get(name, ProcessState()).merged(process)

        def at(wall, before=before, clock=clock):
            return publisher.published(
                {"s": known}, wall_time_us=wall, before=before, last_epoch_us=clock
            )

        now = at(clock)
        assert now["s"] >= before["s"]
        changes = publisher.changes_us()
        if idle is not None and not isinstance(policy, mr.ArrivalTime):
            assert all(at(wall) == now for wall in range(clock, min(changes, clock + 60)))
            at(clock)
        before = now


@given(st.lists(processes), st.lists(processes))
def test_observations_may_come_in_any_order(first, second):
    def together(found):
        result = ProcessState()
        for process in found:
            result = result.merged(process)
        return result

    assert together(first + second) == together(second + first)
    assert together(first).merged(together(second)) == together(first + second)
