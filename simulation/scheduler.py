"""The scheduler: simulated processes, of which one runs at a time and a seed says which.

A process is a greenlet around ordinary code. It runs until it takes its next *step*: a system call,
a message, a wait. There the scheduler may stop it for good, keep it waiting, or run another one
first. Nothing else ever switches, so the whole interleaving follows from one random generator.

Greenlets, because the code under test runs unchanged in them, a switch costs a third of a
microsecond, and a killed one unwinds at once. A thread with a baton would do the same at ten times
the cost; generators would need another version of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

try:
    from greenlet import greenlet
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "the simulator needs greenlet: make setup, or pip install greenlet"
    ) from error

#: No schedule with so few faults takes this many; one that does has stopped making progress.
STEPS_MAX = 60_000


class Killed(BaseException):
    """The death of a simulated process. Not an Exception: nothing may catch and survive it."""


class Stuck(Exception):
    """Nothing can run any more, or nothing comes to an end."""


class Process:
    """One simulated process: a driver, or the Python worker of a task attempt.

    Attributes:
        name: For the trace.
        host: Number of the machine that it runs on.
        threads: What stands for other threads of it, or for its first one.
        dead: Whether it was killed.
        ended: Whether it has come to its end, or its death.
        paused_until: The step before which it does not go on.
        error: What ended it, unless it came to its end.
    """

    def __init__(self, name: str, host: int, run: Callable[[], Any]) -> None:
        self.name = name
        self.host = host
        self.threads: set[Process] = set()
        self.dead = False
        self.ended = False
        self.paused_until = 0
        self.error: BaseException | None = None
        self.waits_for: Callable[[], bool] | None = None
        self._run = run
        self.greenlet = greenlet(self._main)

    def _main(self) -> None:
        try:
            if not self.dead:
                self._run()
        except Killed as killed:
            self.error = killed
        except Exception as error:  # noqa: BLE001  # whatever it is, the oracle judges it
            self.error = error
        self.ended = True

    def __repr__(self) -> str:
        return self.name


class Scheduler:
    """Runs processes, one step of one of them at a time.

    Args:
        random: Decides which.
        stickiness: The probability that the process at hand goes on without a choice.
        on_step: Called before every step with the process, what it is about to do, and to what.
        on_end: Called after the end of a process.
    """

    def __init__(
        self,
        random: Random,
        *,
        stickiness: float,
        on_step: Callable[[Process, str, object], None],
        on_end: Callable[[Process], None],
    ) -> None:
        self.steps = 0
        self.processes: list[Process] = []
        self.current: Process | None = None
        self._random = random
        self._stickiness = stickiness
        self._on_step = on_step
        self._on_end = on_end
        self._hub = greenlet.getcurrent()

    def spawn(
        self, name: str, host: int, run: Callable[[], Any], *, of: Process | None = None
    ) -> Process:
        """Add a process, or a thread of one that is there; it begins when it is chosen."""
        process = Process(name, host, run)
        if of is not None:
            process.threads = of.threads
            process.threads |= {of, process}
        process.greenlet.parent = self._hub
        self.processes.append(process)
        return process

    def step(self, what: str, where: object = None) -> None:
        """Called by the code of a process before everything that others can notice.

        From outside of any process (a check of the outcome) it does nothing.
        """
        process = self.current
        if process is None:
            return
        self._alive(process)
        self.steps += 1
        self._on_step(process, what, where)
        self._alive(process)
        if process.paused_until > self.steps or self._random.random() >= self._stickiness:
            self._hub.switch()
            self._alive(process)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Called by the code of a process: go on when the condition holds."""
        process = self.current
        assert process is not None, "only a process can wait"
        self.step(what)
        while not condition():
            process.waits_for = condition
            self._hub.switch()
            self._alive(process)
        process.waits_for = None

    def stop(self, process: Process, until: int) -> None:
        """Let a process, with all threads of it, not go on before a step."""
        for one in (process, *process.threads):
            one.paused_until = until

    def kill(self, process: Process) -> None:
        """End a process where it stands: whatever it does from now on is not done."""
        process.dead = True

    def run(self, done: Callable[[], bool]) -> None:
        """Run until ``done``, asked between steps.

        Raises:
            Stuck: No process can go on, or it takes too long.
        """
        while True:
            for process in [process for process in self.processes if process.dead]:
                self._resume(process)
            if done():
                return
            if self.steps > STEPS_MAX:
                raise Stuck(f"no end after {self.steps} steps; alive: {self.processes}")
            now = self.steps
            awake = [
                process
                for process in self.processes
                if process.paused_until <= now
                and (process.waits_for is None or process.waits_for())
            ]
            if not awake:
                ready = [
                    process
                    for process in self.processes
                    if process.waits_for is None or process.waits_for()
                ]
                if not ready:
                    raise Stuck(f"nothing can run; alive: {self.processes}")
                # All that could run is asleep: time passes until the first one wakes up.
                self.steps = min(process.paused_until for process in ready)
                continue
            self._resume(self._random.choice(awake))

    def _resume(self, process: Process) -> None:
        self.current = process
        process.greenlet.switch()
        self.current = None
        if process.ended:
            self.processes.remove(process)
            self._on_end(process)

    @staticmethod
    def _alive(process: Process) -> None:
        if process.dead:
            raise Killed


class Turns:
    """A lock between processes that stand for threads of one: who holds it may take it again.

    Args:
        scheduler: Of the processes.

    Source: :class:`threading.RLock`, which greenlets of one thread all pass.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holder: Process | None = None
        self._depth = 0

    def __enter__(self) -> None:
        mine = self._scheduler.current
        if mine is None:
            return  # a check of the outcome, of which nothing goes on beside
        if self._holder is not None and self._holder is not mine:
            self._scheduler.wait(lambda: self._holder is None, "take turns")
        self._holder = mine
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if self._scheduler.current is None:
            return
        self._depth -= 1
        if not self._depth:
            self._holder = None
