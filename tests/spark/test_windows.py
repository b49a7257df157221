"""Windows on Spark: whatever is built of them, the panes are those of the Harness.

Many pipelines in one query, for an epoch costs the same for all of them; and once more in a batch.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import msgspec

import millrace as mr
from millrace.inspect import Pin, explain_watermark
from millrace.testing import Output, outputs_of

SECOND = mr.SECOND


class Score(msgspec.Struct, frozen=True):
    team: str
    points: int
    sent: int


def sessions(scores: Any) -> list[Any]:
    """Sum each team's sessions, then count the sessions of each sum: keys that change.

    Twice: the sums go by a step to ``sizes``, and through a computation to ``counted``.
    """
    trigger = mr.SequenceOf(
        mr.RepeatUntil(mr.AtPeriod("1 min"), mr.AtWatermark()), mr.Repeat(mr.AtWatermark())
    )
    totals = scores.key_by("team").window(mr.Sessions("10 s"), trigger=trigger, **REFINED)
    totals = totals.sum("points").to("totals")
    sizes = totals.key_by(_last_digit).window(mr.FixedWindows("1 h"), **REFINED)
    scores.pipeline.add(Sizes)
    last_digits = scores.pipeline.stream("last_digits")
    counted = last_digits.window(mr.FixedWindows("1 h"), **REFINED).count().to("counted")
    return [totals, sizes.count().to("sizes"), last_digits, counted]


class Sizes(mr.Computation):
    """Between two groupings, as a step would be; what it makes of a retraction is one."""

    inputs = {"totals": mr.by_key()}
    outputs = {"last_digits": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("last_digits", record.value % 10, key=_last_digit(record.value))


def joins(scores: Any) -> list[Any]:
    """Join small scores with large ones: by windows, and as soon as there are both."""
    small, large = scores.filter(_is_small), scores.filter(_is_large)
    found = []
    for how in ("inner", "left", "outer"):
        windowed = small.key_by("team").window(mr.FixedWindows("10 s"), **REFINED)
        found.append(windowed.join(large.key_by("team"), how).to(f"{how} pairs"))
    trigger = mr.Repeat(mr.FirstOf(HashJoin(), mr.AfterDelay("1 min")))
    hashed = small.key_by("team").window(mr.GlobalWindow(), trigger=trigger, mode=mr.DISCARDING)
    return [*found, hashed.join(large.key_by("team"), "outer").to("hashed pairs")]


class HashJoin(mr.Trigger):
    """Fires when an element of each side has come."""

    finishes = True

    def on_element(self, ctx: Any) -> None:
        side, _ = ctx.element
        sides = {side, *ctx.get("sides", [])}
        ctx.set("sides", sorted(sides))
        if len(sides) == 2:
            ctx.trigger()
            ctx.done()


def parts(scores: Any) -> list[Any]:
    """Sum by windows with each key in four parts."""
    trigger = mr.SequenceOf(
        mr.RepeatUntil(mr.AtPeriod("1 min"), mr.AtWatermark()), mr.Repeat(mr.AtWatermark())
    )
    by_team = scores.key_by("team")
    fixed = by_team.window(mr.FixedWindows("20 s"), trigger=trigger, **REFINED)
    by_session = by_team.window(mr.Sessions("10 s"), **REFINED)
    return [
        fixed.sum("points", fanout=4).to("sums of parts"),
        by_session.count(fanout=4).to("sessions of parts"),
    ]


def users(scores: Any) -> list[Any]:
    """Triggers that users write: the short form, and a composite within another."""
    rising = scores.map(_points).window(mr.FixedWindows("1 min"), trigger=OnRise())
    second = EveryOther(mr.FirstOf(mr.AfterCount(1), mr.AfterDelay("30 s")))
    trigger = mr.SequenceOf(mr.RepeatUntil(second, mr.AtWatermark()), mr.Repeat(mr.AtWatermark()))
    how = {"mode": mr.DISCARDING, "allowed_lateness": "1 h"}
    merging = scores.key_by("team").window(mr.Sessions("10 s"), trigger=trigger, **how)
    return [
        rising.key_by(_nothing).sum().to("rises"),
        merging.sum("points").to("second times"),
    ]


class OnRise(mr.Trigger):
    def should_emit(self, element: int, state: int | None) -> tuple[bool, int]:
        return state is not None and element > state, element


class EveryOther(mr.CompositeTrigger):
    """Fires every second time that its child does."""

    def on_element(self, ctx: Any) -> None:
        self._ask(ctx, ctx.get("fired", 0))

    def on_merge(self, ctx: Any) -> None:
        self._ask(ctx, sum(source.get("fired", 0) for source in ctx.sources))

    def on_child_timer(self, ctx: Any) -> None:
        self._ask(ctx, ctx.get("fired", 0))

    def _ask(self, ctx: Any, fired: int) -> None:
        ctx.invoke_child(0)
        for event in ctx.trigger_history:
            fired += 1
            ctx.reset_child(event.child)
            if fired % 2 == 0:
                ctx.trigger(event.mode)
        ctx.set("fired", fired)


def moved(scores: Any) -> list[Any]:
    """Count by when a score was sent, up to half a minute back; by shifted windows; at first."""
    sent = scores.with_timestamps("sent", backwards="30 s").key_by("team")
    shifted = mr.FixedWindows("10 s", phase_shift=True)
    early = scores.key_by("team").window(
        mr.FixedWindows("10 s"), output_time=mr.OutputTime.EARLIEST
    )
    return [
        sent.window(mr.FixedWindows("10 s"), **REFINED).count().to("sent"),
        scores.key_by("team").window(shifted, **REFINED).sum("points").to("shifted"),
        early.count().to("at first"),
    ]


def rows(scores: Any) -> list[Any]:
    """Results with their key and window as fields: kept as columns, and key by key."""
    by_team = scores.key_by("team")
    plain = by_team.window(mr.FixedWindows("20 s"))
    refined = by_team.window(mr.Sessions("10 s"), mr.early("1 min"), **REFINED)
    return [
        plain.aggregate(n=mr.agg.count(), most=mr.agg.max("points"), keys=True).to("rows"),
        refined.sum("points", keys=True).to("rows of sessions"),
    ]


REFINED = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": "1 h"}


def _last_digit(total: int) -> str:
    return str(total % 10)


def _is_small(score: Score) -> bool:
    return score.points < 6


def _is_large(score: Score) -> bool:
    return score.points >= 6


def _points(score: Score) -> int:
    return score.points


def _nothing(value: Any) -> str:
    return "all"


def _told(name: str, value: Any) -> str:
    return f"{name}: {msgspec.to_builtins(value)}"


def pipeline(source: Any = None) -> mr.Pipeline:
    """Return all of them; stream ``told`` has every pane."""
    p = mr.Pipeline("windows")
    scores = p.inject(
        "scores",
        source,
        timestamp="at" if source is not None else None,
        low_watermark=mr.BoundedDelay("2 s"),
        format=Score,
    )
    p.dead_letter("letters")
    made = [
        each for build in (sessions, joins, parts, users, moved, rows) for each in build(scores)
    ]
    told = [each.map(functools.partial(_told, each.name)) for each in made]
    told[0].flatten(*told[1:]).to("told", format=str)
    return p


STREAMS = {
    "totals", "sizes", "last_digits", "counted",
    "inner pairs", "left pairs", "outer pairs", "hashed pairs",
    "sums of parts", "sessions of parts", "rises", "second times", "sent", "shifted", "at first",
    "rows", "rows of sessions",
}  # fmt: skip


def score(team: str, points: int, at: int, sent: int | None = None) -> tuple[str, int, int, int]:
    """Return a row of times in seconds."""
    return team, points, (at if sent is None else sent) * SECOND, at * SECOND


SCRIPT: list[Any] = [
    [score("red", 5, 1), score("red", 7, 20, sent=3), score("blue", 1, 3)],
    61 * SECOND,
    [
        score("red", 8, 12), score("blue", 2, 40, sent=12), score("blue", 9, 41, sent=40),
        # Further back than its consumers can be promised.
        score("gray", 1, 41, sent=10),
    ],
    # Late: the first bridges two sessions, the third gives a lonely score its partner.
    [score("red", 9, 6), score("blue", 1, 3), score("blue", 6, 4), score("red", 2, 44, sent=16)],
    130 * SECOND,
]  # fmt: skip


def pinned(pin: Pin) -> tuple[Any, ...]:
    """Return what pins a low watermark, but for the number of its key interval."""
    return pin.kind, pin.where, pin.timestamp, pin.key, pin.window


#: Columns of the source.
SCORES = "team string, points long, sent long, at timestamp"


class ByEpochs:
    """Runs the script on Spark."""

    def __init__(self, tools: Any) -> None:
        self.checkpoint = tools.checkpoint
        self.t0 = tools.T0
        self._tools, self._sink = tools, Panes()
        self._feed = tools.feed(SCORES)
        p = pipeline(self._feed.stream)
        p.sink("told", self._sink)
        self.run = tools.start(p)

    def clock(self, to_us: int) -> None:
        self._tools.clock.now = to_us

    def feed(self, rows: list[tuple[Any, ...]]) -> None:
        self._feed.add(*rows)

    def settle(self) -> None:
        self._tools.step(self.run)

    def finish(self) -> Any:
        return self._tools.finish(self.run)

    def outputs(self) -> list[Output]:
        return self._sink.outputs


def test_panes_on_spark_are_those_of_the_harness(tools: Any) -> None:
    compare(ByEpochs(tools))


def compare(spark: Any) -> None:
    """Run the script on Spark and in the Harness; after each step they must have done the same."""
    checkpoint, windows = mr.ops.open_checkpoint(spark.checkpoint), set()
    with mr.testing.Harness(pipeline()) as h:
        h.advance_clock(spark.t0)
        newest = 0
        for step in SCRIPT:
            if isinstance(step, int):
                spark.clock(spark.t0 + step)
                h.advance_clock(spark.t0 + step)
            else:
                spark.feed(step)
                h.inject("scores", [(Score(*row[:-1]), row[-1]) for row in step])
                newest = max(newest, *(row[-1] for row in step))
                h.advance_watermark("scores", newest - 2 * SECOND)
            spark.settle()
            assert by_key(spark.outputs()) == by_key(h.outputs("told")), f"after {step}"
            for name in spark.run.status().low_watermarks:
                found = explain_watermark(checkpoint.state, name)
                wanted = h.explain_watermark(name)
                assert found.path == wanted.path
                assert pinned(found.pin) == pinned(wanted.pin)
                windows.add(found.pin.window)
        status = spark.finish()
        h.advance_watermark("scores", mr.MAX_TIMESTAMP)
        expected = by_key(h.outputs("told"))
        refused = h.dead_letters("scores")

    assert by_key(spark.outputs()) == expected
    assert windows - {None}, "some window has pinned a low watermark"
    assert {told for told, _ in expected} == STREAMS
    assert len(expected["totals", "red"]) == 8
    assert net(expected, "counted") == net(expected, "sizes")
    digits = [
        each for (told, _), panes in expected.items() if told == "last_digits" for each in panes
    ]
    assert any(each.pane.retraction for each in digits)
    assert any(each.pane.retraction for each in expected["outer pairs", "blue"])
    assert any(each.pane.timing == mr.EARLY for each in expected["second times", "blue"])
    assert status.dead_letters == {"scores": refused} == {"scores": 1}
    assert not {"dropped_late", "dropped_after_finish"} & status.counters["totals"].counted.keys()


def test_a_batch_gives_what_is_left_of_the_panes(tools: Any, spark: Any) -> None:
    feed = tools.feed(SCORES)
    rows = [row for step in SCRIPT if not isinstance(step, int) for row in step]
    feed.add(*rows)
    sink = Panes()
    p = pipeline(feed.bounded)
    p.sink("told", sink)
    p.run_batch(spark)
    with mr.testing.Harness(pipeline()) as h:
        # A batch has the records of a key in order of time.
        h.inject("scores", [(Score(*row[:-1]), row[-1]) for row in sorted(rows, key=_at)])
        h.advance_watermark("scores", mr.MAX_TIMESTAMP)
        expected = [at_no_time(each) for each in h.outputs("told")]

    assert by_key([at_no_time(each) for each in sink.outputs]) == by_key(expected)
    assert {told for told, _ in by_key(expected)} == STREAMS


class Panes:
    """A sink that keeps an epoch's rows, pane and all."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Output]] = {}

    def __call__(self, rows: Any, epoch: int) -> None:
        self.epochs[epoch] = outputs_of(rows)

    @property
    def outputs(self) -> list[Output]:
        return [output for epoch in sorted(self.epochs) for output in self.epochs[epoch]]


def by_key(outputs: list[Output]) -> dict[tuple[str, str], list[Output]]:
    """Return the panes of each stream and key, in order."""
    found: dict[tuple[str, str], list[Output]] = {}
    for output in outputs:
        found.setdefault((output.value.partition(":")[0], output.key), []).append(output)
    return found


def net(panes: dict[tuple[str, str], list[Output]], stream: str) -> dict[str, int]:
    """Return what is left of each key's counts when retractions are taken off."""
    return {
        key: sum(
            int(each.value.partition(": ")[2]) * (-1 if each.pane.retraction else 1)
            for each in found
        )
        for (told, key), found in panes.items()
        if told == stream
    }


def at_no_time(output: Output) -> Output:
    """Return a pane without its production time: a batch's clock is the machine's."""
    return replace(output, pane=msgspec.structs.replace(output.pane, production_time=0))


def _at(row: tuple[Any, ...]) -> int:
    at: int = row[-1]
    return at
