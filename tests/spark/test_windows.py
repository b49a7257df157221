"""Windows on Spark: the panes are those of the Harness, and reach sinks as columns."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

import millrace as mr

SECOND = mr.SECOND
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Sizes(mr.Computation):
    """Between two groupings, as a step would be; what it makes of a retraction is one."""

    inputs = {"totals": mr.by_key()}
    outputs = {"last_digits": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("last_digits", record.value % 10, key=record.value % 10)


class Score(msgspec.Struct, frozen=True):
    team: str
    points: int


def sessions(scores: Any = None) -> mr.Pipeline:
    """Sum each team's sessions, then count the sessions of each sum: keys that change.

    Twice: the sums go by a step to ``sizes``, and through a computation to ``counted``.
    """
    p = mr.Pipeline("sessions")
    p.inject(
        "scores",
        scores,
        timestamp="at" if scores is not None else None,
        low_watermark=mr.BoundedDelay("2 s"),
        format=Score,
    )
    trigger = mr.SequenceOf(
        mr.RepeatUntil(mr.AtPeriod("1 min"), mr.AtWatermark()), mr.Repeat(mr.AtWatermark())
    )
    how = {"mode": mr.ACCUMULATING_AND_RETRACTING, "allowed_lateness": "1 h"}
    totals = p.stream("scores").key_by("team").window(mr.Sessions("10 s"), trigger=trigger, **how)
    totals = totals.sum("points").to("totals")
    sizes = totals.key_by(lambda total: total % 10).window(mr.FixedWindows("1 h"), **how)
    sizes.count().to("sizes")
    p.add(Sizes)
    p.stream("last_digits").window(mr.FixedWindows("1 h"), **how).count().to("counted")
    return p


SCRIPT: list[Any] = [
    [("red", 5, 1 * SECOND), ("red", 7, 20 * SECOND), ("blue", 1, 3 * SECOND)],
    61 * SECOND,
    [("red", 8, 12 * SECOND), ("blue", 2, 40 * SECOND)],
    [("red", 9, 6 * SECOND), ("blue", 1, 3 * SECOND)],  # late: the first bridges two sessions
    130 * SECOND,
]


def test_panes_on_spark_are_those_of_the_harness(tools: Any) -> None:
    feed, kept = tools.feed("team string, points long, at timestamp"), {}
    p = sessions(feed.stream)
    for stream in ("totals", "sizes", "last_digits", "counted"):
        kept[stream] = Panes()
        p.sink(stream, kept[stream])
    run = tools.start(p)
    with mr.testing.Harness(sessions()) as h:
        h.advance_clock(tools.T0)
        newest = 0
        for step in SCRIPT:
            if isinstance(step, int):
                tools.clock.now = tools.T0 + step
                h.advance_clock(tools.T0 + step)
            else:
                feed.add(*step)
                h.inject("scores", [(Score(*row[:-1]), row[-1]) for row in step])
                newest = max(newest, *(row[-1] for row in step))
                h.advance_watermark("scores", newest - 2 * SECOND)
            tools.step(run)
        status = tools.finish(run)
        h.advance_watermark("scores", mr.MAX_TIMESTAMP)
        expected = {stream: by_key(map(row_of, h.outputs(stream))) for stream in kept}

    assert len(expected["totals"]["red"]) == 7
    assert sum(row[6] for rows in expected["last_digits"].values() for row in rows) == 4
    assert net(expected["counted"]) == net(expected["sizes"]) == {"2": 2, "9": 1}
    assert {stream: by_key(panes.rows) for stream, panes in kept.items()} == expected
    assert status.counters["totals"].counted == {}


def test_a_batch_gives_what_is_left_of_the_panes(tools: Any, spark: Any) -> None:
    feed, kept = tools.feed("team string, points long, at timestamp"), Panes()
    for step in SCRIPT:
        if not isinstance(step, int):
            feed.add(*step)
    p = sessions(feed.bounded)
    p.sink("totals", kept)
    p.run_batch(spark)
    with mr.testing.Harness(sessions()) as h:
        h.inject("scores", [(Score(*row[:-1]), row[-1]) for step in SCRIPT
                            if not isinstance(step, int) for row in step])  # fmt: skip
        h.advance_watermark("scores", mr.MAX_TIMESTAMP)
        expected = [row_of(output)[:4] for output in h.outputs("totals")]

    assert sorted(row[:4] for row in kept.rows) == sorted(expected)
    assert {row[6] for row in kept.rows} == {"ON_TIME"}


class Panes:
    """A sink that keeps an epoch's rows, pane and all."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Any]] = {}

    def __call__(self, rows: Any, epoch: int) -> None:
        self.epochs[epoch] = [
            (
                row["_key"], row["value"], us(row["_timestamp"]), us(row["_window_start"]),
                us(row["_window_end"]), row["_pane_index"], row["_pane_timing"],
                row["_retraction"], row["_is_first"], row["_is_last"], row["_trigger"],
                us(row["_production_time"]), row["_percentile"],
            )
            for row in rows.toArrow().to_pylist()
        ]  # fmt: skip

    @property
    def rows(self) -> list[Any]:
        return [row for epoch in sorted(self.epochs) for row in self.epochs[epoch]]


def row_of(output: Any) -> tuple[Any, ...]:
    pane = output.pane
    key = output.key if isinstance(output.key, str) else repr(output.key)
    return (
        key, output.value, output.timestamp, pane.window.start, pane.window.end, pane.index,
        str(pane.timing), pane.retraction, pane.is_first, pane.is_last, pane.trigger,
        pane.production_time, pane.percentile,
    )  # fmt: skip


def by_key(rows: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row[1:])
    return found


def net(found: dict[str, list[Any]]) -> dict[str, int]:
    """Return what stands of each key when all that is taken back is gone."""
    sums = {key: sum(-row[0] if row[6] else row[0] for row in rows) for key, rows in found.items()}
    return {key: value for key, value in sums.items() if value}


def us(instant: dt.datetime | None) -> int | None:
    return None if instant is None else (instant - _EPOCH) // dt.timedelta(microseconds=1)
