"""Computations that nothing feeds: keys that begin by themselves, and timers."""

from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class Heartbeat(mr.Computation):
    outputs = {"beats": int}
    starts = mr.ValueState(int)

    def process_start(self) -> None:
        self.starts.set(self.starts.get(0) + 1)
        self.set_timer("beat", at=self.wall_time + 10, domain=mr.WALL_TIME)

    def process_timer(self, timer: Any) -> None:
        self.produce("beats", self.starts.get())
        self.set_timer("beat", at=timer.at + 10, domain=mr.WALL_TIME)


class Listener(mr.Computation):
    inputs = {"beats": mr.by_key()}
    outputs = {"heard": tuple[bool, int]}

    def process_record(self, record: Any) -> None:
        self.produce("heard", (record.late, self.low_watermark))


def heartbeat(*keys: Any, **harness: Any) -> Any:
    p = mr.Pipeline("alive")
    p.add(Heartbeat, keys=keys)
    p.add(Listener)
    return mr.testing.Harness(p, **harness)


@pytest.mark.parametrize("publish", [False, True])
def test_each_key_begins_once_and_goes_on_by_its_timers(publish: bool) -> None:
    with heartbeat("a", 7, (1, "x"), publish=publish) as h:
        h.crash()
        h.crash_in_next_epoch(2)
        h.advance_clock(10)
        h.crash()
        h.advance_clock(25)

        beats = [(out.key, out.value, out.timestamp) for out in h.outputs("beats")]
        keys = ("a", 7, (1, "x"))
        assert sorted(beats, key=repr) == sorted(
            [(key, 1, at) for key in keys for at in (10, 20)], key=repr
        )


def test_it_commits_when_it_has_something_to_do_and_not_because_its_input_is_over() -> None:
    with heartbeat("a", "b") as h:
        begun = dict(h._run_log.positions.numbers["Heartbeat"])
        for to_us in (1, 2, 9):
            h.advance_clock(to_us)
        assert h._run_log.positions.numbers["Heartbeat"] == begun
        assert sum(begun.values()) <= 2, "one for each interval of a key"
        h.advance_clock(10)
        assert [out.value for out in h.outputs("beats")] == [1, 1]
        assert sum(h._run_log.positions.numbers["Heartbeat"].values()) == 2 * sum(begun.values())


@pytest.mark.parametrize("percentile", [100, 50])
def test_a_timer_at_the_end_of_time_fires_there(percentile: int) -> None:
    class Last(mr.Computation):
        inputs = {"events": mr.by(str)}
        outputs = {"last": str}
        percentiles = (50,)

        def process_record(self, record: Any) -> None:
            self.set_timer("end", at=mr.MAX_TIMESTAMP, percentile=percentile)

        def process_timer(self, timer: Any) -> None:
            self.produce("last", timer.tag, timestamp=0)

    p = mr.Pipeline("last")
    p.inject("events", format=str)
    p.add(Last)
    with mr.testing.Harness(p) as h:
        h.inject("events", [("a", 5)])
        assert not h.outputs("last")
        h.advance_watermark("events", mr.MAX_TIMESTAMP)
        assert [out.value for out in h.outputs("last")] == ["end"]


def test_the_low_watermark_of_what_it_sends_is_its_oldest_timer() -> None:
    with heartbeat("a", "b") as h:
        assert h.low_watermark("Listener") == 10
        h.advance_clock(45)

        assert h.low_watermark("Listener") == 50
        assert {late for late, _ in (out.value for out in h.outputs("heard"))} == {False}
        assert h.counters("Heartbeat").late == 0


def test_keys_may_stand_beside_inputs() -> None:
    class Both(mr.Computation):
        inputs = {"events": mr.by(str)}
        outputs = {"said": str}

        def process_start(self) -> None:
            self.produce("said", "begun")

        def process_record(self, record: Any) -> None:
            self.produce("said", f"{record.value} {record.late}")

    p = mr.Pipeline("both")
    p.inject("events", format=str)
    p.add(Both, keys=["a"])
    with mr.testing.Harness(p) as h:
        h.inject("events", [("a", 5)])
        h.advance_watermark("events", 20)

        assert [(out.value, out.timestamp) for out in h.outputs("said")] == [
            ("begun", 0),
            ("a False", 5),
        ]
        assert h.low_watermark("Both") == 20


class Deaf(mr.Computation):
    def process_timer(self, timer: Any) -> None: ...


@pytest.mark.parametrize(
    ("computation", "keys", "words"),
    [
        (Heartbeat, None, "has no inputs.*or give it keys"),
        (Deaf, ["a"], "was given keys but has no process_start"),
        (Listener, ["a"], "Listener.*no process_start"),
        (Heartbeat, "ab", r"expected the keys as a list, \['ab'\]"),
        (Heartbeat, [], "these are 0 keys"),
        (Heartbeat, range(1001), "1,001 keys.*inject them as a stream"),
        (Heartbeat, [object()], "cannot be a key"),
    ],
)
def test_what_could_not_begin_is_refused(computation: Any, keys: Any, words: str) -> None:
    p = mr.Pipeline("p")
    p.inject("beats")

    def build() -> None:
        p.add(computation, keys=keys)
        p.build()

    with pytest.raises(PipelineError, match=f"(?s){words}"):
        build()
