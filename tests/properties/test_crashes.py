"""Crashes change nothing: neither outputs nor state nor low watermarks, wherever they fall."""

from itertools import zip_longest

from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr

KEYS = "abcd"
STREAMS = ("events", "first", "second", "looked", "faded", "named", "several", "best")


class First(mr.Computation):
    """Uses every kind of state, both timer domains and holds."""

    inputs = {"events": mr.by("key")}
    outputs = {"first": list}
    value = mr.ValueState(list[int])
    entries = mr.MapState(int)
    bag = mr.BagState(int)
    total = mr.CombiningState(int)

    def process_record(self, record):
        n = record.value["n"]
        if n == -1:
            state = [self.value.get(), dict(self.entries), list(self.bag), self.total.get()]
            self.produce("first", ["state", repr(state), 0])
            return
        self.value.set([*self.value.get([]), n][-3:])
        self.entries[n % 3] = self.entries.get(n % 3, 0) + 1
        self.bag.add(n)
        self.total.add(n)
        if n % 2:
            self.set_timer(n % 3, at=record.timestamp + n)
        else:
            self.set_timer(n % 3, at=self.wall_time + n, domain=mr.WALL_TIME)
        if n % 5 == 0:
            self.hold(record.timestamp)
        if n == 7:
            self.bag.clear()
            self.delete_timer(1)
        self.produce("first", ["record", record.id.hex(), n])

    def process_timer(self, timer):
        self.hold(None)
        if timer.tag in self.entries:
            del self.entries[timer.tag]
        self.produce("first", ["timer", str(timer.domain.name), len(list(self.bag))])


class Second(mr.Computation):
    inputs = {"first": mr.by(lambda value: value[0]), "events": mr.by("key")}
    outputs = {"second": list}
    n = mr.ValueState(int)

    def process_record(self, record):
        self.n.set(self.n.get(0) + 1)
        self.set_timer("t", at=record.timestamp + 4)
        self.produce("second", [str(self.key), self.n.get(), record.late, record.id.hex()])

    def process_timer(self, timer):
        self.produce("second", [str(self.key), timer.at, self.low_watermark, ""])


class Beat(mr.Computation):
    """Nothing feeds it."""

    outputs = {"second": list}
    n = mr.ValueState(int)

    def process_start(self):
        self.n.set(self.n.get(0) + 1)
        self.set_timer("beat", at=self.wall_time + 2, domain=mr.WALL_TIME)

    def process_timer(self, timer):
        self.produce("second", [self.key, self.n.get(), False, str(timer.at)])
        if timer.at < 50:
            self.set_timer("beat", at=timer.at + 2, domain=mr.WALL_TIME)


class Looking(mr.Computation):
    """Looks into tables of rows, one that it waits for and one that it does not."""

    inputs = {"events": mr.by("key")}
    outputs = {"looked": list}
    counts = mr.SideInput("second", lambda value: value[0])
    newest = mr.SideInput("first", lambda value: value[0], waits=False)

    def process_record(self, record):
        seen = [repr(dict(self.counts.items())), repr(dict(self.newest.items()))]
        self.produce("looked", [*seen, record.late, record.id.hex()])


class Fading(mr.Computation):
    """What it keeps expires, by either clock."""

    inputs = {"events": mr.by("key")}
    outputs = {"faded": list}
    last = mr.ValueState(list[int], expires=7)
    total = mr.CombiningState(int, expires=3, domain=mr.WALL_TIME)
    entries = mr.MapState(int, expires=5)

    def process_record(self, record):
        n = record.value["n"]
        some = [(entry, self.entries[entry]) for entry in self.entries.between(2, 8)]
        self.produce("faded", [self.last.get(), self.total.get(), some, record.id.hex()])
        self.last.set([*self.last.get([]), n][-3:])
        self.total.add(n)
        self.entries[n] = self.entries.get(n, 0) + 1
        if n == 5:
            self.last.clear()


event = st.tuples(st.sampled_from(KEYS), st.integers(0, 10), st.integers(0, 30))
step = st.one_of(
    st.tuples(st.just("inject"), st.lists(event, max_size=4)),
    st.tuples(st.just("watermark"), st.integers(0, 10)),
    st.tuples(st.just("clock"), st.integers(0, 6)),
)
#: A step, and the crash before it: none, between epochs, or right before the epoch's n-th write.
crash = st.one_of(st.none(), st.just("between"), st.integers(0, 8))
scripts = st.lists(st.tuples(step, crash), min_size=1, max_size=10)


def run(script, *, crashing, evicting=()):
    p = mr.Pipeline("crashes")
    p.inject("events")
    p.add(First)
    p.add(Second)
    p.add(Beat, keys=["x", "y"])
    p.add(Looking)
    p.add(Fading)
    events = p.stream("events")
    events.key_by("key").lookup({"a": 1, "c": 3}).map(lambda pair: [pair[0]["n"], pair[1]]).to(
        "named", format=list
    )
    counts = events.key_by("key").window(mr.FixedWindows(8)).count()
    named = counts.map(mr.of_record(lambda one: [one.value, one.key]))
    named.key_by("_window_start").top(1).to("best")
    events.key_by("key").window(mr.FixedWindows(8)).aggregate(
        n=mr.agg.count(),
        odd=mr.agg.count(where=lambda event: event["n"] % 2),
        high=mr.agg.max("n", where=lambda event: event["n"] < 9),
    ).to("several")
    on_signal = mr.Repeat(mr.OnSignal("first", key=lambda value: str(value[2] % 3)))
    p.stream("events").key_by(lambda event: str(event["n"] % 3)).window(
        mr.FixedWindows(5), trigger=on_signal
    ).sum("n").to("sums")
    every_key = mr.Repeat(mr.OnSignal("first", every_key=True))
    p.stream("events").key_by("key").window(mr.FixedWindows(5), trigger=every_key).count().to("all")
    watermark = clock = 0
    told = []
    with mr.testing.Harness(p, intervals=2) as h:
        for ((kind, argument), crash), gone in zip_longest(
            script, evicting[: len(script)], fillvalue=0
        ):
            # As a limit of the caches does, by interval; which of them, is all the same.
            kept = h._caches._open
            for at, cache in enumerate(sorted(kept)):
                if gone >> at & 1:
                    del kept[cache]
            if crashing and crash == "between":
                h.crash()
            elif crashing and crash is not None:
                h.crash_in_next_epoch(crash)
            if kind == "inject":
                h.inject("events", [({"key": key, "n": n}, at) for key, n, at in argument])
            elif kind == "watermark":
                watermark += argument
                h.advance_watermark("events", watermark)
            else:
                clock += argument
                h.advance_clock(clock)
            told += [
                (h.low_watermark(name), h.output_low_watermark(name), repr(h.counters(name)))
                for name in ("First", "Second", "Looking", "Fading")
            ]
        h.inject("events", [({"key": key, "n": -1}, 0) for key in KEYS])
        h.advance_clock(clock + 100)
        h.advance_watermark("events", mr.MAX_TIMESTAMP)
        return told, [h.outputs(stream) for stream in (*STREAMS, "sums", "all")]


@settings(max_examples=120)
@given(scripts)
def test_a_script_with_crashes_tells_the_same_as_without(script):
    assert run(script, crashing=True) == run(script, crashing=False)


@settings(max_examples=30)
@given(scripts, st.lists(st.integers(0, (1 << 24) - 1), min_size=1, max_size=10))
def test_whatever_caches_are_evicted_changes_nothing(script, evicting):
    assert run(script, crashing=True, evicting=evicting) == run(script, crashing=False)
