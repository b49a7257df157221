"""What is asked of a run from any shell: put into its checkpoint's mailbox, and answered there.

A request names the generation of the run that it is for, so that none is taken by a later one: who
stops a run that has just died does not stop the next. Only a run that took over from it in the same
program, as after an update, goes on with what was asked.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millrace.inspect.overview import RunEnd, leave_run_end
from millrace.model.errors import PipelineError, StoreError, message_of
from millrace.model.keys import decode_key
from millrace.store.mailbox import Mailbox, MailboxWatch
from millrace.watermark.map_change import Merge, Split

if TYPE_CHECKING:
    from millrace.spark.run import KeptSavepoint, Run

_log = logging.getLogger("millrace")

#: What is still done when the run that was asked has ended; for the rest, who closes it answers.
OUTLIVING: Final = frozenset({"update", "remap", "savepoint", "snapshot", "fire"})
#: What is asked of whatever goes on: a run that takes over meanwhile does it, too, and answers.
LASTING: Final = frozenset({"stop", "drain", "pause", "resume", "rate-limit"})
#: What the end of the run is the answer to.
_ENDING: Final = frozenset({"stop", "drain", "status"})

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


class UpdateAsked(msgspec.Struct, frozen=True):
    """What an update is about.

    Attributes:
        application: Names the changed pipeline, for the driver.
        options: Of the start, those that are to be others than before.
    """

    application: str
    options: dict[str, Any] = {}


class CallAsked(msgspec.Struct, frozen=True):
    """What ``millrace fire`` is about.

    Attributes:
        name: Of the triggers.
        keys: Encoded, as hexadecimal digits; none: all.
    """

    name: str
    keys: list[str]


class RemapAsked(msgspec.Struct, frozen=True):
    """What a remap is about.

    Attributes:
        computation: As the pipeline calls it.
        splits: Interval ids, and the lowest hash of the second part of each; None for the middle.
        merges: Interval ids, the lower one first.
    """

    computation: str
    splits: list[tuple[int, int | None]] = []
    merges: list[tuple[int, int]] = []

    def remaps(self) -> list[Split | Merge]:
        """Return the remaps."""
        return [Split(*merge) for merge in self.splits] + [Merge(*split) for split in self.merges]


class Answer(msgspec.Struct, frozen=True):
    """What became of a request.

    Attributes:
        done: Whether it was; False if it was refused.
        text: In words.
        epoch: The last completed epoch when it took effect.
        at_us: When it did, by the driver's clock.
    """

    done: bool
    text: str
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
    mailbox.ring()
    until = time.monotonic() + timeout_s
    while (data := mailbox.read(name + _ANSWER)) is None:
        if time.monotonic() >= until:
            mailbox.remove([name + _REQUEST])
            return None
        pause(0.1)
    mailbox.remove([name + _REQUEST, name + _ANSWER])
    return msgspec.json.decode(data, type=Answer)


class RunRequests:
    """What was asked of the runs of one program, each of which took over from the one before.

    Attributes:
        generations: Of the runs.
        under_way: Names of the requests that one of them carries out now.
    """

    def __init__(self) -> None:
        self.generations: set[int] = set()
        self.under_way: set[str] = set()


class Listener:
    """Takes requests to one run, in a thread of its own.

    Args:
        mailbox: Of its checkpoint.
        generation: Its own.
        acts: What can be asked for -> what does it, given what it is about, and returns what to
            say. Called in the thread, one at a time.
        ended: Returns in words how the run has ended, for who asked for that.
        epoch: Returns the last completed epoch.
        every_s: How often it looks whether somebody has rung. It lists the mailbox then, and now
            and then without.
        seen: Given the names of all messages each time.
        requests: To the runs that this one took over from, and to those that take over from it.
        handed_over: Returns whether another run has taken over, or is about to. It carries out
            what was under way, too, if that is :data:`LASTING`.
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
        requests: RunRequests | None = None,
        handed_over: Callable[[], bool] = bool,
    ) -> None:
        self._seen = seen
        self._requests = requests or RunRequests()
        self._requests.generations.add(generation)
        self._handed_over = handed_over
        self._mailbox = mailbox
        self._generation = generation
        self._acts = acts
        self._ended = ended
        self._epoch = epoch
        self._every_s = every_s
        self._watch = MailboxWatch(mailbox)
        self._closed = threading.Event()
        # The name of the request that ends with the run, and what it is.
        self._under_way: tuple[str, str] | None = None
        self._thread = threading.Thread(target=self._run, name="millrace-mailbox", daemon=True)

    def start(self) -> None:
        """Look for requests from now on."""
        self._thread.start()

    def look(self) -> None:
        """Process waiting requests, and remove answers that were not fetched."""
        if not self._watch.due():
            return
        names = self._mailbox.names()
        self._seen(names)
        answered = {name.removesuffix(_ANSWER) for name in names if name.endswith(_ANSWER)}
        for name in names:
            if name.endswith(_REQUEST) and (bare := name.removesuffix(_REQUEST)) not in answered:
                self._take(bare)
        old = f"{time.time_ns() // 1000 - _KEPT_US:016d}"
        if left := [name for name in names if name < old]:
            self._mailbox.remove(left)
        # Only now: what could not be read, or answered, is looked for again.
        self._watch.looked()

    def close(self) -> None:
        """Look no more; say in the mailbox how the run ended.

        A request that ended it, or that it has ended, is answered before this returns.
        """
        self._closed.set()
        under_way, state = self._under_way, self._ended()
        end = RunEnd(state, self._epoch(), time.time_ns() // 1000)
        try:
            if under_way is not None and not self._is_left(under_way[1]):
                name, verb = under_way
                ends = verb in _ENDING
                self._answer(name, done=ends, said=state if ends else f"the run is {state}")
            leave_run_end(self._mailbox, self._generation, end)
        except (StoreError, OSError) as error:
            _log.warning("how the run ended cannot be said in its checkpoint: %s", error)

    def _run(self) -> None:
        said = rung = False
        while not self._closed.wait(self._every_s):
            try:
                if not rung:
                    self._mailbox.ring()  # who had the checkpoint looks, and finds that it has not
                    rung = True
                self.look()
                said = False
            except Exception as error:  # noqa: BLE001  nobody could ask for anything any more
                if not said:
                    _log.warning("requests to this run cannot be read: %s", message_of(error))
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
        if request.generation > self._generation:
            return  # that run has claimed the checkpoint, and looks when it has begun
        verb, mine = request.what, request.generation == self._generation
        act = self._acts.get(verb)
        if not mine and request.generation in self._requests.generations:
            # Who was asked carries it out, or has, or did not come to it before this run took over.
            if name in self._requests.under_way or self._mailbox.read(name + _ANSWER) is not None:
                return
        elif not mine:
            said = f"it is for run {request.generation}, and run {self._generation} has taken over"
            self._answer(name, done=False, said=said)
            return
        if act is None:
            said = f"this run cannot {verb!r}; it can {', '.join(sorted(self._acts))}"
            self._answer(name, done=False, said=said)
            return
        _log.info("%s was asked for by %s", verb, request.by)
        self._under_way = None if verb in OUTLIVING else (name, verb)
        self._requests.under_way.add(name)
        try:
            done, said = True, act(request.about)
        except Exception as error:  # noqa: BLE001  whoever asked is told
            done, said = False, f"it failed: {message_of(error)}"
        try:
            if not self._is_left(verb):
                self._answer(name, done=done, said=said)
        finally:
            self._under_way = None
            self._requests.under_way.discard(name)
        if self._is_left(verb):
            self._mailbox.ring()  # who has taken over may have looked before

    def _is_left(self, verb: str) -> bool:
        """Return whether a request is left to the run that takes over."""
        return verb in LASTING and self._handed_over()

    def _answer(self, name: str, *, done: bool, said: str) -> None:
        answer = Answer(done, said, self._epoch(), time.time_ns() // 1000)
        self._mailbox.put(name + _ANSWER, msgspec.json.encode(answer))


# What can be asked for: what does it, given the run and what the request is about, and says what
# holds then.


def _stop(run: Run, _: str) -> str:
    run.stop()
    return run.status().state


def _drain(run: Run, _: str) -> str:
    run.drain(None)
    return run.status().state


def _status(run: Run, _: str) -> str:
    return str(run.status())


def _held(run: Run, stream: str) -> str:
    if not run.active:
        raise PipelineError(f"the run is {run.status().state}, and reads nothing.")
    return f"{stream}: {run.publisher.throttle.descriptions().get(stream, 'read as it comes')}"


def _pause(run: Run, stream: str) -> str:
    run.pause(stream)
    return _held(run, stream)


def _resume(run: Run, stream: str) -> str:
    run.resume(stream)
    return _held(run, stream)


def _limit_rate(run: Run, about: str) -> str:
    stream, _, rate = about.rpartition("=")
    run.limit_rate(stream, float(rate))
    return _held(run, stream)


def _fire(run: Run, about: str) -> str:
    asked = msgspec.json.decode(about, type=CallAsked)
    run.fire(asked.name, [decode_key(bytes.fromhex(key)) for key in asked.keys])
    return f"{asked.name} was called"


def _savepoint(run: Run, name: str) -> str:
    return _kept(run.keep(name))


def _snapshot(run: Run, _: str) -> str:
    return _kept(run.keep(None))


def _kept(kept: KeptSavepoint) -> str:
    return _after(f"epoch {kept.epoch} is kept as savepoint {kept.name}", kept.pause)


def _remap(run: Run, about: str) -> str:
    asked = msgspec.json.decode(about, type=RemapAsked)
    intervals = run.remap(asked.computation, asked.remaps())
    said = (
        f"{asked.computation} has {intervals.intervals} key intervals after epoch {intervals.epoch}"
    )
    return _after(said, intervals.pause)


def _after(said: str, pause: str) -> str:
    return f"{said}; the run stood still for {pause}" if pause else said


_VERBS: Final[Mapping[str, Callable[[Run, str], str]]] = {
    "stop": _stop,
    "drain": _drain,
    "status": _status,
    "pause": _pause,
    "resume": _resume,
    "rate-limit": _limit_rate,
    "fire": _fire,
    "savepoint": _savepoint,
    "snapshot": _snapshot,
    "remap": _remap,
}


def acts_of(
    run: Run, update: Callable[[str, Mapping[str, Any]], str]
) -> dict[str, Callable[[str], str]]:
    """Return what can be asked of a run -> what does it, for its :class:`Listener`.

    Args:
        run: The run.
        update: Has the application that a name names take its place, with other options, and
            returns for how long nothing was under way.
    """

    def updated(about: str) -> str:
        asked = msgspec.json.decode(about, type=UpdateAsked)
        pause = update(asked.application, asked.options)
        said = f"{asked.application} has taken over after epoch {run.run_log.completed}"
        return _after(said, pause)

    return {"update": updated, **{name: partial(act, run) for name, act in _VERBS.items()}}
