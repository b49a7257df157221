"""Why is it stuck? Pipelines stuck in each way, and what is said of them."""

import pytest

import millrace as mr
from millrace.epochlog.entries import encode_entry
from millrace.epochlog.run_log import RunLog
from millrace.injectors.rate_limit import publish_held
from millrace.inspect import Hop, explain_watermark
from millrace.inspect.overview import RunEnd, leave_run_end
from millrace.model.time import format_timestamp
from millrace.store import MemoryCache, MemoryHardState, SnapshotHead, bring, encode_snapshot
from millrace.watermark.report import Report


class Gate(mr.Computation):
    """Holds, sets timers and lets go as records say."""

    inputs = {"events": mr.by("key")}
    outputs = {"passed": dict}

    def process_record(self, record):
        for method, arguments in record.value.get("do", {}).items():
            getattr(self, method)(**arguments)

    def process_timer(self, timer):
        pass


class Middle(mr.Computation):
    inputs = {"passed": mr.by("key"), "others": mr.by("key")}
    outputs = {"further": dict}

    def process_record(self, record):
        pass


class Last(Gate):
    inputs = {"further": mr.by("key")}
    outputs = {"out": dict}


class Quiet(Last):
    outputs = {}


@pytest.fixture
def h(harness):
    return harness(Gate, Middle, Last, streams=("events", "others"))


def do(h, key="k", at=0, **calls):
    h.inject("events", [({"key": key, "do": calls}, at)])


def advance(h, **streams):
    for stream, to in streams.items():
        h.advance_watermark(stream, to)


def wall(tag, at, hold):
    return {"tag": tag, "at": at, "domain": mr.WALL_TIME, "hold": hold}


def test_an_injector_that_is_behind(h):
    h.advance_clock(10 * mr.SECOND)
    h.inject("others", [({"key": "k"}, 70)])
    advance(h, events=100, others=60)
    h.advance_clock(3 * mr.MINUTE + 10 * mr.SECOND)
    found = h.explain_watermark()

    assert found.path == [
        Hop(computation="Last", input=60, shown=60),
        Hop(computation="Middle", input=60, shown=60),
    ]
    assert (found.pin.kind, found.pin.where, found.pin.timestamp) == ("injector", "others", 60)
    assert found.pin.newest == 70
    assert (found.since_epoch, found.unmoved) == (3, 3 * mr.MINUTE)
    assert str(found) == (
        "Last shows its consumers 1970-01-01T00:00:00.000060Z; "
        "its input is at 1970-01-01T00:00:00.000060Z.\n"
        "  Its input is pinned by Middle, which shows 1970-01-01T00:00:00.000060Z; "
        "the input of that is at 1970-01-01T00:00:00.000060Z.\n"
        "  Pinned by the injector of stream 'others', which published "
        "1970-01-01T00:00:00.000060Z.\n"
        "  Its newest record is of 1970-01-01T00:00:00.000070Z.\n"
        "  It has not moved since epoch 3, for 3 min.\n"
        "As of epoch 4, at 1970-01-01T00:03:10Z."
    )


def test_an_injector_that_never_published(h):
    advance(h, events=100)
    found = h.explain_watermark("Middle")

    assert (found.pin.kind, found.pin.where) == ("injector", "others")
    assert (found.since_epoch, found.unmoved) == (None, None)
    assert "stream 'others', which has published nothing yet." in str(found)
    assert "No record of it has come." in str(found)


def test_a_hold_of_one_key_of_a_sender(h):
    do(h, key="other", hold={"at": 80})
    do(h, key="stuck", hold={"at": 50})
    advance(h, events=100, others=100)
    h.advance_clock(mr.HOUR)
    found = h.explain_watermark("Last")
    pin = found.pin

    assert [hop.computation for hop in found.path] == ["Last", "Middle", "Gate"]
    assert (pin.kind, pin.where, pin.key, pin.timestamp, pin.epoch) == (
        "hold", "Gate", "stuck", 50, 1,
    )  # fmt: skip
    assert found.unmoved == mr.HOUR
    assert f"key 'stuck' of Gate, interval {pin.interval}, since epoch 1." in str(found)
    assert "hold(None)" in str(found)


def test_a_hold_of_the_computation_itself(harness):
    h = harness(Gate, streams=("events",))
    do(h, hold={"at": 50})
    advance(h, events=100)
    found = h.explain_watermark("Gate")

    assert found.path == [Hop(computation="Gate", input=100, shown=50)]
    assert found.pin.key == "k"


