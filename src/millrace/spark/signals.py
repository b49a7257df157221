"""Signals: Ctrl-C and SIGTERM stop a run, in place of the program that waits for it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger("millrace")


@contextmanager
def interrupted(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call a function at Ctrl-C and SIGTERM; does nothing outside of the main thread.

    Args:
        interrupt: Called within a signal handler: it may set a flag, and not much more.

    Raises:
        KeyboardInterrupt: At Ctrl-C, when the function was called already: who asks twice does not
            want to wait for what goes on in order.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    called = False

    def handle(number: int, _: object) -> None:
        nonlocal called
        if called and number == signal.SIGINT:
            raise KeyboardInterrupt
        called = True
        interrupt()
        _log.warning("stopping, once what is under way is done; Ctrl-C again ends at once")

    earlier = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
