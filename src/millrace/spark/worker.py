"""What a Python worker process of Spark keeps between tasks: one runtime, of the run at hand.

A worker process serves many tasks, and each would otherwise unpickle the pipeline and open its
caches again. It is kept by the digest of what it is made from.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, isinf
from pathlib import Path

from millrace.compile.topology import Topology
from millrace.kernel.execution import Execution, RunningCall
from millrace.model.errors import PipelineError
from millrace.runtime.sink_contract import TaskWriter
from millrace.runtime.stuck import NO_LIMITS, CallLimits, CallWatch, Probe, TimeLimit, Watch
from millrace.runtime.worker_process import SourceColumns, WorkerProcess
from millrace.spark.stuck_board import Reporter
from millrace.store import (
    CacheLimit,
    HardState,
    LmdbCaches,
    LocalHardState,
    MemoryCaches,
    MemoryHardState,
    SnapshotWriter,
    cache_directories,
)
from millrace.store.checkpoint_format import file_name


@dataclass(frozen=True)
class Blueprint:
    """Everything of a run that does not change from epoch to epoch; travels with every task.

    Attributes:
        digest: Tells blueprints apart.
        topology: Pickled.
        state: The checkpoint; only its path and id travel. None for a batch.
        cache: Directory for caches, as :func:`cache_directory` reads it on each worker's host.
        tasks: Number of tasks a level.
        sources: The injected streams' sources.
        writers: Edge to a sink -> what tasks write its rows with, by epoch.
        live: Whether tasks do not end. Those are told at their start what they write sinks with.
        limits: How long calls of user code may take.
        cache_limit: How many bytes the caches of a host may take; None for any.
    """

    digest: str
    topology: bytes
    state: HardState | None
    cache: str
    tasks: int
    sources: tuple[SourceColumns, ...]
    writers: Mapping[int, TaskWriter]
    live: bool = False
    limits: CallLimits = NO_LIMITS
    cache_limit: int | None = None

    def built(self) -> WorkerProcess:
        """Return the runtime of a process."""
        # Written by the driver of this very run, never read from a checkpoint or a stream.
        topology: Topology = pickle.loads(self.topology)
        if self.state is None:
            return WorkerProcess(
                topology, tasks=self.tasks, sources=self.sources, writers=self.writers
            )
        caches = self._caches(self.state)
        for computation in topology.dropped:
            caches.forget(computation)
        execution = Execution(topology, self.state, caches, seconds=time.perf_counter)
        self._watch(execution.running, self.state)
        runtime = WorkerProcess(
            topology,
            tasks=self.tasks,
            execution=execution,
            snapshots=SnapshotWriter(
                caches, self.state.snapshots, limit=self._limit(caches, topology)
            ),
            sources=self.sources,
            writers=self.writers,
            live=self.live,
        )
        self._watch_calls(runtime, self.state)
        return runtime

    def _watch_calls(self, runtime: WorkerProcess, state: HardState) -> None:
        """Watch calls to services, if there are some, and anybody wants it."""
        topology, warn_after_s = runtime.topology, self.limits.warn_after_s
        if isinf(warn_after_s) or not any(spec.makes_calls for spec in topology.computations):
            return
        reporter = Reporter(state.mailbox)
        pools, titles = runtime.call_pools, topology.titles
        CallWatch(pools, titles, warn_after_s, reporter.tell, reporter.over).start()

    def _watch(self, running: RunningCall, state: HardState) -> None:
        """Watch user code, as far as anybody wants it."""
        if isinf(min(self.limits.warn_after_s, self.limits.ended_s)):
            return
        limit = None
        if isfinite(self.limits.ended_s):
            limit = TimeLimit(self.limits.ended_s)
            limit.install()
        reporter = Reporter(state.mailbox)
        Watch(running, self.limits.warn_after_s, reporter.tell, reporter.over, limit=limit).start()

    def _limit(self, caches: LmdbCaches, topology: Topology) -> CacheLimit | None:
        if self.cache_limit is None:
            return None
        return CacheLimit(caches, [spec.name for spec in topology.computations], self.cache_limit)

    def _caches(self, state: HardState) -> LmdbCaches:
        """Return the caches of this host; those of checkpoints that are gone are removed."""
        directory = cache_directory(self.cache)
        cache_directories.own(Path(directory) / file_name(state.uuid))
        if isinstance(state, LocalHardState):
            cache_directories.enter(directory, state.uuid, state.path)
            cache_directories.remove_dead(directory)
        return LmdbCaches(directory, state.uuid)


def cache_directory(wanted: str) -> str:
    """Return the directory for caches on this host.

    Args:
        wanted: A path, in which ``$NAME`` stands for this process's environment variable; or ""
            for ``millrace-UID`` in this process's temporary directory, of this user alone.

    Raises:
        PipelineError: A variable is not set here, or another user has that directory.
    """
    if not wanted:
        home = Path(tempfile.gettempdir()) / f"millrace-{os.geteuid()}"
        return str(cache_directories.own(home))
    path = os.path.expandvars(wanted)
    if _VARIABLE.search(path):
        raise PipelineError(
            f"cache={wanted!r}: on host {socket.gethostname()} this is {path!r}, as the variable "
            "is not set for the worker. Set it (spark.executorEnv.NAME), or name another directory."
        )
    return path


_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")

_RUNTIMES: dict[str, WorkerProcess] = {}


def runtime_of(blueprint: Blueprint, *, careful_s: float = 0.0) -> WorkerProcess:
    """Return the runtime of a blueprint, made on first use in this process.

    Args:
        blueprint: Of the run.
        careful_s: For how long to look for calls that end their process.
    """
    runtime = _RUNTIMES.get(blueprint.digest)
    if runtime is None:
        # One run at a time uses a worker; an older run's caches need not stay open.
        _RUNTIMES.clear()
        runtime = _RUNTIMES[blueprint.digest] = blueprint.built()
        # PySpark collects garbage after every task, and would go through all imported modules each
        # time: some 40 ms a task. What is here now is here to stay. And as it does, there is little
        # for the collections within a task to find, which a task with many records has many of.
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
    if blueprint.state is not None:
        ended_s = min(blueprint.limits.ended_s, blueprint.limits.hung_s)
        probe = Probe(ended_s, lasts_s=careful_s) if careful_s else None
        runtime.execution.carefully(probe)
    return runtime


def rehearsal_of(blueprint: Blueprint) -> WorkerProcess:
    """Return a runtime over a checkpoint in memory, which has nothing; that of the run is made.

    A task that runs there has no way to the checkpoint, to caches, or to what snapshots are written
    with.

    Args:
        blueprint: Of the run.
    """
    runtime = runtime_of(blueprint)
    topology = runtime.topology
    return WorkerProcess(
        topology,
        tasks=runtime.tasks,
        execution=Execution(topology, MemoryHardState(), MemoryCaches()),
        sources=runtime.sources,
        writers=runtime.writers,
    )
