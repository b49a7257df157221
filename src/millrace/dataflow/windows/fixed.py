"""FixedWindows: hours, days, and other windows of one size, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.dataflow.value import positive_us
from millrace.dataflow.windows.window_fn import Assigned, Hashes, Ints, WindowFn, one_each
from millrace.model.errors import PipelineError
from millrace.model.keys import encode_key, hash_key
from millrace.model.pane import Window
from millrace.model.record import Record
from millrace.model.time import Duration, duration_literal, duration_us


class FixedWindows(WindowFn):
    """Windows ``[n * size + offset, (n + 1) * size + offset)``.

    Args:
        size: How long each is.
        offset: Where the windows begin, counted from 1970 in UTC; below ``size``.
        phase_shift: Shift the windows of each key by an amount of its own, always the same, so
            that they do not all end at once.

    Raises:
        PipelineError: A size that is not above zero, or an offset of a size or more.

    Source: Dataflow patent, "Fixed windows 330", "phase shifting the windows for each key".

    >>> FixedWindows("2 min")
    FixedWindows('2 min')
    """

    def __init__(self, size: Duration, *, offset: Duration = 0, phase_shift: bool = False) -> None:
        self.size_us = positive_us(size, "FixedWindows(size)")
        self.offset_us = duration_us(offset, "FixedWindows(offset)")
        if self.offset_us >= self.size_us:
            raise PipelineError(
                f"FixedWindows({size!r}, offset={offset!r}): the offset must be below the size. "
                f"Windows shifted by a whole size are the same; did you mean "
                f"{duration_literal(self.offset_us % self.size_us)}?"
            )
        self.phase_shift = phase_shift

    def assign(self, record: Record) -> tuple[Window]:
        """Return the one window that the timestamp lies in."""
        at, size = record.timestamp, self.size_us
        offset = self.offset_us
        if self.phase_shift:
            offset += phase_us(record.key, size)
        start = at - (at - offset) % size
        return (Window(start, start + size),)

    def assign_column(self, timestamps: Ints, hashes: Hashes) -> Assigned:
        """Return the windows that the timestamps lie in."""
        starts = timestamps - self._shifted(timestamps, hashes) % self.size_us
        return one_each(starts, starts + self.size_us)

    def alike(self, timestamps: Ints, hashes: Hashes) -> Ints:
        """Return the windows' numbers."""
        return self._shifted(timestamps, hashes) // self.size_us

    def _shifted(self, timestamps: Ints, hashes: Hashes) -> Ints:
        """Return timestamps as they are where the windows begin at 0."""
        shifted = timestamps - self.offset_us
        if self.phase_shift:
            # As phase_us: the hash of a key is that of its encoding.
            shifted -= (hashes % np.uint64(self.size_us)).astype(np.int64)
        return shifted

    def __repr__(self) -> str:
        more = f", offset={duration_literal(self.offset_us)}" if self.offset_us else ""
        more += ", phase_shift=True" if self.phase_shift else ""
        return f"FixedWindows({duration_literal(self.size_us)}{more})"


def phase_us(key: Any, size_us: int) -> int:
    """Return a key's own shift, from 0 to below ``size_us``: spread evenly over keys."""
    return hash_key(encode_key(key)) % size_us
