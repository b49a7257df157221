"""GlobalWindow: one window over all of event time."""

from __future__ import annotations

import numpy as np

from millrace.dataflow.windows.window_fn import Assigned, Hashes, Ints, WindowFn, one_each
from millrace.model.pane import Window
from millrace.model.record import Record
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

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

    def assign_column(self, timestamps: Ints, hashes: Hashes) -> Assigned:
        """Return the one window, of each."""
        count = len(timestamps)
        return one_each(np.full(count, MIN_TIMESTAMP), np.full(count, MAX_TIMESTAMP))

    def alike(self, timestamps: Ints, hashes: Hashes) -> Ints:
        """Return one number for all."""
        return np.zeros(len(timestamps), np.int64)
