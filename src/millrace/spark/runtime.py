"""What a Python worker keeps between tasks: the topology, its machines, its readers.

A worker process serves many tasks, and each would otherwise unpickle the pipeline and open its
caches again. They are kept by the digest of what they are made from.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from millrace.compile.topology import Topology
from millrace.model.errors import PipelineError
from millrace.spark.formats import Columns
from millrace.spark.values import ValueReader
from millrace.store import (
    HardState,
    LmdbCaches,
    LocalHardState,
    SnapshotWriter,
    cache_directories,
)
from millrace.windmill.columnar import machine_for
from millrace.windmill.machine import Machine
from millrace.windmill.routing import Router
from millrace.windmill.worker import Worker


@dataclass(frozen=True)
class SourceColumns:
    """What a worker must know of an injected stream's source."""

    number: int
    stream: str
    columns: tuple[str, ...]
    native: bool
    names_processes: bool
    id: str | None = None


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
    """

    digest: str
    topology: bytes
    state: HardState | None
    cache: str
    tasks: int
    sources: tuple[SourceColumns, ...]


class Runtime:
    """A blueprint, built."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        # Written by the driver of this very run, never read from a checkpoint or a stream.
        self.topology: Topology = pickle.loads(blueprint.topology)
        self.router = Router(self.topology)

    @property
    def state(self) -> HardState:
        """The checkpoint of a streaming run."""
        assert self.blueprint.state is not None, "a batch has no worker: it keeps no state"
        return self.blueprint.state

    @cached_property
    def caches(self) -> LmdbCaches:
        """The caches of this host; those of checkpoints that are gone are removed."""
        directory = cache_directory(self.blueprint.cache)
        if isinstance(self.state, LocalHardState):
            cache_directories.enter(directory, self.state.uuid, self.state.path)
            cache_directories.remove_dead(directory)
        return LmdbCaches(directory, self.state.uuid)

    @cached_property
    def worker(self) -> Worker:
        """The machines and their store, of a streaming run."""
        return Worker(self.topology, self.state, self.caches)

    @cached_property
    def snapshots(self) -> SnapshotWriter:
        """What writes snapshots beside the worker."""
        return SnapshotWriter(self.caches, self.state.snapshots)

    @cached_property
    def machines(self) -> Mapping[str, Machine]:
        """Computation -> its machine, of a batch."""
        return {
            spec.name: machine_for(self.topology, spec, self.router)
            for spec in self.topology.computations
        }

    @cached_property
    def readers(self) -> Mapping[str, ValueReader]:
        """Injected stream -> reader of its values."""
        return {
            source.stream: ValueReader(
                source.stream, self.topology.streams[source.stream].format, source.columns
            )
            for source in self.blueprint.sources
        }

    @cached_property
    def sink_columns(self) -> Mapping[int, Columns]:
        """Edge to a sink -> the columns of its rows."""
        return {
            edge.number: Columns(
                self.topology.streams[edge.stream].format, self.topology.streams[edge.stream].coder
            )
            for edge in self.topology.edges
            if edge.sink is not None
        }


def cache_directory(wanted: str) -> str:
    """Return the directory for caches on this host.

    Args:
        wanted: A path, in which ``$NAME`` stands for this process's environment variable; or ""
            for ``millrace`` in this process's temporary directory.

    Raises:
        PipelineError: A variable is not set here.
    """
    if not wanted:
        return str(Path(tempfile.gettempdir()) / "millrace")
    path = os.path.expandvars(wanted)
    if _VARIABLE.search(path):
        raise PipelineError(
            f"cache={wanted!r}: on host {socket.gethostname()} this is {path!r}, as the variable "
            "is not set for the worker. Set it (spark.executorEnv.NAME), or name another directory."
        )
    return path


_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")

_RUNTIMES: dict[str, Runtime] = {}


def runtime_of(blueprint: Blueprint) -> Runtime:
    """Return the runtime of a blueprint, made on first use in this process."""
    runtime = _RUNTIMES.get(blueprint.digest)
    if runtime is None:
        # One run at a time uses a worker; an older run's caches need not stay open.
        _RUNTIMES.clear()
        runtime = _RUNTIMES[blueprint.digest] = Runtime(blueprint)
        # PySpark collects garbage after every task, and would go through all imported modules each
        # time: some 40 ms a task. What is here now is here to stay. And as it does, there is little
        # for the collections within a task to find, which a task with many records has many of.
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
    return runtime
