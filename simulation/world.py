"""The world of one simulation: a storage, hosts, drivers, and what happens to them.

It is what both planes have in common; what a driver does, and what must have come of it, a plane's
own world says.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from millrace.epochlog.run_log import RunLog
from millrace.model.errors import StoreError
from millrace.model.time import SECOND
from millrace.store import HardState, SnapshotPolicy, write_if_due
from millrace.store.durable_files import TEMPORARY_SUFFIX
from simulation import computations
from simulation.callers import Callers
from simulation.fate import Fate
from simulation.faults import Fault, Kind, plan
from simulation.hosts import Host, HostCaches
from simulation.scheduler import Process, Scheduler, Stuck, Turns
from simulation.storage import InBucket, OnDisk, Storage
from simulation.workload import Workload

#: A run repeats its claim after so many entries of the epoch log, so that schedules cross it.
CLAIM_ENTRIES = 6
#: Whenever it is asked for: a schedule is short.
_SNAPSHOTS = SnapshotPolicy(fixed_bytes=0)
_TEMPORARY = re.compile(r"tmp/[\w-]+" + re.escape(TEMPORARY_SUFFIX))


@dataclass
class Outcome:
    """What a schedule came to.

    Attributes:
        seed: Its number.
        faults: The plan.
        happened: Kind of fault -> how often it happened.
        steps: How long it was.
        epochs: Epochs completed.
        drivers: Drivers started.
        violation: What is wrong; None if nothing.
        trace: Lines of who did what, if asked for.
        incarnations: Incarnations begun, on the real-time plane.
    """

    seed: int
    faults: Sequence[Fault]
    happened: Counter[Kind]
    steps: int
    epochs: int
    drivers: int
    violation: str | None
    trace: list[str] = field(default_factory=list)
    incarnations: int = 0


class World(ABC):
    """A world.

    Args:
        seed: Everything follows from it.
        keep: Numbers of the planned faults that are to happen; None for all.
        trace: Whether to write down every step.
        calm: Let nothing happen at all: one machine, no faults, nobody is interrupted.
    """

    #: What the command line calls it.
    plane = "epochs"
    #: Whether it is one of the real-time plane.
    realtime = False
    #: How a schedule in which nothing happens goes on; tasks that do not end must take turns.
    calm_stickiness = 1.0

    def __init__(
        self,
        seed: int,
        *,
        keep: Sequence[int] | None = None,
        trace: bool = False,
        calm: bool = False,
    ) -> None:
        self.seed = seed
        self.random = Random(f"{seed} world")
        self.work = self._workload(Random(f"{seed} work"))
        self.topology = self.work.program.topology
        bucket = self.work.bucket
        random = Random(f"{seed} faults")
        self.faults = [] if calm else plan(random, bucket=bucket, realtime=self.realtime)
        stickiness = self.random.choice((0.0, 0.5, 0.8, 0.95))
        self.scheduler = Scheduler(
            Random(f"{seed} order"),
            stickiness=self.calm_stickiness if calm else stickiness,
            on_step=self._on_step,
            on_end=self._on_end,
        )
        turns = partial(Turns, self.scheduler)
        self.storage: Storage = (
            InBucket(self._ask_storage, turns)
            if bucket
            else OnDisk(Random(f"{seed} disk"), self._ask_storage, turns)
        )
        self.callers = Callers(self.topology, Random(f"{seed} calls"))
        self.hosts = [Host(n, self._ask_cache) for n in range(1 if calm else self.work.hosts)]
        self.drivers: list[Process] = []
        self._tidying: set[str] = set()
        self._clocks: dict[Process, int] = {}
        self._claims: dict[int, Process | None] = {}
        self._trace: list[str] | None = [] if trace else None
        self.fate = Fate(
            self, [fault for n, fault in enumerate(self.faults) if keep is None or n in keep]
        )
        self._violation: str | None = None

    # -- what a plane says -------------------------------------------------------------------------

    @abstractmethod
    def _workload(self, random: Random) -> Workload:
        """Return what is processed."""

    @abstractmethod
    def _drive(self, name: str, random: Random) -> None:
        """Be a driver: the code of its process."""

    @abstractmethod
    def _judge(self) -> str | None:
        """Return what is wrong now that all is over."""

    @abstractmethod
    def _forbidden(self, process: Process) -> str | None:
        """Return how a process must not end, if it ended so."""

    @abstractmethod
    def _epochs(self) -> int:
        """Return how many epochs were completed."""

    def _incarnations(self) -> int:
        """Return how many incarnations were begun."""
        return 0

    @abstractmethod
    def lose_outputs(self, host: Host | None = None) -> None:
        """Lose a host's tasks and what they sent; of all hosts if none is given."""

    @abstractmethod
    def strike(self, fault: Fault) -> bool:
        """Let a fault happen that is of this plane only; return False if it cannot."""

    def _processed_by(self, process: Process) -> bool:
        """Return whether a driver that came to its end has processed everything."""
        return process.error is None

    # -- running -----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run the schedule to its end, and judge it."""
        with _staged(self._draw):
            if self.callers:
                self.scheduler.spawn(
                    "caller", -1, lambda: self.callers.call(self.scheduler, self.storage.open)
                )
            try:
                self.scheduler.run(self._processed)
                # Who slept through it all wakes up now, and must not change anything.
                self.fate.rest()
                self.storage.settle()
                for process in self.scheduler.processes:
                    process.paused_until = 0
                self.scheduler.run(self._quiet)
                if self._violation is None:
                    self.start_driver()
                    self.scheduler.run(self._quiet)
            except Stuck as stuck:
                self._violation = self._violation or str(stuck)
            if self._violation is None:
                self._violation = self._judge()
        return Outcome(
            seed=self.seed,
            faults=self.faults,
            happened=self.fate.happened,
            steps=self.scheduler.steps,
            epochs=self._epochs(),
            drivers=len(self.drivers),
            violation=self._violation,
            trace=self._trace or [],
            incarnations=self._incarnations(),
        )

    def _quiet(self) -> bool:
        return self._violation is not None or not self.scheduler.processes

    def _processed(self) -> bool:
        """Be the supervisor: start a driver if none is at work; return whether all is done."""
        if self._violation is not None:
            return True
        now = self.scheduler.steps
        at_work = False
        for process in self.drivers:
            if process.ended:
                if self._processed_by(process):
                    return True
            elif not process.dead and process.paused_until < now + 400:
                at_work = True
        if not at_work:
            self.start_driver().paused_until = now + self.random.choice((0, 0, 20, 100))
        return False

    def start_driver(self) -> Process:
        """Start a driver, whether or not others are at work."""
        name = f"driver {len(self.drivers)}"
        random = Random(f"{self.seed} {name}")
        process = self.scheduler.spawn(name, 0, lambda: self._drive(name, random))
        self._clocks[process] = random.choice((0, 0, 50, 500))
        self.drivers.append(process)
        return process

    # -- what drivers and tasks ask of the world ---------------------------------------------------

    def open_state(self) -> HardState:
        """Open the checkpoint as a driver does."""
        state = self.storage.create_or_open(self.topology.name)
        if self.callers:
            self.callers.listen(state)
        return state

    def open_run_log(self, state: HardState) -> RunLog:
        """Claim the checkpoint for the driver at hand."""
        return RunLog(
            self.topology, state, intervals=self.work.intervals, claim_entries=CLAIM_ENTRIES
        )

    def claimed(self, generation: int) -> None:
        """Take it that the driver at hand has claimed the checkpoint."""
        driver = self.scheduler.current
        other = self._claims.setdefault(generation, driver)
        if other is not driver:
            self.violated(f"generation {generation} was claimed by {other} and by {driver}")

    def clock(self) -> int:
        """Return what the driver at hand takes for the time; drivers disagree."""
        assert self.scheduler.current is not None, "only a process has a clock"
        return self._now_us(self._clocks[self.scheduler.current])

    def _now_us(self, skew: int) -> int:
        """Return what time it is, for who is so many steps ahead."""
        return (10_000 + self.scheduler.steps + skew) * SECOND

    def tidy_up(self, name: str, work: Callable[[], object]) -> None:
        """Do this in a process beside the others, unless the last of that name is still at it."""
        if not self.work.tidy or name in self._tidying or self.random.random() < 0.4:
            return
        self._tidying.add(name)

        def tidy() -> None:
            try:
                work()
            except StoreError as error:  # tried again next time
                self.note(name, f"{type(error).__name__}: {error}")
            finally:
                self._tidying.discard(name)

        self.scheduler.spawn(name, -1, tidy, of=self.scheduler.current)

    def write_snapshots(self, host: Host) -> None:
        """Write the snapshots that are due of a host's caches, in a process beside its tasks."""

        def write() -> None:
            state, caches = self.storage.open(), HostCaches(host)
            for name, interval in list(host.caches):
                cache = caches.open(name, interval)
                write_if_due(cache, state.snapshots, name, interval, _SNAPSHOTS)

        self.tidy_up(f"host {host.number} snapshots", write)

    def _draw(self, key: str, nth: int) -> int:
        self.scheduler.step("draw a random number", key)
        return self.random.getrandbits(30)

    # -- what happens ------------------------------------------------------------------------------

    def violated(self, what: str) -> None:
        """Note the first thing that must not be, and end the schedule."""
        self._violation = self._violation or what

    def note(self, who: object, what: str) -> None:
        """Write a line of the trace."""
        if self._trace is not None:
            # Names of temporary files are random, and are all that would differ from run to run.
            line = _TEMPORARY.sub("tmp/...", what)
            self._trace.append(f"{self.scheduler.steps:6} {who!s:28} {line}")

    def _on_step(self, process: Process, what: str, where: object) -> None:
        if self._trace is not None:
            self.note(process, what if where is None else f"{what} {_short(where)}")
        self.fate.on_step(process, what)

    def _on_end(self, process: Process) -> None:
        error = process.error
        self.note(process, "ends" if error is None else f"ends: {type(error).__name__}: {error}")
        wrong = self._forbidden(process)
        if wrong is not None:
            self.violated(f"{process} ended with {wrong}")

    def _ask_storage(self, call: str, where: Path | str) -> int:
        if self.scheduler.current is None:
            return 0
        self.scheduler.step(call, where)
        return self.fate.refusal()

    def _ask_cache(self, call: str, computation: str, interval: int) -> bool:
        self.scheduler.step(call, (computation, interval))
        return bool(self.fate.refusal())


@contextmanager
def _staged(draw: computations.Draw) -> Iterator[None]:
    """Let user code draw from here, and keep what thousands of runs would log to themselves."""
    log = logging.getLogger("millrace")
    earlier, level = computations.draw, log.level
    computations.draw = draw
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        computations.draw = earlier
        log.setLevel(level)


def _short(where: object) -> str:
    if isinstance(where, Path):
        return "/".join(where.parts[3:]) or str(where)
    return str(where)
