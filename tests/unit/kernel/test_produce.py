"""Productions: where they go, and with which key and timestamp."""

import pytest

import millrace as mr
from millrace.model.errors import PipelineError, UserCodeError
from millrace.model.time import LATEST_RECORD


def producing(*calls, timer=None):
    class Producing(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"out": str, "more": str}

        def process_record(self, record):
            for arguments in calls:
                self.produce(**arguments)
            if timer:
                self.set_timer("t", at=10)

        def process_timer(self, at):
            self.produce(**timer)

    return Producing


def test_key_and_timestamp_are_those_at_hand(harness):
    h = harness(producing({"stream": "out", "value": "x"}))
    h.inject("events", [({"key": "k"}, 7)])

    assert [(o.key, o.timestamp) for o in h.outputs("out")] == [("k", 7)]


def test_a_timers_productions_have_its_time(harness):
    h = harness(producing(timer={"stream": "out", "value": "x"}))
    h.inject("events", [({"key": "k"}, 7)])
    h.advance_watermark("events", 100)

    assert [(o.key, o.timestamp) for o in h.outputs("out")] == [("k", 10)]


@pytest.mark.parametrize(("at", "time"), [(-1, 0), (mr.MAX_TIMESTAMP, LATEST_RECORD)])
def test_a_timers_productions_have_the_time_next_to_its_that_a_record_may_have(at, time):
    class Ends(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"out": str}

        def process_record(self, record):
            self.set_timer("t", at=at)

        def process_timer(self, timer):
            self.produce("out", "x")

    p = mr.Pipeline("ends")
    p.inject("events")
    p.add(Ends)
    p.stream("out").key_by(len).window(mr.FixedWindows(10)).count().to("counts")
    with mr.testing.Harness(p) as h:
        h.inject("events", [({"key": "k"}, 7)])
        h.advance_watermark("events", mr.MAX_TIMESTAMP)
        assert [o.timestamp for o in h.outputs("out")] == [time]
        assert [o.value for o in h.outputs("counts")] == [1]


def test_key_and_timestamp_may_be_chosen(harness):
    h = harness(producing({"stream": "out", "value": "x", "timestamp": 3, "key": ("a", 1)}))
    h.inject("events", [({"key": "k"}, 7)])

    assert [(o.key, o.timestamp) for o in h.outputs("out")] == [(("a", 1), 3)]


@pytest.mark.parametrize("key", [0, "", False])
def test_a_falsy_key_may_be_chosen(harness, key):
    h = harness(producing({"stream": "out", "value": "x", "key": key}))
    h.inject("events", [({"key": "k"}, 7)])

    assert [o.key for o in h.outputs("out")] == [key]


def test_productions_leave_in_the_order_they_were_made(harness):
    h = harness(producing(*({"stream": "out", "value": str(n)} for n in range(5))))
    h.inject("events", [({"key": "k"}, 7)])

    assert [o.value for o in h.outputs("out")] == ["0", "1", "2", "3", "4"]


def test_a_stream_that_is_not_declared_is_refused_with_those_that_are(harness):
    h = harness(producing({"stream": "typo", "value": "x"}))

    with pytest.raises(UserCodeError, match="'typo', which it does not declare") as failed:
        h.inject("events", [({"key": "k"}, 7)])
    assert isinstance(failed.value.__cause__, PipelineError)
    assert "more, out" in str(failed.value)


def test_an_injected_stream_is_not_an_output(harness):
    h = harness(producing({"stream": "events", "value": "x"}))

    with pytest.raises(UserCodeError, match="does not declare"):
        h.inject("events", [({"key": "k"}, 7)])


def test_a_production_that_no_consumer_can_key_is_refused_where_it_is_made(harness):
    class Unkeyable(mr.Computation):
        inputs = {"out": mr.by(lambda _: None)}

        def process_record(self, record):
            pass

    h = harness(producing({"stream": "out", "value": "x"}), Unkeyable)

    with pytest.raises(UserCodeError, match="the key is None"):
        h.inject("events", [({"key": "k"}, 7)])


def test_a_refused_production_that_user_code_survives_leaves_nothing(harness):
    """Half of a fan-out must not leave when the other half was refused."""

    class Survives(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"out": str}

        def process_record(self, record):
            try:
                self.produce("out", "x")
            except PipelineError:
                self.produce("out", "fine")

    class Good(mr.Computation):
        inputs = {"out": mr.by_key()}

        def process_record(self, record):
            pass

    class Picky(Good):
        inputs = {"out": mr.by(lambda value: None if value == "x" else "k")}

    h = harness(Survives, Good, Picky)
    h.inject("events", [({"key": "k"}, 7)])

    assert [o.value for o in h.outputs("out")] == ["fine"]
    assert (h.counters("Good").records, h.counters("Picky").records) == (1, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"retraction": 1},
        {"retraction": "yes"},
        {"pane": 3},
        {"pane": mr.Pane(mr.Window(0, 1.5))},
        {"pane": mr.Pane(mr.Window("now", 5))},
        {"pane": mr.Pane(None)},
        {"pane": mr.Pane(mr.Window(0, 5), trigger=7)},
        {"pane": mr.Pane(mr.Window(0, 1 << 70))},
    ],
    ids=str,
)
def test_a_pane_that_no_consumer_could_read_is_refused_where_it_is_made(given):
    class Wrong(mr.Computation):
        inputs = {"events": mr.by(str)}
        outputs = {"out": mr.coders.Paned(int, retracts=True)}

        def process_record(self, record):
            self.produce("out", 1, **(given if record.value else {}))

    p = mr.Pipeline("wrong")
    p.inject("events", format=int)
    p.add(Wrong)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("events", [(1, 0), (0, 1)])
        assert [out.timestamp for out in h.outputs("out")] == [1]
        [letter] = h.outputs("letters")
        assert f"produce({next(iter(given))}=" in letter.value.reason
