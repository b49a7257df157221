"""Requests to a run, from any shell: put into its checkpoint's mailbox, and answered there.

A request names the generation of the run that it is for, so that none is taken by a later one: who
stops a run that has just died does not stop the next.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from millrace.inspect.run_end import RunEnd, leave_run_end
from millrace.model.errors import StoreError
from millrace.store.mailbox import Mailbox

_log = logging.getLogger("millrace")

_REQUEST: Final = ".request"
_ANSWER: Final = ".answer"
#: Of an answered request, so much later nobody waits for the answer any more.
_KEPT_US: Final = 3_600_000_000


class Request(msgspec.Struct, frozen=True):
    """What somebody wants of a run.

    Attributes:
        what: Such as ``stop``: one of what its :class:`Listener` can do.
        generation: Of the run.
        by: Who asked, as process and host.
        at_us: When, by the asker's clock.
        about: What it is about, such as a stream or a name; "" for the run as a whole.
    """

    what: str
    generation: int
    by: str
    at_us: int
    about: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What became of a request.

    Attributes:
        done: Whether it was; False if it was refused.
        said: In words.
        epoch: The last completed epoch when it took effect.
        at_us: When it did, by the driver's clock.
    """

    done: bool
    said: str
    epoch: int
    at_us: int


def ask(
    mailbox: Mailbox,
    what: str,
    generation: int,
    *,
    about: str = "",
    timeout_s: float,
    pause: Callable[[float], None] = time.sleep,
) -> Answer | None:
    """Ask a run for something; return its answer, or None, and take it back, if none comes in time.

    Args:
        mailbox: Of the run's checkpoint.
        what: See :class:`Request`.
        generation: Of the run.
        about: See :class:`Request`.
        timeout_s: How long to wait for an answer.
        pause: Waits for so many seconds.
    """
    by = f"process {os.getpid()} on host {socket.gethostname()}"
    at_us = time.time_ns() // 1000
    name = f"{at_us:016d}-{uuid.uuid4().hex[:8]}"
    request = Request(what, generation, by, at_us, about)
    mailbox.put(name + _REQUEST, msgspec.json.encode(request))
    until = time.monotonic() + timeout_s
    while (data := mailbox.read(name + _ANSWER)) is None:
        if time.monotonic() >= until:
            mailbox.remove([name + _REQUEST])
            return None
        pause(0.1)
    mailbox.remove([name + _REQUEST, name + _ANSWER])
    return msgspec.json.decode(data, type=Answer)


class Listener:
    """Takes requests to one run, in a thread of its own.

    Args:
        mailbox: Of its checkpoint.
        generation: Its own.
        acts: What can be asked for -> what does it, given what it is about, and returns what to
            say. Called in the thread, one at a time.
        ended: Returns in words how the run has ended, for who asked for that.
        epoch: Returns the last completed epoch.
        every_s: How often it looks.
        seen: Given the names of all messages each time.
        outliving: What is still done when the run that was asked has ended; who closes the run
            answers for the others.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        generation: int,
        acts: Mapping[str, Callable[[str], str]],
        *,
        ended: Callable[[], str],
        epoch: Callable[[], int],
        every_s: float,
        seen: Callable[[Sequence[str]], None] = lambda _names: None,
        outliving: Collection[str] = (),
    ) -> None:
        self._seen = seen
        self._outliving = outliving
        self._mailbox = mailbox
        self._generation = generation
        self._acts = acts
        self._ended = ended
        self._epoch = epoch
        self._every_s = every_s
        self._closed = threading.Event()
        self._under_way: str | None = None
        self._thread = threading.Thread(target=self._run, name="millrace-mailbox", daemon=True)

    def start(self) -> None:
        """Look for requests from now on."""
        self._thread.start()

    def look(self) -> None:
        """Take the requests that are there, and remove answers that nobody came for."""
        names = self._mailbox.names()
        self._seen(names)
        answered = {name.removesuffix(_ANSWER) for name in names if name.endswith(_ANSWER)}
        for name in names:
            if name.endswith(_REQUEST) and (bare := name.removesuffix(_REQUEST)) not in answered:
                self._take(bare)
        old = f"{time.time_ns() // 1000 - _KEPT_US:016d}"
        if left := [name for name in names if name < old]:
            self._mailbox.remove(left)

    def close(self) -> None:
        """Look no more; say in the mailbox how the run ended.

        A request that ended it is answered before this returns.
        """
        self._closed.set()
        name, state = self._under_way, self._ended()
        end = RunEnd(state, self._epoch(), time.time_ns() // 1000)
        try:
            if name is not None:
                self._answer(name, done=True, said=state)
            leave_run_end(self._mailbox, self._generation, end)
        except (StoreError, OSError) as error:
            _log.warning("how the run ended cannot be said in its checkpoint: %s", error)

    def _run(self) -> None:
        said = False
        while not self._closed.wait(self._every_s):
            try:
                self.look()
                said = False
            except (StoreError, OSError) as error:
                if not said:
                    _log.warning("requests to this run cannot be read: %s", error)
                said = True

    def _take(self, name: str) -> None:
        data = self._mailbox.read(name + _REQUEST)
        if data is None:
            return  # taken back
        try:
            request = msgspec.json.decode(data, type=Request)
        except msgspec.MsgspecError as error:
            self._answer(name, done=False, said=f"it cannot be read: {error}")
            return
        act = self._acts.get(request.what)
        if request.generation != self._generation:
            said = f"it is for run {request.generation}, and run {self._generation} has taken over"
            self._answer(name, done=False, said=said)
        elif act is None:
            said = f"this run cannot {request.what!r}; it can {', '.join(sorted(self._acts))}"
            self._answer(name, done=False, said=said)
        else:
            _log.info("%s was asked for by %s", request.what, request.by)
            self._under_way = None if request.what in self._outliving else name
            try:
                self._answer(name, done=True, said=act(request.about))
            except Exception as error:  # noqa: BLE001  whoever asked is told
                self._answer(name, done=False, said=f"it failed: {error}")
            finally:
                self._under_way = None

    def _answer(self, name: str, *, done: bool, said: str) -> None:
        answer = Answer(done, said, self._epoch(), time.time_ns() // 1000)
        self._mailbox.put(name + _ANSWER, msgspec.json.encode(answer))
