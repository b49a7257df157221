"""Checkpoint: what a checkpoint was after an epoch. It is read only, and by nobody claimed.

Checkpoints by path or URL: opened to be read, and refused in words where there is none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from millrace.compile.change.plan import REFUSED, ChangePlan, PartChange, planned
from millrace.compile.change.schemas import Schema, Shape
from millrace.compile.topology import Topology
from millrace.epochlog import claims
from millrace.epochlog.entries import interval_map
from millrace.epochlog.history import Moment
from millrace.epochlog.reader import end_of
from millrace.inspect.computation import ComputationInspection, Interval
from millrace.inspect.overview import (
    Ended,
    Overview,
    ended,
    fitted,
    known_otherwise,
    moments,
    overview_of_log,
)
from millrace.model.errors import (
    CheckpointMismatch,
    DamagedStore,
    NotKept,
    PipelineError,
    StoreError,
)
from millrace.store import (
    HardState,
    LocalHardState,
    MemoryCache,
    ObjectHardState,
    View,
    bring,
    is_object_store,
    local_path,
    looked_at,
    open_location,
)
from millrace.watermark.report import NOTHING_PENDING

T = TypeVar("T")

# How often a whole answer is tried: each time the run has written two snapshots meanwhile.
_ROUNDS = 3


class Checkpoint:
    """A checkpoint as it was after an epoch.

    It starts no Spark, imports no code of the user's, writes nothing and claims nothing, so it may
    be looked at while a run goes on. All that it says is of one epoch. The run may go on meanwhile
    and collect what that epoch needs: then :class:`~millrace.model.errors.NotKept` is raised, and
    :meth:`latest` has the checkpoint as it is by then.

    Args:
        state: Where the checkpoint is.
        epoch: The epoch; by default the last that has completed.

    Attributes:
        state: Where the checkpoint is.
        overview: Epoch, low watermarks, counters.

    Raises:
        NotKept: The epoch is not in the epoch log any more.
        DamagedStore: An entry of the log that is needed is gone or cannot be read.

    >>> import millrace as mr
    >>> class Basket(mr.Computation):
    ...     inputs = {"orders": mr.by("who")}
    ...     outputs = {}
    ...     spent = mr.CombiningState(int)
    ...     items = mr.MapState(int)
    ...
    ...     def process_record(self, record):
    ...         self.spent.add(record.value["price"])
    ...         self.items[record.value["item"]] = record.value["price"]
    ...         self.set_timer("remind", at=record.timestamp + mr.DAY)
    ...
    ...     def process_timer(self, timer):
    ...         pass
    >>> p = mr.Pipeline("shop")
    >>> p.inject("orders", format=dict)
    Stream('orders')
    >>> p.add(Basket)
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("orders", [({"who": "ann", "item": "tea", "price": 3}, 0)])
    ...     found = h.checkpoint()["Basket"]
    >>> found.get("ann")
    {'items': {'tea': 3}, 'spent': 3}
    >>> [(timer.key, timer.tag, timer.at == mr.DAY) for timer in found.timers()]
    [('ann', 'remind', True)]
    """

    def __init__(self, state: HardState, *, epoch: int | None = None) -> None:
        self._state = state
        self._looked_at: HardState | None = None
        self.ended: Ended = fitted(ended(state.epochs, epoch))
        self.overview: Overview = overview_of_log(self.ended)
        self._found: dict[str, ComputationInspection] = {}
        self._loaded: tuple[tuple[str, int], MemoryCache] | None = None

    @property
    def state(self) -> HardState:
        """Hard state, with what live tasks have committed up to the epoch, and since."""
        if self._looked_at is None:
            self._looked_at = looked_at(self._state)
        return self._looked_at

    @property
    def epoch(self) -> int:
        """The epoch after which it was so; -1 before the first has completed."""
        return self.overview.epoch

    @property
    def computations(self) -> list[str]:
        """The names of the computations, in order."""
        return list(self.overview.computations)

    def __getitem__(self, computation: str) -> ComputationInspection:
        """Return a computation.

        Raises:
            PipelineError: There is none of that name.
        """
        if computation not in self.overview.computations:
            known = ", ".join(self.computations) or "none yet"
            raise PipelineError(f"no computation {computation!r}; there are {known}")
        found = self._found.get(computation)
        if found is None:
            found = self._found[computation] = ComputationInspection(self, computation)
        return found

    def latest(self) -> Checkpoint:
        """Return the checkpoint as it is now."""
        return Checkpoint(self._state)

    def history(self) -> list[Moment]:
        """Return where the low watermarks stood after each epoch that the log still has."""
        return moments(self._state.epochs)

    # -- for the rest of this package --------------------------------------------------------------

    def known_name(self, computation: str) -> str:
        """Return the name of a computation's logs and snapshots: the first that it had."""
        names = known_otherwise(self.ended)
        return next((name for name, title in names.items() if title == computation), computation)

    def declared(self, computation: str) -> Schema:
        """Return what the checkpoint says of a computation: inputs, outputs, cells, settings."""
        assert self.ended.claim is not None, "computations are known by a claim"
        found: Schema = self.ended.claim.topology["computations"][computation]
        return found

    def cell_numbers(self, computation: str) -> dict[str, int]:
        """Return the numbers that rows carry for the names of a computation's cells."""
        claim = self.ended.claim
        assert claim is not None, "computations are known by a claim"
        return claim.registry.checked().cells[computation]

    def shape(self, computation: str) -> Shape:
        """Return the last shape of a computation's state."""
        claim = self.ended.claim
        assert claim is not None, "computations are known by a claim"
        return claim.registry.checked().shapes.get(computation, Shape())

    def intervals(self, computation: str) -> list[Interval]:
        """Return the key intervals of a computation, by hash."""
        completion = self.ended.completion
        if completion is None:
            return []
        numbers = completion.numbers.get(computation, {})
        chains = completion.chains.get(computation, {})
        reports = completion.reports.get(computation, {})
        partition = completion.intervals.get(computation)
        found = [] if partition is None else interval_map(partition).intervals
        return [
            Interval(
                id=one.id,
                start=one.start,
                end=one.end,
                commit=numbers.get(one.id, 0),
                chain=chains.get(one.id, 0),
                # One that never had a commit is not said: it has nothing pending.
                report=reports.get(one.id, None if one.id in numbers else NOTHING_PENDING),
            )
            for one in found
        ]

    @contextmanager
    def rows(self, computation: str, interval: Interval) -> Iterator[View]:
        """Open the rows of a key interval as they were after the epoch.

        Raises:
            NotKept: They are not kept any more.
            DamagedStore: They cannot be read.
        """
        with self._cache(computation, interval).view() as view:
            yield view

    def _cache(self, computation: str, interval: Interval) -> MemoryCache:
        name = (computation, interval.id)
        if self._loaded is None or self._loaded[0] != name:
            known = self.known_name(computation)
            cache = MemoryCache(known, interval.id)
            try:
                bring(cache, self.state, known, interval.id, interval.commit, interval.chain)
            except DamagedStore as problem:
                if self._is_last():
                    raise
                raise NotKept(
                    f"interval {interval.id} of {computation!r} after epoch {self.epoch} is not "
                    "kept any more: the run has collected it since. Ask for a later epoch, or for "
                    "the last: checkpoint.latest(), and on the command line no --epoch."
                ) from problem
            self._loaded = name, cache
        return self._loaded[1]

    def _is_last(self) -> bool:
        """Return whether no epoch has completed since."""
        completion = ended(self._state.epochs).completion
        return completion is not None and completion.epoch == self.epoch


