"""The Harness itself: what it refuses, what it shows, and that it checks invariants."""

import datetime as dt

import pytest

import millrace as mr
from millrace.model.errors import (
    CheckpointMismatch,
    InvariantViolation,
    MillraceError,
    PipelineError,
    RecordRejected,
    WatermarkRegression,
)
from millrace.testing import Harness, Output
from millrace.testing.invariants import check_interval


class Echo(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"echoes": list}

    def process_record(self, record):
        self.produce("echoes", [record.value["n"], self.wall_time])


@pytest.fixture
def p():
    pipeline = mr.Pipeline("p")
    pipeline.inject("events")
    pipeline.add(Echo)
    return pipeline


@pytest.fixture
def h(p):
    return Harness(p)


def event(n=0, key="k"):
    return {"key": key, "n": n}


def test_outputs_are_those_of_every_stream_with_or_without_a_sink(h):
    h.inject("events", [(event(1), 5)])

    assert h.outputs("events") == [Output(None, event(1), 5)]
    assert h.outputs("echoes") == [Output("k", [1, 0], 5)]


def test_outputs_accumulate_and_may_be_changed_by_the_caller(h):
    h.inject("events", [(event(1), 5)])
    h.outputs("echoes").clear()
    h.inject("events", [(event(2), 5)])

    assert [output.value[0] for output in h.outputs("echoes")] == [1, 2]


def test_the_pipelines_own_sinks_are_left_alone(p):
    def fail(*_):
        raise AssertionError

    p.sink("echoes", fail)
    Harness(p).inject("events", [(event(1), 5)])
    assert len(p.sinks) == 1


def test_a_stream_that_is_not_there_is_named_with_those_that_are(h):
    with pytest.raises(PipelineError, match=r"'echos'.*'echoes'"):
        h.outputs("echos")


@pytest.mark.parametrize(
    "records",
    [[event()], (event(), 5), [(event(),)], [(event(), 5, "e1", 1)], ["ab"], event(), 5],
    ids=["value", "one pair", "no time", "too much", "text", "no list", "number"],
)
def test_what_is_no_record_is_refused_with_what_one_is(h, records):
    with pytest.raises(PipelineError, match=r"inject\('events'.*\[\(value, timestamp\), \.\.\.\]"):
        h.inject("events", records)


@pytest.mark.parametrize(
    "asked", [Harness.low_watermark, Harness.output_low_watermark, Harness.counters]
)
def test_a_computation_that_is_not_there_is_named_with_those_that_are(h, asked):
    with pytest.raises(PipelineError, match=r"no computation 'events'; there are Echo"):
        asked(h, "events")


def test_a_percentile_that_nobody_waits_for_is_not_known(h):
    with pytest.raises(PipelineError, match="no computation of this pipeline waits for"):
        h.low_watermark("Echo", percentile=90)


@pytest.mark.parametrize("stream", ["echoes", "typo"])
def test_only_injected_streams_are_fed(h, stream):
    with pytest.raises(PipelineError, match=r"is not injected; the injected streams are"):
        h.inject(stream, [])
    with pytest.raises(PipelineError, match="is not injected"):
        h.advance_watermark(stream, 5)


def test_a_pipeline_that_cannot_run_is_refused_when_the_harness_opens():
    with pytest.raises(PipelineError):
        Harness(mr.Pipeline("empty")).inject("events", [])


@pytest.mark.parametrize("given", [mr.Pipeline, Echo, 3], ids=["class", "computation", "number"])
def test_what_is_no_pipeline_is_refused(h, given):
    with pytest.raises(PipelineError, match=r"expected an mr\.Pipeline"):
        Harness(given)
    with pytest.raises(PipelineError, match=r"expected an mr\.Pipeline"):
        h.update(given)


def test_a_pipeline_of_another_name_does_not_go_on(h):
    other = mr.Pipeline("q")
    other.inject("events")
    other.add(Echo)
    with pytest.raises(CheckpointMismatch, match="belongs to pipeline 'p', this pipeline is 'q'"):
        h.update(other)
    h.inject("events", [(event(1), 5)])
    assert len(h.outputs("echoes")) == 1


@pytest.mark.parametrize("intervals", [0, 3, -4, 4.0, "4", True])
def test_key_intervals_are_a_power_of_two(p, intervals):
    with pytest.raises(PipelineError, match=rf"intervals={intervals!r}.*power of two"):
        Harness(p, intervals=intervals)


