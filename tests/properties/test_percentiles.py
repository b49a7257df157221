"""Percentile low watermarks: ordered, never moving back, and never ahead of their share of work."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.watermark.percentiles import Ahead, Outstanding
from millrace.watermark.propagation import Pending
from millrace.watermark.senders import Estimate

PERCENTILES = (50, 90, 99)
ALL = (*PERCENTILES, 100)
timestamps = st.one_of(st.integers(-50, 200), st.integers(-(10**15), 10**15))


def exact(pending, percentile):
    """Return the oldest timestamp that is left without the share that may be stripped."""
    ordered = sorted(pending)
    return ordered[len(ordered) * (100 - percentile) // 100] if ordered else mr.MAX_TIMESTAMP


@given(st.lists(timestamps, max_size=300), st.integers(1, 100))
def test_a_share_has_passed_what_the_sketch_says_and_it_says_nearly_all(pending, percentile):
    sketch = Outstanding.of(pending)
    passed = sketch.passed_us(percentile)

    assert passed <= exact(pending, percentile) < passed + (1 << sketch.shift) or not pending
    assert len(sketch.counts) <= 64


@given(st.lists(timestamps, max_size=200), st.data())
def test_what_is_taken_back_is_as_if_it_had_not_been(pending, data):
    gone = data.draw(st.lists(st.sampled_from(pending), unique=True)) if pending else []
    rest = list(pending)
    for at in gone:
        rest.remove(at)
    sketch = Outstanding.of(pending).changed(dict.fromkeys(gone, -1))

    assert sketch == Outstanding.of(rest).coarser(sketch.shift)


@given(st.lists(st.lists(timestamps, max_size=80), max_size=6), st.randoms())
def test_sketches_merge_to_the_same_in_any_order(lots, random):
    sketches = [Outstanding.of(lot) for lot in lots]
    shuffled = list(sketches)
    random.shuffle(shuffled)
    together, other = Outstanding(), Outstanding()
    for one, two in zip(sketches, shuffled, strict=True):
        together, other = together.merged(one), two.merged(other)

    assert together == other
    assert sum(together.counts.values()) == sum(map(len, lots))


@given(st.lists(timestamps, max_size=100))
def test_a_greater_share_is_never_ahead(pending):
    sketch = Outstanding.of(pending)
    whole = Pending(min(pending, default=mr.MAX_TIMESTAMP), sketch)
    passed = [whole.pins_us(percentile) for percentile in range(1, 101)]

    assert passed == sorted(passed, reverse=True)


@given(st.lists(st.integers(-1_000, 10**12), min_size=1), st.integers(0, 10**9))
def test_a_share_of_the_records_was_as_far_ahead_as_estimated(beyond, published):
    records = np.array(beyond) + published
    ahead = Ahead.of(records, published) if published else Ahead()
    for percentile in ALL:
        claimed = published + ahead.ahead_us(percentile)
        behind = sum(at < claimed for at in records.tolist() if at >= published)
        assert behind <= len(beyond) * (100 - percentile) / 100


lots = st.lists(st.integers(0, 10**12), min_size=1, max_size=40)


@given(st.lists(st.tuples(st.integers(-(10**9), 10**15), lots), min_size=1, max_size=4))
def test_a_share_of_what_all_tasks_sent_was_as_far_ahead_as_estimated(tasks):
    estimate = Estimate()
    low_watermarks = {n: us for n, (us, _) in enumerate(tasks)}
    sent = []
    for n, (us, beyond) in enumerate(tasks):
        sent += [us + more for more in beyond]
        for lot in (beyond[:3], beyond[3:]):  # it says so whenever it likes
            estimate.add(n, Ahead.of(np.array(lot, dtype=np.int64) + us, us))
    shares = [estimate.us(percentile, low_watermarks) for percentile in range(1, 101)]

    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == min(low_watermarks.values())
    for percentile, us in enumerate(shares, 1):
        assert sum(at < us for at in sent) <= len(sent) * (100 - percentile) / 100
    if len(tasks) == 1:
        ahead = Ahead.of(np.array(tasks[0][1]) + tasks[0][0], tasks[0][0])
        assert shares[:99] == [
            tasks[0][0] + ahead.ahead_us(percentile) for percentile in range(1, 100)
        ]


class Buffer(mr.Computation):
    """Holds a record until a percentile passes the end of its ten."""

    inputs = {"one": mr.by("key")}
    outputs = {"passed": dict}
    percentiles = PERCENTILES

    def process_record(self, record):
        share = record.value["share"]
        self.hold(min(record.timestamp, record.value["hold"]))
        self.set_timer(record.timestamp // 10, at=record.timestamp + 10, percentile=share)

    def process_timer(self, timer):
        self.hold(None)
        self.produce("passed", {"key": self.key, "share": timer.percentile}, timestamp=timer.at)


class Below(Buffer):
    inputs = {"passed": mr.by("key"), "two": mr.by("key")}
    outputs = {"further": dict}

    def process_record(self, record):
        self.set_timer("t", at=record.timestamp + 5, percentile=record.value["share"])

    def process_timer(self, timer):
        self.produce("further", {}, timestamp=timer.at)


record = st.fixed_dictionaries(
    {
        "key": st.sampled_from("abcdefgh"),
        "share": st.sampled_from(ALL),
        "hold": st.integers(0, 100),
        "at": st.integers(0, 100),
    }
)
streams = st.sampled_from(["one", "two"])
step = st.one_of(
    st.tuples(st.just("inject"), streams, st.lists(record, max_size=5)),
    st.tuples(st.just("publish"), streams, st.sampled_from(ALL), st.integers(0, 40)),
    st.tuples(st.just("crash"), st.integers(0, 5)),
)


@given(st.lists(step, max_size=25))
def test_percentiles_are_ordered_never_move_back_and_never_lead_their_input(script):
    p = mr.Pipeline("percentiles")
    p.inject("one")
    p.inject("two")
    p.add(Buffer)
    p.add(Below)
    published = {(stream, share): 0 for stream in ("one", "two") for share in ALL}
    last = {}
    with mr.testing.Harness(p) as h:
        for kind, *arguments in script:
            if kind == "inject":
                stream, records = arguments
                floor = published[stream, 100]
                h.inject(stream, [(r, max(0, floor) + r["at"]) for r in records])
            elif kind == "publish":
                stream, share, by = arguments
                # Whatever is published for a greater share holds for a smaller one.
                known = max(published[stream, other] for other in ALL if other >= share)
                published[stream, share] = known + by
                h.advance_watermark(stream, known + by, percentile=share)
            else:
                h.crash()
                h.crash_in_next_epoch(arguments[0])
            for name in ("Buffer", "Below"):
                for share in ALL:
                    now = (
                        h.low_watermark(name, percentile=share),
                        h.output_low_watermark(name, percentile=share),
                    )
                    before = last.get((name, share), now)
                    assert now[0] >= before[0]
                    assert now[1] >= before[1]
                    assert now[1] <= now[0]
                    last[name, share] = now
                for less, more in itertools.pairwise(ALL):
                    assert last[name, less][0] >= last[name, more][0]
                    assert last[name, less][1] >= last[name, more][1]
            for share in ALL:
                assert last["Below", share][0] <= last["Buffer", share][1]
        for stream in ("one", "two"):
            h.advance_watermark(stream, mr.MAX_TIMESTAMP)
        assert h.output_low_watermark("Below", percentile=50) == mr.MAX_TIMESTAMP
