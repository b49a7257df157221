"""Timers: set, overwritten, moved, deleted, in both domains."""

import pytest

import millrace as mr
from millrace.model.errors import UserCodeError

DOMAINS = pytest.mark.parametrize("domain", [mr.LOW_WATERMARK, mr.WALL_TIME], ids=lambda d: d.name)


class Commanded(mr.Computation):
    """Does what a record says: lists of a method and its arguments; what a timer does is given."""

    inputs = {"events": mr.by("key")}
    outputs = {"fired": list}

    def __init__(self, reactions=None):
        self.reactions = reactions or {}

    def process_record(self, record):
        for method, *arguments in record.value["do"]:
            getattr(self, method)(*arguments)

    def process_timer(self, timer):
        self.produce("fired", [timer.tag, timer.at, timer.domain.name])
        for method, *arguments in self.reactions.pop((timer.tag, timer.at), ()):
            getattr(self, method)(*arguments)


def do(h, *calls, key="k"):
    h.inject("events", [({"key": key, "do": list(calls)}, 0)])


def advance(h, domain, to):
    if domain == mr.WALL_TIME:
        h.advance_clock(to)
    else:
        h.advance_watermark("events", to)


def fired(h):
    return [tuple(output.value[:2]) for output in h.outputs("fired")]


@DOMAINS
@pytest.mark.parametrize(("to", "fires"), [(9, False), (10, True), (11, True)])
def test_a_timer_fires_once_its_clock_has_reached_it(harness, domain, to, fires):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain])
    advance(h, domain, to)

    assert fired(h) == ([("t", 10)] if fires else [])


@DOMAINS
def test_a_timer_fires_exactly_once(harness, domain):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain])
    for to in (10, 10, 11, 1_000):
        advance(h, domain, to)

    assert fired(h) == [("t", 10)]


@DOMAINS
def test_a_timer_of_one_domain_ignores_the_other_clock(harness, domain):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain])
    advance(h, mr.WALL_TIME if domain == mr.LOW_WATERMARK else mr.LOW_WATERMARK, 1_000)

    assert fired(h) == []


@DOMAINS
@pytest.mark.parametrize("moved_to", [5, 15])
def test_setting_a_tag_again_moves_the_timer(harness, domain, moved_to):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain])
    do(h, ["set_timer", "t", moved_to, domain])
    advance(h, domain, 20)

    assert fired(h) == [("t", moved_to)]


@DOMAINS
def test_setting_a_tag_again_at_the_same_time_changes_nothing(harness, domain):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain])
    do(h, ["set_timer", "t", 10, domain], ["set_timer", "t", 10, domain])
    advance(h, domain, 20)

    assert fired(h) == [("t", 10)]


@DOMAINS
def test_the_last_set_within_a_bundle_counts(harness, domain):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain], ["set_timer", "t", 30, domain])
    advance(h, domain, 20)
    assert fired(h) == []

    advance(h, domain, 30)
    assert fired(h) == [("t", 30)]


@DOMAINS
def test_a_deleted_timer_does_not_fire(harness, domain):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain])
    do(h, ["delete_timer", "t", domain])
    advance(h, domain, 20)

    assert fired(h) == []


@DOMAINS
def test_a_timer_set_and_deleted_in_one_bundle_never_was(harness, domain):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain], ["delete_timer", "t", domain])
    advance(h, domain, 20)

    assert fired(h) == []


@DOMAINS
def test_a_timer_deleted_and_set_again_fires_at_its_new_time(harness, domain):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, domain])
    do(h, ["delete_timer", "t", domain], ["set_timer", "t", 15, domain])
    advance(h, domain, 20)

    assert fired(h) == [("t", 15)]


def test_deleting_a_timer_that_is_not_there_is_nothing(harness):
    h = harness(Commanded)
    do(h, ["delete_timer", "t"])
    h.advance_watermark("events", 20)

    assert fired(h) == []


def test_one_tag_in_two_domains_is_two_timers(harness):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10, mr.LOW_WATERMARK], ["set_timer", "t", 20, mr.WALL_TIME])
    do(h, ["delete_timer", "t", mr.LOW_WATERMARK])
    h.advance_watermark("events", 100)
    h.advance_clock(100)

    assert [output.value for output in h.outputs("fired")] == [["t", 20, "WALL_TIME"]]


def test_one_tag_of_two_keys_is_two_timers(harness):
    h = harness(Commanded)
    do(h, ["set_timer", "t", 10], key="a")
    do(h, ["set_timer", "t", 20], key="b")
    do(h, ["delete_timer", "t"], key="a")
    h.advance_watermark("events", 100)

    assert [output.key for output in h.outputs("fired")] == ["b"]


@pytest.mark.parametrize("tag", ["", "t", 0, -7, b"\0", ("EWR", 7), True], ids=repr)
def test_a_tag_may_be_whatever_a_key_may_be(harness, tag):
    class Tagged(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"same": bool}

        def process_record(self, record):
            self.set_timer(tag, at=10)

        def process_timer(self, timer):
            self.produce("same", timer.tag == tag and type(timer.tag) is type(tag))

    h = harness(Tagged)
    h.inject("events", [({"key": "k"}, 0)])
    h.advance_watermark("events", 10)

    assert [output.value for output in h.outputs("same")] == [True]


def test_many_tags_at_one_time_all_fire(harness):
    h = harness(Commanded)
    do(h, *(["set_timer", tag, 10] for tag in ("c", "a", "b")))
    h.advance_watermark("events", 10)

    assert sorted(fired(h)) == [("a", 10), ("b", 10), ("c", 10)]


