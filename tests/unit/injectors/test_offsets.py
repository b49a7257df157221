"""Offsets: what an injector in Python reads next, what it promises, and who has to wait."""

from typing import Any

import pytest

import millrace as mr
import millrace.injectors.injector as injector_module
from millrace.compile.topology import together
from millrace.injectors.offsets import advanced, pieces, pieces_until_now
from millrace.injectors.rate_limit import too_far
from millrace.model.errors import PipelineError, WatermarkRegression
from tests.kit.pieces import rows


class Feed(mr.sources.Injector):
    """Logs in memory, each with the low watermark that it says."""

    schema = "n long, at timestamp"

    def __init__(self):
        self.logs = {}
        self.claims = {}

    def processes(self):
        return sorted(self.logs)

    def advance(self, process, offset):
        return mr.sources.Advance(len(self.logs[process]), self.claims.get(process))

    def read(self, process, start, end):
        return [(n, n) for n in self.logs[process][start or 0 : end]]


@pytest.fixture
def feed():
    return Feed()


def read(feed, before, after):
    return [row for piece in pieces(feed, before, after) for row in rows(feed, piece)]


def test_rows_name_their_process_and_its_promise_follows_the_last(feed):
    feed.logs, feed.claims = {"a": [1, 2]}, {"a": 5}
    after = advanced("s", feed, {}, ())

    assert read(feed, {}, after) == [
        (1, 1, "a", None, False),
        (2, 2, "a", None, False),
        (None, None, "a", 5, True),
    ]
    assert read(feed, after, after) == []


def test_a_new_process_makes_itself_known_before_it_has_a_record(feed):
    feed.logs = {"a": []}

    assert read(feed, {}, advanced("s", feed, {}, ())) == [(None, None, "a", None, True)]


def test_a_promise_alone_is_told(feed):
    feed.logs, feed.claims = {"a": [1]}, {"a": 5}
    before = advanced("s", feed, {}, ())
    feed.claims["a"] = 9

    (piece,) = pieces(feed, before, advanced("s", feed, before, ()))
    assert piece.between is None
    assert list(rows(feed, piece)) == [(None, None, "a", 9, True)]


def test_the_last_piece_says_where_its_process_stands_after_it(feed):
    feed.logs = {"a": [1, 2, 3], "b": []}
    feed.split = lambda _process, _start, end: [("from", n) for n in range(end)]
    found = pieces(feed, {}, advanced("s", feed, {}, ()))

    assert [(one.process, one.between, one.reached) for one in found] == [
        ("a", ("from", 0), None),
        ("a", ("from", 1), None),
        ("a", ("from", 2), 3),
        ("b", None, 0),
    ]


def test_a_process_that_is_gone_keeps_its_offset(feed):
    feed.logs = {"a": [1], "b": [2]}
    before = advanced("s", feed, {}, ())
    del feed.logs["a"]

    assert advanced("s", feed, before, ()) == before


def test_a_process_that_is_held_back_stays_where_it_is(feed):
    feed.logs = {"a": [1], "b": [2]}
    before = advanced("s", feed, {}, ())
    feed.logs = {"a": [1, 3], "b": [2, 4]}

    assert advanced("s", feed, before, {"a"}) == {"a": [1, None], "b": [2, None]}


def test_a_promise_that_moves_back_is_an_error(feed):
    feed.logs, feed.claims = {"a": []}, {"a": 2000}
    before = advanced("clicks", feed, {}, ())
    feed.claims["a"] = 1500

    with pytest.raises(WatermarkRegression, match="'clicks': process 'a' reported 1500 us after 2"):
        advanced("clicks", feed, before, ())


@pytest.mark.parametrize(("at", "waits"), [(49, False), (50, False), (51, True)])
def test_a_process_waits_beyond_the_skew_and_not_at_it(at, waits):
    assert too_far({"a": at, "b": 40}, 40, 10) == ({"a"} if waits else set())


def test_who_was_not_heard_of_need_not_wait():
    assert too_far({"a": mr.MIN_TIMESTAMP}, mr.MIN_TIMESTAMP, 0) == set()


def test_streams_that_meet_downstream_share_a_low_watermark():
    class Left(mr.Computation):
        inputs = {"a": mr.by_key()}
        outputs = {"left": int}

        def process_record(self, record):
            pass

    def computation(**streams):
        return type("C", (Left,), {"inputs": streams, "outputs": {}})

    p = mr.Pipeline("meet")
    for stream in ("a", "b", "c"):
        p.inject(stream, format=int)
    p.add(Left)
    p.add(computation(left=mr.by_key(), b=mr.by_key()), name="Meet")
    p.add(computation(c=mr.by_key()), name="Apart")

    assert together(p.build()) == {"a": {"a", "b"}, "b": {"a", "b"}, "c": {"c"}}


