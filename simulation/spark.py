"""A simulated Spark job: stages of task attempts, their retries and duplicates, and their shuffles.

What it promises its code is what Spark promises: a stage's tasks run when all outputs of the stage
before are there; the first attempt that comes to its end is the task; a failed one is tried again;
an output that is lost is made again, while others have read the first one; blocks are fetched in
any order. And no more: attempts overlap, outlive their job and their driver, and finish late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.runtime.exchange import sent_to, through_levels
from millrace.runtime.reports import reports_in
from millrace.runtime.worker_process import Stage, Task
from simulation.hosts import Host
from simulation.scheduler import Process

if TYPE_CHECKING:
    from simulation.simulation import Simulation

#: What one task sent.
Block = list[pa.RecordBatch]

#: As ``spark.task.maxFailures``.
FAILURES_MAX = 4


class FetchFailed(Exception):
    """A task found an output of the stage before gone; it does not count as a failure."""


class JobFailed(Exception):
    """A task failed too often. The query ends with it."""


@dataclass
class Attempt:
    """A process that runs a task."""

    job: Job
    level: int
    task: int
    process: Process


class Job:
    """One job of a driver, and the exchange between its stages.

    Rows between stages are named by the level that sent them, 0 for the source: as on Spark, no
    task runs before the last stage is known.

    Args:
        world: Where it runs.
        run: Names the driver's run; its Python workers serve no other.
        topology: Of the driver's pipeline.
        manifest: Of the epoch.
        tasks: Tasks a level.
        source: What the source stage sent.
    """

    def __init__(
        self,
        world: Simulation,
        run: str,
        topology: Topology,
        manifest: Manifest,
        tasks: int,
        source: Block,
    ) -> None:
        self._world = world
        self._run = run
        self._manifest = manifest
        self._topology = topology
        self._tasks = tasks
        self._source = source
        self._stages: dict[int, Stage] = {}
        self._failures: dict[tuple[int, int], int] = {}
        self._launched = 0
        self.attempts: list[Attempt] = []
        self.blocks: dict[tuple[int, int], tuple[Block, Host]] = {}
        self.last_error: BaseException | None = None

    def run(self) -> Block:
        """Return what leaves the last level; called by the driver's process.

        Raises:
            JobFailed: A task failed too often.
        """
        try:
            last = through_levels(self, 0, self._topology.depth)
            left = [self.blocks[last, task][0] for task in range(self._tasks)]
        finally:
            # Spark tells the attempts that are left to stop; not all of them hear it in time.
            for attempt in self.attempts:
                if not attempt.process.ended and self._world.random.random() < 0.5:
                    self._world.scheduler.kill(attempt.process)
        return [batch for block in left for batch in block]

    def across(self, rows: int, stage: Stage, *, last: bool) -> int:
        """Have a stage run over what a level sent; return its level."""
        self._stages[rows + 1] = stage
        if last:
            self._ensure(rows + 1)
        return rows + 1

    def speculate(self, attempt: Attempt) -> None:
        """Start another attempt of a task that runs."""
        self._launch(attempt.level, attempt.task)

    def _ensure(self, level: int) -> None:
        """Return when every task of a level has its output there."""
        while missing := self._missing(level):
            if level > 1:
                self._ensure(level - 1)
            for task in missing:
                if not self._alive(level, task):
                    if self._failures.get((level, task), 0) >= FAILURES_MAX:
                        raise JobFailed(
                            f"task {task} of level {level} failed {FAILURES_MAX} times, most "
                            f"recently: {self.last_error}"
                        ) from self.last_error
                    self._launch(level, task)
            self._world.scheduler.wait(self._news(level, missing), f"wait for level {level}")

    def _missing(self, level: int) -> list[int]:
        return [task for task in range(self._tasks) if (level, task) not in self.blocks]

    def _news(self, level: int, missing: list[int]) -> Callable[[], bool]:
        return lambda: any(
            (level, task) in self.blocks or not self._alive(level, task) for task in missing
        )

    def _alive(self, level: int, task: int) -> bool:
        """Return whether an attempt of the task seems to be at work; a sleeping one is given up."""
        now = self._world.scheduler.steps
        return any(
            not (attempt.process.ended or attempt.process.dead)
            and attempt.process.paused_until < now + 200
            for attempt in self.attempts
            if (attempt.level, attempt.task) == (level, task)
        )

    def _launch(self, level: int, task: int) -> None:
        host = self._world.random.choice(self._world.hosts)
        self._launched += 1
        name = f"{self._run} task {level}.{task}#{self._launched}@{host.number}"
        process = self._world.scheduler.spawn(
            name, host.number, lambda: self._work(level, task, host)
        )
        self.attempts.append(Attempt(self, level, task, process))

    def _work(self, level: int, task: int, host: Host) -> None:
        """Run an attempt: the code of its process."""
        late = self._world.is_complete(self._manifest.epoch)
        try:
            sent = self._fetch(level, task)
            idle = host.idle.setdefault(self._run, [])
            runtime = idle.pop() if idle else self._world.new_runtime(self._topology, host)
            made = list(self._stages[level].run(Task(runtime, self._manifest, task), sent))
        except FetchFailed:
            raise
        except Exception as error:
            self._failures[level, task] = self._failures.get((level, task), 0) + 1
            self.last_error = error
            raise
        if late and self._has_results(level, made):
            epoch = self._manifest.epoch
            self._world.violated(f"epoch {epoch} was over, and a new attempt at it has results")
        self._send(level, task, made, host)
        idle.append(runtime)
        self._world.write_snapshots(host)

    def _has_results(self, level: int, made: Block) -> bool:
        """Return whether there are results of a level's own intervals in what a task sends."""
        names = {spec.name for spec in self._topology.computations if spec.level == level}
        return any(
            result.computation in names for report in reports_in(made) for result in report.results
        )

    def _send(self, level: int, task: int, made: Block, host: Host) -> None:
        self._world.scheduler.step("send")
        self.blocks.setdefault((level, task), (made, host))

    def _fetch(self, level: int, task: int) -> Block:
        """Return what was sent to a task, in the order in which it was fetched."""
        if level == 1:
            return sent_to(task, self._source)
        fetched: Block = []
        senders = list(range(self._tasks))
        self._world.random.shuffle(senders)
        for sender in senders:
            self._world.scheduler.step(f"fetch {level - 1}.{sender}")
            found = self.blocks.get((level - 1, sender))
            if found is None:
                raise FetchFailed(f"the output of task {sender} of level {level - 1} is gone")
            fetched += sent_to(task, found[0])
        return fetched