# -- what a hook does to timers that are due in the same bundle ------------------------------------


def test_a_record_moves_a_timer_that_becomes_due_with_it(harness):
    """A record arrives from above in the epoch in which the clock reaches the timer."""

    class Above(mr.Computation):
        inputs = {"events": mr.by("key")}
        outputs = {"orders": dict}

        def process_record(self, record):
            if record.value["do"]:
                self.produce("orders", record.value)
            else:
                self.set_timer("t", at=10, domain=mr.WALL_TIME)

        def process_timer(self, timer):
            self.produce("orders", {"key": "k", "do": [["set_timer", "t", 30, 1]]})
            self.produce("orders", {"key": "k", "do": [["delete_timer", "u", 1]]})

    class Below(Commanded):
        inputs = {"orders": mr.by("key")}

    h = harness(Above, Below)
    do(h)
    do(h, ["set_timer", "t", 10, 1], ["set_timer", "u", 10, 1], ["set_timer", "v", 10, 1])
    h.advance_clock(20)
    assert fired(h) == [("v", 10)]

    h.advance_clock(30)
    assert fired(h) == [("v", 10), ("t", 30)]


def test_a_timer_moves_another_due_timer_to_later(harness):
    h = harness(Commanded({("first", 10): [["set_timer", "second", 30]]}))
    do(h, ["set_timer", "first", 10], ["set_timer", "second", 11])
    h.advance_watermark("events", 20)
    assert fired(h) == [("first", 10)]

    h.advance_watermark("events", 30)
    assert fired(h) == [("first", 10), ("second", 30)]


def test_a_timer_deletes_another_due_timer(harness):
    h = harness(Commanded({("first", 10): [["delete_timer", "second"]]}))
    do(h, ["set_timer", "first", 10], ["set_timer", "second", 11])
    h.advance_watermark("events", 20)
    h.advance_watermark("events", 30)

    assert fired(h) == [("first", 10)]


def test_a_timer_brings_a_due_timer_forward(harness):
    h = harness(Commanded({("a", 10): [["set_timer", "c", 11]]}))
    do(h, ["set_timer", "a", 10], ["set_timer", "b", 12], ["set_timer", "c", 13])
    h.advance_watermark("events", 20)

    assert fired(h) == [("a", 10), ("c", 11), ("b", 12)]


def test_a_timer_set_in_the_past_fires_in_the_same_bundle_in_order(harness):
    h = harness(Commanded({("a", 10): [["set_timer", "past", 3]]}))
    do(h, ["set_timer", "a", 10], ["set_timer", "b", 12])
    h.advance_watermark("events", 20)

    assert fired(h) == [("a", 10), ("past", 3), ("b", 12)]


def test_a_record_sets_a_timer_exactly_at_the_low_watermark(harness):
    h = harness(Commanded)
    h.advance_watermark("events", 10)
    do(h, ["set_timer", "at", 10], ["set_timer", "beyond", 11])

    assert fired(h) == [("at", 10)]


def test_a_timer_rearmed_for_later_waits(harness):
    h = harness(Commanded({("t", 10): [["set_timer", "t", 25]]}))
    do(h, ["set_timer", "t", 10])
    h.advance_watermark("events", 20)
    assert fired(h) == [("t", 10)]

    h.advance_watermark("events", 25)
    assert fired(h) == [("t", 10), ("t", 25)]


def test_a_timer_rearmed_within_reach_of_the_clock_fires_in_the_same_bundle(harness):
    h = harness(
        Commanded({("t", 10): [["set_timer", "t", 20]], ("t", 20): [["set_timer", "t", 21]]})
    )
    do(h, ["set_timer", "t", 10])
    h.advance_watermark("events", 20)

    assert fired(h) == [("t", 10), ("t", 20)]


def test_a_timer_rearmed_at_its_own_time_fires_again(harness):
    h = harness(Commanded({("t", 10): [["set_timer", "t", 10]]}))
    do(h, ["set_timer", "t", 10])
    h.advance_watermark("events", 10)

    assert fired(h) == [("t", 10), ("t", 10)]


def test_a_timer_of_the_end_of_time_fires_when_the_input_ends(harness):
    h = harness(Commanded)
    do(h, ["set_timer", "end", mr.MAX_TIMESTAMP])
    h.advance_watermark("events", mr.MAX_TIMESTAMP - 1)
    assert fired(h) == []

    h.advance_watermark("events", mr.MAX_TIMESTAMP)
    assert fired(h) == [("end", mr.MAX_TIMESTAMP)]


@pytest.mark.parametrize(
    "at", [1.5, "10", None, True, mr.MAX_TIMESTAMP + 1, -mr.MAX_TIMESTAMP - 1], ids=repr
)
def test_what_is_no_time_is_refused_where_the_timer_is_set(harness, at):
    class Wrong(mr.Computation):
        inputs = {"events": mr.by("key")}

        def process_record(self, record):
            self.set_timer("t", at=at)

        def process_timer(self, timer):
            pass

    with pytest.raises(UserCodeError, match=r"not a time|not an instant|expected one of"):
        harness(Wrong).inject("events", [({"key": "k"}, 0)])


def test_what_is_no_domain_is_refused_where_the_timer_is_set(harness):
    with pytest.raises(UserCodeError, match="expected LOW_WATERMARK or WALL_TIME"):
        do(harness(Commanded), ["set_timer", "t", 10, 2])
    with pytest.raises(UserCodeError, match=r"delete_timer.*expected LOW_WATERMARK or WALL_TIME"):
        do(harness(Commanded), ["delete_timer", "t", 2])
