"""Whatever the windows, triggers, modes, lateness and data: Spark's panes are the Harness's.

Seeded, for an epoch on Spark is dear: twenty groupings, drawn at random, in one query. Those that
can be lifted are, and run beside themselves unlifted.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from millrace.testing import Transcript, play, run_on_spark
from millrace.testing.player import Executor, OnHarness
from millrace.testing.timetable import Timetable

SEED = 20150831
GROUPINGS = 20

#: With these alone a grouping can be lifted.
BY_TIME = [
    "AtWatermark()", "AtPeriod(10)", "AtPeriod(25, domain=LOW_WATERMARK)", "AfterDelay(5)",
    "AfterDelay(30)", "AfterDelay(8, LOW_WATERMARK)",
]  # fmt: skip
BY_ELEMENT = [
    "AfterCount(2)", "AfterCount(3)", "AfterBytes(3)", "Punctuation(lambda value: value == 0)",
]  # fmt: skip
WINDOWS = [
    "FixedWindows(20)", "FixedWindows(20, offset=7)", "SlidingWindows(20, 10)", "Sessions(6)",
    "Sessions(15)", "GlobalWindow()",
]  # fmt: skip
AGGREGATES = [
    "sum()", "count()", "mean()", "min()", "max()", "top(2)", "distinct()", "quantiles([0.5])",
    "group()",
]  # fmt: skip

#: What time does is the same for all, so that all share an injected stream. Between any two of
#: these come records.
TIMES = [
    {"clock": 3}, {"watermark": 20}, {"clock": 26}, {"watermark": 31}, {"clock": 50},
    {"watermark": 66}, {"clock": 90}, {"watermark": "end of time"},
]  # fmt: skip


def trigger(draw: random.Random, leaves: list[str], depth: int = 2) -> str:
    if depth == 0 or draw.random() < 0.35:
        return draw.choice(leaves)
    children = [trigger(draw, leaves, depth - 1) for _ in range(draw.randint(2, 3))]
    kind = draw.choice(["FirstOf", "AllOf", "SequenceOf", "Repeat", "RepeatUntil", "RepeatCount"])
    if kind == "Repeat":
        return f"Repeat({children[0]})"
    if kind == "RepeatUntil":
        return f"RepeatUntil({children[0]}, {children[1]})"
    if kind == "RepeatCount":
        return f"RepeatCount({children[0]}, {draw.randint(1, 3)})"
    return f"{kind}({', '.join(children)})"


def grouping(draw: random.Random, number: int) -> Transcript:
    steps: list[dict[str, Any]] = []
    now = 0
    for time in TIMES:
        for _ in range(draw.choice([0, 1, 1, 2])):
            # Around the low watermark: early, in time, late, and too late.
            at = [max(0, now + draw.randint(-25, 25)) for _ in range(draw.randint(1, 8))]
            records: dict[str, list[str]] = {}
            for each in at:
                records.setdefault(draw.choice("ab"), []).append(f"{draw.randint(-2, 6)}@{each}")
            steps.append({"records": records})
        steps.append(time)
        now = time["watermark"] if isinstance(time.get("watermark"), int) else now
    made = Transcript.of(
        {
            "name": f"{SEED}/{number}",
            "windows": draw.choice(WINDOWS),
            "trigger": f"Repeat({trigger(draw, draw.choice([BY_TIME, BY_TIME + BY_ELEMENT]))})",
            "mode": draw.choice(["DISCARDING", "ACCUMULATING", "ACCUMULATING_AND_RETRACTING"]),
            "allowed_lateness": draw.choice([0, 15, 1_000_000]),
            "output_time": draw.choice(["END_OF_WINDOW", "EARLIEST", "LATEST"]),
            "aggregate": draw.choice(AGGREGATES),
            "assign": draw.random() < 0.2,
            "steps": steps,
        }
    )
    return grouping(draw, number) if made.needs_batch else made


def panes(transcript: Transcript, executor: Executor) -> dict[str, list[Any]]:
    """Return the panes of each key, in order."""
    found: dict[str, list[Any]] = {}

    class Looking:
        """Runs the steps, and looks at what there is when the transcript would."""

        def __getattr__(self, step: str) -> Any:
            return getattr(executor, step)

        def panes(self) -> list[Any]:
            for output in executor.panes():
                value = msgspec.json.decode(msgspec.json.encode(output.value))
                found.setdefault(output.key, []).append((value, output.timestamp, output.pane))
            return []

    play(transcript, Looking())
    return found


def test_any_grouping_has_the_panes_of_the_harness(spark: SparkSession) -> None:
    draw = random.Random(SEED)
    groupings = [grouping(draw, number) for number in range(GROUPINGS)]
    # What can be lifted is, by default; the Harness lifts nothing.
    lifted = [each for each in groupings if each.is_lifted]
    assert len(lifted) >= 8
    groupings += [replace(each, settings={**each.settings, "lift": False}) for each in lifted]
    expected = [panes(each, OnHarness(each)) for each in groupings]
    assert len(Timetable(groupings).streams) == 1
    seen = Counter(
        str(pane.timing) if not pane.retraction else "retraction"
        for found in expected
        for of_key in found.values()
        for _, _, pane in of_key
    )
    assert min(seen[kind] for kind in ("EARLY", "ON_TIME", "LATE", "retraction")) > 20, seen

    for each, wanted, executor in zip(
        groupings, expected, run_on_spark(spark, groupings), strict=True
    ):
        assert panes(each, executor) == wanted, (each.name, each.settings)
