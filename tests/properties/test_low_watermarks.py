"""Low watermarks never move back, never lead the input, and always arrive."""

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr

NAMES = ("Buffer", "Relay", "Join")


class Buffer(mr.Computation):
    """Keeps records for a while under a hold, and sends them on as old as they were."""

    inputs = {"one": mr.by("key")}
    outputs = {"buffered": dict}
    waiting = mr.MapState(dict)

    def process_record(self, record):
        self.waiting[record.timestamp, len(self.waiting)] = record.value
        self.hold(min(at for at, _ in self.waiting))
        if record.value["wall"]:
            self.set_timer("flush", at=self.wall_time + 5, domain=mr.WALL_TIME)
        else:
            self.set_timer("flush", at=record.timestamp + 10)

    def process_timer(self, timer):
        for (at, _), value in self.waiting.items():
            self.produce("buffered", value, timestamp=at)
        self.waiting.clear()
        self.hold(None)


class Relay(mr.Computation):
    inputs = {"buffered": mr.by("to"), "two": mr.by("to")}
    outputs = {"relayed": dict}

    def process_record(self, record):
        self.produce("relayed", record.value)


class Join(mr.Computation):
    inputs = {"relayed": mr.by("key"), "two": mr.by("key"), "buffered": mr.by("key")}
    outputs = {"joined": bool}

    def process_record(self, record):
        self.produce("joined", record.late)


record = st.fixed_dictionaries(
    {
        "key": st.sampled_from("abc"),
        "to": st.sampled_from("xy"),
        "wall": st.booleans(),
        "at": st.integers(0, 50),
    }
)
step = st.one_of(
    st.tuples(st.just("inject"), st.sampled_from(["one", "two"]), st.lists(record, max_size=4)),
    st.tuples(st.just("publish"), st.sampled_from(["one", "two"]), st.integers(0, 10)),
    st.tuples(st.just("clock"), st.integers(0, 6)),
    st.tuples(st.just("crash")),
)


def pipeline():
    p = mr.Pipeline("low watermarks")
    p.inject("one")
    p.inject("two")
    for computation in (Buffer, Relay, Join):
        p.add(computation)
    return p


def play(h, script, check=lambda: None):
    """Play a script with correct injectors: none sends a record behind what it published."""
    published, clock = {"one": 0, "two": 0}, 0
    for kind, *arguments in script:
        if kind == "inject":
            stream, records = arguments
            h.inject(stream, [(r, published[stream] + r["at"]) for r in records])
        elif kind == "publish":
            stream, by = arguments
            published[stream] += by
            h.advance_watermark(stream, published[stream])
        elif kind == "clock":
            clock += arguments[0]
            h.advance_clock(clock)
        else:
            h.crash()
        check()
    return published, clock


@given(st.lists(step, max_size=20))
def test_no_low_watermark_moves_back_or_leads_its_input(script):
    with mr.testing.Harness(pipeline()) as h:
        last = {}

        def check():
            for name in NAMES:
                now = (h.low_watermark(name), h.output_low_watermark(name))
                before = last.get(name, now)
                assert now[0] >= before[0]
                assert now[1] >= before[1]
                assert now[1] <= now[0]
                last[name] = now
            assert h.low_watermark("Relay") <= h.output_low_watermark("Buffer")
            assert h.low_watermark("Join") <= h.output_low_watermark("Relay")

        play(h, script, check)


@given(st.lists(step, max_size=20))
def test_with_correct_injectors_no_record_is_late_anywhere(script):
    with mr.testing.Harness(pipeline()) as h:
        _, clock = play(h, script)
        h.advance_clock(clock + 100)
        for stream in ("one", "two"):
            h.advance_watermark(stream, mr.MAX_TIMESTAMP)

        assert not any(output.value for output in h.outputs("joined"))
        assert [h.counters(name).late for name in NAMES] == [0, 0, 0]


@given(st.lists(step, max_size=20))
def test_once_nothing_is_pending_every_low_watermark_arrives(script):
    with mr.testing.Harness(pipeline()) as h:
        _, clock = play(h, script)
        h.advance_clock(clock + 100)
        for stream in ("one", "two"):
            h.advance_watermark(stream, 10_000)

        for name in NAMES:
            assert h.low_watermark(name) == h.output_low_watermark(name) == 10_000