def test_a_hold_that_another_key_had_too_and_let_go(harness):
    h = harness(Gate, intervals=1)
    do(h, key="a", hold={"at": 50})
    do(h, key="b", hold={"at": 50})
    do(h, key="b", hold={"at": None})
    advance(h, events=100)

    assert h.explain_watermark().pin.key == "a"
    assert h.explain_watermark().pin.epoch == 0


def test_a_hold_that_was_moved(harness):
    h = harness(Gate)
    do(h, hold={"at": 40})
    do(h, hold={"at": 50})
    advance(h, events=100)

    assert (h.explain_watermark().pin.timestamp, h.explain_watermark().pin.epoch) == (50, 1)


def test_a_wall_clock_timer_that_holds(harness):
    h = harness(Gate)
    do(h, key=("a", 1), set_timer=wall("flush", mr.HOUR, 50))
    do(h, key=("a", 1), set_timer=wall("flush", 2 * mr.HOUR, 50))
    advance(h, events=100)
    found = h.explain_watermark()
    pin = found.pin

    assert (pin.kind, pin.key, pin.tag, pin.at, pin.domain, pin.timestamp, pin.epoch) == (
        "hold", ("a", 1), "flush", 2 * mr.HOUR, "WALL_TIME", 50, 1,
    )  # fmt: skip
    assert "a hold at 1970-01-01T00:00:00.000050Z of a pending timer, tag 'flush'" in str(found)
    assert "when the timer fires, at 1970-01-01T02:00:00Z by the wall clock." in str(found)


def test_a_low_watermark_timer_that_holds_earlier_than_its_time(harness):
    h = harness(Gate)
    do(h, set_timer={"tag": 7, "at": 500, "hold": 50})
    advance(h, events=100)
    pin = h.explain_watermark().pin

    assert (pin.kind, pin.tag, pin.at, pin.domain) == ("hold", 7, 500, "LOW_WATERMARK")


@pytest.mark.parametrize("long", [1, 159, 160, 500])
def test_long_keys_and_tags(harness, long):
    h = harness(Gate)
    do(h, key="k" * long, set_timer=wall("t" * long, 10, 50))
    advance(h, events=100)
    pin = h.explain_watermark().pin

    assert (pin.key, pin.tag) == ("k" * long, "t" * long)


def test_after_a_crash_it_says_the_same(h):
    do(h, key="stuck", hold={"at": 50})
    advance(h, events=100, others=100)
    found = h.explain_watermark()
    h.crash()

    assert h.explain_watermark() == found


def test_an_input_that_has_ended(harness):
    h = harness(Gate)
    advance(h, events=mr.MAX_TIMESTAMP)

    assert h.explain_watermark().pin.kind == "nothing"
    assert "Nothing pins it: the input, 'events', has ended." in str(h.explain_watermark())


def test_the_one_that_shows_the_lowest_is_explained_by_default(h):
    do(h, hold={"at": 50})
    advance(h, others=100, events=100)
    do(h, hold={"at": None})
    assert h.explain_watermark().path[0].computation == "Last"
    assert h.explain_watermark().pin.kind == "injector"


def test_before_the_first_epoch_there_is_nothing_to_explain(harness):
    with pytest.raises(mr.MillraceError, match="no epoch of this checkpoint has completed"):
        harness(Gate).explain_watermark()


def test_an_unknown_computation_is_refused(h):
    advance(h, events=1)
    with pytest.raises(mr.MillraceError, match="no computation 'Gat'; there are Gate, Last, Midd"):
        h.explain_watermark("Gat")


def test_the_process_of_an_injector_that_is_furthest_behind():
    p = mr.Pipeline("p")
    p.inject(
        "events",
        low_watermark=mr.BoundedDelay(10),
        process="host",
        expected=["a", "b"],
        idle="1 h",
    )
    p.add(Gate)
    with mr.testing.Harness(p, publish=True) as h:
        h.advance_clock(mr.MINUTE)
        h.inject("events", [({"key": "k"}, 1_000)], process="a")
        found = h.explain_watermark()
        assert (found.pin.process, found.pin.newest) == ("b", None)
        assert found.pin.policy == "BoundedDelay(10)"
        assert "stream 'events', process 'b', which has published nothing yet" in str(found)

        h.inject("events", [({"key": "k"}, 500)], process="b")
        h.advance_clock(2 * mr.MINUTE)
        h.inject("events", [({"key": "k"}, 2_000)], process="a")
        pin = h.explain_watermark().pin
        assert (pin.process, pin.newest, pin.timestamp) == ("b", 500, 490)
        assert "it was last heard 1 min ago" in str(h.explain_watermark())

        h.advance_clock(mr.HOUR + mr.MINUTE)  # b has been idle for an hour: left out
        h.inject("events", [({"key": "k"}, 3_000)], process="a")
        assert h.explain_watermark().pin.process == "a"


