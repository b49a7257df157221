"""AssignedWindows: the windows that elements have already, and how they get them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millrace.dataflow.windows.window_fn import WindowFn, assignment
from millrace.model.errors import PipelineError
from millrace.model.pane import Pane, Paned, Window
from millrace.model.record import Record


class AssignedWindows(WindowFn):
    """Groups elements by the windows that they have: as results, or by an assignment before.

    Args:
        earlier: The WindowFn that assigned them; windows merge as it says.

    Source: Dataflow patent: the window of an element is data, (key, value, event time, window).
    """

    def __init__(self, earlier: WindowFn) -> None:
        self.earlier: WindowFn = (
            earlier.earlier if isinstance(earlier, AssignedWindows) else earlier
        )
        self.merges = self.earlier.merges
        self.ends = self.earlier.ends

    def assign(self, record: Record) -> Iterable[Window]:
        """Return the window of the pane that the element is."""
        if record.pane is None:
            raise PipelineError(
                f"a value on stream {record.stream!r} has no window: it came from no grouping, and "
                "none was assigned. Give the stream windows of its own: .window(...)."
            )
        return (record.pane.window,)

    def merge(self, windows: Sequence[Window]) -> Iterable[Window]:
        """Return what the earlier WindowFn makes of them."""
        return self.earlier.merge(windows)

    def __repr__(self) -> str:
        return f"AssignedWindows({self.earlier!r})"


class Assign:
    """Makes of an element one for each of its windows, which travels with it.

    Its pane has nothing but the window.

    Source: Dataflow patent, "AssignWindows": from (key, value, event time, window) to the same with
    new windows, anywhere before the grouping.

    >>> from millrace.dataflow.windows import SlidingWindows
    >>> [made.pane.window for made in Assign(SlidingWindows(10, 5))("value", "key", 7)]
    [Window(0, 10), Window(5, 15)]
    """

    def __init__(self, window_fn: WindowFn) -> None:
        self._window_fn = window_fn
        self._assign = assignment(window_fn)

    def __call__(self, value: Any, key: Any, at_us: int) -> list[Paned]:
        """Return the value with each of its windows."""
        windows = self._assign(Record(key, value, at_us, ""))
        return [Paned(value, Pane(window)) for window in windows]

    def __repr__(self) -> str:
        return repr(self._window_fn)
