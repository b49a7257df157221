"""Which call of user code ends its process: found by letting a child process run into it.

A process that dies in a hook, of a fault in native code or for its memory, cannot say in which.
When work is tried again after that, each bundle is run by a child first, which notes each call
before it makes it, in memory that both see. If the child dies, its last note says what killed it;
the next child leaves that out, until one gets through. Then the bundle is run as always, and what
was found in it fails with an exception: so its record becomes a dead letter, and all else goes on.

The child has the state of this process, writes nothing, and sends nothing. What user code does to
the world outside it does once more, as it may in every attempt.

The child reads the cache by the transaction that this process began, though LMDB says that neither
environment nor transaction crosses ``fork``. What that rule keeps from harm is not touched here:
the reader's slot and its lock are this process's, which keeps both until the child is gone; pages
that the transaction shows are not written as long as the slot is there; and the child ends by
``_exit`` or a signal, so that it closes nothing and frees nothing of LMDB's.

Source: Streaming Engine, 5 (one bad key must not hold up the rest).
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import logging
import mmap
import os
import signal
import tempfile
import time
from collections.abc import Callable
from math import inf
from typing import IO, Any, Final

from millrace.model.errors import ProcessKilled
from millrace.model.keys import encode_key
from millrace.model.record import Record, Timer

_log = logging.getLogger("millrace")

_DIGEST: Final = 16
_NOTHING: Final = bytes(_DIGEST)
_DONE: Final = b"\xff" * _DIGEST
#: So many calls of one bundle may kill; one more, and the bundle is run as it is.
_FATAL_MAX: Final = 1000
_LOOK_S: Final = 0.002
#: What calls the user's code.
_OURS: Final = f'File "{__file__}"'


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
        """Return what a hook returns of what it is given; note the call for as long as it runs.

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
                found = note[:_DIGEST]
                if found in (_DONE, _NOTHING):
                    return
                stack.seek(0)
                where = _users(stack.read().decode(errors="replace"))
                # There may be another, and to find this one may have taken all the time.
                self._until = self._clock() + self._lasts_s
                self._fatal[found] = how, where
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
            elif self._clock() - since >= self._ended_s:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"it was killed after {self._ended_s:g} s, in which it did not return"
        return _how(ended[1])


def _users(dumped: str) -> str:
    """Return the user's part of what faulthandler has written, innermost call first."""
    lines = dumped.partition("Extension modules:")[0].splitlines()
    ours = next((n for n, line in enumerate(lines) if _OURS in line), len(lines))
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