def test_a_harness_polls_and_holds_back_who_is_ahead(caplog):
    class Steps(Feed):
        """Takes one record an epoch."""

        def advance(self, process, offset):
            offset = offset or 0
            return mr.sources.Advance(min(offset + 1, len(self.logs[process])))

    class Sum(mr.Computation):
        inputs = {"s": mr.by(lambda n: n % 1)}
        outputs = {"sums": int}

        def process_record(self, record):
            self.produce("sums", record.value)

    feed = Steps()
    feed.logs = {"fast": [100, 200, 300], "slow": [100, 110, 120, 300]}
    p = mr.Pipeline("p")
    p.inject("s", feed, timestamp="at", low_watermark=mr.BoundedDelay(0), format=int, skew=50)
    p.add(Sum)
    with mr.testing.Harness(p, publish=True) as h, caplog.at_level("INFO"):
        counts = [h.poll("s") for _ in range(6)]
        # fast is at 200, and may go on when slow has come to 150.
        assert [out.value for out in h.outputs("sums")] == [100, 100, 200, 110, 120, 300, 300]
        assert counts == [2, 2, 1, 1, 1, 0]
        h.crash()
        assert h.poll("s") == 0
        assert "process 'fast' is held back" in caplog.text


def test_a_process_that_is_held_back_does_not_count_as_idle():
    """Its silence is our doing; else, when the slow one stops, nobody would go on."""
    feed = Feed()
    feed.logs = {"fast": [100, 200], "slow": [100]}
    p = mr.Pipeline("p")
    p.inject(
        "s", feed, timestamp="at", low_watermark=mr.BoundedDelay(0), format=int, skew=50, idle=1000
    )
    p.sink("s", print)
    with mr.testing.Harness(p, publish=True) as h:
        h.poll("s")
        feed.logs["fast"].append(300)
        assert h.poll("s") == 0
        h.advance_clock(5000)
        assert h.poll("s") == 1
        assert [out.value for out in h.outputs("s")] == [100, 200, 100, 300]


@pytest.mark.parametrize(("format", "value"), [(int, 7), (Any, {"id": "a", "n": 7})])
def test_an_injectors_rows_have_their_ids_in_a_column(format, value):
    class Twice(Feed):
        schema = "id string, n long, at timestamp"

        def read(self, process, start, end):
            return [("a", 7, 5) for _ in self.logs[process][start or 0 : end]]

    class Echo(mr.Computation):
        inputs = {"s": mr.by(lambda _: "same")}
        outputs = {"out": format}

        def process_record(self, record):
            self.produce("out", record.value)

    feed = Twice()
    feed.logs = {"p": [0, 0]}
    p = mr.Pipeline("p")
    p.inject("s", feed, timestamp="at", low_watermark=mr.BoundedDelay(0), format=format, id="id")
    p.add(Echo)
    with mr.testing.Harness(p) as h:
        assert h.poll("s") == 2
        assert [out.value for out in h.outputs("out")] == [value]
        assert h.counters("Echo").duplicates_filtered == 1


class Steps(Feed):
    """Goes a step at a time, as far as it is long; for ever if nobody knows how long."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def processes(self):
        return ["a", "b"]

    def advance(self, process, offset):
        at = (offset or 0) + 2
        return mr.sources.Advance(at if self.length is None else min(at, self.length), at)

    def read(self, process, start, end):
        return [(n, n) for n in range(start or 0, end)]

    def __repr__(self):
        return "Steps()"


def test_what_there_is_until_now_are_all_advances_of_all_processes():
    steps = Steps(3)
    found = list(pieces_until_now("s", steps))

    assert [(one.process, one.between, one.process_watermark_us, one.number) for one in found] == [
        ("a", (None, 2), None, 0),
        ("a", (2, 3), None, 1),
        ("a", None, 4, 2),
        ("b", (None, 2), None, 2),
        ("b", (2, 3), None, 3),
        ("b", None, 4, 4),
    ]
    assert [row[0] for one in found for row in rows(steps, one)] == [0, 1, 2, None, 0, 1, 2, None]


def test_what_has_no_end_is_refused(monkeypatch):
    monkeypatch.setattr(injector_module, "_MOST_ADVANCES", 10)

    with pytest.raises(PipelineError, match=r"process 'a' of Steps\(\) has no end after 10"):
        list(pieces_until_now("s", Steps(None)))
    with pytest.raises(PipelineError, match=r"until=5\): Steps\(\) cannot find"):
        list(pieces_until_now("s", Steps(3), 5))
