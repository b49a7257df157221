"""A simulation in which key intervals split, merge and move while it runs, on the epoch plane.

A driver remaps between two epochs, as somebody asks or as the balancer does of a load that is
drawn. It may be killed, sleep or be refused at any write of it, and others may do it beside. A
write that is refused is tried again, and before the next epoch.

Source: MillWheel, "Architecture" (7.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from millrace.model.errors import CheckpointMismatch, CheckpointUnwritable, StoreError, ZombieWriter
from millrace.plane.balancing import Balancing
from millrace.testing.simulation import workload
from millrace.testing.simulation.changing import ChangingSimulation
from millrace.testing.simulation.simulation import Simulation
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.remap import Merge, Split
from millrace.windmill.balancer import Balance, Weight
from millrace.windmill.epochs import Epochs
from millrace.windmill.loads import Loads


class _Remapping(Simulation):
    """What a world of the epoch plane has for its key intervals to change."""

    _remaps: Random
    _balanced: bool
    #: With so many intervals none is split.
    _many = 8

    def between_epochs(self, epochs: Epochs, tasks: int) -> None:
        """Remap, or do not."""
        random = self._remaps
        if random.random() < 0.4:
            return
        if self._balanced:
            for name in epochs.loads:
                epochs.loads[name] = _DrawnLoads(random)
            how = Balance(above=1.01, splits=2, intervals=self._many // 2)
            # What it raises is the epoch's, and ends the run.
            Balancing(epochs, tasks, how, every=1).after_epoch(busy=True)
            return
        name = random.choice([*epochs.positions.maps])
        remaps = [*drawn_remaps(random, epochs.positions.maps[name], self._many)]
        self.note(self.scheduler.current, f"remap {name} {remaps}")
        try:
            epochs.remap({name: remaps})
        except ZombieWriter:
            raise
        except (CheckpointMismatch, CheckpointUnwritable) as refused:
            self.note(self.scheduler.current, f"{name} is not remapped now: {refused}")
        except StoreError as refused:
            if type(refused) is not StoreError:
                raise
            self.note(self.scheduler.current, f"{name} is not remapped: {refused}")


class RemappingSimulation(_Remapping):
    """A world of the epoch plane, whose key intervals change.

    >>> print(RemappingSimulation(1).run().violation)
    None
    """

    plane = "remaps"

    def _workload(self, random: Random) -> workload.Workload:
        self._remaps = Random(f"{self.seed} remaps")
        self._balanced = random.random() < 0.3
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
        self._remaps = Random(f"{self.seed} remaps")
        self._balanced = self._remaps.random() < 0.3
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
            found[one.id] = Weight(random.choice((0.0, 1.0, 1.0, 4.0)), 0, hot)
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
