"""Deduplication by id, as a user sees it: what reaches process_record, and what is counted."""

import msgspec
import pytest

import millrace as mr
from millrace.model.errors import RecordRejected

SLACK = 60 * mr.SECOND


class Event(msgspec.Struct):
    key: str
    n: int


class Seen(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"seen": list}
    count = mr.ValueState(int)

    def process_record(self, record):
        self.count.set(self.count.get(0) + 1)
        self.produce("seen", [self.key, record.value.n, self.count.get(), record.late])


def pipeline(*computations, **injection):
    p = mr.Pipeline("p")
    p.inject("events", format=Event, id="id", **{"slack": SLACK, **injection})
    for computation in computations or (Seen,):
        p.add(computation)
    return p


@pytest.fixture
def h():
    with mr.testing.Harness(pipeline(), intervals=2) as harness:
        yield harness


def seen(h):
    return [tuple(out.value) for out in h.outputs("seen")]


def at(second, key="k", n=0, id="a"):
    return Event(key, n), second * mr.SECOND, id


class TestADuplicateIsDropped:
    def check(self, h, times=1):
        assert seen(h) == [("k", 0, 1, False)]
        assert h.counters("Seen").records == 1
        assert h.counters("Seen").duplicates_filtered == times

    def test_in_the_bundle_of_its_original(self, h):
        h.inject("events", [at(5, n=0), at(5, n=1)])
        self.check(h)

    def test_in_a_later_epoch(self, h):
        h.inject("events", [at(5)])
        h.inject("events", [at(5, n=1)])
        self.check(h)

    def test_after_a_crash(self, h):
        h.inject("events", [at(5)])
        h.crash()
        h.inject("events", [at(5, n=1)])
        self.check(h)

    @pytest.mark.parametrize("writes", range(4))
    def test_when_the_epoch_of_its_original_is_run_twice(self, h, writes):
        h.crash_in_next_epoch(writes)
        h.inject("events", [at(5)])
        h.crash_in_next_epoch(writes)
        h.inject("events", [at(5, n=1)])
        self.check(h)

    def test_when_it_comes_with_another_timestamp(self, h):
        h.inject("events", [at(5)])
        h.inject("events", [at(50, n=1), at(3, n=2)])
        self.check(h, times=2)

    def test_when_it_is_late_and_its_id_is_kept(self, h):
        h.inject("events", [at(5)])
        h.advance_watermark("events", 5 * mr.SECOND + SLACK)
        h.inject("events", [at(5, n=1)])
        self.check(h)
        assert h.counters("Seen").late == 0

    def test_among_others(self, h):
        h.inject("events", [at(1, n=n, id=n) for n in range(5)])
        h.inject("events", [at(2, n=n, id=n) for n in range(8)])
        assert [n for _, n, _, _ in seen(h)] == list(range(8))
        assert h.counters("Seen").duplicates_filtered == 5


