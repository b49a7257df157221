"""One script, run by the Harness and by Spark: after each step they have done the same.

The pipelines do not touch each other, and share one query: an epoch costs the same for all of them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import millrace as mr

SECOND = mr.SECOND
#: Where the clock begins; far ahead, as the alarm of an idle run goes by the machine's own.
T0 = 4_102_444_800 * SECOND


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


def windows(p: mr.Pipeline, sources: Mapping[str, Any]) -> None:
    inject(p, sources, "events", low_watermark=mr.BoundedDelay("5 s"), format=Event)
    p.add(Windows)


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


def diamond(p: mr.Pipeline, sources: Mapping[str, Any]) -> None:
    inject(p, sources, "lines", low_watermark=mr.BoundedDelay("2 s"), format=str)
    words = p.stream("lines").flat_map(lambda line: line.split())
    words.filter(lambda word: word != "the").map(lambda word: word.lower()).to("words", format=str)
    odd = p.stream("lengths").filter(lambda length: length % 2 == 1)
    odd.key_by(lambda length: "abc"[length % 3]).to("odd", format=int)
    for computation in (Split, Holding, Passing, Join):
        p.add(computation)


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


def advertising(p: mr.Pipeline, sources: Mapping[str, Any]) -> None:
    inject(p, sources, "clicks", low_watermark=mr.BoundedDelay("1 s"), format=Click)
    inject(p, sources, "views", low_watermark=mr.BoundedDelay("4 s"), format=Click)
    p.add(Match)
    p.add(PerAd)


# -- time: timers as the records ask for them, holds, late productions, percentiles ----------------


class Order(msgspec.Struct, frozen=True):
    """What is to be done with timer ``what``, or to produce it."""

    key: str
    do: str
    what: str
    to: int
    hold: int | None
    percentile: int


class Obey(mr.Computation):
    inputs = {"orders": mr.by("key")}
    percentiles = (50,)

    def __init__(self, stream: str, may_produce_late: str | int) -> None:
        self.outputs = {stream: str}
        self.stream = stream
        self.may_produce_late = may_produce_late

    def process_record(self, record: mr.Record) -> None:
        do, what, to = record.value.do, record.value.what, record.value.to
        hold, percentile = record.value.hold, record.value.percentile
        domain = mr.WALL_TIME if do.startswith("wall") else mr.LOW_WATERMARK
        if do == "produce":
            self.produce(self.stream, what, timestamp=to)
        elif do.endswith("delete"):
            self.delete_timer(what, domain=domain)
        else:
            self.set_timer(what, at=to, domain=domain, hold=hold, percentile=percentile)

    def process_timer(self, timer: mr.Timer) -> None:
        if timer.tag.startswith("delete "):
            self.delete_timer(timer.tag.removeprefix("delete "))
        if timer.tag == "again" and timer.at < 24 * SECOND:
            self.set_timer("again", at=timer.at + 3 * SECOND)
        clocks = f"{self.low_watermark}, {self.wall_time - T0}"
        self.produce(self.stream, f"{timer.tag} fired at {clocks}")


class See(mr.Computation):
    def __init__(self, stream: str) -> None:
        self.inputs = {stream: mr.by_key()}
        self.outputs = {f"{stream}_seen": str}

    def process_record(self, record: mr.Record) -> None:
        late = "late: " if record.late else ""
        self.produce(f"{record.stream}_seen", f"{late}{record.value}")


def timing(p: mr.Pipeline, sources: Mapping[str, Any]) -> None:
    inject(p, sources, "orders", low_watermark=mr.BoundedDelay("10 s"), format=Order)
    for stream, may_produce_late in (("punctual", 0), ("tardy", "10 s")):
        p.add(Obey(stream, may_produce_late), name=f"obey {stream}")
        p.add(See(stream), name=f"see {stream}")


# -- an injector in Python: it is held back, and one of its processes falls silent -----------------


class Numbers(mr.sources.Injector):
    """Two processes with a record a second; how many there are says a file."""

    schema = "n long, at long"

    def __init__(self, there: Path) -> None:
        self.there = there

    def processes(self) -> list[str]:
        return ["fast", "slow"]

    def advance(self, process: str, offset: Any) -> mr.sources.Advance:
        there = json.loads(self.there.read_text())[process]
        at = min((offset or 0) + 10, there)
        return mr.sources.Advance(at, low_watermark=at * SECOND)

    def read(self, process: str, start: Any, end: Any) -> Any:
        return ((n, n * SECOND) for n in range(start or 0, end))


class Buffer(mr.Computation):
    inputs = {"numbers": mr.by(lambda value: value["n"] % 3)}
    outputs = {"tens": list[int]}
    waiting = mr.MapState(list[int])

    def process_record(self, record: mr.Record) -> None:
        ten = record.timestamp // (10 * SECOND)
        self.waiting[ten] = [*self.waiting.get(ten, []), record.value["n"]]
        self.set_timer(ten, at=(ten + 1) * 10 * SECOND)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("tens", sorted(self.waiting.pop(timer.tag)))


def buffering(p: mr.Pipeline, sources: Mapping[str, Any]) -> None:
    inject(p, sources, "numbers", skew="15 s", idle="31 s")
    p.add(Buffer)


# -- records that arrive at most five seconds after their timestamps, by the clock -----------------


class Leave(mr.Computation):
    inputs = {"visits": mr.by("name")}
    outputs = {"left": str}

    def process_record(self, record: mr.Record) -> None:
        self.set_timer("leave", at=record.timestamp)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("left", f"by {self.low_watermark - T0}")


class Visit(msgspec.Struct, frozen=True):
    name: str


def visiting(p: mr.Pipeline, sources: Mapping[str, Any]) -> None:
    inject(p, sources, "visits", low_watermark=mr.ArrivalTime("5 s", every="5 s"), format=Visit)
    p.add(Leave)


# -- the script ------------------------------------------------------------------------------------

#: Injected stream -> columns of its source; a row of the script has their values.
FEEDS = {
    "events": "user string, amount long, tags string, at timestamp",
    "lines": "line string, at long",
    "clicks": "user int, ad int, at timestamp",
    "views": "user int, ad int, at timestamp",
    "visits": "name string, at long",
    "orders": "key string, do string, what string, to long, hold long, percentile int, at long",
}


def order(
    at: int, key: str, do: str, what: str, to: int, hold: int | None = None, percentile: int = 100
) -> tuple[Any, ...]:
    """Return a row of orders, of times in seconds; those of wall-clock timers from T0."""
    start = T0 if do.startswith("wall") else 0
    hold_us = None if hold is None else hold * SECOND
    return key, do, what, start + to * SECOND, hold_us, percentile, at * SECOND


SCRIPT: list[dict[str, Any]] = [
    {
        "events": [("ann", 1, "a", 1 * SECOND), ("bob", 2, None, 2 * SECOND)],
        "lines": [("An apple a DAY", 1 * SECOND), ("the cat", 3 * SECOND), ("", 3 * SECOND)],
        "views": [(1, 10, 1 * SECOND), (2, 10, 2 * SECOND), (3, 11, 2 * SECOND)],
        "orders": [
            # A hold, by a timer that no record is going to fire.
            order(3, "held", "wall set", "send", 10, hold=3),
            order(3, "held", "wall set", "gone, too", 10, hold=1),
            order(4, "held", "wall delete", "gone, too", 0),
            # Set again, deleted; a tag is another timer in the other domain.
            order(4, "moved", "set", "moved", 30),
            order(4, "moved", "set", "moved", 12),
            order(5, "moved", "set", "gone", 12),
            order(5, "moved", "delete", "gone", 0),
            order(5, "moved", "wall set", "moved", 10, hold=12),
            # In increasing order, with what a timer sets, and without what a timer deletes.
            order(2, "order", "set", "second", 9),
            order(2, "order", "set", "delete victim", 7),
            order(2, "order", "set", "victim", 8),
            order(2, "order", "set", "again", 6),
            order(2, "order", "set", "first", 4),
            order(6, "share", "set", "all", 20),
            order(6, "share", "set", "half", 20, percentile=50),
            order(15, "newest", "produce", "at once", 15),
        ],
        "visits": [("ida", T0 - 3 * SECOND), ("joe", T0 + 4 * SECOND)],
        "numbers": {"fast": 100, "slow": 5},
    },
    {
        "events": [("ann", 3, "b", 12 * SECOND), ("ann", 4, "c", 3 * SECOND)],
        "lines": [("bad beer", 8 * SECOND), ("coal", 2 * SECOND), ("ale after all", 6 * SECOND)],
        "clicks": [(1, 10, 3 * SECOND), (1, 11, 4 * SECOND), (2, 13, 4 * SECOND)],
        "orders": [order(at, "newest", "produce", "on time", at) for at in range(14, 25)],
    },
    {
        "events": [("ann", 5, "d", 16 * SECOND), ("cyd", 6, None, 9 * SECOND)],
        "lines": [("the bear bit a cobra", 14 * SECOND)],
        "views": [(1, 12, 17 * SECOND), (-5, 13, 17 * SECOND)],
    },
    {"clock": 10 * SECOND},
    {
        "events": [("bob", 7, "late", 4 * SECOND), ("ann", 8, "late", 10 * SECOND)],
        "clicks": [(2, 10, 15 * SECOND), (1, 12, 16 * SECOND)],
        "lines": [("abba", 4 * SECOND), ("cab", 25 * SECOND)],
        "orders": [
            # The answer to a late record may be as late; all else only by declaration.
            order(5, "late", "produce", "an answer", 5),
            order(30, "bound", "produce", "within the bound", 4),
            order(30, "beyond", "produce", "beyond the bound", 3),
            order(40, "pending", "set", "pending", 50),
            order(40, "pending", "wall set", "pending", 30, hold=40),
        ],
    },
    {"restart": True, "clock": 30 * SECOND},
    {
        "events": [("bob", 9, "e", 40 * SECOND), ("ann", 10, None, 11 * SECOND)],
        "clicks": [(2, 10, 5 * SECOND), (-5, 14, 30 * SECOND)],
        "visits": [("joe", T0 + 9 * SECOND), ("ida", T0 + 27 * SECOND)],
        "numbers": {"fast": 100, "slow": 30},
    },
    {"clock": 61 * SECOND},
    {
        "events": [("ann", 11, "f", 39 * SECOND)],
        "views": [(2, 14, 40 * SECOND), (2, 15, 3 * SECOND)],
        "orders": [order(61, "newest", "produce", "on time", 61)],
        "numbers": {"fast": 100, "slow": 60},
    },
]


def inject(p: mr.Pipeline, sources: Mapping[str, Any], stream: str, **options: Any) -> None:
    source = sources.get(stream)
    p.inject(stream, source, timestamp=None if source is None else "at", **options)


def pipeline(sources: Mapping[str, Any]) -> mr.Pipeline:
    """Return all of them as one; stream ``told`` has every record of every stream."""
    p = mr.Pipeline("everything")
    for build in (windows, diamond, advertising, timing, buffering, visiting):
        build(p, sources)
    p.dead_letter("rejects")
    p.late_records("stragglers")
    for stream in _streams(p):
        p.stream(stream).map(functools.partial(_told, stream)).to("told", format=str)
    return p


def _streams(p: mr.Pipeline) -> list[str]:
    """Return all that are produced and have names, unlike those between two steps."""
    made = {*p.build().streams} - {*p.injections, "told"}
    return sorted(stream for stream in made if "." not in stream)


def _told(stream: str, value: Any) -> str:
    plain = msgspec.to_builtins(value)
    if isinstance(plain, dict):
        plain.pop("epoch", None)  # on Spark, a tick has one, too
        plain.pop("error", None)  # a traceback
        for which_epoch in ("refused_in", "delivered_in", "place"):
            plain.pop(which_epoch, None)
    return f"{stream}: {plain}"


class OnHarness:
    """Runs the script in the Harness; injectors publish by their policies."""

    def __init__(self, tools: Any, there: Path) -> None:
        self.there = there
        self.p = pipeline({"numbers": Numbers(there)})
        self.h = mr.testing.Harness(self.p, publish=True)
        self._rows = tools.harness_rows
        self.clock(0)

    def feed(self, stream: str, rows: list[tuple[Any, ...]]) -> None:
        format = self.p.injections[stream].format
        self.h.inject(stream, [(format(*row[:-1]), row[-1]) for row in rows])

    def clock(self, to_us: int) -> None:
        self.h.advance_clock(T0 + to_us)

    def restart(self) -> None:
        self.h.crash()

    def settle(self) -> None:
        stood_at = None
        while self.h.poll("numbers") or stood_at != self.h.low_watermark("Buffer"):
            stood_at = self.h.low_watermark("Buffer")

    def end(self) -> None:
        for stream in self.p.injections:
            self.h.advance_watermark(stream, mr.MAX_TIMESTAMP)

    def found(self) -> dict[str, Any]:
        h, names = self.h, self.p.computations
        return {
            "told": _by_key(self._rows(h.outputs("told"))),
            "low watermarks": {name: h.low_watermark(name) for name in names},
            "counters": {name: _counted(h.counters(name)) for name in names},
        }


class OnSpark:
    """Runs the script on Spark, with a file of Parquet for each call of ``feed``."""

    def __init__(self, tools: Any, there: Path) -> None:
        self.there = there
        self._feeds = {stream: tools.feed(ddl) for stream, ddl in FEEDS.items()}
        self._tools, self._told = tools, tools.Kept()
        sources = {stream: feed.stream for stream, feed in self._feeds.items()}
        self.p = pipeline(sources | {"numbers": Numbers(there)})
        self.p.sink("told", self._told)
        self._run: Any = None  # until sources have something: they are asked at once

    def _start(self) -> None:
        # As many intervals as the Harness has: sketches are of an interval.
        self._run = self._tools.start(self.p, intervals=4)

    def feed(self, stream: str, rows: list[tuple[Any, ...]]) -> None:
        self._feeds[stream].add(*rows)

    def clock(self, to_us: int) -> None:
        self._tools.clock.now = T0 + to_us

    def restart(self) -> None:
        self._run.stop()
        self._start()

    def settle(self) -> None:
        if self._run is None:
            self._start()
        self._tools.step(self._run)

    def end(self) -> None:
        assert self._tools.finish(self._run).state == "drained"

    def found(self) -> dict[str, Any]:
        return self._found(self._told.rows)

    def _found(self, told: list[tuple[Any, Any, int]]) -> dict[str, Any]:
        status = self._run.status()
        return {
            "told": _by_key(told),
            "low watermarks": status.low_watermarks,
            "counters": {name: _counted(status.counters[name]) for name in self.p.computations},
        }


def _by_key(rows: list[tuple[Any, str, int]]) -> dict[str, list[tuple[str, int]]]:
    """Return what was told, by stream and key, in order: all that does not depend on the shell."""
    found: dict[str, list[tuple[str, int]]] = {}
    for key, told, at in rows:
        found.setdefault(f"{told.partition(':')[0]} {key}", []).append((told, at))
    # Of one key there, several computations tell.
    return {
        name: sorted(told) if name.startswith(("rejects", "stragglers")) else told
        for name, told in found.items()
    }


def _counted(counters: Any) -> dict[str, Any]:
    """Return a computation's counters, but those that the shell has a part in.

    How many bundles there are is Spark's to say, and the first late record and the first dead
    letter have the epoch's number; the Harness has a sink on every stream.
    """
    left_out = ("keys", "first_late", "productions", "reasons")
    found = {n: getattr(counters, n) for n in counters.__struct_fields__ if n not in left_out}
    return found | {"reasons": {why: counted.count for why, counted in counters.reasons.items()}}


def _do(executor: Any, step: Mapping[str, Any]) -> dict[str, Any]:
    """Take a step of the script; return all that there is then to compare."""
    for what, given in step.items():
        if what in FEEDS:
            executor.feed(what, given)
        elif what == "numbers":
            unfinished = executor.there.with_suffix(".new")
            unfinished.write_text(json.dumps(given))
            unfinished.rename(executor.there)
        elif what == "clock":
            executor.clock(given)
        else:
            getattr(executor, what)()
    if "end" not in step:
        executor.settle()
    found: dict[str, Any] = executor.found()
    return found


def test_after_each_step_spark_has_done_what_the_harness_has(tools: Any, tmp_path: Path) -> None:
    compare(OnHarness(tools, tmp_path / "harness"), OnSpark(tools, tmp_path / "spark"))


def compare(harness: OnHarness, spark: Any, *, merged: tuple[str, ...] = ()) -> None:
    """Run the script with both; after each step they must have done the same.

    Args:
        harness: Says what is right.
        spark: Does it too.
        merged: Streams of which a key has records of several senders, in whatever order: what was
            told of it and its timestamps are compared apart.
    """
    for number, step in enumerate([*SCRIPT, {"end": True}]):
        expected, found = _do(harness, step), _do(spark, step)
        for told in (expected["told"], found["told"]):
            for name, of_key in told.items():
                if name.startswith(merged):
                    told[name] = [sorted(column) for column in zip(*of_key, strict=True)]
        differences = {
            f"{kind} of {name}": (found[kind].get(name), expected[kind].get(name))
            for kind in expected
            for name in expected[kind].keys() | found[kind].keys()
            if found[kind].get(name) != expected[kind].get(name)
        }
        assert not differences, f"after step {number}, on Spark and in the Harness: {differences}"
        if number == 0:  # of 100 of the fast process: ten at once, while it is 15 s ahead at most
            assert found["counters"]["Buffer"]["records"] == 5 + 30
    # There was something of every stream, and what is refused was refused.
    assert {name.split()[0] for name in found["told"]} == set(_streams(harness.p))
    assert found["counters"]["obey punctual"]["dead_letters"] == 2
    assert found["counters"]["obey tardy"]["dead_letters"] == 1
    assert found["counters"]["see punctual"]["late"] == 1
    assert found["counters"]["see tardy"]["late"] == 2
