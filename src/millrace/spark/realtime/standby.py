"""Standby: a second query, whose tasks are started and wait, beside the one that works.

To start a query takes Spark seconds, and an incarnation milliseconds. So where a run is to be away
for no longer than that, all tasks are there twice. Those that wait have their process, imports and
topology, have opened the caches of their host, and have called the driver: to a
:class:`Switchboard` of their own, as that of the tasks that work hangs up on them all when one of
them is lost. Then the control loop takes the standby's switchboard, and the next incarnation begins
on its tasks. What the tasks of the failed query still do is behind the seal of that incarnation.

Nothing of a standby has to be known before it begins: an incarnation tells its tasks all they must
know in :class:`~millrace.runtime.realtime.messages.StartTask`.

Source: MillWheel 6.1 (any number of workers may try to own a key; the sequencer says who does);
docs/design/2026-11-28-standby.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Any, Final

from millrace.runtime.realtime.coordinator import TaskKey
from millrace.runtime.realtime.messages import StopTask, TaskEnded, TaskReady
from millrace.spark.failure import headline
from millrace.spark.realtime.control_connection import Address, Switchboard

_log = logging.getLogger("millrace")

#: How often who waits for tasks looks whether it is still to.
_LOOK_S: Final = 0.5
#: How long the standby's query may take to end when the run does.
_ENDING_S: Final = 20.0


class Standby:
    """One standby: from the start of its query until it is taken or ended.

    Args:
        board: Where its tasks call; it belongs to the standby until that is taken.
        start_query: Starts a query whose tasks call at an address.
        where: All tasks.
        changed: Called, in any thread, when it may have become ready.
        title: What messages call its tasks.

    Attributes:
        where: See above.
        title: Likewise.
        board: Likewise.
        query: Spark's; None until that is started.
    """

    def __init__(
        self,
        board: Switchboard,
        start_query: Callable[[Address], Any],
        where: Collection[TaskKey],
        changed: Callable[[], None],
        title: str = "the standby",
    ) -> None:
        self.board = board
        self.title = title
        self.query: Any = None
        self._start_query = start_query
        self.where = frozenset(where)
        self._changed = changed
        self._called: dict[TaskKey, TaskReady] = {}
        self._failure: BaseException | None = None
        self._over = False
        self._starts = threading.Thread(
            target=self._start, args=(board.open(),), name="millrace-standby", daemon=True
        )
        self._listens = threading.Thread(
            target=self._listen, name="millrace-standby-calls", daemon=True
        )
        self._ends = threading.Thread(target=self._end, name="millrace-standby-end", daemon=True)
        self._starts.start()
        self._listens.start()

    @property
    def ready(self) -> bool:
        """Whether all tasks are there, and wait."""
        return self.query is not None and self._called.keys() == self.where and self._alive

    def absent(self) -> list[TaskKey]:
        """Return the tasks that have not called."""
        return sorted(self.where - self._called.keys())

    @property
    def failure(self) -> BaseException | None:
        """Why it will not be ready any more; None if it is, or may be yet."""
        if self._failure is None and self.query is not None and not self._alive:
            self._failure = self.query.exception() or RuntimeError("Spark has ended the query")
        return self._failure

    def take(self) -> list[TaskReady]:
        """Hand it over, once it is :attr:`ready`: board and query are the caller's from now on.

        Returns:
            What its tasks have said to the board.
        """
        self._over = True
        self.board.wake()
        self._starts.join()
        self._listens.join()
        return list(self._called.values())

    def end(self) -> None:
        """Give it up, without waiting: see :meth:`wait`."""
        if not self._over:
            self._over = True
            self._ends.start()

    @property
    def ended(self) -> bool:
        """Whether its query has ended, after :meth:`end`."""
        return self._over and not self._ends.is_alive()

    def wait(self) -> None:
        """Wait until its query has ended; after :meth:`end`."""
        self._ends.join(_ENDING_S)

    @property
    def _alive(self) -> bool:
        return bool(self.query.isActive)

    def _start(self, address: Address) -> None:
        try:
            self.query = self._start_query(address)
        except BaseException as error:  # noqa: BLE001  the run goes on without
            self._failure = error
        self._changed()

    def _listen(self) -> None:
        """Take note of the tasks that call, and of those that are lost."""
        while not self._over:
            for where, message in self.board.listen(_LOOK_S):
                if isinstance(message, TaskReady):
                    self._called[where] = message
                elif message is None or isinstance(message, TaskEnded):
                    self._called.pop(where, None)  # Spark starts another in its place, or fails
            self._changed()

    def _end(self) -> None:
        self._starts.join()
        for where in self.where:
            self.board.tell(where, StopTask())
        stop(self.query)
        self.board.wake()
        self._listens.join()
        self.board.close()


def stop(query: Any) -> None:
    """Stop a query that is of no use any more, if it was started; what that raises is logged."""
    if query is None:
        return
    try:
        query.stop()
    except Exception as error:  # noqa: BLE001  Spark was stopped, say
        _log.info("a query that was given up could not be stopped: %s", headline(error))
