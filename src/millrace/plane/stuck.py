"""User code that takes too long, found while it runs, at no cost to what does not.

A thread looks at the stack of the one that runs user code, now and then. Python makes one frame
object of a call, so the frame of a hook tells whether this is the call that was there before. It is
kept until the next look, and with it what the call was given.

What lets no other thread run, as native code that never gives up Python's lock, is not found.

Source: Streaming Engine, 5 ("user code ... is visible").
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from math import inf
from types import FrameType
from typing import Final, NamedTuple

import msgspec

from millrace.model.errors import brief
from millrace.model.record import Record, Timer
from millrace.model.time import format_timestamp
from millrace.plane.time_limit import TimeLimit
from millrace.windmill.execution import Running
from millrace.windmill.machine import Machine
from millrace.windmill.results import TIMED

#: What calls hooks, coders and cells for a key.
_CALLERS = frozenset(
    {Machine._run_keys.__code__, Machine._attempt.__code__, Machine._fire_due.__code__, TIMED}
)
#: How often who was told is told again, as long as it goes on.
_AGAIN_S = 15.0


class CallLimits(NamedTuple):
    """How long calls of user code may take, in seconds.

    Attributes:
        told_s: Before one is reported.
        ended_s: Before one is ended.
        hung_s: Before its process is ended, if nothing else is done there.
    """

    told_s: float = inf
    ended_s: float = inf
    hung_s: float = inf


#: They may take for ever.
NO_LIMITS: Final = CallLimits()


class Stuck(msgspec.Struct, frozen=True):
    """A call of user code that has not returned for long.

    Attributes:
        computation: Whose.
        key: The key, as ``repr`` has it, cut if it is long.
        of: Which record or timer.
        where: Process and host.
        seconds: For how long, at the least.
        stack: Where it is, outermost call first, as tracebacks say it.
    """

    computation: str
    key: str
    of: str
    where: str
    seconds: float
    stack: str

    def __str__(self) -> str:
        return (
            f"{self.computation}, key {self.key}, {self.of}: in user code for {self.seconds:.0f} s "
            f"({self.where})"
        )


class Watch:
    """Watches one thread that runs user code.

    Args:
        running: What runs, and in which thread.
        after_s: How long a call may take before it is reported.
        tell: Given a call that has taken so long, and again every 15 seconds.
        over: Called when one that was told of has returned.
        limit: Ends hooks that take longer than it says; None: none is ended.
        clock: Returns seconds.
        frames: Returns thread -> the frame that it is in.
    """

    def __init__(
        self,
        running: Running,
        after_s: float,
        tell: Callable[[Stuck], None],
        over: Callable[[], None],
        *,
        limit: TimeLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
        frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
    ) -> None:
        self._running = weakref.ref(running)
        self._after_s = after_s
        self._tell = tell
        self._over = over
        self._limit = limit
        self._clock = clock
        self._frames = frames
        self._call: FrameType | None = None
        self._since = self._told_at = 0.0
        self._told = False
        shortest_s = after_s if limit is None else min(after_s, limit.limit_s)
        self._every_s = min(1.0, shortest_s / 4)

    def start(self) -> None:
        """Look in a thread of its own, as long as there is something that runs."""
        threading.Thread(target=self._watch, name="millrace-watch", daemon=True).start()

    def look(self) -> bool:
        """Look once; return False when there is nothing to watch any more."""
        running = self._running()
        if running is None:
            return False
        now = self._clock()
        machine, leaf = running.machine, self._frames().get(running.thread)
        call = None if machine is None else call_in(leaf)
        if call is not self._call:
            if self._told:
                self._over()
            self._call, self._since, self._told = call, now, False
        elif call is not None and machine is not None:
            limit, seconds = self._limit, now - self._since
            if limit is not None and seconds >= limit.limit_s and call.f_code in machine.hooks:
                limit.end(call, running.thread)
            if self._due(now):
                self._told, self._told_at = True, now
                self._tell(_stuck(machine, call, leaf, seconds))
        return True

    def _due(self, now: float) -> bool:
        if self._told:
            return now - self._told_at >= _AGAIN_S
        return now - self._since >= self._after_s

    def _watch(self) -> None:
        while self.look():
            time.sleep(self._every_s)


def call_in(leaf: FrameType | None) -> FrameType | None:
    """Return the frame of the call that the machine has made; None if it makes none."""
    while leaf is not None:
        caller = leaf.f_back
        if caller is not None and caller.f_code in _CALLERS:
            return leaf if leaf.f_code not in _CALLERS else None
        leaf = caller
    return None


def _stuck(machine: Machine, call: FrameType, leaf: FrameType | None, seconds: float) -> Stuck:
    inside = list[tuple[FrameType, int]]()
    while leaf is not None:
        inside.append((leaf, leaf.f_lineno))
        if leaf is call:
            break
        leaf = leaf.f_back
    stack = "".join(traceback.StackSummary.extract(reversed(inside)).format())
    return Stuck(
        machine.spec.title,
        brief(machine.key_at_hand),
        given_to(call),
        f"process {os.getpid()} on host {socket.gethostname()}",
        seconds,
        stack,
    )


def given_to(call: FrameType) -> str:
    """Return the record or timer that a hook was called with, in words."""
    for value in call.f_locals.values():
        if isinstance(value, Record):
            at = format_timestamp(value.timestamp)
            return f"record {value.id.hex()} of {value.stream!r} at {at}"
        if isinstance(value, Timer):
            return f"timer {value.tag!r} at {format_timestamp(value.at)}"
    return call.f_code.co_name