@pytest.mark.parametrize("process", [3, "0"], ids=["number", "not declared"])
def test_a_process_is_a_name_of_a_stream_that_has_some(h, process):
    with pytest.raises(PipelineError, match=rf"process={process!r}\): .*process="):
        h.inject("events", [(event(), 5)], process=process)


def test_a_low_watermark_that_moves_back_is_refused_with_both_values(h):
    h.advance_watermark("events", 2_000)
    with pytest.raises(WatermarkRegression, match="reported 1999 us after 2000 us"):
        h.advance_watermark("events", 1_999)

    h.advance_watermark("events", 2_000)
    assert h.low_watermark("Echo") == 2_000


def test_a_low_watermark_that_moves_back_over_a_crash_is_refused(h):
    h.advance_watermark("events", 2_000)
    h.crash()

    with pytest.raises(WatermarkRegression):
        h.advance_watermark("events", 1_999)


def test_a_clock_that_runs_backwards_is_refused(h):
    h.advance_clock(10)
    with pytest.raises(PipelineError, match="does not run backwards"):
        h.advance_clock(9)

    h.advance_clock(10)


def test_the_clock_starts_at_zero_and_is_what_the_test_says(h):
    h.inject("events", [(event(), 0)])
    h.advance_clock(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC))
    h.inject("events", [(event(), 0)])

    assert [output.value[1] for output in h.outputs("echoes")] == [0, mr.SECOND]


def test_instants_may_be_datetimes(h):
    one = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    h.inject("events", [(event(), one)])
    h.advance_watermark("events", one)

    assert h.outputs("echoes")[0].timestamp == mr.SECOND
    assert h.low_watermark("Echo") == mr.SECOND


@pytest.mark.parametrize(
    ("value", "timestamp", "why"),
    [
        ({"n": 1}, 0, "no field 'key'"),
        (event(key=None), 0, "the key is None"),
        (event(), -1, "before 1970"),
        (event(), 2**62, "after 2262"),
        (event(), "now", "is not an instant"),
        (event(), dt.datetime(2024, 1, 1), "no time zone"),
    ],
    ids=["no key", "None", "too early", "too far", "text", "naive"],
)
def test_a_record_that_cannot_be_taken_is_refused_with_why(h, value, timestamp, why):
    with pytest.raises(RecordRejected, match=why):
        h.inject("events", [(event(), 0), (value, timestamp)])

    assert h.outputs("events") == []
    h.inject("events", [(event(7), 0)])
    assert [output.value[0] for output in h.outputs("echoes")] == [7]


@pytest.mark.parametrize("at", [0, 9_223_372_036_854_775])
def test_the_first_and_the_last_timestamp_that_a_record_may_have(h, at):
    h.inject("events", [(event(), at)])

    assert h.outputs("echoes")[0].timestamp == at


def test_a_value_that_is_not_of_the_streams_format_is_refused():
    p = mr.Pipeline("p")
    p.inject("numbers", format=int)
    p.sink("numbers", print)

    with pytest.raises(RecordRejected, match="is not of format int"):
        Harness(p).inject("numbers", [("seven", 0)])


def test_a_record_on_which_a_step_fails_is_refused_with_the_cause():
    p = mr.Pipeline("p")
    p.inject("numbers", format=int)
    p.stream("numbers").map(lambda n: 1 / n).to("inverse", format=float)
    p.sink("inverse", print)

    with pytest.raises(RecordRejected) as refused:
        Harness(p).inject("numbers", [(0, 0)])
    assert isinstance(refused.value.__cause__, ZeroDivisionError)


def test_injecting_nothing_is_an_epoch_like_any_other(h):
    h.inject("events", [])

    assert h.outputs("events") == []


def test_records_may_come_from_a_generator(h):
    h.crash_in_next_epoch(1)
    h.inject("events", ((event(n), 0) for n in range(3)))

    assert [output.value[0] for output in h.outputs("echoes")] == [0, 1, 2]


def test_counters_survive_a_crash(h):
    h.inject("events", [(event(), 0)])
    h.crash()
    h.inject("events", [(event(), 0)])

    assert (h.counters("Echo").records, h.counters("Echo").productions) == (2, 2)