def read_latest(state: HardState, read: Callable[[Checkpoint], T]) -> T:
    """Read the latest state of a checkpoint; read again if a run has collected it during the read.

    Args:
        state: Where the checkpoint is.
        read: Given the checkpoint; called again with a later one if that is NotKept.
    """
    for _ in range(_ROUNDS - 1):
        try:
            return read(Checkpoint(state))
        except NotKept:
            continue
    return read(Checkpoint(state))


def open_checkpoint(location: str | os.PathLike[str], *, epoch: int | None = None) -> Checkpoint:
    """Open a checkpoint to look into it: the state of keys by the names of cells, timers, holds.

    Needs neither Spark nor the pipeline's code, writes nothing, and may be used while a run goes
    on. What it says is of one epoch; ``latest()`` of it has the checkpoint as it is by then.

    Args:
        location: What the run got as ``p.start(spark, checkpoint=...)``: a path or a URL.
        epoch: The epoch after which it is looked at; by default the last that has completed. The
            epoch log has the last hundred or so, and the state of some of them.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        NotKept: The epoch is not in the epoch log.
        StoreError: The directory or the bucket cannot be read.

    >>> open_checkpoint("nowhere")
    Traceback (most recent call last):
    ...
    millrace.model.errors.CheckpointMismatch: nowhere: no checkpoint, there is nothing at that...
    """
    return Checkpoint(state_at(location), epoch=epoch)


