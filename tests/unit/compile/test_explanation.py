"""``p.explain()``: the tree of stages, exactly."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.compile.explanation import python_reason


class Score(msgspec.Struct, frozen=True):
    user: str
    team: str
    points: int
    robot: bool = False


class Alarm(mr.Computation):
    inputs = {"totals": mr.by_key()}
    outputs = {"alarms": str}
    productions = mr.WEAK
    delivery = mr.AT_LEAST_ONCE

    def process_record(self, record: mr.Record) -> None:
        """Do nothing."""


def human(score: Score) -> bool:
    return not score.robot


def band(total: int) -> int:
    return total // 10


def to_nowhere(rows: Any, epoch: int) -> None:
    pass


def pipeline() -> mr.Pipeline:
    p = mr.Pipeline("game")
    p.inject("scores", format=Score, id="event", slack="1 h")
    p.inject("names", format=dict)
    humans = p.stream("scores").filter(human).to("humans")
    how: dict[str, Any] = {
        "mode": mr.ACCUMULATING_AND_RETRACTING,
        "trigger": mr.SequenceOf(
            mr.RepeatUntil(mr.AtPeriod("1 min"), mr.AtWatermark()), mr.Repeat(mr.AtWatermark())
        ),
        "allowed_lateness": "2 d",
    }
    totals = humans.key_by("team").window(mr.FixedWindows("1 h"), **how).sum("points").to("totals")
    totals.key_by(band).max().to("best")
    p.stream("names").key_by("user").window(mr.Sessions("5 min")).join(
        humans.key_by("user"), "left"
    ).map(str).to("named")
    p.stream("names").key_by("user").window(mr.FixedWindows("1 h")).count().to("seen")
    p.add(Alarm)
    p.stream("alarms").flatten(p.stream("named")).with_timestamps(len, backwards="3 d").to("out")
    p.sink("out", to_nowhere)
    p.dead_letter("rejects")
    p.sink("rejects", mr.sinks.Memory())
    return p


TREE = """\
pipeline 'game': 2 levels, 2 shuffles an epoch

sources, with Python before the first shuffle: a filter reads 'scores'
├─ stream 'names' (dict)
│  ├─ edge 1 by('user') -> 'names.key_by-1.join-1'
│  │     not lifted: a join pairs every value
│  └─ edge 2 by('user') -> 'seen'
│        lifted: values of a key and window are combined before the shuffle
└─ stream 'scores' (Score)
   └─ filter(human), to 'humans'
      ├─ edge 0 by('user') -> 'names.key_by-1.join-1'
      │     not lifted: a join pairs every value
      └─ edge 3 by('team') -> 'totals'
            not lifted: duplicates are filtered by id first

level 1
├─ 'names.key_by-1.join-1' (exactly once, strong productions)
│  │  what   Pairs('left') of 'names' and 'humans'
│  │  where  Sessions('5 min')
│  │  when   Repeat(AtWatermark())
│  │  how    ACCUMULATING
│  │  drops what 'humans' delivers again: ids are kept for 1 h
│  └─ stream 'names.key_by-1.join-1' (list[tuple[dict | None, Score | None]], with panes)
│     └─ flat_map(_each_pair), map(str), to 'named', to 'alarms.flatten-1', \
with_timestamps(len, backwards='3 d'), to 'out'
│        └─ sink 0: to_nowhere
├─ 'seen' (exactly once, strong productions)
│  │  what   Count()
│  │  where  FixedWindows('1 h')
│  │  when   Repeat(AtWatermark())
│  │  how    ACCUMULATING
│  │  kept   as columns, all keys together
│  └─ stream 'seen' (int, with panes): nobody reads it
└─ 'totals' (exactly once, strong productions)
   │  what   Sum() of 'points'
   │  where  FixedWindows('1 h')
   │  when   SequenceOf(RepeatUntil(AtPeriod('1 min'), AtWatermark()), Repeat(AtWatermark())), \
allowed lateness 2 d
   │  how    ACCUMULATING_AND_RETRACTING
   │  drops what 'humans' delivers again: ids are kept for 1 h
   └─ stream 'totals' (int, with panes and retractions)
      ├─ edge 4 by_key() -> 'Alarm'
      └─ edge 5 by(band) -> 'best'
            not lifted: its input is of panes, or has windows already

level 2
├─ 'Alarm' (at least once, weak productions)
│  └─ stream 'alarms' (str, with panes and retractions)
│     └─ to 'alarms.flatten-1': see above
└─ 'best' (exactly once, strong productions)
   │  what   Max(), values kept for retractions
   │  where  AssignedWindows(FixedWindows('1 h'))
   │  when   SequenceOf(RepeatUntil(AtPeriod('1 min'), AtWatermark()), Repeat(AtWatermark())), \
allowed lateness 2 d
   │  how    ACCUMULATING_AND_RETRACTING
   └─ stream 'best' (int | None, with panes and retractions): nobody reads it