def test_it_says_when_all_processes_of_an_injector_are_idle():
    p = mr.Pipeline("p")
    p.inject("events", low_watermark=mr.BoundedDelay(0), process="host", idle="5 s")
    p.add(Gate)
    with mr.testing.Harness(p, publish=True) as h:
        h.inject("events", [({"key": "k"}, 1_000)], process="a")
        h.advance_clock(2 * mr.SECOND)
        h.inject("events", [({"key": "k"}, 2_000)], process="b")
        assert h.explain_watermark().pin.idle is None
        h.advance_clock(mr.MINUTE)
        found = h.explain_watermark()
        assert (found.pin.idle, found.pin.process, found.pin.timestamp) == (5_000_000, "b", 2_000)
        assert "All its processes are idle: each has been silent for longer than" in str(found)
        assert "The last that was heard, process 'b', sent nothing for 58 s." in str(found)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (
            "paused",
            "It is paused: nothing of it is read, so its low watermark stands still. "
            "`millrace resume` has it read again.",
        ),
        (
            "100 records a second",
            "It is limited to 100 records a second, and its low watermark moves no faster. "
            "`millrace resume` lifts the limit.",
        ),
    ],
)
def test_an_injector_that_an_operator_holds_back(h, held, said):
    advance(h, events=100, others=60)
    mailbox, generation = h._durable.mailbox, h.checkpoint().overview.generation
    publish_held(mailbox, generation, {"others": held, "else": "paused"})
    found = h.explain_watermark()
    assert (found.pin.where, found.pin.held_back) == ("others", held)
    assert said in str(found)

    advance(h, others=200)
    assert h.explain_watermark().pin.held_back is None
    advance(h, events=300)
    assert h.explain_watermark().pin.held_back == held
    publish_held(mailbox, generation, {})
    assert h.explain_watermark().pin.held_back is None


def test_what_a_run_before_or_one_that_has_ended_held_back_is_not_told(h):
    advance(h, events=100, others=60)
    mailbox, generation = h._durable.mailbox, h.checkpoint().overview.generation
    publish_held(mailbox, generation - 1, {"others": "paused"})
    assert h.explain_watermark().pin.held_back is None
    publish_held(mailbox, generation, {"others": "paused"})
    assert mailbox.names() == [f"held-{generation}"]
    leave_run_end(mailbox, generation, RunEnd("stopped", 2, 0))
    assert h.explain_watermark().pin.held_back is None


def test_an_interval_that_has_not_reported():
    """As after a split: the new interval's first report comes with the next epoch."""
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Gate)
    state = MemoryHardState()
    run_log = RunLog(p.build(), state, intervals=2)
    manifest = run_log.begin(0, wall_time_us=0, injectors={"events": 100})
    completion = run_log.complete(manifest, [])
    completion.epoch, completion.numbers = 1, {"Gate": {0: 1, 1: 1}}
    completion.reports = {"Gate": {0: Report()}}
    state.epochs.append(state.epochs.last() + 1, encode_entry(completion))
    found = explain_watermark(state)

    assert (found.pin.kind, found.pin.interval) == ("missing report", 1)
    assert "Pinned by interval 1 of Gate, which has not reported yet." in str(found)


def test_a_computation_that_was_added_and_has_had_no_epoch(h):
    advance(h, events=100, others=100)
    p = mr.Pipeline("under test")
    for stream in ("events", "others"):
        p.inject(stream)
    for computation in (Gate, Middle, Last):
        p.add(computation)
    p.add(Quiet, name="New")
    h.update(p)
    found = h.explain_watermark()

    assert [hop.computation for hop in found.path] == ["New"]
    assert (found.pin.kind, found.pin.where, found.pin.interval) == ("missing report", "New", None)
    assert "Pinned by New itself, which has been in no epoch yet: it was added since." in str(found)
    assert h.explain_watermark("Last").pin.kind == "injector"
    advance(h, events=110)
    assert h.explain_watermark("New").pin.where == "others"


