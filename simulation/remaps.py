"""A simulation in which key intervals split, merge and move while it runs, on the epoch plane.

A driver remaps between two epochs, as somebody asks or as the balancer does of a load that is
drawn. Most remaps are prepared between earlier ones: a process beside the driver's reads, while
epochs go on and what it reads is collected. The driver may be killed, sleep or be refused at any
write of a remap, and others may do it beside. A write that is refused is tried again, and before
the next epoch.

Source: MillWheel, "Architecture" (7.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from millrace.balance.balancer import Balancer
from millrace.balance.load import Loads
from millrace.balance.policy import Balance, Weight
from millrace.balance.preparation import Preparation
from millrace.balance.transfer import remap
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    PipelineError,
    StoreError,
)
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.map_change import Merge, Split
from simulation import workload
from simulation.changes import ChangingSimulation
from simulation.scheduler import Scheduler
from simulation.simulation import Simulation


class _Remapping(Simulation):
    """What a world of the epoch plane has for its key intervals to change."""

    _remaps: Random
    _balanced: bool
    #: With so many intervals none is split.
    _many = 8

    def _draw_from(self, remaps: Random, *, balanced: bool) -> None:
        """Say what remaps are drawn from, and whether the balancer asks for them."""
        self._remaps, self._balanced = remaps, balanced
        # Both die with the driver, as in a process of its own.
        self._balancer = dict[RunLog, Balancer]()
        self._asked = dict[RunLog, Asked]()

    def between_epochs(self, run_log: RunLog, tasks: int) -> None:
        """Remap, prepare a remap, or do neither."""
        random = self._remaps
        if random.random() < 0.4:
            return
        if self._balanced:
            if run_log not in self._balancer:
                how = Balance(above=1.01, splits=2, intervals=self._many // 2)
                loads = {spec.name: _DrawnLoads(random) for spec in run_log.topology.computations}
                made = Balancer(run_log, loads, tasks, how, beside=self._read_beside, every=1)
                self._balancer[run_log] = made
            # What it raises is the epoch's, and ends the run.
            self._balancer[run_log].after_epoch(busy=True)
            return
        asked = self._asked.pop(run_log, None)
        if asked is None or random.random() < 0.1:
            # Also while another is prepared, which may be of the same intervals.
            name = random.choice([*run_log.positions.maps])
            intervals = run_log.positions.maps[name]
            remaps = [*drawn_remaps(random, intervals, self._many)]
            prepared = random.random() < 0.7
            self.note(self.scheduler.current, f"{prepared=} remap {name} {remaps}")
            mine = Asked(name, intervals, Preparation(run_log, {name: remaps}))
            if prepared and asked is None:
                asked = mine
            else:
                self._remap(run_log, mine)
        if asked is not None and not self._taken(run_log, asked):
            self._asked[run_log] = asked

    def _taken(self, run_log: RunLog, asked: Asked) -> bool:
        """Do what a run does of a remap between two epochs; return whether that was the last."""
        if asked.preparation.under_way:
            return False
        try:
            if not asked.preparation.is_near():
                self._read_beside(asked.preparation)
                return False
        except PipelineError as refused:
            if run_log.positions.maps[asked.name] == asked.intervals:
                raise
            self.note(self.scheduler.current, f"{asked.name} was remapped before: {refused}")
        except StoreError as refused:
            self._bear(asked.name, refused)
        else:
            self._remap(run_log, asked)
        return True

    def _remap(self, run_log: RunLog, asked: Asked) -> None:
        try:
            remap(run_log, asked.preparation.remaps, ready=asked.preparation.ready)
        except StoreError as refused:
            self._bear(asked.name, refused)

    def _bear(self, name: str, refused: StoreError) -> None:
        """Go on where who asked is told, and the run does; else raise it."""
        if not may_be_refused(refused):
            raise refused
        self.note(self.scheduler.current, f"{name} is not remapped now: {refused}")

    def _read_beside(self, preparation: Preparation) -> None:
        """Have a preparation read by a thread of the driver at hand, while that goes on."""
        read_beside(self.scheduler, preparation)


def may_be_refused(refused: StoreError) -> bool:
    """Return whether who asked for a remap may be told this, and the run goes on."""
    known = isinstance(refused, CheckpointMismatch | CheckpointUnwritable)
    return known or type(refused) is StoreError


def read_beside(scheduler: Scheduler, preparation: Preparation) -> None:
    """Have a preparation read by a thread of the driver at hand, while that goes on."""
    driver = scheduler.current
    assert driver is not None, "a driver prepares"

    def read() -> None:
        preparation.read(lambda: not (driver.dead or driver.ended))

    scheduler.spawn(f"{driver} preparing", -1, read, of=driver)


@dataclass(frozen=True)
class Asked:
    """A remap that somebody has asked for.

    Attributes:
        name: Of the computation.
        intervals: Its map then.
        preparation: Of the remap.
    """

    name: str
    intervals: IntervalMap
    preparation: Preparation


class RemappingSimulation(_Remapping):
    """A world of the epoch plane, whose key intervals change.

    >>> print(RemappingSimulation(1).run().violation)
    None
    """

    plane = "remaps"

    def _workload(self, random: Random) -> workload.Workload:
        self._draw_from(Random(f"{self.seed} remaps"), balanced=random.random() < 0.3)
        kind = workload.Of.OPERATIONS if random.random() < 0.3 else workload.Of.GROUPINGS
        program = workload.program_of(random, kind)
        return workload.filled(random, program, records=(20, 40), per_batch=(3, 8))


class RemappingVersions(_Remapping, ChangingSimulation):
    """One whose program changes, too: rows have several shapes when intervals come together.

    >>> print(RemappingVersions(1).run().violation)
    None
    """

    plane = "remaps-and-changes"
    #: A task brings no more intervals to another shape in one turn: so how many tasks there are
    #: does not show in the numbers of commits.
    _many = 4

    def _workload(self, random: Random) -> workload.Workload:
        remaps = Random(f"{self.seed} remaps")
        self._draw_from(remaps, balanced=remaps.random() < 0.3)
        return super()._workload(random)


class _DrawnLoads(Loads):
    """Loads of which the balancer is told something else, drawn anew for each map."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def weights(self, intervals: IntervalMap) -> dict[int, Weight]:
        """Return something."""
        random = self._random
        found = {}
        for one in intervals.intervals:
            hot = ((random.randrange(one.start, one.end), 0.6),) if random.random() < 0.3 else ()
            found[one.id] = Weight(random.choice((0.0, 1.0, 1.0, 4.0)), hot)
        return found


def drawn_remaps(random: Random, intervals: IntervalMap, many: int) -> Iterator[Split | Merge]:
    """Yield some remaps of a map, each interval in one at most; with so many, none is split."""
    waiting, count = [*intervals.intervals], len(intervals)
    first = random.randrange(len(waiting))
    del waiting[:first]
    while waiting:
        one = waiting.pop(0)
        if waiting and random.random() < 0.5:
            yield Merge(one.id, waiting.pop(0).id)
        elif count < many and one.end - one.start > 1:
            count += 1
            at = random.randrange(one.start + 1, one.end) if random.random() < 0.6 else None
            yield Split(one.id, at)
        if random.random() < 0.5:
            return
