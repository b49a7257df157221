"""The reference: the batches of a schedule once more, without faults.

On one task with a store in memory, at the wall times that the manifests say and with the random
numbers that came out at the sinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Claim, Completion, Manifest, decode_entry
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.execution import Execution
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import MemoryCaches, MemoryHardState
from millrace.testing.invariants import check_low_watermarks
from simulation import computations
from simulation.calls import drawn_pools
from simulation.driver import drains, feeds
from simulation.remap_oracle import remap_again
from simulation.sink_rows import Row, sink_rows

if TYPE_CHECKING:
    from simulation.simulation import Simulation


class Difference(Exception):
    """Something is not as in the run without faults."""


@dataclass
class _AsThen(EpochDriver):
    """Publishes what was published then, where that goes by the clock.

    A run that starts knows no clock of the epochs before it: until it has seen two, it publishes no
    more than was published. What one run without faults would publish is the most there may be.
    """

    then: Mapping[str, int] = field(default_factory=dict)

    def published(self, wall_time_us: int) -> dict[str, int]:
        """Return injected stream -> what it published."""
        found = super().published(wall_time_us)
        for stream in self.topology.by_ingress() & self.then.keys():
            check(
                self.then[stream] <= found[stream],
                f"stream {stream!r} published {self.then[stream]}, ahead of {found[stream]}",
            )
            found[stream] = self.then[stream]
        return found


class Reference:
    """The run without faults.

    Attributes:
        topologies: What each epoch ran.
        sunk: What its sinks got.
        completions: One an epoch.
        state: Its hard state.
    """

    def __init__(
        self,
        run: Simulation,
        claims: Sequence[Claim],
        manifests: Sequence[Manifest],
        remaps: Mapping[int, Sequence[Completion]],
    ) -> None:
        self.topologies: list[Topology] = []
        self.sunk: dict[Row, int] = {}
        self.completions: list[Completion] = []
        self.state = MemoryHardState()
        self._version: Topology | None = None
        self._driver: _AsThen
        self._runtime: WorkerProcess
        drawn = _drawn(run)
        earlier, computations.draw = computations.draw, lambda key, nth: drawn.get((key, nth), -1)
        try:
            self._run(run, list(claims), manifests, remaps)
        finally:
            computations.draw = earlier

    def _run(
        self,
        run: Simulation,
        claims: list[Claim],
        manifests: Sequence[Manifest],
        remaps: Mapping[int, Sequence[Completion]],
    ) -> None:
        wall_time_us = 0
        for epoch, was in enumerate(manifests):
            self._claimed(run, claims, was.generation)
            driver, runtime = self._driver, self._runtime
            check(was.wall_time_us >= wall_time_us, f"epoch {epoch}: the clock ran backwards")
            wall_time_us = was.wall_time_us
            # As many tasks where each of them combines what it sends.
            combined = any(edge.lift is not None for edge in runtime.topology.edges)
            driver.tasks = was.tasks if combined else 1
            driver.then = {} if was.draining else was.injectors
            turn = driver.run(
                epoch,
                partial(self._stages, run, runtime, was),
                wall_time_us=wall_time_us,
                draining=drains(run.query_log, epoch, len(run.work.records)),
                offsets=was.offsets,
            )
            assert turn is not None, "the epoch after the last one is not complete"
            check_low_watermarks(was.before, turn.completion.after)
            self.completions.append(decode_completion(msgspec.json.encode(turn.completion)))
            for said in remaps.get(epoch, ()):
                self._claimed(run, claims, said.generation)
                completion, topology = (
                    self._driver.run_log.current_completion(),
                    self._driver.topology,
                )
                self.completions.append(remap_again(said, completion, topology, self.state))
                self._begin(run)

    def _claimed(self, run: Simulation, claims: list[Claim], generation: int) -> None:
        """Begin the versions that had claimed by then; what one without an epoch adds counts."""
        while claims and claims[0].generation <= generation:
            wanted = run.version(claims.pop(0))
            if wanted is not self._version:
                self._version = wanted
                self._begin(run)

    def _begin(self, run: Simulation) -> None:
        """Begin a run of a version where the one before has ended."""
        assert self._version is not None, "a run has claimed the checkpoint"
        run_log = RunLog(self._version, self.state, intervals=run.work.intervals)
        topology = run_log.topology
        execution = Execution(topology, self.state, MemoryCaches())
        self._runtime = WorkerProcess(
            topology,
            tasks=1,
            execution=execution,
            call_pools=drawn_pools(run.work.program, None),
        )
        self._driver = _AsThen(topology, run_log, WatermarkPublisher.of(topology), tasks=1)

    def _stages(
        self, run: Simulation, runtime: WorkerProcess, was: Manifest, manifest: Manifest
    ) -> tuple[TaskReport, float]:
        """Run the stages of an epoch, which must begin as it did."""
        for what in ("injectors", "before", "intervals", "draining"):
            expected = getattr(manifest, what)
            same(f"manifest {manifest.epoch}, {what}", getattr(was, what), expected)
        if was.changed is not None and manifest.changed is not None and not was.offsets:
            # Else it says what tasks took part in last, and the reference always has some do so.
            for what in ("numbers", "chains", "reports"):
                expected = getattr(manifest.changed, what)
                same(f"manifest {manifest.epoch}, {what}", getattr(was.changed, what), expected)
        topology, task = runtime.topology, Task(runtime, manifest, 0)
        fed = feeds(topology, run.work, run.query_log, manifest.epoch)
        sent = [rows for feed in fed for rows in feed.rows(task)]
        self.topologies.append(topology)
        left = through_levels(LocalExchange(runtime, manifest), sent, topology.depth)
        self.sunk.update(dict.fromkeys(sink_rows(topology, left), manifest.epoch))
        return TaskReport.together(reports_in(left)), 0.0


def decode_completion(data: bytes) -> Completion:
    """Return a copy of a completion: the kernel goes on using the parts of the one it returned."""
    entry = decode_entry(data)
    assert isinstance(entry, Completion), "a completion was encoded"
    return entry


def _drawn(run: Simulation) -> dict[tuple[str, int], int]:
    """Return the random numbers that the sink of the stream that carries them got."""
    drawn: dict[tuple[str, int], int] = {}
    if "enriched" not in run.topology.streams:
        return drawn
    coder = run.topology.streams["enriched"].coder
    edges = {edge.number for edge in run.topology.edges if edge.stream == "enriched"}
    for row in run.sunk:
        if row.edge in edges:
            key, nth, number = computations.drawn_in(coder.decode(row.value))
            check(
                drawn.setdefault((key, nth), number) == number,
                f"the sink of 'enriched' got draw {nth} of key {key!r} twice, with two outcomes",
            )
    return drawn


def same(what: str, found: object, expected: object) -> None:
    """Raise Difference unless both are equal."""
    if found != expected:
        raise Difference(f"{what}:\n  found    {found}\n  expected {expected}")


def check(condition: bool, otherwise: str) -> None:
    """Raise Difference unless a condition holds."""
    if not condition:
        raise Difference(f"epoch log: {otherwise}")
