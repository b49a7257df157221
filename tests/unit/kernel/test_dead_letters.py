"""Dead letters: what fails is set aside, and everything else is as if it had never come."""

import pytest

import millrace as mr
from millrace.inspect.overview import reasons_of
from millrace.model.errors import DeadLettersExceeded


class Touchy(mr.Computation):
    """Fails on negative numbers, after having changed everything it can."""

    inputs = {"events": mr.by("key")}
    outputs = {"out": list}
    total = mr.ValueState(int)
    entries = mr.MapState(int)
    bag = mr.BagState(int)
    combined = mr.CombiningState(int)

    def process_record(self, record):
        n = record.value["n"]
        self.total.set(self.total.get(0) + n)
        self.entries[n] = n
        self.bag.add(n)
        self.combined.add(n)
        self.hold(n)
        self.set_timer(n, at=abs(n))
        self.produce("out", [n])
        if n < 0:
            raise ValueError(f"{n} is negative")

    def process_timer(self, timer):
        self.total.set(self.total.get() + 1000)
        self.produce("out", ["fired", timer.tag])
        if timer.tag == 13:
            raise ValueError("unlucky")
        self.produce(
            "out", [self.total.get(), list(self.entries), list(self.bag), self.combined.get()]
        )


class Refuses(mr.Computation):
    inputs = {"events": mr.by("key")}

    def process_record(self, record):
        raise ValueError("never")


def events(*numbers, key="k"):
    return [({"key": key, "n": n}, abs(n)) for n in numbers]


@pytest.fixture
def h(harness):
    return harness(Touchy, dead=True)


def out(h, key="k"):
    return [output.value for output in h.outputs("out") if output.key == key]


def test_a_failing_record_becomes_a_letter_that_tells_everything(h):
    h.advance_clock(0)
    h.inject("events", events(-5))

    (output,) = h.outputs("dead")
    letter = output.value
    assert isinstance(letter, mr.DeadLetter)
    assert (letter.stream, letter.computation, letter.key) == ("events", "Touchy", "'k'")
    assert (letter.reason, letter.timestamp, letter.refused_in) == (
        "ValueError: -5 is negative",
        5,
        1,
    )
    assert "-5" in letter.value
    assert "in process_record" in letter.error
    assert (output.key, output.timestamp) == ("k", 5)


def test_the_rest_of_the_bundle_is_as_if_a_failing_record_had_never_come(harness):
    with_failure, without = harness(Touchy, dead=True), harness(Touchy, dead=True)
    with_failure.inject("events", events(1, -2, 3, -4))
    without.inject("events", events(1, 3))
    for h in (with_failure, without):
        h.advance_watermark("events", 10)

    assert out(with_failure) == out(without)
    assert len(with_failure.outputs("dead")) == 2
    assert with_failure.output_low_watermark("Touchy") == without.output_low_watermark("Touchy")


def test_a_failing_record_leaves_no_timer_and_no_hold(h):
    h.inject("events", events(-2))
    h.advance_watermark("events", 10)

    assert out(h) == []
    assert h.output_low_watermark("Touchy") == 10


def test_other_keys_do_not_notice(h):
    h.inject("events", events(-1, key="bad") + events(1, key="good"))

    assert out(h, "good") == [[1]]
    assert out(h, "bad") == []


def test_a_failing_timer_becomes_a_letter_and_does_not_come_again(h):
    h.inject("events", events(13))
    h.advance_watermark("events", 13)
    h.advance_watermark("events", 14)

    (output,) = h.outputs("dead")
    letter = output.value
    assert (letter.stream, letter.computation, letter.value) == ("", "Touchy", "13")
    assert (letter.timestamp, letter.reason) == (13, "ValueError: unlucky")
    assert "in process_timer" in letter.error


def test_other_timers_are_as_if_a_failing_one_had_never_been(h):
    h.inject("events", events(12, 13, 14))
    h.advance_watermark("events", 20)

    state = [[12, 13, 14], [12, 13, 14], 39]
    assert out(h)[3:] == [["fired", 12], [1039, *state], ["fired", 14], [2039, *state]]


def test_what_was_there_before_the_bundle_stays(h):
    h.inject("events", events(1))
    h.inject("events", events(-2))
    h.advance_watermark("events", 10)

    assert out(h)[1:] == [["fired", 1], [1001, [1], [1], 1]]


def test_letters_of_a_stream_and_of_a_computation_of_its_name_are_two_counts():
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(Refuses, name="events")
    p.dead_letter("dead")
    with mr.testing.Harness(p) as h:
        h.inject("events", [({"key": "a"}, 1), ({}, 1), ({}, 1)])
        assert h.dead_letters("events") == h.counters("events").dead_letters == 1
        assert h.dead_letters("stream events") == 2
        assert h.dead_letters() == len(h.outputs("dead")) == 3


