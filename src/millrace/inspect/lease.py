"""A lease on a checkpoint: of several programs one runs, and the others wait to take over.

Who holds the lease renews it, a few times in each term, by a message in the checkpoint's mailbox.
Who waits looks whether it was renewed, by a clock of its own: no two clocks are compared. If it was
not for a whole term, who waits puts the next one; of several that do, put-if-absent lets one win.

A lease says who is to begin, and protects nothing. A holder that was only slow, or paused, may
still be at work when the next one begins: what keeps the two apart is the claim of the checkpoint,
and what its log refuses after.

Source: Gray and Cheriton, "Leases" (SOSP 1989), for the term; MillWheel 6.2 for what fences;
docs/design/2026-11-28-standby.md.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from millrace.epochlog import reader
from millrace.inspect.overview import run_end
from millrace.model.errors import StoreError, ZombieWriter
from millrace.model.time import SECOND, Duration, duration_us
from millrace.store import open_location
from millrace.store.mailbox import Mailbox

_log = logging.getLogger("millrace")

_PREFIX: Final = "lease-"
#: A term is so many times as long as it takes until a lease is renewed, or looked at.
_RENEWED: Final = 4
#: Where a request costs money, and where none does.
_TERM_FAR: Final = "30 s"
_TERM: Final = "2 s"

#: How a holder has ended: in order, or so that somebody is to go on.
_DONE, _GIVEN_UP = "done", "given up"


class Term(msgspec.Struct, frozen=True):
    """A lease as it was renewed last.

    Attributes:
        holder: Process and host, for people.
        renewed: How often it was.
        at_us: When, by the holder's clock, for people.
        ended: How its holder has ended; "" while it has not.
        generation: Of the holder's run; 0 before there is one.
    """

    holder: str
    renewed: int
    at_us: int
    ended: str = ""
    generation: int = 0


def _ignore(_: Term) -> None:
    """Do nothing while another holds it."""


class Lease:
    """The right to run a checkpoint's pipeline, for one program at a time.

    Several programs, on several hosts, ask for it before they start the run. One has it. When that
    dies or fails, another gets it and starts the run, which goes on with the checkpoint.

    Args:
        checkpoint: The directory or URL of the run.
        pipeline: Name of the pipeline; the checkpoint is made for it if there is none.
        term: How long after it was last renewed it is another's. Shorter: sooner; longer: fewer
            requests, and no change when a busy machine is slow. By default 2 seconds, in an object
            store 30 seconds.
        clock: Returns seconds that only go forward.
        pause: Waits for so many seconds.

    Attributes:
        generation: Of the run of who holds it; 0 before there is one. Who waits reads it.

    Raises:
        CheckpointMismatch: The checkpoint is of another pipeline.

    >>> import tempfile
    >>> lease = Lease(tempfile.mkdtemp(), "clicks")
    >>> lease.acquire()
    True
    >>> lease.release()

    Source: see the module.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        pipeline: str,
        *,
        term: Duration | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._checkpoint = os.fspath(checkpoint)
        self._state = open_location(checkpoint, pipeline=pipeline, beside=True)
        self._mailbox: Mailbox = self._state.mailbox
        if term is None:
            term = _TERM_FAR if self._mailbox.far else _TERM
        self._term_s = duration_us(term, "start(lease)") / SECOND
        self._clock = clock
        self._pause = pause
        self.generation = 0
        self._holder = f"process {os.getpid()} on host {socket.gethostname()}"
        self._number = 0
        self._renewed = 0
        self._renewed_s = 0.0
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, waiting: Callable[[Term], object] = _ignore) -> bool:
        """Wait for the lease; hold it, and renew it in a thread, from then on.

        Args:
            waiting: Called with it at each look while another holds it, a few times in a term.

        Returns:
            True: it is held, perhaps already. False: it was another's, whose run was stopped or
            drained while this waited, so that nobody is to go on.

        Raises:
            StoreError: The checkpoint cannot be read or written.
        """
        if self._number:
            return True
        seen, since_s, held = None, self._clock(), False
        number, term = self._last()
        while True:
            if term is None:
                self._warn_of_a_run_without()
                free = True
            elif term.ended:
                if held and term.ended == _DONE:
                    _log.info("the lease was given back by %s: nobody is to go on", term.holder)
                    return False
                free = True
            elif (number, term) != seen:
                if not held:
                    _log.info("%s holds the lease of %s", term.holder, self._checkpoint)
                seen, since_s, held, free = (number, term), self._clock(), True, False
            else:
                free = self._clock() - since_s >= self._term_s
            if not free:
                assert term is not None, "another holds it"
                waiting(term)
                self._pause(self._term_s / _RENEWED)
                number, term = self._again(number)
                continue
            # Before it is taken all are listed: one that was taken is there beside one before it,
            # if who took it died before that was removed.
            now = self._last()
            if now != (number, term):
                number, term = now
            elif self._taken(number + 1, term):
                return True
            else:
                number, term = self._last()

    def release(self, failure: BaseException | None = None) -> None:
        """Give it back. Nothing happens if it is not held.

        Args:
            failure: Why the run has ended: one of those who wait has the lease at once. None: it
                was stopped or drained, and they are to end, too; so they are where another run, of
                somebody who did not ask for the lease, goes on in its place.
        """
        if not self._number:
            return
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        number, self._number = self._number, 0
        try:
            if self._last()[0] == number:
                done = failure is None or isinstance(failure, ZombieWriter)
                self._put(number, _DONE if done else _GIVEN_UP)
        except StoreError as error:
            _log.warning("the lease cannot be given back, and is over after its term: %s", error)

    def renew(self) -> bool:
        """Renew it; return False if it is another's by now. A thread does it while it is held."""
        overdue = self._clock() - self._renewed_s >= self._term_s
        if overdue and self._last()[0] > self._number:
            return False
        self._renewed += 1
        self._put(self._number)
        return True

    def _renew_until_released(self) -> None:
        said = False
        while not self._released.wait(self._term_s / _RENEWED):
            try:
                if not self.renew():
                    _log.warning("the lease was not renewed in time, and is another's now")
                    return
                said = False
            except StoreError as error:
                if not said:
                    _log.warning("the lease cannot be renewed: %s", error)
                said = True

    def _taken(self, number: int, before: Term | None) -> bool:
        """Put the next lease; return whether this did, and not somebody else."""
        term = msgspec.json.encode(Term(self._holder, 0, time.time_ns() // 1000))
        if not self._mailbox.put(f"{_PREFIX}{number:09d}", term):
            return False
        if before is not None and not before.ended:
            _log.warning("%s has not renewed the lease in time: it is taken over", before.holder)
        older = [name for name in self._names() if name < f"{_PREFIX}{number:09d}"]
        self._mailbox.remove(older)
        self._number, self._renewed, self._renewed_s = number, 0, self._clock()
        self._released.clear()
        self._thread = threading.Thread(
            target=self._renew_until_released, name="millrace-lease", daemon=True
        )
        self._thread.start()
        return True

    def _put(self, number: int, ended: str = "") -> None:
        at_us = time.time_ns() // 1000
        term = Term(self._holder, self._renewed, at_us, ended, self.generation)
        self._mailbox.replace(f"{_PREFIX}{number:09d}", msgspec.json.encode(term))
        self._renewed_s = self._clock()

    def _names(self) -> list[str]:
        return [name for name in self._mailbox.names() if name.startswith(_PREFIX)]

    def _again(self, number: int) -> tuple[int, Term | None]:
        """Return what :meth:`_last` does, by one request while it is the one that was last."""
        data = self._mailbox.read(f"{_PREFIX}{number:09d}")
        return self._last() if data is None else (number, msgspec.json.decode(data, type=Term))

    def _last(self) -> tuple[int, Term | None]:
        """Return number and content of the last lease; 0 and None if there is none."""
        for name in reversed(self._names()):
            data = self._mailbox.read(name)
            if data is not None:  # else it was removed since, as there is a later one
                return int(name.removeprefix(_PREFIX)), msgspec.json.decode(data, type=Term)
        return 0, None

    def _warn_of_a_run_without(self) -> None:
        """Say that a run may go on which has no lease, as nobody asked for one then."""
        claim, _, _ = reader.latest(self._state.epochs)
        if claim is not None and run_end(self._mailbox, claim.generation) is None:
            _log.warning(
                "the last run of %s had no lease, and has not said that it ended. If it goes on, "
                "it is superseded now",
                self._checkpoint,
            )
