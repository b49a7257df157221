"""Order within a bundle: a key's records as they arrived, then its due timers by time."""

import millrace as mr


class Diary(mr.Computation):
    """Writes down what it is called with; a record sets timers at the times in its value."""

    inputs = {"events": mr.by("key"), "others": mr.by("key")}
    outputs = {"diary": list}

    def process_record(self, record):
        self.produce("diary", ["record", record.value["n"]])
        for at in record.value.get("at", ()):
            self.set_timer(at, at=at)
        for at in record.value.get("wall", ()):
            self.set_timer(at, at=at, domain=mr.WALL_TIME)

    def process_timer(self, timer):
        self.produce("diary", [timer.domain.name, timer.at])


def diary(h, key="k"):
    return [output.value for output in h.outputs("diary") if output.key == key]


def open_diary(harness, **options):
    return harness(Diary, streams=("events", "others"), **options)


def test_records_of_a_key_come_in_order_of_arrival_not_of_timestamp(harness):
    h = open_diary(harness)
    h.inject("events", [({"key": "k", "n": n}, at) for n, at in enumerate([50, 10, 30])])

    assert diary(h) == [["record", 0], ["record", 1], ["record", 2]]


def test_due_timers_follow_the_records_of_their_bundle(harness):
    h = open_diary(harness)
    h.advance_watermark("events", 100)
    h.advance_watermark("others", 100)
    h.inject("events", [({"key": "k", "n": 0, "at": [7]}, 100), ({"key": "k", "n": 1}, 100)])

    assert diary(h) == [["record", 0], ["record", 1], ["LOW_WATERMARK", 7]]


def test_timers_fire_in_order_of_time_however_they_were_set(harness):
    h = open_diary(harness)
    h.inject("events", [({"key": "k", "n": 0, "at": [30, 10, 20]}, 0)])
    h.advance_watermark("others", 50)
    h.advance_watermark("events", 50)

    assert diary(h)[1:] == [["LOW_WATERMARK", 10], ["LOW_WATERMARK", 20], ["LOW_WATERMARK", 30]]


def test_timers_before_1970_fire_first(harness):
    h = open_diary(harness)
    h.inject("events", [({"key": "k", "n": 0, "at": [5, -5, 0]}, 0)])
    h.advance_watermark("events", 50)
    h.advance_watermark("others", 50)

    assert [at for _, at in diary(h)[1:]] == [-5, 0, 5]


def test_stored_timers_and_timers_set_meanwhile_fire_in_one_order(harness):
    h = open_diary(harness)
    h.inject("events", [({"key": "k", "n": 0, "wall": [10, 30]}, 0)])
    h.inject("events", [({"key": "k", "n": 1, "wall": [20]}, 0)])
    h.advance_clock(30)

    assert [at for _, at in diary(h)[2:]] == [10, 20, 30]


def test_both_domains_in_one_bundle_fire_in_one_order_of_time(harness):
    h = open_diary(harness)
    h.advance_watermark("events", 100)
    h.advance_watermark("others", 100)
    h.advance_clock(100)
    h.inject("events", [({"key": "k", "n": 0, "at": [10, 30], "wall": [20, 40]}, 100)])

    assert diary(h)[1:] == [
        ["LOW_WATERMARK", 10],
        ["WALL_TIME", 20],
        ["LOW_WATERMARK", 30],
        ["WALL_TIME", 40],
    ]


def test_a_record_is_seen_before_a_timer_that_the_watermark_makes_due_later(harness):
    h = open_diary(harness)
    h.advance_watermark("others", 10)
    h.inject("events", [({"key": "k", "n": 0, "at": [10]}, 0)])
    h.inject("events", [({"key": "k", "n": 1}, 9)])
    h.advance_watermark("events", 10)

    assert diary(h) == [["record", 0], ["record", 1], ["LOW_WATERMARK", 10]]


def test_a_timer_set_ahead_of_the_input_waits_for_the_slowest_stream(harness):
    h = open_diary(harness)
    h.inject("events", [({"key": "k", "n": 0, "at": [10]}, 0)])
    h.advance_watermark("events", 99)
    assert diary(h) == [["record", 0]]

    h.advance_watermark("others", 10)
    assert diary(h)[1:] == [["LOW_WATERMARK", 10]]