def test_letters_are_counted(h):
    h.inject("events", events(1, -2, -3))

    counters = h.counters("Touchy")
    assert (counters.records, counters.dead_letters) == (3, 2)


def test_letters_survive_a_crash_once(h):
    h.crash_in_next_epoch(2)
    h.inject("events", events(1, -2))
    h.crash()

    assert len(h.outputs("dead")) == 1


def test_a_late_record_that_fails_is_counted_late_too(h):
    h.advance_watermark("events", 100)
    h.inject("events", events(-2))

    assert h.counters("Touchy").late == 1


def test_the_first_of_a_computation_and_of_a_stream_is_logged_with_its_reason(h, caplog):
    h.inject("events", events(-2, -3))
    h.inject("events", [({"n": 1}, 5), ({"n": 2}, 5)])
    h.inject("events", [*events(-4), ({"n": 1}, 5)])

    said = [record.message for record in caplog.records if "first dead letter" in record.message]
    assert len(said) == 2
    assert said[0].startswith("Touchy: the first dead letter: ValueError: -2 is negative\n")
    assert said[1].startswith("stream 'events': the first dead letter: ")
    assert "\n  value {'n': 1}" in said[1], "it has no key"
    assert "epoch 1, stream 'events', epoch 1, partition 0, row 0" in said[1]


def test_there_is_one_count_of_all_of_them_with_their_reasons(h):
    h.inject("events", [*events(1, -2, -3), ({"n": 1}, 5)])
    h.crash()
    h.inject("events", [*events(-4, 13), ({"key": "k", "n": 1}, -1)])
    h.advance_watermark("events", 20)

    assert len(h.outputs("dead")) == h.dead_letters() == 6
    assert (h.dead_letters("Touchy"), h.dead_letters("events")) == (4, 2)
    found = reasons_of(h.checkpoint().overview)
    assert sorted((counted.count, reason[:30]) for reason, counted in found.items()) == [
        (1, "KeyError: ..."),
        (1, "ValueError: unlucky"),
        (1, "the timestamp -... us is befor"),
        (3, "ValueError: -... is negative"),
    ]


def test_a_letter_says_where_its_record_came_from_and_has_its_bytes(h):
    h.inject("events", [*events(1, -2), ({"n": 1}, 5)])
    letters = {output.value.key: output.value for output in h.outputs("dead")}
    failed, refused = letters["'k'"], letters[""]

    assert failed.place.startswith("stream 'events', epoch 0, partition 0, row ")
    assert failed.raw == b'{"key":"k","n":-2}'
    assert refused.place.startswith("stream 'events', epoch 0, partition 0, row ")
    assert refused.place > failed.place
    assert refused.raw == b'{"n":1}'


def test_a_letter_of_a_message_has_its_offset_and_its_bytes_as_they_came(h):
    message = {
        "key": "k", "n": -2, "value": b"\xff", "kafka_key": b"k1", "kafka_topic": "clicks",
        "kafka_partition": 3, "kafka_offset": 17,
    }  # fmt: skip
    h.inject("events", [(message, 5)])

    letter = h.outputs("dead")[0].value
    assert letter.place == "topic 'clicks', partition 3, offset 17"
    assert (letter.raw, letter.raw_key) == (b"\xff", b"k1")


def test_a_letter_with_an_offset_alone_has_the_place_in_its_stream(h):
    h.inject("events", [({"key": "k", "n": -2, "kafka_offset": 17}, 5)])

    assert h.outputs("dead")[0].value.place == "stream 'events', epoch 0, partition 0, row 0"


@pytest.mark.parametrize("key", [None, b"", b"\xff"])
def test_a_letter_of_a_tombstone_has_no_bytes_and_the_key_as_it_came(h, key):
    message = {"key": "k", "n": -2, "value": None, "kafka_key": key, "kafka_headers": []}
    h.inject("events", [(message, 5)])

    letter = h.outputs("dead")[0].value
    assert (letter.raw, letter.raw_key) == (None, key)


def test_a_letter_of_a_production_names_the_computation_that_made_it():
    class Source(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"made": dict}

        def process_record(self, record):
            self.produce("made", record.value)

    class Failing(mr.Computation):
        inputs = {"made": mr.by("key")}
        outputs = {}

        def process_record(self, record):
            raise ValueError("no")

    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(Source)
    p.add(Failing)
    p.dead_letter("dead")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("events", events(1))
        assert h.outputs("dead")[0].value.place == "computation 'Source', commit 1, interval 0"


