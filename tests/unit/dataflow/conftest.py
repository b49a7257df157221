"""What the tests of the Dataflow layer share: a pipeline of one grouping, and panes as text."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import millrace as mr


class Grouping:
    """A pipeline of one grouping by (key, value) elements, and its Harness."""

    def __init__(self, window_fn: Any, aggregate: Callable[[Any], Any], how: Any) -> None:
        self.pipeline = mr.Pipeline("grouping")
        self.pipeline.inject("elements", format=tuple[str, Any])
        keyed = self.pipeline.stream("elements").key_by(lambda element: element[0])
        aggregate(keyed.map(lambda element: element[1]).window(window_fn, **how)).to("panes")
        self.harness = mr.testing.Harness(self.pipeline)
        self._seen = 0

    def add(self, *elements: tuple[Any, int], key: str = "k") -> list[str]:
        """Inject (value, timestamp) elements of a key as one epoch; return the new panes."""
        self.harness.inject("elements", [((key, value), at) for value, at in elements])
        return self.new()

    def watermark(self, to: int) -> list[str]:
        """Advance the low watermark; return the new panes."""
        self.harness.advance_watermark("elements", to)
        return self.new()

    def clock(self, to: int) -> list[str]:
        """Advance the wall clock; return the new panes."""
        self.harness.advance_clock(to)
        return self.new()

    def new(self) -> list[str]:
        """Return the panes since the last call: ``[start, end) value TIMING``, ``-`` retracts."""
        outputs = self.harness.outputs("panes")
        new, self._seen = outputs[self._seen :], len(outputs)
        return [shown(output) for output in new]

    def outputs(self) -> list[Any]:
        """Return all panes."""
        return self.harness.outputs("panes")

    def counted(self) -> dict[str, int]:
        """Return the grouping's own counters."""
        return self.harness.counters("panes").counted


def shown(output: Any) -> str:
    window, pane = output.pane.window, output.pane
    bounds = "[)" if window.start is None else f"[{window.start}, {window.end})"
    return f"{bounds} {'-' if pane.retraction else ''}{output.value} {pane.timing}"


@pytest.fixture
def grouping() -> Iterator[Callable[..., Grouping]]:
    """Make groupings, whose invariants are checked at the end."""
    made: list[Grouping] = []

    def make(
        window_fn: Any = None, aggregate: Callable[[Any], Any] = lambda s: s.sum(), **how: Any
    ) -> Grouping:
        made.append(Grouping(window_fn, aggregate, how))
        return made[-1]

    yield make
    for one in made:
        one.harness.close()
