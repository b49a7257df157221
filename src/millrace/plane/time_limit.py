"""User code that takes too long is ended, and its record becomes a dead letter.

Who watches sends a signal to the main thread, and Python calls the handler there, between two
instructions of the code that runs, or in the middle of a wait. So the handler sees what it
interrupts, and raises in the call that was meant and in no other: not in Millrace's own code, and
not in what came after the call.

Native code is ended when it returns to Python. What never does is not ended.

Source: Streaming Engine, 5 ("user code ... is visible").
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from millrace.model.errors import TimeLimitExceeded

_log = logging.getLogger("millrace")

#: No program uses it for anything; macOS has no such signals.
_SIGNAL: Final = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
_OURS: Final = Path(__file__).parents[1]
#: To stop in the middle of these could leave rows half-written. A call is not there for long.
_NOT_HERE: Final = (f"{_OURS / 'windmill'}/", f"{_OURS / 'store'}/")


class TimeLimit:
    """Ends calls of user code in the main thread of a process.

    Args:
        limit_s: How long a call may take.
        send: Sends a signal to a thread.

    Attributes:
        limit_s: How long a call may take.
    """

    def __init__(
        self, limit_s: float, send: Callable[[int, int], Any] = signal.pthread_kill
    ) -> None:
        self.limit_s = limit_s
        self._send = send
        self._meant: FrameType | None = None

    def install(self) -> None:
        """Take the signal from now on. Only the main thread may call it."""
        signal.signal(_SIGNAL, self.interrupted)

    def end(self, call: FrameType, thread: int) -> None:
        """End a call. It may take another time, where it cannot be ended now, or goes on.

        Args:
            call: Its frame.
            thread: Where it runs.
        """
        if thread != threading.main_thread().ident:
            _log.warning("user code outside of the main thread cannot be ended")
            return
        self._meant = call
        self._send(thread, _SIGNAL)

    def interrupted(self, _number: int, at: FrameType | None) -> None:
        """Raise if what was interrupted is the call that was meant."""
        meant, self._meant = self._meant, None
        if meant is None or at is None or at.f_code.co_filename.startswith(_NOT_HERE):
            return
        while at is not None and at is not meant:
            at = at.f_back
        if at is not None:
            raise TimeLimitExceeded(
                f"a call of user code took longer than {self.limit_s:g} s, which is its time limit"
            )
