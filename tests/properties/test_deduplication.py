"""Whatever is delivered again, and whenever the process dies: as if it had been delivered once."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.kernel.source_dedup import BloomFilter, RotatingFilter

SLACK = 64 * mr.SECOND
KEYS = "abc"


class Totals(mr.Computation):
    """Sums up what it gets, reports it with each record, and again by timer."""

    inputs = {"events": mr.by(lambda value: value[0])}
    outputs = {"totals": list}
    total = mr.CombiningState(int)
    pending = mr.MapState(int)

    def process_record(self, record):
        n = record.value[1]
        self.total.add(n)
        self.pending[n] = record.timestamp
        self.set_timer(n, at=record.timestamp + mr.SECOND)
        self.produce("totals", ["record", self.key, n, self.total.get(), record.late])

    def process_timer(self, timer):
        self.pending.pop(timer.tag)
        self.produce("totals", ["timer", self.key, timer.tag, self.total.get()])


class Below(mr.Computation):
    """Reads what the injector sent straight, and what came of it."""

    inputs = {"events": mr.by(lambda value: value[1] % 2), "totals": mr.by(lambda value: value[1])}
    outputs = {"below": list}
    seen = mr.BagState(str)

    def process_record(self, record):
        self.seen.add(str(record.value))
        self.produce("below", [record.stream, str(record.value), len(list(self.seen))])


#: The nth record: its key and its time are its own, however often it comes.
def event(n):
    return (KEYS[n % 3], n), (7 * n % 50) * mr.SECOND, f"id-{n}"


step = st.one_of(
    st.tuples(st.just("inject"), st.lists(st.integers(0, 12), max_size=5)),
    st.tuples(st.just("watermark"), st.integers(1, 20)),
    st.tuples(st.just("again"), st.lists(st.integers(0, 12), min_size=1, max_size=5)),
)
crash = st.one_of(st.none(), st.just("between"), st.integers(0, 8))
scripts = st.lists(st.tuples(step, crash), min_size=1, max_size=12)


def run(script, *, again, weak=False):
    """Run a script; with ``again``, what was delivered is delivered again, and processes die."""
    p = mr.Pipeline("p")
    p.inject("events", id="id", slack=SLACK)
    for computation in (Totals, Below):
        p.add(computation, productions=mr.WEAK if weak else mr.STRONG)
    delivered, second = [], 0
    with mr.testing.Harness(p, intervals=2) as h:
        for (kind, argument), death in script:
            if again and death == "between":
                h.crash()
            elif again and death is not None:
                h.crash_in_next_epoch(death)
            if kind == "watermark":
                # Within the slack of every record: the oldest has timestamp 0.
                second = min(second + argument, SLACK // mr.SECOND)
                h.advance_watermark("events", second * mr.SECOND)
            elif kind == "inject":
                new = [n for n in dict.fromkeys(argument) if n not in delivered]
                delivered += new
                repeats = new if again else []
                h.inject("events", [event(n) for n in [*new, *repeats]])
            else:
                h.inject("events", [event(n) for n in argument if again and n in delivered])
        h.advance_watermark("events", mr.MAX_TIMESTAMP)
        counted = [
            (h.counters(name).records, h.counters(name).late) for name in ("Totals", "Below")
        ]
        return counted, [h.outputs(stream) for stream in ("totals", "below")]


@settings(max_examples=150)
@given(scripts, st.booleans())
@example([(("inject", [0]), None), (("watermark", 20), None), (("again", [0]), 1)], True)
def test_deliveries_within_the_slack_count_once(script, weak):
    assert run(script, again=True, weak=weak) == run(script, again=False)


lots = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 50)), min_size=1, max_size=12)


def ids(count, seed):
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


@given(lots, st.integers(1, 1000))
def test_a_filter_never_denies_what_was_added(lots, capacity):
    seen = BloomFilter(capacity)
    added = [ids(count, seed) for count, seed in lots]
    for lot in added:
        seen.add(lot)
    assert all(seen.may_hold(lot).all() for lot in added)


@given(lots, st.integers(1, 30), st.integers(512, 1 << 14))
def test_nor_does_a_rotating_one_until_it_has_expired(lots, span, bytes_max):
    seen = RotatingFilter(span, bytes_max)
    added, low_watermark = [], 0
    for seed, (count, later) in enumerate(lots):
        expires = low_watermark + 1 + later
        lot = ids(count, seed)
        seen.add(lot, expires, expires + later)
        added.append((lot, expires + later))
        low_watermark += later // 3
        seen.expire(low_watermark)
        for known, last in added:
            if last > low_watermark:
                assert seen.may_hold(known).all()
        assert seen.bytes <= max(bytes_max, 512)
    seen.expire(max(last for _, last in added))
    assert len(seen) == 0
