"""Composition: where, when and how of a grouping, as a seed says, with what it is by definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from millrace.dataflow import aggregations, triggers, windows
from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.windowing import (
    ACCUMULATING,
    ACCUMULATING_AND_RETRACTING,
    DISCARDING,
    EARLIEST,
    END_OF_WINDOW,
    LATEST,
)
from millrace.model.record import LOW_WATERMARK
from millrace.model.time import SECOND
from simulation.definitions import AGGREGATES, Cut, Definition, Windows, at_the_end, each

#: No window is over before the input is.
FAR_US = 1_000_000 * SECOND
MODES = (DISCARDING, ACCUMULATING, ACCUMULATING_AND_RETRACTING)


class Spread(aggregations.CombineFn):
    """A user's aggregation, which can take nothing out: largest less smallest."""

    accumulator = tuple[int, int] | None

    def create(self) -> Any:
        """Return nothing."""
        return None

    def add(self, accumulator: Any, value: int) -> Any:
        """Widen it."""
        return self.merge(accumulator, (value, value))

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Widen one by the other."""
        if accumulator is None or other is None:
            return accumulator or other
        return min(accumulator[0], other[0]), max(accumulator[1], other[1])

    def extract(self, accumulator: Any) -> Any:
        """Return how wide it is; nothing has no width."""
        return None if accumulator is None else accumulator[1] - accumulator[0]


COMBINES: dict[str, Callable[[], aggregations.CombineFn]] = {
    "sum": aggregations.Sum,
    "count": aggregations.Count,
    "min": aggregations.Min,
    "max": aggregations.Max,
    "mean": aggregations.Mean,
    "top": lambda: aggregations.Top(2),
    "distinct": aggregations.Distinct,
    "quantiles": lambda: aggregations.Quantiles([0.5]),
    "group": aggregations.Group,
    "spread": Spread,
}
#: Those that make whole numbers of whole numbers.
WHOLE = ("sum", "count", "min", "max")


def where(random: Random) -> tuple[windows.WindowFn, Windows]:
    """Return a window function, and what it is by definition."""
    second = SECOND
    return random.choice(
        (
            (windows.FixedWindows(20 * second), Windows(20 * second, 20 * second)),
            (windows.FixedWindows(20 * second), Windows(20 * second, 20 * second)),
            (windows.SlidingWindows(20 * second, 10 * second), Windows(20 * second, 10 * second)),
            (windows.Sessions(6 * second), Windows(6 * second, merge=True)),
            (windows.Sessions(12 * second), Windows(12 * second, merge=True)),
            (windows.GlobalWindow(), Windows()),
        )
    )


def _leaf(random: Random) -> Trigger:
    domain = {"domain": LOW_WATERMARK} if random.random() < 0.5 else {}
    event = random.choice((7, 25)) if domain else random.choice((40, 200))
    leaves: tuple[Callable[[], Trigger], ...] = (
        triggers.AtWatermark,
        lambda: triggers.AtWatermark(random.choice((50, 80))),
        lambda: triggers.AfterCount(random.randint(1, 4)),
        lambda: triggers.AfterBytes(random.randint(1, 5)),
        lambda: triggers.AtPeriod(event * SECOND, **domain),
        lambda: triggers.AfterDelay(event * SECOND, **domain),
        lambda: triggers.Punctuation(_punctuates),
    )
    return random.choice(leaves)()


def _punctuates(value: Any) -> bool:
    return type(value) is int and value % 3 == 0


def _trigger(random: Random, depth: int = 2) -> Trigger:
    if not depth or random.random() < 0.35:
        return _leaf(random)
    several = [_trigger(random, depth - 1) for _ in range(random.randint(1, 3))]
    composites: tuple[Callable[[], Trigger], ...] = (
        lambda: triggers.FirstOf(*several),
        lambda: triggers.AllOf(*several),
        lambda: triggers.SequenceOf(*several),
        lambda: triggers.Repeat(several[0]),
        lambda: triggers.RepeatUntil(several[0], several[-1]),
        lambda: triggers.RepeatCount(several[0], random.randint(1, 3)),
    )
    return random.choice(composites)()


def when(random: Random) -> tuple[Trigger, Cut | None]:
    """Return a trigger that never ends, and what it makes of a window where that is known."""
    n = random.randint(2, 3)
    repeated: tuple[tuple[Trigger, Cut | None], ...] = (
        (triggers.AtWatermark(), at_the_end),
        (triggers.AfterCount(n), each(lambda pending: len(pending) == n)),
        # A number below 128 is a byte.
        (triggers.AfterBytes(n), each(lambda pending: len(pending) == n)),
        (triggers.Punctuation(_punctuates), each(lambda pending: _punctuates(pending[-1].value))),
    )
    if random.random() < 0.5:
        trigger, cut = random.choice(repeated)
        return triggers.Repeat(trigger), cut
    if random.random() < 0.2:
        early = triggers.RepeatUntil(_trigger(random, 1), triggers.AtWatermark())
        return triggers.SequenceOf(early, triggers.Repeat(triggers.AtWatermark())), None
    return triggers.Repeat(_trigger(random)), None


class Grouping(NamedTuple):
    """How a stream is grouped, and what that means."""

    how: dict[str, Any]
    combine: aggregations.CombineFn
    fanout: int | None
    definition: Definition

    def in_any_order(self, *, late: bool) -> Grouping:
        """Return a grouping of which the outcome is known, whatever order its elements come in.

        Args:
            late: Whether some of them come behind the low watermark; then no window is ever over.
        """
        how, definition = self.how, self.definition
        if late:
            how = how | {"allowed_lateness": FAR_US}
            return self._replace(how=how, definition=replace(definition, lateness=FAR_US, cut=None))
        kept = definition.cut if definition.cut is at_the_end else None
        return self._replace(definition=replace(definition, cut=kept))


def grouping(random: Random, *, columns: bool = False) -> Grouping:
    """Return how elements are grouped.

    Args:
        random: Chooses.
        columns: Whether windows are to be kept as columns.
    """
    window_fn, spans = where(random)
    while columns and type(window_fn) not in (windows.FixedWindows, windows.Sessions):
        window_fn, spans = where(random)
    trigger, cut = when(random)
    if columns:
        trigger, cut = triggers.Repeat(triggers.AtWatermark()), at_the_end
    mode = random.choice(MODES)
    name = random.choice([*WHOLE, "mean"] if columns else list(COMBINES))
    lateness = 0 if columns else random.choice((0, 8 * SECOND, FAR_US))
    usable = not columns and name != "group" and without_punctuation(trigger)
    fanout = 2 if usable and random.random() < 0.25 else None
    how: dict[str, Any] = {"window_fn": window_fn, "trigger": trigger, "mode": mode}
    if not columns:
        how["output_time"] = random.choice((END_OF_WINDOW, EARLIEST, LATEST))
    if fanout and spans.merge:
        lateness = FAR_US  # which of the late ones hold a session open depends on their parts
    if random.random() < 0.25:
        how["lift"] = False
    elif fanout is None and random.random() < 0.5 and _counts(trigger) and name in WHOLE:
        how["lift"] = True
    if (fanout or how.get("lift")) and cut is not at_the_end:
        cut = None  # counts are seen by the partial
    if spans.merge and (lateness or cut is not at_the_end):
        cut = None  # a pane of a session that grew on is one of another window
    how["allowed_lateness"] = lateness
    definition = Definition(spans, AGGREGATES[name], mode.name, lateness, cut, name != "group")
    return Grouping(how, COMBINES[name](), fanout, definition)


def regrouping(
    random: Random, *, retracts: bool
) -> tuple[dict[str, Any], aggregations.CombineFn, Definition]:
    """Return how panes are grouped again, in windows in which no pane of before is late.

    Args:
        random: Chooses.
        retracts: Whether panes are taken back; then what comes of them must not be discarded.
    """
    trigger, _ = when(random)
    mode = random.choice(MODES[1:] if retracts else MODES)
    name = random.choice(list(COMBINES))
    how: dict[str, Any] = {
        "window_fn": windows.FixedWindows(60 * SECOND),
        "trigger": trigger,
        "mode": mode,
        "allowed_lateness": FAR_US,
    }
    spans = Windows(60 * SECOND, 60 * SECOND)
    definition = Definition(spans, AGGREGATES[name], mode.name, FAR_US, None, name != "group")
    return how, COMBINES[name](), definition


def _leaves(trigger: Trigger) -> list[Trigger]:
    return [leaf for child in trigger.children for leaf in _leaves(child)] or [trigger]


def without_punctuation(trigger: Trigger) -> bool:
    """Return whether nothing in a trigger asks what an element is."""
    return not any(isinstance(leaf, triggers.Punctuation) for leaf in _leaves(trigger))


def _counts(trigger: Trigger) -> bool:
    kinds = {type(leaf) for leaf in _leaves(trigger)}
    return kinds <= {triggers.AtWatermark, triggers.AfterCount, triggers.AfterBytes}
