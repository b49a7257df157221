"""Where an aggregation, a trigger or an accumulator of a user's failed: in which window.

The kernel tells computation, key and element; of windows it knows nothing.
"""

from __future__ import annotations

from millrace.dataflow.windows.window_fn import end_us
from millrace.model.pane import Window
from millrace.model.time import format_timestamp


def named(window: Window) -> str:
    """Return a window as errors name it.

    >>> named(Window(0, 60_000_000)), named(Window())
    ('window [1970-01-01T00:00:00Z, 1970-01-01T00:01:00Z)', 'the global window')
    """
    if window.start is None:
        return "the global window"
    return f"window [{format_timestamp(window.start)}, {format_timestamp(end_us(window))})"


def blame(error: BaseException, window: Window) -> None:
    """Note in which window an error was raised: it stays the user's own, and its traceback too."""
    error.add_note(f"in {named(window)}")
