"""The timers of the kernel against a dictionary: what fires, when, in which order, how often."""

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.model.keys import encode_key

TAGS = ["a", "b", "chain", "killer", "mover"]
tags = st.sampled_from(TAGS)
times = st.integers(-5, 40)
domains = st.sampled_from([0, 1])
command = st.one_of(
    st.tuples(st.just("set"), tags, times, domains),
    st.tuples(st.just("delete"), tags, st.just(0), domains),
)
step = st.one_of(
    st.tuples(st.just("records"), st.lists(st.lists(command, max_size=3), max_size=3)),
    st.tuples(st.just("watermark"), st.integers(0, 8)),
    st.tuples(st.just("clock"), st.integers(0, 8)),
    st.tuples(st.just("crash")),
)


def reactions(tag, at, domain):
    """Return what a timer does when it fires, as commands."""
    if tag == "chain" and at < 30:
        return [("set", "chain", at + 7, domain)]
    if tag == "killer":
        return [("delete", "a", 0, domain), ("set", "b", at - 1, domain)]
    if tag == "mover":
        return [("set", "a", at + 10, domain), ("set", "b", at + 10, 1 - domain)]
    return []


class Table(mr.Computation):
    inputs = {"commands": mr.by(lambda _: "k")}
    outputs = {"fired": list}

    def apply(self, commands):
        for kind, tag, at, domain in commands:
            if kind == "set":
                self.set_timer(tag, at=at, domain=domain)
            else:
                self.delete_timer(tag, domain=domain)

    def process_record(self, record):
        self.apply(record.value)

    def process_timer(self, timer):
        self.produce("fired", [timer.tag, timer.at, int(timer.domain)])
        # A deleted or moved timer leaves its reaction behind only if it fires.
        self.apply(reactions(timer.tag, timer.at, int(timer.domain)))


class Model:
    """A dictionary from (domain, tag) to time, and two clocks."""

    def __init__(self):
        self.pending = {}
        self.clocks = [mr.MIN_TIMESTAMP, 0]
        self.fired = []

    def apply(self, commands):
        for kind, tag, at, domain in commands:
            if kind == "set":
                self.pending[domain, tag] = at
            else:
                self.pending.pop((domain, tag), None)

    def fire(self):
        """Fire what is due, earliest first; ties by domain, then by the tag's encoding."""
        while due := sorted(
            (at, domain, encode_key(tag), tag)
            for (domain, tag), at in self.pending.items()
            if at <= self.clocks[domain]
        ):
            at, domain, _, tag = due[0]
            del self.pending[domain, tag]
            self.fired.append([tag, at, domain])
            self.apply(reactions(tag, at, domain))

    def pinned(self):
        return min([at for (domain, _), at in self.pending.items() if domain == 0], default=None)


@given(st.lists(step, max_size=14))
def test_timers_are_a_dictionary_with_two_clocks(script):
    p = mr.Pipeline("timers")
    p.inject("commands")
    p.add(Table)
    model = Model()
    watermark = 0
    with mr.testing.Harness(p, intervals=1) as h:
        for kind, *arguments in script:
            if kind == "records":
                h.inject("commands", [(commands, 0) for commands in arguments[0]])
                for commands in arguments[0]:
                    model.apply(commands)
            elif kind == "watermark":
                watermark += arguments[0]
                h.advance_watermark("commands", watermark)
                model.clocks[0] = watermark
            elif kind == "clock":
                h.advance_clock(model.clocks[1] + arguments[0])
                model.clocks[1] += arguments[0]
            else:
                h.crash()
            model.fire()

            assert [output.value for output in h.outputs("fired")] == model.fired
        h.advance_watermark("commands", mr.MAX_TIMESTAMP)
        model.clocks[0] = mr.MAX_TIMESTAMP
        model.fire()
        assert [output.value for output in h.outputs("fired")] == model.fired
        assert model.pinned() is None


@given(
    st.dictionaries(st.tuples(domains, st.integers(0, 20)), st.integers(1, 60), min_size=1),
    st.lists(st.tuples(domains, st.integers(1, 20)), min_size=1, max_size=12),
)
def test_every_timer_fires_exactly_once_in_order_and_not_before_its_time(timers, advances):
    p = mr.Pipeline("timers")
    p.inject("commands")
    p.add(Table)
    clocks = [mr.MIN_TIMESTAMP, 0]
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("commands", [([("set", tag, at, d)], 0) for (d, tag), at in timers.items()])
        for domain, by in [*advances, (0, 100), (1, 100)]:
            before, seen = list(clocks), len(h.outputs("fired"))
            clocks[domain] = max(clocks[domain], 0) + by
            if domain == 0:
                h.advance_watermark("commands", clocks[0])
            else:
                h.advance_clock(clocks[1])

            new = [output.value for output in h.outputs("fired")[seen:]]
            assert [at for _, at, _ in new] == sorted(at for _, at, _ in new)
            assert all(before[d] < at <= clocks[d] for _, at, d in new)
        fired = {(d, tag): at for tag, at, d in (output.value for output in h.outputs("fired"))}

        assert fired == timers
        assert len(h.outputs("fired")) == len(timers)
