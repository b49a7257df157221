"""A Harness whose injectors publish by their policies, as they do on Spark."""

import datetime as dt

import pytest

import millrace as mr


class Late(mr.Computation):
    inputs = {"events": mr.by(lambda value: value % 3)}
    outputs = {"late": bool, "ends": int}

    def process_record(self, record):
        self.produce("late", record.late)
        self.set_timer(record.timestamp, at=record.timestamp + 100)

    def process_timer(self, timer):
        self.produce("ends", timer.at)


def harness(*, epoch_time=0, **options):
    p = mr.Pipeline("injected")
    p.inject("events", format=int, **options)
    p.add(Late)
    return mr.testing.Harness(p, publish=True, epoch_time=epoch_time)


def test_by_itself_the_low_watermark_follows_the_slowest_process():
    with harness(low_watermark=mr.BoundedDelay(10), process="who", expected=["a", "b"]) as h:
        h.inject("events", [(1, 1000)], process="a")
        assert h.low_watermark("Late") == mr.MIN_TIMESTAMP
        h.inject("events", [(2, 500)], process="b")
        assert h.low_watermark("Late") == 490
        h.inject("events", [(2, 490), (2, 489)], process="b")
        assert [out.value for out in h.outputs("late")] == [False, False, False, True]
        h.crash()
        h.inject("events", [(2, 1200)], process="b")
        assert h.low_watermark("Late") == 990


def test_a_clock_that_advances_makes_a_process_idle_and_fires_what_waited():
    with harness(
        low_watermark=mr.BoundedDelay(0), process="who", expected=["a", "b"], idle="1 min"
    ) as h:
        h.inject("events", [(1, 1000)], process="a")
        h.inject("events", [(2, 2000)], process="b")
        h.advance_clock(59 * mr.SECOND)
        h.inject("events", [(2, 3000)], process="b")
        assert h.low_watermark("Late") == 1000
        h.advance_clock(mr.MINUTE)
        assert h.low_watermark("Late") == 3000
        assert sorted(out.value for out in h.outputs("ends")) == [1100, 2100]
        h.inject("events", [(1, 1500)], process="a")
        assert h.outputs("late")[-1].value is True
        assert h.low_watermark("Late") == 3000


def test_what_was_read_is_published_though_an_epoch_takes_longer_than_the_time_out():
    injector = {"low_watermark": mr.BoundedDelay(0), "process": "who", "idle": "5 s"}
    with harness(epoch_time="151 s", **injector) as h:
        h.inject("events", [(1, 1000), (1, 2000)], process="a")
        assert h.low_watermark("Late") == 2000
        h.inject("events", [(1, 3000)], process="b")
        assert h.low_watermark("Late") == 3000  # a has been idle since
        h.crash()
        h.inject("events", [(1, 4000)], process="b")
        assert h.low_watermark("Late") == 4000


def test_arrival_time_goes_on_while_nothing_arrives():
    with harness(low_watermark=mr.ArrivalTime("1 s", every="1 s")) as h:
        h.inject("events", [(1, 4 * mr.SECOND)])
        h.advance_clock(5 * mr.SECOND)
        assert h.low_watermark("Late") == 4 * mr.SECOND
        h.advance_clock(7 * mr.SECOND)
        assert [out.value for out in h.outputs("ends")] == [4 * mr.SECOND + 100]


def test_punctuation_carries_a_low_watermark_and_no_record():
    with harness(low_watermark=mr.WatermarkColumn("complete_until")) as h:
        h.inject("events", [(1, 50)], low_watermark=40)
        h.inject("events", [], low_watermark=150)
        assert h.low_watermark("Late") == 150
        assert [out.value for out in h.outputs("ends")] == [150]


@pytest.mark.parametrize("writes", range(6))
def test_a_crash_changes_nothing_of_what_is_published(writes):
    def run(crash):
        with harness(low_watermark=mr.BoundedDelay(5), process="who", idle=1000) as h:
            h.inject("events", [(1, 1000), (2, 1300)], process="a")
            if crash:
                h.crash_in_next_epoch(writes)
            h.inject("events", [(1, 900), (2, 1400)], process="b")
            h.advance_clock(2000)
            h.inject("events", [(1, 1500)], process="a")
            return h.outputs("late"), h.outputs("ends"), h.low_watermark("Late")

    assert run(crash=True) == run(crash=False)


def test_a_datetime_without_a_zone_is_refused_as_a_source_refuses_it() -> None:
    naive = dt.datetime(2026, 1, 1)
    p = mr.Pipeline("calls")
    p.inject("calls", format=dict)
    p.dead_letter("rejects")
    for stream in ("calls", "rejects"):
        p.sink(stream, mr.sinks.Memory())

    with mr.testing.Harness(p) as h:
        h.inject("calls", [({"to": [{"at": naive}]}, 5), ({"at": naive.replace(tzinfo=dt.UTC)}, 6)])
        letters = [letter.value.reason for letter in h.outputs("rejects")]
        accepted = [out.timestamp for out in h.outputs("calls")]

    assert letters == [
        "to.0.at is a datetime without a time zone, which names no instant. Give it one, such as "
        "tzinfo=datetime.timezone.utc."
    ]
    assert accepted == [6]


class Numbers(mr.sources.Injector):
    """Has five records, of which an epoch reads two."""

    schema = "n long, at long"

    def processes(self):
        return ["only"]

    def advance(self, process, offset):
        return mr.sources.Advance(min((offset or 0) + 2, 5))

    def read(self, process, start, end):
        yield from ((n, n) for n in range(start or 0, end))


class Echo(mr.Computation):
    outputs = {"out": int}

    def process_record(self, record):
        self.produce("out", record.value["n"])


def echo(stream, was=()):
    p = mr.Pipeline("echo")
    p.inject(stream, Numbers(), timestamp="at", was=was)
    p.add(type("Echo", (Echo,), {"inputs": {stream: mr.by("n")}}))
    return p


def test_a_renamed_stream_is_read_on_where_it_stood():
    with mr.testing.Harness(echo("numbers")) as h:
        h.poll("numbers")
        h.inject("numbers", [({"n": 70}, 1)])
        h.update(echo("ints", was="numbers"))
        h.poll("ints")
        h.crash()
        h.poll("ints")
        assert h.poll("ints") == 0
        assert sorted(output.value for output in h.outputs("out")) == [0, 1, 2, 3, 4, 70]


def test_a_renamed_stream_of_an_injector_may_have_been_fed_by_hand():
    with mr.testing.Harness(echo("numbers")) as h:
        h.inject("numbers", [({"n": 70}, 1)])
        h.update(echo("ints", was="numbers"))
        assert h.poll("ints") == 2
        assert sorted(output.value for output in h.outputs("out")) == [0, 1, 70]
