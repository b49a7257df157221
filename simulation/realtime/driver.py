"""The driver's process on the real-time plane: a coordinator, and query after query.

It does what :mod:`millrace.spark.realtime` does in threads: it hands to the coordinator what tasks
say and the clock, does at a rest what was asked for, starts the query again when an incarnation has
failed, and gives up where that is no use.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from millrace.injectors.offsets import nothing_left
from millrace.model.errors import CheckpointMismatch, SinkError, StoreError, ZombieWriter
from millrace.runtime.realtime.coordinator import Coordinator, Marked, Orders
from millrace.store import Collector
from simulation.driver import injectors
from simulation.program import STREAM
from simulation.realtime.query import Query, TaskLost
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.realtime.simulation import RealtimeSimulation

#: A driver gives up after so many failures without a mark between.
_PATIENCE = 4


class GaveUp(Exception):
    """A driver has seen too many failures; another one may do better."""


class Run:
    """One driver's run.

    Args:
        world: The simulation.
        name: Of the driver.
        random: Decides what is the driver's to decide.
    """

    def __init__(self, world: RealtimeSimulation, name: str, random: Random) -> None:
        self._world = world
        self._name = name
        self._random = random
        self._process: Process = world.scheduler.current  # type: ignore[assignment]  # it runs
        state = world.open_recorded()
        self.run_log = world.open_run_log(state)
        world.claimed(self.run_log.generation)
        # Another number only where nothing is under way, such as after a stop.
        unfinished = self.run_log.open
        drawn = world.tasks(self.run_log.generation)
        self._tasks = drawn if unfinished is None else unfinished.live
        self._collector = Collector(state, kept=2)
        self._coordinator = Coordinator(
            self.run_log,
            tasks=self._tasks,
            sources=self,
            sinks=dict[int, Any](world.stands),
            mark_every_us=world.work.mark_every_us,
            completed=self._completed,
        )
        self._failures = 0
        self._stops = world.stops
        self._rest_wanted = False

    def processes(self) -> dict[str, list[str]]:
        """Return the processes of the injected streams."""
        sources = injectors(self.run_log.topology)
        return {stream: [*injector.processes()] for stream, injector in sources.items()}

    def run(self) -> bool:
        """Run until the last mark is complete; return whether the input has ended with it."""
        queries = 0
        while self._goes_on():
            failure = self._query(f"{self._name}/{queries}")
            queries += 1
            if failure is None:
                continue
            self._failures += 1
            if isinstance(failure, (ZombieWriter, CheckpointMismatch)):
                raise failure
            if self._failures >= _PATIENCE:
                raise GaveUp(f"{type(failure).__name__}: {failure}") from failure
            self._process.paused_until = self._world.scheduler.steps + self._random.choice((0, 30))
        return self.run_log.drained

    def _goes_on(self) -> bool:
        """Do what is to be done if nothing is under way; return whether an incarnation follows."""
        if not self._coordinator.ended:
            return True
        if not self._rest_wanted or self.run_log.drained:
            return False
        if self._world.stops > self._stops:
            newer = self.run_log.superseded()
            if newer is not None:
                raise newer  # so it is not this run that was stopped
            return False
        self._rest_wanted = False
        self._world.at_rest(self.run_log)
        self._coordinator.go_on()
        return True

    def _query(self, name: str) -> BaseException | None:
        """Run one query to its end; return why it failed, None if it did not."""
        world, coordinator = self._world, self._coordinator
        depth = self.run_log.topology.depth
        query = Query(world, self._process, name, levels=depth + 1, tasks=self._tasks)
        world.queries.append(query)
        for where in query.members:
            coordinator.lost(*where, TaskLost("the query was started again"))
        coordinator.failed = None
        try:
            while self._goes_on():
                try:
                    self._listen(query)
                except (StoreError, SinkError) as error:
                    return error
                if coordinator.failed is not None:
                    return coordinator.failed
                if query.silent() is not None:
                    return TaskLost(f"task {query.silent()} is silent")
                if query.received or coordinator.incarnation is not None:
                    continue
                if len(query.alive()) < len(query.members):
                    # Spark ends a query of which a task has ended, if it does not go on by itself.
                    return None if query.over else TaskLost("the query has ended")
        finally:
            query.cancel()
        return None

    def _listen(self, query: Query) -> None:
        """Take what tasks have said, and look at the clock."""
        world, coordinator = self._world, self._coordinator
        world.scheduler.step("listen")
        began = world.scheduler.steps
        while query.received:
            where, message = query.received.popleft()
            if message is None:
                orders = coordinator.lost(*where, TaskLost(f"task {where} is lost"))
            else:
                orders = coordinator.receive(message, world.clock())
            query.tell(orders)
        query.tell(self._looked())
        query.pressure.listened(None if coordinator.incarnation is None else began)

    def _looked(self) -> Orders:
        """Look at the clock, and at what the run is to do next."""
        world, coordinator = self._world, self._coordinator
        if world.stops > self._stops:
            coordinator.end()
        if world.marks_wanted:
            world.marks_wanted = False
            coordinator.mark_soon()
        if self._all_is_read():
            coordinator.end(draining=True)
        if self._rest_wanted or world.wants_rest(self.run_log):
            self._rest_wanted = True
            coordinator.rest()
        return coordinator.tick(world.clock())

    def _all_is_read(self) -> bool:
        """Return whether all records were read, and all keys that begin by themselves."""
        places, topology = self.run_log.source_offsets, self.run_log.topology
        read = sum(place.count for place in places.get(STREAM, {}).values())
        if read < len(self._world.work.records):
            return False
        sources = injectors(topology)
        keys = {spec.starts for spec in topology.computations if spec.starts is not None}
        return all(nothing_left(sources[stream], places.get(stream, {})) for stream in keys)

    def _completed(self, marked: Marked) -> None:
        self._failures = 0
        self._world.marks += 1
        collectable = self._coordinator.collectable()
        self._world.tidy_up(f"{self._name} collector", lambda: self._collector.collect(collectable))
