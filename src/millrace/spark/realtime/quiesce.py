"""Quiesce: what is done while all tasks wait at a mark, before the incarnation that follows.

Marks stop nothing: what tasks have done beyond one is in their segments. So what needs a checkpoint
in which nothing is under way has a last mark made, as a stop has, and another incarnation begins
after, in the same processes.

Key intervals that follow the load of a run take a rest for each round. Marks stand for epochs:
after some that had records it is decided what to change, and what that reads is read beside the
tasks. Then the run rests for it. All stand still meanwhile, so rounds keep a distance: most of the
time goes to records, however long a rest takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, TypeVar

from millrace.balance.balancer import Balancer
from millrace.model.errors import PipelineError, StoreError, ZombieWriter
from millrace.spark.engine import ended

_log = logging.getLogger("millrace")

#: Between the end of one round and the next decision: at least so long, and so many times as long
#: as the run stood still. A load that moves faster is not worth following.
_APART_S: Final = 30.0
_APART_TIMES: Final = 10.0

_Made = TypeVar("_Made")


@dataclass
class _Request:
    """Something that is to be done at a rest.

    Attributes:
        work: Does it.
        done: Whether it was.
        made: What it returned.
        error: What it raised.
        pause: How long the run stood still for it, in words.
        over: Whether who asked may go on.
    """

    work: Callable[[], Any]
    done: bool = False
    made: Any = None
    error: BaseException | None = None
    pause: str = ""
    over: bool = False


class Quiesce:
    """Keeps what is to be done at the next rest of a run, for those who wait for it.

    Args:
        news: Notified when something is asked for, and waited for by who looks after the run.
    """

    def __init__(self, news: threading.Condition) -> None:
        self._news = news
        self._waiting: list[_Request] = []
        self._done: list[_Request] = []
        self._closed = False

    @property
    def wanted(self) -> bool:
        """Whether there is something to be done."""
        return bool(self._waiting)

    def ask(
        self, work: Callable[[], _Made], within_s: float = inf, *, goes_on: bool = False
    ) -> tuple[_Made, str]:
        """Have something done at a rest; wait until the run goes on.

        Args:
            work: Does it, in the thread of who looks after the run.
            within_s: How long to wait for the rest.
            goes_on: Whether the run goes on from a rest that comes later.

        Returns:
            What it returned, and how long the run stood still, in words.

        Raises:
            PipelineError: The run has ended before.
            TimeoutError: Not all tasks have passed a mark in time. They rest when they have, and
                unless it ``goes_on`` nothing has them do so: who asked is to stop the run.
        """
        until = time.monotonic() + within_s
        with self._news:
            request = self.want(work)
            while not request.over:
                left_s = until - time.monotonic()
                if left_s <= 0 and request in self._waiting:
                    if goes_on:
                        request.work = _nothing
                    else:
                        self._waiting.remove(request)
                    raise TimeoutError
                self._news.wait(left_s if 0 < left_s < inf else None)
        if not request.done:
            raise request.error or ended()
        return request.made, request.pause

    def want(self, work: Callable[[], object]) -> _Request:
        """Have something done at a rest, and wait for nothing.

        Args:
            work: As of :meth:`ask`; what it raises is in what is returned.

        Returns:
            What becomes of it.

        Raises:
            PipelineError: The run has ended before.
        """
        request = _Request(work)
        with self._news:
            if self._closed:
                raise ended()
            self._waiting.append(request)
            self._news.notify_all()
        return request

    def do(self) -> None:
        """Do all that is wanted, while nothing is under way.

        Raises:
            ZombieWriter: A newer run has the checkpoint.
        """
        with self._news:
            due, self._waiting = self._waiting, []
            self._done += due
        for request in due:
            try:
                request.made, request.done = request.work(), True
            except ZombieWriter as error:
                request.error = error
                raise
            except Exception as error:  # noqa: BLE001  whoever asked is told; the run goes on
                request.error = error

    def back(self, pause: str) -> None:
        """Take it that the run goes on, after a pause."""
        with self._news:
            for request in self._done:
                request.pause, request.over = pause, True
            self._done = []
            self._news.notify_all()

    def close(self) -> None:
        """Take it that the run has ended: what was not done is not done."""
        with self._news:
            self._closed = True
            self._done, self._waiting = self._done + self._waiting, []
        self.back("the run has ended since")


def _nothing() -> None:
    """What is done at a rest that nobody waits for any more."""


class RealtimeBalancer:
    """Asks for rests, and remaps at them.

    Args:
        balancer: Decides; made with what remaps at a rest. None: intervals stay as they are.
        rests: Of the run.
        clock: Returns seconds.
    """

    def __init__(
        self,
        balancer: Balancer | None,
        rests: Quiesce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._balancer = balancer
        self._rests = rests
        self._clock = clock
        self._prepared = self._asked = False
        self._not_before = clock()

    def marked(self, *, busy: bool) -> None:
        """Take a mark; for the thread that completes marks, which waits for nobody here.

        Args:
            busy: Whether records were read before it.
        """
        balancer = self._balancer
        if balancer is None or self._prepared or self._clock() < self._not_before:
            return
        self._prepared = balancer.prepared(busy=busy)

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
        assert self._balancer is not None, "something was prepared"
        try:
            self._balancer.carried_out()
        except ZombieWriter:
            raise
        except (StoreError, PipelineError) as problem:
            _log.warning("key intervals do not follow the load now: %s", problem)
