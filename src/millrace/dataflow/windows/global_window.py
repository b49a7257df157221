"""GlobalWindow: one window over all of event time."""

from __future__ import annotations

from millrace.dataflow.windows.window_fn import WindowFn
from millrace.model.pane import Window
from millrace.model.record import Record

_EVERYTHING = Window()


class GlobalWindow(WindowFn):
    """All elements of a key in one window, without start and without end.

    The low watermark passes its end only when the input has ended, so over a stream it needs a
    trigger that goes by something else: counts, periods, data.

    >>> GlobalWindow()
    GlobalWindow()
    """

    ends = False

    def __init__(self) -> None:
        pass

    def assign(self, record: Record) -> tuple[Window]:
        """Return the one window."""
        return (_EVERYTHING,)
