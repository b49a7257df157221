"""Calls of user code that do not return, or end their process: found, ended, left out.

**Slow calls.** A thread looks at the stack of the one that runs user code, now and then. Python
makes one frame object of a call, so the frame of a hook tells whether this is the call that was
there before. It is kept until the next look, and with it what the call was given.

**Calls to services.** Of those the pools say which has waited longest for its outcome, over all its
attempts, and with which error the last one failed.

**A standstill.** The same is looked at for the thread of a task: where Millrace's own frames, and
the first of other code, are the same objects at the same instructions as before, nothing was done
in between. Code that is not Millrace's may loop there as it likes. What lets no other thread run,
as native code that never gives up Python's lock, cannot be looked at: then nobody answers.

**Time limits.** Who watches sends a signal to the main thread, and Python calls the handler there,
between two instructions of the code that runs, or in the middle of a wait. So the handler sees what
it interrupts, and raises in the call that was meant and in no other: not in Millrace's own code,
and not in what came after the call. The record becomes a dead letter. Native code is ended when it
returns to Python; what never does is not ended.

**Deadly calls.** A process that dies in a hook, of a fault in native code or for its memory, cannot
say in which. When work is tried again after that, each bundle is run by a child first, which notes
each call before it makes it, in memory that both see. If the child dies, its last note says what
killed it; the next child leaves that out, until one gets through. Then the bundle is run as always,
and what was found in it fails with an exception: so its record becomes a dead letter, and all else
goes on. The child has the state of this process, writes nothing, and sends nothing. What user code
does to the world outside it does once more, as it may in every attempt.

The child reads the cache by the transaction that this process began, though LMDB says that neither
environment nor transaction crosses ``fork``. What that rule keeps from harm is not touched here:
the reader's slot and its lock are this process's, which keeps both until the child is gone; pages
that the transaction shows are not written as long as the slot is there; and the child ends by
``_exit`` or a signal, so that it closes nothing and frees nothing of LMDB's.

Source: Streaming Engine, 5 ("user code ... is visible"; one bad key must not hold up the rest).
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import logging
import mmap
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from types import CodeType, FrameType
from typing import IO, Any, Final, NamedTuple

import msgspec

from millrace.kernel.blocks import BlockMachine
from millrace.kernel.execution import RunningCall
from millrace.kernel.machine import Machine
from millrace.kernel.results import TIMED
from millrace.model.calls import WaitingCall
from millrace.model.errors import ProcessKilled, TimeLimitExceeded, brief
from millrace.model.keys import encode_key
from millrace.model.record import Record, Timer
from millrace.model.time import SECOND, format_timestamp
from millrace.runtime.calls import CallPools

_log = logging.getLogger("millrace")

#: No program uses it for anything; macOS has no such signals.
_SIGNAL: Final = getattr(signal, "SIGRTMIN", signal.SIGUSR2)
_OURS: Final = Path(__file__).parents[1]
#: To stop in the middle of these could leave rows half-written. A call is not there for long.
_NOT_HERE: Final = (f"{_OURS / 'kernel'}/", f"{_OURS / 'store'}/")


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


#: What calls hooks, coders and cells for a key.
_CALLERS = frozenset(
    {
        Machine._run_keys.__code__,
        Machine._attempt.__code__,
        Machine._fire_due.__code__,
        BlockMachine._run_together.__code__,
        TIMED,
    }
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

    warn_after_s: float = inf
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
        stack: Where it is, outermost call first, as tracebacks say it; "" of a call to a service.
        waits: Of a call to a service, how often it was made, and the last error; else "".
    """

    computation: str
    key: str
    of: str
    where: str
    seconds: float
    stack: str
    waits: str = ""

    def __str__(self) -> str:
        doing = f"waits for a service ({self.waits})" if self.waits else "in user code"
        return (
            f"{self.computation}, key {self.key}, {self.of}: {doing} for {self.seconds:.0f} s "
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
        running: RunningCall,
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
        self._since = self._reported_at_s = 0.0
        self._is_reported = False
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
            if self._is_reported:
                self._over()
            self._call, self._since, self._is_reported = call, now, False
        elif call is not None and machine is not None:
            limit, seconds = self._limit, now - self._since
            if limit is not None and seconds >= limit.limit_s and call.f_code in machine.hooks:
                limit.end(call, running.thread)
            if self._due(now):
                self._is_reported, self._reported_at_s = True, now
                self._tell(_stuck(machine, call, leaf, seconds))
        return True

    def _due(self, now: float) -> bool:
        if self._is_reported:
            return now - self._reported_at_s >= _AGAIN_S
        return now - self._since >= self._after_s

    def _watch(self) -> None:
        while self.look():
            time.sleep(self._every_s)


class CallWatch:
    """Watches the calls to services of one process.

    Args:
        pools: Make the calls.
        titles: Computation -> what its pipeline calls it.
        after_s: How long a call may wait for its outcome before it is reported.
        tell: Given the call that has waited longest, if for so long, and again every 15 seconds.
        over: Called when no call waits for so long any more.
        clock: Returns seconds.
    """

    def __init__(
        self,
        pools: CallPools,
        titles: Mapping[str, str],
        after_s: float,
        tell: Callable[[Stuck], None],
        over: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pools = weakref.ref(pools)
        self._titles = titles
        self._after_s = after_s
        self._tell = tell
        self._over = over
        self._clock = clock
        self._reported_id: bytes | None = None
        self._reported_at_s = 0.0

    def start(self) -> None:
        """Look in a thread of its own, as long as there are pools."""
        threading.Thread(target=self._watch, name="millrace-watch-calls", daemon=True).start()

    def look(self) -> bool:
        """Look once; return False when there is nothing to watch any more."""
        pools = self._pools()
        if pools is None:
            return False
        longest = max(pools.waiting(), key=lambda item: item[1].waited_us, default=None)
        if longest is None or longest[1].waited_us < self._after_s * SECOND:
            if self._reported_id is not None:
                self._reported_id = None
                self._over()
            return True
        name, waiting = longest
        now = self._clock()
        if self._reported_id != waiting.call.id or now - self._reported_at_s >= _AGAIN_S:
            self._reported_id, self._reported_at_s = waiting.call.id, now
            self._tell(_waits(self._titles[name], waiting))
        return True

    def _watch(self) -> None:
        while self.look():
            time.sleep(min(1.0, self._after_s / 4))


def _waits(title: str, waiting: WaitingCall) -> Stuck:
    call = waiting.call
    return Stuck(
        title,
        brief(call.key),
        f"call {call.id.hex()} with {brief(call.request, 80)}",
        _here(),
        waiting.waited_us / SECOND,
        "",
        str(waiting),
    )


def _here() -> str:
    return f"process {os.getpid()} on host {socket.gethostname()}"


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
        _here(),
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


_DIGEST: Final = 16
_NOTHING: Final = bytes(_DIGEST)
_DONE: Final = b"\xff" * _DIGEST
#: So many calls of one bundle may kill; one more, and the bundle is run as it is.
_FATAL_MAX: Final = 1000
_LOOK_S: Final = 0.002
#: A child that makes no call for so long has met a lock that nobody gives back after ``fork``.
_BETWEEN_CALLS_S: Final = 60.0
#: What calls the user's code.
_OWN_FILES: Final = f'File "{__file__}"'


class Probe:
    """Finds calls that end their process.

    Args:
        ended_s: How long one call may take in a child.
        lasts_s: For how long to look, from the beginning or the last that was found; afterwards
            bundles are run at once.
        clock: Returns seconds.
    """

    def __init__(
        self,
        ended_s: float = inf,
        *,
        lasts_s: float = inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ended_s = ended_s
        self._clock = clock
        self._lasts_s = lasts_s
        self._until = clock() + lasts_s
        self._note: mmap.mmap | None = None
        self._fatal: dict[bytes, tuple[str, str]] = {}

    @property
    def over(self) -> bool:
        """Whether it has looked for long enough."""
        return self._clock() >= self._until

    def call(self, hook: Callable[[Any], Any], key: Any, given: Record | Timer) -> Any:
        """Call a hook with a record or timer, and return its result; the call is noted meanwhile.

        Raises:
            ProcessKilled: It would end the process.
        """
        name = _name(key, given)
        if (why := self._fatal.get(name)) is not None:
            killed = ProcessKilled(f"it ends the process that it runs in: {why[0]}")
            killed.add_note(why[1])
            raise killed
        if (note := self._note) is None:
            return hook(given)
        note[:_DIGEST] = name
        try:
            return hook(given)
        finally:
            # What Millrace does between calls is not laid to the one before.
            note[:_DIGEST] = _NOTHING

    def look(self, run: Callable[[], object]) -> None:
        """Find what in a bundle ends its process.

        Args:
            run: Runs the bundle, and changes nothing outside of this process.
        """
        self._fatal = {}
        with mmap.mmap(-1, _DIGEST) as note, tempfile.TemporaryFile() as stack:
            while len(self._fatal) < _FATAL_MAX:
                note[:_DIGEST] = _NOTHING
                stack.truncate(0)
                how = self._died(run, note, stack)
                digest = note[:_DIGEST]
                if digest in (_DONE, _NOTHING):
                    return
                stack.seek(0)
                where = _users(stack.read().decode(errors="replace"))
                # There may be another, and to find this one may have taken all the time.
                self._until = self._clock() + self._lasts_s
                self._fatal[digest] = how, where
                _log.warning("user code ends its process: %s\n%s", how, where)

    def _died(self, run: Callable[[], object], note: mmap.mmap, stack: IO[bytes]) -> str:
        """Let a child run, which notes last that it is done; return in words how it ended."""
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                faulthandler.enable(stack, all_threads=False)
                self._note = note
                run()
            note[:_DIGEST] = _DONE
            os._exit(0)
        since, at = self._clock(), _NOTHING
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            time.sleep(_LOOK_S)
            if (now := note[:_DIGEST]) != at:
                since, at = self._clock(), now
                continue
            limit_s = self._ended_s
            if at == _NOTHING:
                limit_s = max(limit_s, _BETWEEN_CALLS_S)
            if self._clock() - since >= limit_s:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"it was killed after {limit_s:g} s, in which it did not return"
        return _how(ended[1])


def _users(dumped: str) -> str:
    """Return the user's part of what faulthandler has written, innermost call first."""
    lines = dumped.partition("Extension modules:")[0].splitlines()
    ours = next((n for n, line in enumerate(lines) if _OWN_FILES in line), len(lines))
    return "\n".join(lines[:ours]).strip()


def _name(key: Any, given: Record | Timer) -> bytes:
    """Return what a call is known by, in every attempt."""
    if isinstance(given, Record):
        name = given.id
    else:
        clock = given.at, str(given.domain), given.percentile
        name = encode_key((key, given.tag, *clock))
    return hashlib.blake2b(name, digest_size=_DIGEST).digest()


def _how(status: int) -> str:
    """Return in words how a process ended.

    >>> _how(11), _how(3 << 8)
    ('signal SIGSEGV', 'exit status 3')
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"signal {signal.Signals(number).name}"
        except ValueError:
            return f"signal {number}"
    return f"exit status {os.WEXITSTATUS(status)}"


_PACKAGE: Final = f"{Path(__file__).parents[1]}/"
#: It waits for a child, whose calls have a limit of their own.
_PROBING: Final = Probe._died.__code__


class Sight(NamedTuple):
    """What was seen of a thread.

    Attributes:
        moves: How often it was seen to have moved. As long as this is the same, it has not.
        given: The record or timer of the user's hook that it is in, in words; "" if in none.
        place: The function and line where it is: of code that is not Millrace's, if it is in any.
    """

    moves: int
    given: str
    place: str


class Standstill:
    """Looks at one thread.

    Args:
        thread: Its identity.
        work: The code within which it is at work.
        waits: Code in which it waits for work.
        frames: Returns thread -> the frame that it is in.
    """

    def __init__(
        self,
        thread: int,
        work: CodeType,
        waits: frozenset[CodeType],
        frames: Callable[[], Mapping[int, FrameType]] = sys._current_frames,
    ) -> None:
        self._thread = thread
        self._work = work
        self._waits = waits
        self._frames = frames
        self._seen: list[tuple[FrameType, int]] = []
        self._moves = 0

    def look(self) -> Sight | None:
        """Look at the thread; return None if it waits for work, or for who takes what it made."""
        leaf = self._frames().get(self._thread)
        stack = list[FrameType]()
        frame = leaf
        while frame is not None and frame.f_code is not self._work:
            stack.append(frame)
            frame = frame.f_back
        if (
            frame is None
            or leaf is None
            or any(frame_at.f_code in self._waits for frame_at in stack)
        ):
            self.forget()
            return None
        stack.append(frame)
        seen, probing = list[tuple[FrameType, int]](), False
        place = leaf
        for one in reversed(stack):
            probing |= one.f_code is _PROBING
            if not one.f_code.co_filename.startswith(_PACKAGE):
                seen.append((one, -1))
                place = one
                break
            seen.append((one, one.f_lasti))
        if probing or not _same(seen, self._seen):
            self._moves += 1
        self._seen = seen
        call = call_in(leaf)
        return Sight(
            self._moves,
            "" if call is None else given_to(call),
            f"{place.f_code.co_name} ({place.f_code.co_filename}:{place.f_lineno})",
        )

    def forget(self) -> None:
        """Keep nothing of what was seen, nor what calls were given."""
        self._seen = []


def _same(seen: list[tuple[FrameType, int]], before: list[tuple[FrameType, int]]) -> bool:
    return len(seen) == len(before) and all(
        one is other and at == then for (one, at), (other, then) in zip(seen, before, strict=True)
    )
