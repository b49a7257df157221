"""One script, run by the Harness and by Spark: the outputs are equal, key by key, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import millrace as mr

SECOND = mr.SECOND


class Event(msgspec.Struct, frozen=True):
    user: str
    amount: int
    tags: str | None


class Sum(msgspec.Struct, frozen=True):
    total: int
    parts: list[int]


# -- one computation: every state cell, both timer domains, late records ---------------------------


class Windows(mr.Computation):
    inputs = {"events": mr.by("user")}
    outputs = {"sums": Sum, "late": int, "ticks": str}
    may_produce_late = mr.UNBOUNDED_PAST
    totals = mr.MapState(int)
    parts = mr.BagState(int)
    biggest = mr.CombiningState(int, max)
    seen = mr.ValueState(list[str])

    def process_record(self, record: mr.Record) -> None:
        if record.late:
            self.produce("late", record.value.amount)
            return
        window = record.timestamp // (10 * SECOND) * 10 * SECOND
        self.totals[window] = self.totals.get(window, 0) + record.value.amount
        self.parts.add(record.value.amount)
        self.biggest.add(record.value.amount)
        self.seen.set([*self.seen.get([]), record.value.tags or "-"])
        self.set_timer(window, at=window + 10 * SECOND)
        self.set_timer("idle", at=self.wall_time + 30 * SECOND, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        if timer.domain == mr.WALL_TIME:
            self.produce("ticks", ",".join(self.seen.get([])), timestamp=5)
            self.seen.clear()
            return
        made = Sum(self.totals.pop(timer.tag), [*self.parts, self.biggest.get()])
        self.produce("sums", made, timestamp=timer.at - 1)
        self.parts.clear()


def windows(events: Any = None) -> mr.Pipeline:
    p = mr.Pipeline("windows")
    p.inject(
        "events",
        events,
        timestamp="at" if events is not None else None,
        low_watermark=mr.BoundedDelay("5 s"),
        format=Event,
    )
    p.add(Windows)
    return p


WINDOWS = (
    windows,
    {"events": ("user string, amount long, tags string, at timestamp", 5 * SECOND)},
    ["sums", "late", "ticks"],
    [
        ("events", ("ann", 1, "a", 1 * SECOND), ("bob", 2, None, 2 * SECOND)),
        ("events", ("ann", 3, "b", 12 * SECOND), ("ann", 4, "c", 3 * SECOND)),
        ("events", ("ann", 5, "d", 16 * SECOND), ("cyd", 6, None, 9 * SECOND)),
        ("events", ("bob", 7, "late", 4 * SECOND), ("ann", 8, "late", 10 * SECOND)),
        ("clock", 29 * SECOND),
        ("clock", 30 * SECOND),
        ("events", ("bob", 9, "e", 40 * SECOND), ("ann", 10, None, 11 * SECOND)),
        ("clock", 61 * SECOND),
        ("events", ("ann", 11, "f", 39 * SECOND)),
    ],
)


# -- three levels, a diamond, several consumers, steps before and after, a hold --------------------


class Split(mr.Computation):
    inputs = {"words": mr.by(lambda word: word[0])}
    outputs = {"long": str, "short": str, "lengths": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("long" if len(record.value) > 3 else "short", record.value)
        self.produce("lengths", len(record.value), timestamp=record.timestamp + 1)


class Holding(mr.Computation):
    inputs = {"long": mr.by(len)}
    outputs = {"held": list[str]}
    words = mr.ValueState(list[str])
    # Of a late word, too, whose time has been passed when it comes.
    may_produce_late = mr.UNBOUNDED_PAST

    def process_record(self, record: mr.Record) -> None:
        words = [*self.words.get([]), record.value]
        self.words.set(words)
        if len(words) == 1:
            self.hold(record.timestamp)
            self.set_timer("flush", at=self.wall_time + 10 * SECOND, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("held", self.words.get(), timestamp=7 * SECOND)
        self.words.clear()
        self.hold(None)


class Passing(mr.Computation):
    inputs = {"short": mr.by_key()}
    outputs = {"passed": str}

    def process_record(self, record: mr.Record) -> None:
        self.produce("passed", f"{self.key}:{record.value}", key="all")


class Join(mr.Computation):
    """Fed by both sides of the diamond, by the level above them, and by an injector."""

    inputs = {
        "held": mr.by(lambda words: words[0][0]),
        "passed": mr.by(lambda text: text[0]),
        "odd": mr.by_key(),
        "words": mr.by(lambda word: word[-1]),
    }
    outputs = {"journal": str}
    lines = mr.BagState(str)

    def process_record(self, record: mr.Record) -> None:
        late = "!" if record.late else ""
        self.lines.add(f"{record.stream}{late}={record.value}@{record.timestamp // SECOND}")
        self.set_timer("close", at=(record.timestamp // (10 * SECOND) + 1) * 10 * SECOND)

    def process_timer(self, timer: mr.Timer) -> None:
        # Streams with several publishers have no order among them: only the set is compared.
        self.produce("journal", " ".join(sorted(self.lines)), timestamp=timer.at)
        self.lines.clear()


def diamond(lines: Any = None) -> mr.Pipeline:
    p = mr.Pipeline("diamond")
    p.inject(
        "lines",
        lines,
        timestamp="at" if lines is not None else None,
        low_watermark=mr.BoundedDelay("2 s"),
        format=str,
    )
    words = p.stream("lines").flat_map(lambda line: line.split())
    words.filter(lambda word: word != "the").map(lambda word: word.lower()).to("words", format=str)
    odd = p.stream("lengths").filter(lambda length: length % 2 == 1)
    odd.key_by(lambda length: "abc"[length % 3]).to("odd", format=int)
    for computation in (Split, Holding, Passing, Join):
        p.add(computation)
    return p


DIAMOND = (
    diamond,
    {"lines": ("line string, at long", 2 * SECOND)},
    ["words", "long", "short", "lengths", "held", "passed", "odd", "journal"],
    [
        ("lines", ("An apple a DAY", 1 * SECOND), ("the cat", 3 * SECOND), ("", 3 * SECOND)),
        ("lines", ("bad beer", 8 * SECOND), ("coal", 2 * SECOND), ("ale after all", 6 * SECOND)),
        ("clock", 9 * SECOND),
        (
            "lines",
            ("the bear bit a cobra", 14 * SECOND),
        ),
        ("clock", 10 * SECOND),
        ("clock", 11 * SECOND),
        ("lines", ("abba", 4 * SECOND), ("cab", 25 * SECOND)),
        ("clock", 40 * SECOND),
    ],
)


# -- two injectors, one of them behind; timers that re-arm, move and vanish; dead letters ----------


class Click(msgspec.Struct, frozen=True):
    user: int
    ad: int


class Match(mr.Computation):
    inputs = {
        "clicks": mr.by("user"),
        "views": mr.by("user"),
    }
    outputs = {"matches": str, "reminders": int}
    views = mr.MapState(int)
    reminders = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        if record.stream == "views":
            self.views[record.value.ad] = record.timestamp
            self.set_timer(("forget", record.value.ad), at=record.timestamp + 10 * SECOND)
            self.set_timer("remind", at=self.wall_time + 5 * SECOND, domain=mr.WALL_TIME)
            return
        if record.value.ad == 13:
            raise ValueError("an unlucky ad")
        found = self.views.pop(record.value.ad, None)
        if found is None:
            self.produce("matches", f"nothing for {record.value.ad} late={record.late}")
            return
        self.delete_timer(("forget", record.value.ad))
        self.delete_timer("remind", domain=mr.WALL_TIME)
        self.produce("matches", f"{record.value.ad} seen at {found // SECOND}", key=record.value.ad)

    def process_timer(self, timer: mr.Timer) -> None:
        if timer.tag == "remind":
            count = self.reminders.get(0) + 1
            self.reminders.set(count)
            self.produce("reminders", count)
            if count < 3:
                self.set_timer("remind", at=timer.at + 5 * SECOND, domain=mr.WALL_TIME)
            return
        ad = timer.tag[1]
        if self.views.pop(ad, None) is not None:
            self.produce("matches", f"{ad} forgotten")


class PerAd(mr.Computation):
    inputs = {"matches": mr.by(lambda text: text.split()[0])}
    outputs = {"per_ad": int}
    count = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.add(1)
        self.produce("per_ad", self.count.get())


def advertising(clicks: Any = None, views: Any = None) -> mr.Pipeline:
    p = mr.Pipeline("advertising")
    for name, source, delay in (("clicks", clicks, "1 s"), ("views", views, "4 s")):
        p.inject(
            name,
            source,
            timestamp="at" if source is not None else None,
            low_watermark=mr.BoundedDelay(delay),
            format=Click,
        )
    p.add(Match)
    p.add(PerAd)
    p.dead_letter("rejects")
    return p


_CLICK = "user int, ad int, at timestamp"
ADVERTISING = (
    advertising,
    {"clicks": (_CLICK, 1 * SECOND), "views": (_CLICK, 4 * SECOND)},
    ["matches", "reminders", "per_ad", "rejects"],
    [
        ("views", (1, 10, 1 * SECOND), (2, 10, 2 * SECOND), (3, 11, 2 * SECOND)),
        ("clicks", (1, 10, 3 * SECOND), (1, 11, 4 * SECOND), (2, 13, 4 * SECOND)),
        ("clock", 5 * SECOND),
        ("views", (1, 12, 17 * SECOND), (-5, 13, 17 * SECOND)),
        ("clicks", (2, 10, 15 * SECOND), (1, 12, 16 * SECOND)),
        ("clock", 21 * SECOND),
        ("clicks", (2, 10, 5 * SECOND), (-5, 14, 30 * SECOND)),
        ("views", (2, 14, 40 * SECOND), (2, 15, 3 * SECOND)),
    ],
)


@pytest.mark.parametrize(
    "scenario", [WINDOWS, DIAMOND, ADVERTISING], ids=["windows", "diamond", "advertising"]
)
def test_spark_does_what_the_harness_does(scenario: Any, tools: Any) -> None:
    build, inputs, streams, script = scenario

    expected = on_harness(tools, build(), inputs, streams, script)
    found = on_spark(tools, build, inputs, streams, script)

    for stream in streams:
        assert expected[stream], f"the script gives {stream!r} nothing to compare"
        assert _comparable(tools, found[stream]) == _comparable(tools, expected[stream]), stream


def _comparable(tools: Any, rows: list[Any]) -> Any:
    """Return rows by key, without the epoch in dead letters: on Spark a tick makes one, too."""
    return tools.by_key(
        [
            (key, {k: v for k, v in value.items() if k != "epoch"}, at)
            if isinstance(value, dict)
            else (key, value, at)
            for key, value, at in rows
        ]
    )


def on_harness(
    tools: Any, pipeline: mr.Pipeline, inputs: Any, streams: list[str], script: list[Any]
) -> dict[str, list[Any]]:
    published: dict[str, int] = {}
    with mr.testing.Harness(pipeline) as h:
        h.advance_clock(tools.T0)
        for name, *what in script:
            if name == "clock":
                h.advance_clock(tools.T0 + what[0])
                continue
            format = pipeline.injections[name].format
            h.inject(name, [(value_of(format, row[:-1]), row[-1]) for row in what])
            # On Spark, too, a low watermark is published with the epoch after the records.
            newest = max(row[-1] for row in what) - inputs[name][1]
            if newest > published.get(name, mr.MIN_TIMESTAMP):
                published[name] = newest
                h.advance_watermark(name, newest)
        for name in inputs:
            h.advance_watermark(name, mr.MAX_TIMESTAMP)
        return {stream: tools.harness_rows(h.outputs(stream)) for stream in streams}


def on_spark(
    tools: Any,
    build: Callable[..., mr.Pipeline],
    inputs: Any,
    streams: list[str],
    script: list[Any],
) -> dict[str, list[Any]]:
    feeds = {name: tools.feed(ddl) for name, (ddl, _) in inputs.items()}
    pipeline = build(**{name: feed.stream for name, feed in feeds.items()})
    sinks = {stream: tools.Kept() for stream in streams}
    for stream, sink in sinks.items():
        pipeline.sink(stream, sink)
    run = tools.start(pipeline)
    tools.step(run)
    for name, *what in script:
        if name == "clock":
            tools.clock.now = tools.T0 + what[0]
        else:
            feeds[name].add(*what)
        tools.step(run)
    assert tools.finish(run).state == "drained"
    return {stream: sink.rows for stream, sink in sinks.items()}


def value_of(format: Any, fields: tuple[Any, ...]) -> Any:
    return format(*fields)