class Failing(mr.Computation):
    """Its timers fail as long as a test wants them to."""

    inputs = {"events": mr.by("key")}
    outputs = {"done": int}
    fails = True

    def process_record(self, record):
        self.produce("done", record.value["n"])
        self.set_timer("end", record.timestamp)

    def process_timer(self, timer):
        if self.fails:
            raise ValueError("not yet")
        self.produce("done", 100)


def test_a_call_of_which_the_second_epoch_fails_has_not_been(monkeypatch):
    """The first takes a record, by which the low watermark moves; by the second a timer runs."""
    p = mr.Pipeline("p")
    p.inject("events", low_watermark=mr.BoundedDelay(0))
    p.add(Failing)
    with Harness(p, publish=True, epoch_time="1 s") as h:
        for _ in range(2):
            with pytest.raises(MillraceError, match="not yet"):
                h.inject("events", [(event(1), 10)])
            assert h.outputs("done") == h.outputs("events") == []
            assert h.history.moments == []
            assert h.counters("Failing").records == 0
            assert h.low_watermark("Failing") == mr.MIN_TIMESTAMP
        monkeypatch.setattr(Failing, "fails", False)
        h.inject("events", [(event(2), 10)])
        assert [output.value for output in h.outputs("done")] == [2, 100]
        assert [output.wall_time for output in h.outputs("done")] == [0, mr.SECOND]


def test_a_broken_invariant_is_found_when_the_harness_closes(h, monkeypatch):
    class Holds(Echo):
        def process_record(self, record):
            self.hold(5)

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Holds)
    monkeypatch.setattr("millrace.kernel.timers.earliest_us", lambda *_: mr.MAX_TIMESTAMP)
    h = Harness(p)
    h.inject("events", [(event(), 0)])

    with pytest.raises(InvariantViolation, match="reported"):
        h.close()


def test_a_failed_test_is_not_hidden_by_a_broken_invariant(p):
    with pytest.raises(KeyError, match="mine"), Harness(p):
        raise KeyError("mine")


def test_values_are_limited_by_the_pipelines_own_sinks_and_not_by_the_harness():
    class Doubles(mr.Computation):
        inputs = {"numbers": mr.by(str)}
        outputs = {"large": int, "texts": str}

        def process_record(self, record):
            self.produce("large", 2**63)
            self.produce("texts", "a\0b")

    def letters(*sinks):
        p = mr.Pipeline("limits")
        p.dead_letter("letters")
        p.inject("numbers", format=int)
        p.add(Doubles)
        for stream, sink in sinks:
            p.sink(stream, sink)
        with mr.testing.Harness(p) as h:
            h.inject("numbers", [(1, 0)])
            return [letter.value.reason for letter in h.outputs("letters")]

    table = mr.sinks.PostgreSQL("host=localhost", "texts")
    assert letters() == []
    assert ["NUL" in reason for reason in letters(("texts", table))] == [True]
    assert ["large" in reason for reason in letters(("large", mr.sinks.Parquet("out")))] == [True]


def waiting(name: str, was: str = "") -> mr.Pipeline:
    class Waits(mr.Computation):
        inputs = {"in": mr.by(lambda _: "k")}

        def process_record(self, record):
            self.set_timer("t", at=1_000)

        def process_timer(self, timer):
            pass

    p = mr.Pipeline("waits")
    p.inject("in", format=int)
    p.add(type(name, (Waits,), {}), was=was or ())
    return p


def check_intervals(h: Harness, low_us: int) -> None:
    (spec,) = h._topology.computations
    for one in h._run_log.positions.maps[spec.name].intervals:
        report = h._run_log.authority.report(spec.name, one.id)
        check_interval(h._durable, h._caches, spec, one.id, report, low_us)


def test_invariants_of_a_renamed_computation_are_read_by_its_first_name() -> None:
    with mr.testing.Harness(waiting("First")) as h:
        h.inject("in", [(1, 1)])
        h.update(waiting("Second", was="First"))
        h.inject("in", [(2, 2)])
        h.check()
        pending = r"'Second', interval \d+: a timer for 1000 is pending at low watermark 2000"
        with pytest.raises(InvariantViolation, match=pending):
            check_intervals(h, 2_000)


def test_a_remap_of_a_computation_that_is_not_there_is_refused(harness):
    with pytest.raises(mr.MillraceError, match="no computation 'Nobody'; there are"):
        harness(Echo).remap("Nobody", [])