def limited(at_most):
    p = mr.Pipeline("p")
    p.inject("events", format=dict)
    p.add(Touchy)
    p.dead_letter("dead", at_most=at_most)
    return mr.testing.Harness(p)


def test_more_letters_than_their_share_stop_the_run_and_name_the_most_frequent_reason():
    h = limited("5 %")
    h.inject("events", events(*range(1, 50), -1, -2, -3, -4))  # of too few records to judge
    h.inject("events", events(*range(50, 100)))
    with pytest.raises(DeadLettersExceeded) as stopped:
        h.inject("events", [*events(-5, -6), ({"n": 1}, 5)])

    said = str(stopped.value)
    assert said.startswith("7 of 106 records became dead letters, and dead_letter(at_most=) allows")
    assert "5 % of the records of five minutes" in said
    assert "The most frequent reason, 6 times, in Touchy: ValueError: -... is negative" in said


def test_a_share_is_that_of_five_minutes():
    h = limited("5 %")
    h.inject("events", events(*range(1, 99), -1, -2, -3, -4))
    h.advance_clock(5 * mr.MINUTE)
    h.inject("events", events(*range(1, 99), -1, -2, -3, -4))
    with pytest.raises(DeadLettersExceeded, match="11 of 109 records"):
        h.inject("events", events(*range(-7, 0)))


def test_more_letters_than_a_number_stop_the_run():
    h = limited(2)
    h.inject("events", events(-1, -2))
    with pytest.raises(DeadLettersExceeded, match=r"3 dead letters, and .* allows 2 since the run"):
        h.inject("events", events(-3))


@pytest.mark.parametrize("at_most", ["5", "101 %", "-1 %", "many", -1, True, "5 % or", 0.05, [5]])
def test_a_limit_is_a_share_or_a_number(at_most):
    with pytest.raises(ValueError) as refused:
        mr.Pipeline("p").dead_letter("dead", at_most=at_most)
    assert "expected a share of the records" in str(refused.value)


# -- refused before any computation ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "timestamp"),
    [({"n": 1}, 5), ({"key": None, "n": 1}, 5), ({"key": "k", "n": 1}, -1)],
    ids=["no key field", "key is None", "before 1970"],
)
def test_a_record_that_cannot_be_injected_becomes_a_letter(h, value, timestamp):
    h.inject("events", [(value, timestamp), *events(1)])

    (output,) = h.outputs("dead")
    assert (output.value.stream, output.value.computation) == ("events", "")
    assert output.value.reason
    assert out(h) == [[1]]
    assert h.dead_letters("events") == 1


def test_a_record_on_which_a_step_fails_becomes_a_letter():
    p = mr.Pipeline("p")
    p.inject("events")
    p.stream("events").map(lambda value: 1 / value).to("inverse", format=float)
    p.sink("inverse", print)
    p.dead_letter("dead")
    h = mr.testing.Harness(p)
    h.inject("events", [(0, 1), (2, 1)])

    assert [output.value.stream for output in h.outputs("dead")] == ["events"]
    assert [output.value for output in h.outputs("inverse")] == [0.5]


def test_a_record_on_which_a_key_function_fails_becomes_a_letter(harness):
    class Inverse(mr.Computation):
        inputs = {"events": mr.by(lambda value: 1 / value)}

        def process_record(self, record):
            pass

    h = harness(Inverse, dead=True)
    h.inject("events", [(0, 1), (2, 1)])

    assert len(h.outputs("dead")) == 1
    assert h.counters("Inverse").records == 1


def test_a_letter_may_be_handled_by_steps():
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Touchy)
    p.dead_letter("dead").map(lambda letter: letter.reason).to("reasons", format=str)
    p.sink("reasons", print)
    with mr.testing.Harness(p) as h:
        h.inject("events", events(-5))

        assert [o.value for o in h.outputs("reasons")] == ["ValueError: -5 is negative"]


def test_a_computation_that_subscribes_to_dead_letters_gets_them_or_is_refused_when_built():
    class Watch(mr.Computation):
        inputs = {"dead": mr.by("computation")}
        outputs = {"watched": str}

        def process_record(self, record):
            self.produce("watched", record.value.reason)

    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Watch)
    p.add(Touchy)
    p.dead_letter("dead")
    try:
        h = mr.testing.Harness(p)
    except mr.MillraceError as refused:
        assert "dead" in str(refused)  # noqa: PT017  # one of two right answers
        return
    h.inject("events", events(-5))
    assert [o.value for o in h.outputs("watched")] == ["ValueError: -5 is negative"]
