"""Whether a run goes on: what its checkpoint lets one believe, and else what it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from millrace.inspect import Overview
from millrace.inspect.overview import run_end
from millrace.model.errors import StoreError
from millrace.store import HardState, Mailbox

#: A run that has completed no epoch for so long is asked. With nothing to do it is an epoch in a
#: minute.
_QUIET_S: Final = 20.0
#: Who did not answer is asked again after so long, and each time later, up to this.
_FIRST_S: Final = 5.0
_LAST_S: Final = 300.0
#: And who did, after this.
_ANSWERED_S: Final = 30.0
#: So long an answer is waited for, from a run that looks into a directory, or an object store.
_TIMEOUT_S: Final = 2.0
_FAR_TIMEOUT_S: Final = 6.0


class QueryAnswer(Protocol):
    """What became of a request."""

    @property
    def done(self) -> bool:
        """Whether it was; False if it was refused."""
        ...

    @property
    def text(self) -> str:
        """In words."""
        ...

    @property
    def epoch(self) -> int:
        """The last completed epoch when it took effect."""
        ...


class RunQuery(Protocol):
    """Asks a run for something, and returns its answer; None if none comes in time."""

    def __call__(
        self, mailbox: Mailbox, what: str, generation: int, *, about: str = "", timeout_s: float
    ) -> QueryAnswer | None:
        """Ask; see ``millrace.spark.asks.ask``."""
        ...


class Pulse:
    """Tells a run that goes on from one that has ended without a word.

    Args:
        state: The checkpoint.
        ask: Asks a run something, see :class:`RunQuery`.
        alive: Given a generation, returns whether that run goes on; None if it is not one of this
            process.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        state: HardState,
        ask: RunQuery,
        alive: Callable[[int], bool | None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._mailbox = state.mailbox
        self._ask = ask
        self._alive = alive
        self._clock = clock
        self._gone = 0
        self._about: tuple[int, int] | None = None
        self._asked = self._wait = 0.0
        self._answered = False
        self._ending: str | None = None

    def state(self, overview: Overview) -> str:
        """Return where a run stands, in a word.

        ``waiting``, before there is one, ``running``, ``stopped``, ``failed``, ``drained``, or
        ``silent`` where it has not said that it ended, and does not answer.
        """
        if overview.drained:
            return "drained"
        if not overview.generation:
            return "waiting"
        alive = self._alive(overview.generation)
        if self._gone == overview.generation or alive is not None:
            return "running" if alive else self._end(overview.generation) or "silent"
        # In an object store each look would cost a request.
        if not self._mailbox.far and (end := self._end(overview.generation)) is not None:
            return end
        now = self._clock()
        if overview.wall_time is not None and now - overview.wall_time / 1e6 < _QUIET_S:
            return "running"
        about = overview.generation, overview.epoch
        if about != self._about:
            self._about, self._wait, self._asked = about, _FIRST_S, 0.0
        if now - self._asked >= self._wait:
            self._ending = self._end(overview.generation)
            self._answered = self._ending is None and self._answers(overview.generation)
            self._asked = now
            self._wait = _ANSWERED_S if self._answered else min(_LAST_S, 2 * self._wait)
        return "running" if self._answered else self._ending or "silent"

    def _end(self, generation: int) -> str | None:
        """Return how a run ended, if it has said so."""
        try:
            end = run_end(self._mailbox, generation)
        except (StoreError, OSError):
            return None
        return None if end is None else end.state

    def ended(self, generation: int) -> None:
        """Take that a run has said of itself that it has ended."""
        self._gone = generation

    def _answers(self, generation: int) -> bool:
        timeout_s = _FAR_TIMEOUT_S if self._mailbox.far else _TIMEOUT_S
        try:
            answer = self._ask(self._mailbox, "status", generation, timeout_s=timeout_s)
        except (StoreError, OSError):
            return False  # who may only read it cannot ask
        return answer is not None and answer.done