class TestNoDuplicateIs:
    def test_the_same_id_with_another_key(self, h):
        h.inject("events", [at(5, "k"), at(5, "l")])
        assert {row[0] for row in seen(h)} == {"k", "l"}
        assert h.counters("Seen").duplicates_filtered == 0

    def test_a_number_and_its_text(self, h):
        h.inject("events", [at(5, n=0, id=1), at(5, n=1, id="1"), at(5, n=2, id=b"1")])
        assert len(seen(h)) == 3

    def test_what_comes_after_its_id_was_collected_it_is_late(self, h):
        h.inject("events", [at(5)])
        h.advance_watermark("events", 5 * mr.SECOND + SLACK + SLACK // 16 + mr.SECOND)
        h.inject("events", [at(5, n=1)])
        assert seen(h) == [("k", 0, 1, False), ("k", 1, 2, True)]
        assert h.counters("Seen").late == 1
        assert h.counters("Seen").duplicates_filtered == 0

    def test_and_such_a_late_record_is_dropped_within_its_bundle_only(self, h):
        h.advance_watermark("events", 10 * SLACK)
        h.inject("events", [at(5, n=0), at(5, n=1)])
        h.inject("events", [at(5, n=2)])
        assert [(n, late) for _, n, _, late in seen(h)] == [(0, True), (2, True)]
        assert h.counters("Seen").duplicates_filtered == 1


def test_ids_are_collected_when_the_low_watermark_has_passed_timestamp_and_slack(h):
    h.inject("events", [at(second, key=str(second), id=second) for second in range(200)])
    assert kept(h) == 200
    h.advance_watermark("events", SLACK + 100 * mr.SECOND)
    assert 100 <= kept(h) <= 100 + 4, "those of 100 and later, and a sixteenth of the slack"
    h.advance_watermark("events", mr.MAX_TIMESTAMP)
    assert kept(h) == 0


def kept(h):
    found = 0
    for interval in (0, 1):
        with h._caches.open("Seen", interval).view() as view:
            found += len(list(view.scan(b"I", b"J")))
    return found


def test_ids_hold_no_low_watermark(h):
    h.inject("events", [at(5)])
    h.advance_watermark("events", 100)
    assert h.output_low_watermark("Seen") == 100


def test_an_id_of_the_value_is_taken_where_none_is_given():
    class Named(msgspec.Struct):
        key: str
        n: int
        id: str

    p = mr.Pipeline("p")
    p.inject("events", format=Named, id="id")
    p.add(Seen)
    with mr.testing.Harness(p) as h:
        h.inject("events", [(Named("k", 0, "a"), 5), (Named("k", 1, "a"), 5)])
        assert len(seen(h)) == 1


def test_a_value_without_the_field_needs_an_id_beside_it(h):
    with pytest.raises(mr.MillraceError, match=r"Give the id beside it: \(value, timestamp, id\)"):
        h.inject("events", [(Event("k", 0), 5)])


def test_an_id_for_a_stream_without_ids_is_an_error():
    p = mr.Pipeline("p")
    p.inject("events", format=Event)
    p.add(Seen)
    with mr.testing.Harness(p) as h, pytest.raises(mr.MillraceError, match="'events' has no ids"):
        h.inject("events", [at(5)])


def test_a_null_id_stops_the_run(h):
    with pytest.raises(RecordRejected, match="the id, column 'id', is null"):
        h.inject("events", [at(5, id=None)])


def test_a_null_id_becomes_a_dead_letter_where_a_stream_is_declared_for_them():
    p = pipeline()
    p.dead_letter("rejects")
    with mr.testing.Harness(p) as h:
        h.inject("events", [at(5, n=0, id=None), at(5, n=1)])
        (letter,) = [out.value for out in h.outputs("rejects")]
        assert letter.reason == "the id, column 'id', is null"
        assert h.dead_letters("events") == 1
        assert [n for _, n, _, _ in seen(h)] == [1]


def test_a_record_that_failed_is_not_tried_again_when_it_is_delivered_again():
    class Fails(Seen):
        def process_record(self, record):
            raise ValueError("always")

    p = pipeline(Fails)
    p.dead_letter("rejects")
    with mr.testing.Harness(p) as h:
        h.inject("events", [at(5)])
        h.inject("events", [at(5)])
        assert len(h.outputs("rejects")) == 1
        assert h.counters("Fails").duplicates_filtered == 1


class TestConsumers:
    """Each consumer filters for itself, by the key that it takes."""

    class Relaxed(Seen):
        delivery = mr.AT_LEAST_ONCE

    def test_at_least_once_gets_what_the_source_delivers(self):
        with mr.testing.Harness(pipeline(Seen, self.Relaxed)) as h:
            h.inject("events", [at(5), at(5)])
            assert h.counters("Seen").records == 1
            assert h.counters("Relaxed").records == 2
            assert h.counters("Relaxed").duplicates_filtered == 0

    def test_steps_hand_ids_on_and_several_records_of_one_are_several(self):
        class Words(mr.Computation):
            inputs = {"words": mr.by_key()}
            outputs = {"out": str}

            def process_record(self, record):
                self.produce("out", record.value)

        p = mr.Pipeline("p")
        p.inject("lines", format=str, id="id")
        p.stream("lines").flat_map(str.split).key_by(lambda _: "same").to("words", format=str)
        p.add(Words)
        with mr.testing.Harness(p) as h:
            h.inject("lines", [("to be to", 5, "a"), ("to be", 6, "b")])
            h.inject("lines", [("to be to", 5, "a")])
            assert [out.value for out in h.outputs("out")] == ["to", "be", "to", "to", "be"]
            assert h.counters("Words").duplicates_filtered == 3

    def test_two_streams_with_the_same_ids_are_two_and_one_may_have_none(self):
        class Both(mr.Computation):
            inputs = {name: mr.by(lambda _: "same") for name in "abc"}
            outputs = {"out": list}

            def process_record(self, record):
                self.produce("out", [record.stream, record.value, record.id.hex()])

        p = mr.Pipeline("p")
        p.inject("a", format=int, id="id")
        p.inject("b", format=int, id="id", slack="1 min")
        p.inject("c", format=int)
        p.add(Both)
        with mr.testing.Harness(p) as h:
            for n in range(2):
                h.inject("a", [(n, 5, "x")])
                h.inject("b", [(n, 5, "x")])
                h.inject("c", [(n, 5), (n, 5)])
            found = [tuple(out.value) for out in h.outputs("out")]
            assert [row[:2] for row in found] == [
                ("a", 0), ("b", 0), ("c", 0), ("c", 0), ("c", 1), ("c", 1)
            ]  # fmt: skip
            assert len({id for _, _, id in found}) == len(found)

    def test_a_stream_that_a_computation_feeds_too(self):
        class Feeder(Seen):
            outputs = {"all": Event}

            def process_record(self, record):
                self.produce("all", record.value, key=self.key)

        class All(mr.Computation):
            inputs = {"all": mr.by("key")}
            outputs = {"out": int}

            def process_record(self, record):
                self.produce("out", record.value.n)

        p = pipeline(Feeder)
        p.stream("events").to("all")
        p.add(All)
        with mr.testing.Harness(p) as h:
            for n in range(2):
                h.inject("events", [at(5, n=n)])
            assert [out.value for out in h.outputs("out")] == [0, 0]
            assert h.counters("All").duplicates_filtered == 1

    def test_a_sink_on_the_stream_gets_both_under_one_id(self):
        with mr.testing.Harness(pipeline()) as h:
            h.inject("events", [at(5, n=0), at(5, n=1), at(5, n=2, id="b")])
            first, again, other = h.outputs("events")
            assert [out.value.n for out in (first, again, other)] == [0, 1, 2]
            assert first.id == again.id != other.id


def test_a_records_id_is_that_of_its_source_and_the_same_for_every_consumer():
    class Ids(Seen):
        def process_record(self, record):
            self.produce("seen", [record.value.n, record.id.hex()])

    class Other(Ids):
        delivery = mr.EXACTLY_ONCE

    with mr.testing.Harness(pipeline(Ids, Other)) as h:
        h.inject("events", [at(5, n=0), at(6, n=1, id="b")])
        told = [tuple(out.value) for out in h.outputs("seen")]
        sunk = [(out.value.n, out.id.hex()) for out in h.outputs("events")]
        assert sorted(told) == sorted(2 * sunk)
        assert len({id for _, id in sunk}) == 2


def test_order_of_arrival_is_that_of_the_source_and_not_of_ids(h):
    h.inject("events", [at(5, n=n, id=n) for n in range(50)])
    assert [n for _, n, _, _ in seen(h)] == list(range(50))


def every(event):
    return event is not None


def none(event):
    return event is None


class Both(mr.Computation):
    """Reads all events by one stream or more."""

    outputs = {"seen": list}

    def __init__(self, *streams: str) -> None:
        self.inputs = dict.fromkeys(streams, mr.by("key"))  # type: ignore[misc]

    def process_record(self, record):
        self.produce("seen", [self.key, record.value.n, 1, record.late])


@pytest.mark.parametrize("inputs", [1, 2])
def test_what_was_seen_is_known_behind_other_steps_and_under_another_name(inputs):
    def behind(*, beside=0, steps=1, name="events", was=()):
        p = mr.Pipeline("p")
        events = p.inject(name, format=Event, id="id", slack=SLACK, was=was)
        for _ in range(beside):
            p.sink(events.filter(none).name, print)
        ends = [events] * inputs
        for _ in range(steps):
            ends = [end.filter(every) for end in ends]
        p.add(Both(*(end.name for end in ends)), name="Both")
        return p

    events = [at(5, n=n, id=f"id {n}") for n in range(3)]
    with mr.testing.Harness(behind(beside=8)) as h:
        h.inject("events", events)
        for changed in (behind(beside=9), behind(beside=1), behind(), behind(steps=2)):
            h.update(changed)
            h.inject("events", events)
        h.update(behind(name="clicks", was="events"))
        h.inject("clicks", events)
        assert len(h.outputs("seen")) == inputs * len(events)
        h.inject("clicks", [at(5, n=3, id="id 3")])
        assert len(h.outputs("seen")) == inputs * (len(events) + 1)