@pytest.mark.parametrize("call", ["hold", "set_timer"])
def test_a_hold_whose_commit_was_collected_is_found_in_the_snapshot(harness, call):
    h = harness(Gate, intervals=1)
    do(h, **{call: {"at": 50} if call == "hold" else wall("t", 10, 50)})
    for n in range(3):
        do(h, key=n)
    h.advance_watermark("events", 100)
    pin = h.explain_watermark().pin
    state = h._durable.copy()
    cache = MemoryCache("Gate", 0)
    bring(cache, state, "Gate", 0, 4)
    head = SnapshotHead("Gate", 0, 4, cache.cache_position.chain)
    with cache.view() as view:
        state.snapshots.put("Gate", 0, 4, encode_snapshot(head, view.everything()))
    state.commits.remove("Gate", 0, [1, 2, 3])
    found = explain_watermark(state).pin

    assert pin.epoch == 0
    assert found.epoch is None
    assert (found.kind, found.key, found.tag, found.timestamp) == ("hold", "k", pin.tag, 50)


class Timed(Gate):
    """Sends on with the time that a record says."""

    outputs = {"timed": dict}

    def process_record(self, record):
        self.produce("timed", record.value)


class Both(Gate):
    inputs = {"moved": mr.by("key"), "others": mr.by("key"), "direct": mr.by("key")}
    outputs = {}


def test_steps_that_move_timestamps_back_count_against_their_sender():
    p = mr.Pipeline("p")
    for stream in ("events", "others", "early"):
        p.inject(stream, format=dict)
    p.add(Timed)
    timed = p.stream("timed").with_timestamps(lambda value: value["at"], backwards="1 h")
    timed.to("moved")
    p.stream("early").with_timestamps(lambda value: value["at"], backwards="3 h").to("direct")
    p.add(Both)
    with mr.testing.Harness(p) as h:
        advance(h, events=3 * mr.HOUR, others=5 * mr.HOUR // 2, early=9 * mr.HOUR)
        by_computation = h.explain_watermark("Both")
        advance(h, events=9 * mr.HOUR, others=9 * mr.HOUR)
        by_injector = h.explain_watermark("Both")
        advance(h, events=mr.MAX_TIMESTAMP, early=mr.MAX_TIMESTAMP)
        other = h.explain_watermark("Both")

    assert [hop.computation for hop in by_computation.path] == ["Both", "Timed"]
    assert by_computation.path[1].backwards == mr.HOUR
    assert (by_computation.pin.where, by_computation.pin.backwards) == ("events", 0)
    assert (
        "Its input is pinned by Timed, which shows 1970-01-01T03:00:00Z; the input of that is at "
        "1970-01-01T03:00:00Z.\n"
        "  Steps on the way may move timestamps back by 1 h, so it counts as 1970-01-01T02:00:00Z."
    ) in str(by_computation)
    assert (by_injector.pin.where, by_injector.pin.backwards) == ("early", 3 * mr.HOUR)
    assert "by 3 h, so it counts as 1970-01-01T06:00:00Z." in str(by_injector)
    assert (other.pin.where, other.pin.backwards) == ("others", 0)


class Echo(mr.Computation):
    inputs = {"counts": mr.by_key()}
    outputs = {}

    def process_record(self, record):
        pass


@pytest.mark.parametrize(
    ("windows", "trigger", "window"),
    [
        (mr.FixedWindows("1 min"), None, (0, mr.MINUTE)),
        (mr.Sessions("1 min"), None, (5 * mr.SECOND, mr.MINUTE + 9 * mr.SECOND)),
        (mr.FixedWindows("1 min"), mr.Repeat(mr.AtWatermark(50)), (0, mr.MINUTE)),
    ],
    ids=["fixed", "sessions", "percentile"],
)
def test_the_window_and_the_key_of_a_grouping_are_named(windows, trigger, window):
    p = mr.Pipeline("teas")
    searches = p.inject("searches", format=str).key_by(lambda query: query)
    earliest = {"output_time": mr.OutputTime.EARLIEST, "trigger": trigger}
    searches.window(windows, **earliest).count().to("counts")
    p.add(Echo, name="After")
    with mr.testing.Harness(p) as h:
        at = 5 * mr.SECOND
        h.inject("searches", [("tea", at), ("tea", at + 4 * mr.SECOND), ("mate", 2 * mr.MINUTE)])
        h.advance_watermark("searches", 50 * mr.SECOND)
        found = h.explain_watermark("After")
        pin = found.pin

        assert (pin.where, pin.key, pin.window, pin.timestamp) == ("counts", "tea", window, at)
        said = "from {} to {}".format(*map(format_timestamp, window))
        assert f"the window {said}" in str(found)
        assert "key 'tea' of counts" in str(found)
