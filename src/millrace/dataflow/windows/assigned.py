"""AssignedWindows: the windows that elements have already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millrace.dataflow.windows.window_fn import WindowFn
from millrace.model.errors import PipelineError
from millrace.model.pane import Window
from millrace.model.record import Record


class AssignedWindows(WindowFn):
    """Groups results by the windows that they are results of.

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
                f"a value on stream {record.stream!r} has no window, as it came from no grouping. "
                "Give the stream windows of its own: .window(...)."
            )
        return (record.pane.window,)

    def merge(self, windows: Sequence[Window]) -> Iterable[Window]:
        """Return what the earlier WindowFn makes of them."""
        return self.earlier.merge(windows)

    def __repr__(self) -> str:
        return f"AssignedWindows({self.earlier!r})"
