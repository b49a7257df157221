"""Signals: Ctrl-C and SIGTERM stop a run, in place of the program that waits for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupted(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call a function at Ctrl-C and SIGTERM; does nothing outside of the main thread.

    Args:
        interrupt: Called within a signal handler: it may set a flag, and not much more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = {
        number: signal.signal(number, lambda *_: interrupt())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
