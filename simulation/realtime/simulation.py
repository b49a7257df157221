"""One simulation of the real-time plane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import ModuleType

from millrace.epochlog.run_log import RunLog
from millrace.runtime import calls, rows
from millrace.runtime.worker_process import WorkerProcess
from millrace.store import HardState, SnapshotStats
from simulation.calls import drawn_pools
from simulation.faults import Fault, Kind
from simulation.hosts import Host, HostCaches
from simulation.realtime import oracle
from simulation.realtime.driver import Run
from simulation.realtime.feeds import Feeds
from simulation.realtime.history import History, RecordedExecution, RecordedIncarnations
from simulation.realtime.query import Packets, Query
from simulation.realtime.sinks import LiveStand, Stand
from simulation.realtime.workload import LiveWorkload, generate
from simulation.scheduler import Process
from simulation.workload import of
from simulation.world import Outcome, World


class RealtimeSimulation(World):
    """A world of the real-time plane.

    >>> print(RealtimeSimulation(1).run().violation)
    None
    """

    plane = "realtime"
    realtime = True
    calm_stickiness = 0.5
    work: LiveWorkload

    def __init__(
        self,
        seed: int,
        *,
        keep: Sequence[int] | None = None,
        trace: bool = False,
        calm: bool = False,
    ) -> None:
        super().__init__(seed, keep=keep, trace=trace, calm=calm)
        self.packets = Packets()
        self.queries: list[Query] = []
        self.stops = self.marks = 0
        self.marks_wanted = False
        self.history = History(self.scheduler, self.violated)
        self.stands = {
            edge.number: Stand(self) for edge in self.topology.edges if edge.sink is not None
        }
        self._drained = False
        self._host_skews = [self.random.choice((0, 0, 3, 40)) for _ in self.hosts]

    def run(self) -> Outcome:
        """Run the schedule to its end, and judge it."""
        with _set(rows, "FEW", self.work.few), _set(calls, "PENDING_MOST", self.work.pending_most):
            return super().run()

    @property
    def feeds(self) -> Feeds:
        """What is delivered."""
        return self.work.feeds

    def there(self) -> int:
        """Return how much there is to read by now, of all that is read."""
        feeds = self.feeds
        return sum(map(feeds.there, feeds.lots)) + self.callers.made.total()

    # -- what a plane says -------------------------------------------------------------------------

    def _workload(self, random: Random) -> LiveWorkload:
        return generate(random, of(self.seed))

    def _drive(self, name: str, random: Random) -> None:
        self._drained |= Run(self, name, random).run()

    def _processed_by(self, process: Process) -> bool:
        return self._drained

    def _judge(self) -> str | None:
        state = self.open_recorded()
        seal = state.incarnations.seal(state.incarnations.last() + 1)
        assert seal is not None, "nobody else is there"
        return oracle.judge(self)

    def _forbidden(self, process: Process) -> str | None:
        alone = len(self.queries) <= 1 and len(self.drivers) <= 1
        stale = bool(self.fate.happened[Kind.STALE])
        return oracle.forbidden(process.error, alone=alone, stale=stale)

    def _epochs(self) -> int:
        return self.marks

    def _incarnations(self) -> int:
        return len(self.history.incarnations)

    # -- what drivers and tasks ask of the world ---------------------------------------------------

    def tasks(self, generation: int) -> int:
        """Return how many tasks a level a run has that takes nothing up: each another number."""
        return 1 + (self.work.tasks - 2 + generation) % 3

    def open_recorded(self) -> HardState:
        """Open the checkpoint as a driver does."""
        return self._recorded(self.open_state())

    def _recorded(self, state: HardState) -> HardState:
        state.incarnations = RecordedIncarnations(state.incarnations, self.history)  # type: ignore[assignment,misc]
        return state

    def live_runtime(
        self, host: Host, tasks: int, kept: Callable[[str, int], None]
    ) -> WorkerProcess:
        """Return the runtime of a new Python process on a host; see :class:`RecordedExecution`."""
        state = self._recorded(self.storage.open())
        execution = RecordedExecution(self.topology, state, HostCaches(host))
        execution.history, execution.kept = self.history, kept
        live = {edge for n, edge in enumerate(self.stands) if self.work.live_sinks >> n & 1}
        return WorkerProcess(
            self.topology,
            tasks=tasks,
            execution=execution,
            snapshots=_Snapshots(self, host),
            sources=self.work.sources,
            writers={edge: one for edge, one in self.stands.items() if edge not in live},
            live_writers={edge: LiveStand(self.stands[edge]) for edge in live},
            live=True,
            call_pools=drawn_pools(self.work.program, self.random),
        )

    def host_clock(self, host: Host) -> int:
        """Return what time it is on a host."""
        return self._now_us(self._host_skews[host.number])

    def _now_us(self, skew: int) -> int:
        """Return what time it is, for who is so many steps ahead; and have lots come by it."""
        self.feeds.step = self.scheduler.steps
        return (10_000_000 + self.scheduler.steps + skew) * self.work.step_us

    def _draw(self, key: str, nth: int) -> int:
        return self.history.drew(super()._draw(key, nth))

    def wants_rest(self, run_log: RunLog) -> bool:
        """Return whether something is to be done while nothing is under way: nothing ever is."""
        return False

    def at_rest(self, run_log: RunLog) -> None:
        """Do it."""

    # -- what happens ------------------------------------------------------------------------------

    def _on_end(self, process: Process) -> None:
        super()._on_end(process)
        if process.error is not None:
            for query in self.queries:
                for where, member in query.members.items():
                    if member is process:
                        query.lost(where)

    def lose_outputs(self, host: Host | None = None) -> None:
        """Lose the tasks of a host; what they had sent may arrive or not."""
        if host is None:
            return
        for query in self.queries:
            for process in query.members.values():
                if process.host == host.number and not process.ended:
                    self.scheduler.kill(process)

    def strike(self, fault: Fault) -> bool:
        """Let a fault happen that is of this plane only."""
        query = self.queries[-1] if self.queries else None
        if fault.kind is Kind.MARK:
            self.marks_wanted = True
        elif fault.kind is Kind.STOP:
            self.stops += 1
        elif query is None or not query.alive():
            return False
        elif fault.kind is Kind.OVER:
            query.over = True
        elif fault.kind is Kind.STALE:
            return query.deliver_stale(fault.pick)
        elif fault.kind is Kind.HANG_UP:
            alive = query.alive()
            query.hang_up(alive[fault.pick % len(alive)])
        return True


@contextmanager
def _set(module: ModuleType, constant: str, count: int) -> Iterator[None]:
    """Let a constant of production be another one: a schedule has few records."""
    earlier = getattr(module, constant)
    try:
        setattr(module, constant, count)
        yield
    finally:
        setattr(module, constant, earlier)


class _Snapshots:
    """Has snapshots written beside the tasks, if the schedule says so."""

    def __init__(self, world: RealtimeSimulation, host: Host) -> None:
        self._world = world
        self._host = host

    def offer(self, computation: str, intervals: Iterable[int], mark: int | None = None) -> None:
        """Have the host's caches looked at."""
        self._world.write_snapshots(self._host)

    def passed(self, mark: int) -> None:
        """Do nothing: no schedule has as many marks."""

    def take(self) -> SnapshotStats:
        """Return that nothing is known of them."""
        return SnapshotStats()
