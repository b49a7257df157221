"""One simulation of the epoch plane: Spark's jobs, and the oracle that judges what came of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Claim, Manifest
from millrace.epochlog.run_log import RunLog
from millrace.kernel.execution import Execution
from millrace.runtime.worker_process import WorkerProcess
from simulation import oracle, workload
from simulation.calls import drawn_pools
from simulation.driver import QueryLog, SinkFailed, drive
from simulation.faults import Fault, Kind
from simulation.hosts import Host, HostCaches
from simulation.scheduler import Process
from simulation.sink_rows import Row
from simulation.spark import Job
from simulation.world import Outcome, World


class Simulation(World):
    """A world of the epoch plane.

    >>> print(Simulation(1).run().violation)
    None
    """

    def __init__(
        self,
        seed: int,
        *,
        keep: Sequence[int] | None = None,
        trace: bool = False,
        calm: bool = False,
    ) -> None:
        super().__init__(seed, keep=keep, trace=trace, calm=calm)
        self.query_log = QueryLog()
        self.unwritten: dict[tuple[int, int], Manifest] = {}
        self.jobs: list[Job] = []
        self.sunk: dict[Row, int] = {}
        self._sunk_ids: dict[tuple[int, int, int], Row] = {}

    def _workload(self, random: Random) -> workload.Workload:
        return workload.generate(random, workload.of(self.seed))

    def _drive(self, name: str, random: Random) -> None:
        def read_to(start: int) -> int:
            most = self.work.per_batch
            return min(len(self.work.records), start + random.randint(most // 2, most))

        drive(self, name, read_to)

    def _judge(self) -> str | None:
        return oracle.judge(self)

    def _forbidden(self, process: Process) -> str | None:
        return oracle.forbidden(process.error, alone=self.drivers == [process])

    def _epochs(self) -> int:
        return len(self.query_log.done)

    # -- what drivers and tasks ask of the world ---------------------------------------------------

    def between_epochs(self, run_log: RunLog, tasks: int) -> None:
        """Do what is done where an epoch is complete that had so many tasks a level: nothing."""

    def is_complete(self, epoch: int) -> bool:
        """Return whether a driver has completed an epoch."""
        return epoch in self.query_log.complete

    def hands_over(self, topology: Topology) -> bool:
        """Return whether the driver at hand has started another in its place; none has."""
        return False

    def version(self, claim: Claim) -> Topology:
        """Return the topology of which a claim is."""
        return self.topology

    def tasks(self, turn: int) -> int:
        """Return how many tasks a level there are in a turn: of a driver, or of an epoch.

        They are others than in the turn before.
        """
        return 1 + (self.work.tasks + turn) % 3

    def new_runtime(self, topology: Topology, host: Host) -> WorkerProcess:
        """Return the runtime of a new Python process on a host."""
        state = self.storage.open()
        execution = Execution(topology, state, HostCaches(host))
        return WorkerProcess(
            topology,
            tasks=self.work.tasks,
            execution=execution,
            call_pools=drawn_pools(self.work.program, None),
        )

    def write_sink(self, epoch: int, row: Row) -> None:
        """Upsert a row by its id."""
        self.scheduler.step("sink", row.sequence)
        if self.fate.refusal():
            raise SinkFailed("the simulation let the sink fail")
        earlier = self._sunk_ids.setdefault((row.edge, row.origin, row.sequence), row)
        if earlier != row:
            self.violated(f"a sink got two rows of one id:\n  {earlier}\n  {row}")
        self.sunk.setdefault(row, epoch)

    # -- what happens ------------------------------------------------------------------------------

    def lose_outputs(self, host: Host | None = None) -> None:
        """Lose a host's tasks and the shuffle files that they wrote; of all hosts, all files."""
        if host is None:
            for job in self.jobs:
                job.blocks.clear()
            return
        for job in self.jobs[-2:]:
            for attempt in job.attempts:
                if attempt.process.host == host.number:
                    self.scheduler.kill(attempt.process)
            job.blocks = {
                name: (block, where) for name, (block, where) in job.blocks.items() if where != host
            }

    def strike(self, fault: Fault) -> bool:
        """Start an attempt beside another one, or lose an output."""
        if fault.kind is Kind.SPECULATE:
            running = [
                attempt
                for job in self.jobs[-1:]
                for attempt in job.attempts
                if not (attempt.process.ended or attempt.process.dead)
            ]
            if not running:
                return False
            attempt = running[fault.pick % len(running)]
            attempt.job.speculate(attempt)
            return True
        assert fault.kind is Kind.SHUFFLE_LOST, f"{fault} is of another plane"
        blocks = self.jobs[-1].blocks if self.jobs else {}
        if not blocks:
            return False
        del blocks[list(blocks)[fault.pick % len(blocks)]]
        return True


def run_all(seeds: Iterable[int], plane: type[World] = Simulation) -> list[Outcome]:
    """Run schedules, one after the other: what a process of a pool is given at a time.

    Args:
        seeds: Their numbers.
        plane: Of which they are.

    >>> [outcome.violation for outcome in run_all([1, 2])]
    [None, None]
    """
    return [plane(seed).run() for seed in seeds]
