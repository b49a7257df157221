"""Fail-over: there is a standby behind the query that works, and it takes over from one that fails.

Source: docs/design/2026-11-28-standby.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from millrace.spark.failure import headline
from millrace.spark.realtime.standby import Standby

_log = logging.getLogger("millrace")

#: How long after a standby has failed another is started.
_PAUSE_S: Final = 5.0
#: How long Spark may take to end a query of which a task has failed.
_DYING_S: Final = 1.0
#: How long a query from which the standby has taken over may take to end when the run does.
_LEAVING_S: Final = 20.0


class Failover:
    """The standby of a run: one is started behind each query that works.

    Args:
        wanted: Whether there is to be one.
        start: Starts one.
        has_room: Returns whether there are slots for it, as far as it is known.
        waiting: One that was started before there was a run; None if none was.

    Attributes:
        wanted: See above.
        standby: What waits now; None if nothing does.
    """

    def __init__(
        self,
        wanted: bool,
        start: Callable[[], Standby],
        has_room: Callable[[], bool],
        waiting: Standby | None = None,
    ) -> None:
        self.wanted = wanted
        self.standby = waiting
        self._start = start
        self._has_room = has_room
        self._makes_way = False
        self._ready_logged = False
        self._failed: Standby | None = None
        self._next_at_s = 0.0
        self._leaving: threading.Thread | None = None

    @property
    def ready(self) -> bool:
        """Whether all tasks of a standby wait."""
        standby = self.standby  # who asks for a status does so in another thread
        return standby is not None and standby.ready

    @property
    def state(self) -> str:
        """What a status says of it."""
        if not self.wanted:
            return ""
        return "ready" if self.ready else "starting"

    def take(self) -> Standby:
        """Hand over the standby, which is :attr:`ready`."""
        standby, self.standby = self.standby, None
        assert standby is not None, "nothing waits"
        return standby

    def give_up(self) -> None:
        """End the standby, if there is one, and wait until it has ended."""
        standby, self.standby = self.standby, None
        if standby is not None:
            standby.end()
            standby.wait()

    def look(self) -> None:
        """Start a standby if there is to be one and none is; return at once."""
        if not self.wanted:
            return
        if self._makes_way:
            self._drop()
            return
        if (standby := self.standby) is not None:
            if (failure := standby.failure) is None:
                if standby.ready and not self._ready_logged:
                    self._ready_logged = True
                    _log.info("a standby is ready")
                return
            _log.warning("the standby has failed, and another is started: %s", headline(failure))
            self._drop()
            self._next_at_s = time.monotonic() + _PAUSE_S
        leaving = self._leaving is not None and self._leaving.is_alive()
        if leaving or self._slots_taken or time.monotonic() < self._next_at_s:
            return
        if self._has_room():
            self._ready_logged = False
            self.standby = self._start()

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """Have no standby meanwhile, as others need its slots; see :attr:`gone`."""
        self._makes_way = True
        try:
            yield
        finally:
            self._makes_way = False

    @property
    def gone(self) -> bool:
        """Whether no standby is left that has slots."""
        return self.standby is None and not self._slots_taken

    def leave(self, query: Any) -> None:
        """Have a query end that has failed, while the standby takes over.

        Its tasks have slots of their own, and do not wait until those of the failed one end.
        """
        self._leaving = threading.Thread(
            target=end_failed, args=(query,), name="millrace-leaving", daemon=True
        )
        self._leaving.start()

    def close(self) -> None:
        """Give up the standby, and wait until a query that has failed has ended."""
        self.give_up()
        if self._leaving is not None:
            self._leaving.join(_LEAVING_S)

    @property
    def _slots_taken(self) -> bool:
        """Whether a standby that was ended still has slots."""
        return self._failed is not None and not self._failed.ended

    def _drop(self) -> None:
        """End the standby; nobody waits for its end, as the tasks that work are looked after."""
        if self.standby is not None:
            self.standby.end()
            # In this order, as others ask whether it is gone.
            self._failed = self.standby
            self.standby = None


def end_failed(query: Any) -> None:
    """Have a query end of which a task was lost: Spark is about to find out by itself.

    To stop it meanwhile would take longer.
    """
    until = time.monotonic() + _DYING_S
    while query.isActive and time.monotonic() < until:
        time.sleep(0.01)
    query.stop()
