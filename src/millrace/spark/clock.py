"""Clocks of this host: what time it is, and how much has passed."""

from __future__ import annotations

import time


def now_us() -> int:
    """Return what time it is, in microseconds since 1970."""
    return time.time_ns() // 1000


def elapsed_us() -> int:
    """Return microseconds since some instant, by a clock that nobody sets."""
    return time.monotonic_ns() // 1000
