"""Late records: the boundary, the count, and that they are delivered all the same."""

import pytest

import millrace as mr


class Lateness(mr.Computation):
    inputs = {"events": mr.by(lambda value: value)}
    outputs = {"lateness": bool}

    def process_record(self, record):
        self.produce("lateness", record.late)


def lateness(h):
    return [output.value for output in h.outputs("lateness")]


@pytest.mark.parametrize(("timestamp", "late"), [(99, True), (100, False), (101, False)])
def test_a_record_is_late_when_it_is_behind_the_low_watermark(harness, timestamp, late):
    h = harness(Lateness)
    h.advance_watermark("events", 100)
    h.inject("events", [("k", timestamp)])

    assert lateness(h) == [late]
    assert h.counters("Lateness").late == late


def test_no_record_is_late_before_a_low_watermark_is_known(harness):
    h = harness(Lateness)
    h.inject("events", [("k", 0)])

    assert lateness(h) == [False]


def test_every_record_after_the_end_of_the_input_is_late(harness):
    h = harness(Lateness)
    h.advance_watermark("events", mr.MAX_TIMESTAMP)
    h.inject("events", [("k", 2**50)])

    assert lateness(h) == [True]


def test_a_low_watermark_that_comes_after_a_record_does_not_make_it_late(harness):
    h = harness(Lateness)
    h.inject("events", [("k", 99)])
    h.advance_watermark("events", 100)

    assert lateness(h) == [False]


def test_late_records_are_counted_with_the_worst_lateness(harness):
    h = harness(Lateness)
    h.advance_watermark("events", 100)
    h.inject("events", [("a", 90), ("b", 40), ("c", 100)])
    h.inject("events", [("a", 99)])

    counters = h.counters("Lateness")
    assert (counters.records, counters.late, counters.worst_lateness_us) == (4, 3, 60)


def test_lateness_is_the_matter_of_each_computation(harness):
    """A record that is late at one input is on time at another, whose low watermark is behind."""

    class Both(Lateness):
        inputs = {"events": mr.by(lambda value: value), "slow": mr.by(lambda value: value)}
        outputs = {"both": bool}

        def process_record(self, record):
            self.produce("both", record.late)

    h = harness(Lateness, Both, streams=("events", "slow"))
    h.advance_watermark("events", 100)
    h.inject("events", [("k", 50)])

    assert lateness(h) == [True]
    assert [output.value for output in h.outputs("both")] == [False]


def test_what_a_late_record_causes_is_not_late_below_when_produced_in_time(harness):
    class Restamp(mr.Computation):
        inputs = {"events": mr.by(lambda value: value)}
        outputs = {"restamped": str}

        def process_record(self, record):
            self.produce("restamped", record.value, timestamp=self.low_watermark)
            self.produce("restamped", record.value, timestamp=self.low_watermark - 1)

    class Below(Lateness):
        inputs = {"restamped": mr.by_key()}

    h = harness(Restamp, Below)
    h.advance_watermark("events", 100)
    h.inject("events", [("k", 50)])

    assert lateness(h) == [False, True]
