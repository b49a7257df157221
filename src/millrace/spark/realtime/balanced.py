"""Balanced: key intervals of a run in real time that follow its load, a rest for each round.

Marks stand for epochs: after some that had records it is decided what to change, and what that
reads is read beside the tasks. Then the run rests for it. All stand still meanwhile, so rounds keep
a distance: most of the time goes to records, however long a rest takes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from millrace.model.errors import PipelineError, StoreError, ZombieWriter
from millrace.plane.balancing import Balancing
from millrace.spark.realtime.quiesce import Quiesce

_log = logging.getLogger("millrace")

#: Between the end of one round and the next decision: at least so long, and so many times as long
#: as the run stood still. A load that moves faster is not worth following.
_APART_S: Final = 30.0
_APART_TIMES: Final = 10.0


class RealtimeBalancer:
    """Asks for rests, and remaps at them.

    Args:
        balancing: Decides; made with what remaps at a rest. None: intervals stay as they are.
        rests: Of the run.
        clock: Returns seconds.
    """

    def __init__(
        self,
        balancing: Balancing | None,
        rests: Quiesce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._balancing = balancing
        self._rests = rests
        self._clock = clock
        self._prepared = self._asked = False
        self._not_before = clock()

    def marked(self, *, busy: bool) -> None:
        """Take a mark; for the thread that completes marks, which waits for nobody here.

        Args:
            busy: Whether records were read before it.
        """
        balancing = self._balancing
        if balancing is None or self._prepared or self._clock() < self._not_before:
            return
        self._prepared = balancing.prepared(busy=busy)

    def look(self) -> None:
        """Ask for a rest if something is prepared; for the thread that looks after the run."""
        if self._prepared and not self._asked:
            self._asked = True
            self._rests.want(self._carry_out)

    def back(self, seconds: float) -> None:
        """Take it that the run goes on after it stood still for so long; for the same thread."""
        if self._asked:
            self._not_before = self._clock() + max(_APART_S, _APART_TIMES * seconds)
            self._prepared = self._asked = False

    def _carry_out(self) -> None:
        """Remap, while all tasks wait. What cannot be is said, and the run goes on."""
        assert self._balancing is not None, "something was prepared"
        try:
            self._balancing.carried_out()
        except ZombieWriter:
            raise
        except (StoreError, PipelineError) as problem:
            _log.warning("key intervals do not follow the load now: %s", problem)
