"""The first late record is remembered and logged once; a stream may be told of them all."""

import logging

import pytest

import millrace as mr
from millrace.kernel.results import FirstLate


class Note(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"noted": bool}
    seen = mr.ValueState(list)

    def process_record(self, record):
        if record.value.get("fails"):
            raise ValueError("as told")
        if record.value.get("unstorable"):
            self.seen.set([])
            self.seen.get().append(object())
        self.produce("noted", record.late)


def pipeline(*, dead=False, late=False):
    p = mr.Pipeline("late")
    p.inject("events")
    p.add(Note)
    if dead:
        p.dead_letter("dead")
    if late:
        p.late_records("late")
    return p


def event(at, key="k", **value):
    return {"key": key, **value}, at


def test_the_first_late_record_is_logged_with_key_time_and_low_watermark(caplog):
    with caplog.at_level(logging.WARNING, "millrace"), mr.testing.Harness(pipeline()) as h:
        h.advance_watermark("events", 2 * mr.SECOND)
        h.inject("events", [event(2 * mr.SECOND), event(mr.SECOND), event(0)])
        h.inject("events", [event(0)])

        assert h.counters("Note").first_late == FirstLate("'k'", "events", 1_000_000, 2_000_000, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Note: the first late record: key 'k', stream 'events', timestamp 1970-01-01T00:00:01Z, "
        "low watermark 1970-01-01T00:00:02Z, epoch 1. It was delivered with record.late set. "
        "Later ones are only counted."
    ]
    assert [record.millrace for record in caplog.records] == [
        {
            "event": "late_record", "computation": "Note", "key": "'k'", "stream": "events",
            "epoch": 1,
        }
    ]  # fmt: skip


def test_after_a_restart_it_is_not_logged_again(caplog):
    with caplog.at_level(logging.WARNING, "millrace"), mr.testing.Harness(pipeline()) as h:
        h.advance_watermark("events", 100)
        h.inject("events", [event(50)])
        first = h.counters("Note").first_late
        h.crash()
        h.inject("events", [event(40)])

        assert h.counters("Note").first_late == first
    assert len(caplog.records) == 1


@pytest.mark.parametrize("writes", range(4))
def test_an_epoch_that_is_replayed_remembers_the_same(writes):
    with mr.testing.Harness(pipeline()) as h:
        h.advance_watermark("events", 100)
        h.crash_in_next_epoch(writes)
        h.inject("events", [event(50)])

        assert h.counters("Note").first_late.timestamp_us == 50
        assert h.counters("Note").late == 1


def test_a_stream_of_late_records_is_told_what_was_late_for_whom():
    with mr.testing.Harness(pipeline(late=True)) as h:
        h.advance_clock(7)
        h.advance_watermark("events", 100)
        h.inject("events", [event(100), event(60)])

        (told,) = h.outputs("late")
        assert (told.key, told.timestamp) == ("k", 60)
        assert told.value == mr.LateRecord(
            computation="Note",
            stream="events",
            key="'k'",
            value="{'key': 'k'}",
            timestamp=60,
            low_watermark=100,
            wall_time=7,
            delivered_in=2,
        )
        assert [output.value for output in h.outputs("noted")] == [False, True]


def test_it_is_told_once_of_a_late_record_that_fails():
    with mr.testing.Harness(pipeline(late=True, dead=True)) as h:
        h.advance_watermark("events", 100)
        h.inject("events", [event(60, fails=True), event(70)])

        assert [output.timestamp for output in h.outputs("late")] == [60, 70]
        assert len(h.outputs("dead")) == 1
        assert h.counters("Note").late == 2


def test_a_bundle_that_runs_again_counts_its_late_records_once():
    with mr.testing.Harness(pipeline(dead=True)) as h:
        h.advance_watermark("events", 100)
        h.inject("events", [event(60), event(70, unstorable=True)])

        assert h.counters("Note").late == 2
        assert len(h.outputs("dead")) == 1


def test_no_computation_may_subscribe_to_late_records():
    class Watch(mr.Computation):
        inputs = {"late": mr.by("computation")}

    p = pipeline(late=True)
    p.add(Watch)
    with pytest.raises(mr.MillraceError, match="which carries late records"):
        p.build()


def test_there_is_one_stream_of_late_records():
    p = pipeline(late=True)
    with pytest.raises(mr.MillraceError, match="has a stream of late records: 'late'"):
        p.late_records("later")


def test_late_records_and_dead_letters_are_two_streams():
    p = pipeline(late=True)
    p.dead_letter("late")
    with pytest.raises(mr.MillraceError, match="formats disagree"):
        p.build()