def state_at(location: str | os.PathLike[str]) -> LocalHardState | ObjectHardState:
    """Return the state of the checkpoint at a path or URL; writes nothing.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        StoreError: The directory or the bucket cannot be read.
    """
    if is_object_store(location):
        return open_location(location)
    path = local_path(location)
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise StoreError(
            f"{os.fspath(location)}: permission denied. Run as the user that runs the pipeline."
        )
    if not (path / "FORMAT").is_file():
        what = "there is nothing at that path"
        if path.exists():
            what = "it has no FORMAT file" if path.is_dir() else "it is a file"
        raise CheckpointMismatch(
            f"{os.fspath(location)}: no checkpoint, {what}. Give the directory that the run got as "
            'p.start(spark, checkpoint="...").'
        )
    return open_location(location)


def plan_of(topology: Topology, location: str | os.PathLike[str]) -> ChangePlan:
    """Return what a start of a pipeline would do with the checkpoint at a path or URL.

    It is of the last epoch that has completed; what an epoch under way adds is told apart.

    Raises:
        CheckpointMismatch: There is no checkpoint, or one of a newer format.
        StoreError: The directory or the bucket cannot be read.
    """
    state = state_at(location)
    end = end_of(state.epochs)
    # A run may be in the middle of an epoch: what a start can do does not depend on when one asks.
    found = claims.plan_of(end, topology, between=True)
    if end.manifest is not None:
        now = claims.plan_of(end, topology)
        refused = {change.where for change in found.refused}
        waiting = [change for change in now.refused if change.where not in refused]
        found = msgspec.structs.replace(found, under_way=found.epoch + 1, waiting=tuple(waiting))
    owner = state.format.pipeline
    if owner == topology.name:
        return found
    whose = PartChange(
        REFUSED,
        f"pipeline {topology.name!r}",
        f"this checkpoint belongs to pipeline {owner!r}",
        f"give the checkpoint of {topology.name!r}; or, if it was renamed, keep the old name: "
        f"mr.Pipeline({owner!r})",
    )
    together = planned(topology.name, found.epoch, [whose, *found.changes])
    return msgspec.structs.replace(together, under_way=found.under_way, waiting=found.waiting)


def sizes(state: LocalHardState | ObjectHardState) -> dict[str, int]:
    """Return what the epoch log, commits, incarnations and snapshots take, in bytes."""
    return {
        name: _size(state.path / name) if isinstance(state, LocalHardState) else state.size(name)
        for name in ("epochs", "commits", "incarnations", "snapshots")
    }


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder; one with several names counts once."""
    found: dict[int, int] = {}
    for path in folder.rglob("*"):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue  # collected since it was listed
        if path.is_file():
            found[stat.st_ino] = stat.st_size
    return sum(found.values())
