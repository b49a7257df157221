"""A simulation in which key intervals split, merge and move at rests of live tasks.

Somebody asks at any moment; most of what the remap needs is read beside the tasks. Then the run has
a last mark made, remaps while nothing is under way, cuts the ranges of tasks anew or does not, and
goes on with another incarnation. The driver may be killed, sleep, be refused or be superseded at
any call between, and tasks and hosts may go as at any other mark.

Source: MillWheel, "Architecture" (7.1); MillWheel 6.2.
"""

from __future__ import annotations

from functools import partial
from random import Random

from millrace.balance.preparation import Preparation
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import DamagedStore, PipelineError, StoreError, ZombieWriter
from millrace.runtime.realtime.incarnation_start import to_other_intervals
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.map_change import Remapped
from simulation.realtime.simulation import RealtimeSimulation
from simulation.realtime.workload import LiveWorkload
from simulation.remaps import Asked, drawn_remaps, may_be_refused, read_beside

#: With so many intervals none is split.
_MANY = 8
#: A run is asked so often, in a thousand of its looks at the clock; and in a schedule so often.
_ASKED, _MOST = 40, 5


class RealtimeRemapping(RealtimeSimulation):
    """A world of the real-time plane, whose key intervals change.

    >>> print(RealtimeRemapping(1).run().violation)
    None
    """

    plane = "realtime-remaps"

    def _workload(self, random: Random) -> LiveWorkload:
        self._remaps = Random(f"{self.seed} remaps")
        # Each dies with its driver, as in a process of its own.
        self._asked = dict[RunLog, Asked]()
        self._rests = 0
        return super()._workload(random)

    def wants_rest(self, run_log: RunLog) -> bool:
        """Return whether a remap that somebody has asked for is prepared, or is not to be."""
        random = self._remaps
        if run_log not in self._asked:
            if self._rests == _MOST or random.randrange(1000) >= _ASKED:
                return False
            self._rests += 1
            name = random.choice([*run_log.positions.maps])
            intervals = run_log.positions.maps[name]
            remaps = [*drawn_remaps(random, intervals, _MANY)]
            self.note(self.scheduler.current, f"remap {name} {remaps}")
            self._asked[run_log] = Asked(name, intervals, Preparation(run_log, {name: remaps}))
            if random.random() < 0.3:
                return True
        preparation = self._asked[run_log].preparation
        if preparation.under_way:
            return False
        try:
            if preparation.is_near_a_mark():
                return True
            read_beside(self.scheduler, preparation)
        except PipelineError as refused:
            self._tell(run_log, self._asked.pop(run_log), refused)
        return False

    def at_rest(self, run_log: RunLog) -> None:
        """Remap a computation, as a run does; what cannot be is told to who asked."""
        asked = self._asked.pop(run_log)
        try:
            to_other_intervals(
                run_log,
                asked.preparation.remaps,
                ready=asked.preparation.ready,
                grouped=partial(self._grouped, run_log),
            )
        except ZombieWriter:
            raise
        except (StoreError, PipelineError) as refused:
            self._tell(run_log, asked, refused)

    def _grouped(self, run_log: RunLog, made: Remapped) -> IntervalMap:
        """Return a map whose ranges of intervals are cut somewhere, or are as they come."""
        intervals, random = made.intervals.intervals, self._remaps
        tasks = 0 if run_log.live is None else run_log.live.tasks
        if tasks < 2 or random.random() < 0.5:
            return made.intervals
        return IntervalMap(
            intervals, sorted(random.randint(0, len(intervals)) for _ in range(tasks - 1))
        )

    def _tell(self, run_log: RunLog, asked: Asked, refused: StoreError | PipelineError) -> None:
        """Tell who asked, if what was refused may be; else raise it."""
        if isinstance(refused, PipelineError):
            # One that was refused before has taken effect all the same, or another driver is ahead.
            as_it_was = run_log.positions.maps[asked.name] == asked.intervals
            known = not as_it_was or run_log.superseded() is not None
        else:
            known = may_be_refused(refused) or _of_a_call(refused)
        if not known:
            raise refused
        self.note(self.scheduler.current, f"{asked.name} is not remapped now: {refused}")


def _of_a_call(error: StoreError) -> bool:
    """Return whether a call of the disk was refused, and may be made again."""
    return isinstance(error, DamagedStore) and isinstance(error.__cause__, OSError)