letters, from every stage
└─ stream 'rejects' (DeadLetter)
   └─ sink 1: Memory()"""


def test_the_tree_of_a_pipeline() -> None:
    assert str(pipeline().explain()) == TREE


def test_a_notebook_shows_it_by_itself() -> None:
    assert repr(pipeline().explain()) == TREE


def test_it_runs_as_explained() -> None:
    with mr.testing.Harness(pipeline()) as h:
        h.inject("scores", [(Score("ann", "red", 7), 3, "e1"), (Score("ann", "red", 7), 3, "e1")])
        h.inject("scores", [(Score("bot", "red", 99, robot=True), 4, "e2")])
        for stream in ("scores", "names"):
            h.advance_watermark(stream, mr.HOUR)
        assert [out.value for out in h.outputs("totals")] == [7]


@pytest.mark.parametrize(
    ("feed", "reason"),
    [
        (lambda s: s.key_by("team").window().sum("points"), None),
        (lambda s: s.filter(human).key_by("team").window().count(), "a filter reads 'scores'"),
        (lambda s: s.to("named").key_by("team").window().count(), "another stream is made of"),
        (lambda s: s.key_by("team", "user").window().count(), r"by\('team', 'user'\)"),
        (lambda s: s.key_by(human).window().count(), r"by\(human\)"),
        (lambda s: s.pipeline.sink("scores", to_nowhere), "a sink takes 'scores'"),
        (lambda s: s.pipeline.add(Both), "Both, which reads 'scores', is on level 2"),
    ],
    ids=["column", "step", "name", "columns", "function", "sink", "level"],
)
def test_why_a_source_needs_python(feed: Any, reason: str | None) -> None:
    p = mr.Pipeline("reasons")
    scores = p.inject("scores", format=Score)
    p.inject("others", format=Score)
    p.stream("others").key_by("team").window().count().to("counts")
    feed(scores)
    topology = p.build()
    found = python_reason(topology, topology.streams["scores"])
    if reason is None:
        assert found is None
        assert "by Spark alone, if the keys' columns are text" in str(p.explain())
    else:
        assert found is not None
        assert re.search(reason, found)
        assert found in str(p.explain())


class Both(mr.Computation):
    inputs = {"scores": mr.by("team"), "counts": mr.by_key()}

    def process_record(self, record: mr.Record) -> None:
        """Do nothing."""


def test_a_pipeline_that_cannot_run_is_refused() -> None:
    p = mr.Pipeline("broken")
    p.sink("nothing", to_nowhere)
    with pytest.raises(mr.MillraceError, match="nobody injects"):
        p.explain()


class Reminder(mr.Computation):
    inputs = {"scores": mr.by("team")}
    outputs = {"reminders": str}
    productions = mr.WEAK

    def process_record(self, record: mr.Record) -> None:
        self.set_timer("remind", after="1 h")

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("reminders", self.key)


def test_weak_productions_that_real_time_makes_strong_are_said_with_the_reason() -> None:
    p = mr.Pipeline("reminders")
    p.inject("scores", format=Score)
    p.add(Reminder)

    about = "productions are strong in real time: it has timers, which may fire otherwise"
    head, note = str(p.explain()).splitlines()[7:9]
    assert head == "└─ 'Reminder' (exactly once, weak productions)"
    assert about in note
    live = dataclasses.replace(p.explain(), realtime=True)
    assert "'Reminder' (exactly once, strong productions)" in str(live)
    assert about in str(live)


def test_in_real_time_each_source_is_read_by_itself() -> None:
    p = mr.Pipeline("two")
    p.inject("names", format=str).key_by(len).window(mr.FixedWindows("1 h")).count().to("lengths")
    p.inject("scores", format=Score).key_by("team").window(mr.FixedWindows("1 h")).count().to(
        "teams"
    )
    reason = "lengths takes its key from 'names' by(len)"

    assert (
        str(p.explain()).splitlines()[2]
        == f"sources, with Python before the first shuffle: {reason}"
    )
    live = dataclasses.replace(p.explain(), realtime=True)
    assert str(live).splitlines()[2] == (
        f"sources, by columns, and these record by record in Python: {reason}"
    )


def test_a_grouping_with_parts_says_so() -> None:
    p = mr.Pipeline("hot")
    scores = p.inject("scores", format=Score).key_by("team").window(mr.FixedWindows("1 h"))
    scores.sum("points", fanout=4).to("totals")
    assert str(p.explain()).splitlines()[2:12] == [
        "sources, with Python before the first shuffle: "
        "totals.parts takes its key from 'scores' by('team') in 4 parts",
        "└─ stream 'scores' (Score)",
        "   └─ edge 0 by('team') in 4 parts -> 'totals.parts'",
        "         not lifted: the parts of a key combine its values",
        "",
        "level 1",
        "└─ 'totals.parts' (exactly once, strong productions)",
        "   │  what   Sum() of 'points', of each part of a key",
        "   └─ stream 'totals.parts' (PartialCoder(MsgpackCoder(int | float | decimal.Decimal)))",
        "      └─ edge 1 by_key() -> 'totals'",
    ]


def test_a_source_that_is_asked_when_it_runs_needs_no_session(tmp_path: Path) -> None:
    p = mr.Pipeline("files")
    source = mr.sources.Files(tmp_path, schema="user string, at timestamp")
    p.inject("logins", source, timestamp="at", format=dict)
    p.stream("logins").key_by("user").window(mr.FixedWindows("1 h")).count().to("counts")

    sources, stream = str(p.explain()).splitlines()[2:4]
    assert sources.startswith("sources, by columns: keys are encoded and hashed all at once")
    assert stream == "└─ stream 'logins' (dict), event time 'at', Files"
