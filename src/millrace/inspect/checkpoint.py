"""Checkpoint: what a checkpoint was after an epoch. It is read only, and by nobody claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

from millrace.compile.schemas import Schema
from millrace.compile.shapes import Shape
from millrace.inspect.computation import ComputationInspection, Interval
from millrace.inspect.ended import Ended, ended, fitted, known_otherwise, moments
from millrace.inspect.overview import Overview, overview_of_log
from millrace.model.errors import DamagedStore, NotKept, PipelineError
from millrace.store import HardState, MemoryCache, View, bring, looked_at
from millrace.watermark.report import NOTHING_PENDING
from millrace.windmill.history import Moment
from millrace.windmill.manifest import interval_map

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
        self.ended: Ended = fitted(ended(state.epochs, epoch))
        self.overview: Overview = overview_of_log(self.ended)
        self._found: dict[str, ComputationInspection] = {}
        self._loaded: tuple[tuple[str, int], MemoryCache] | None = None

    @cached_property
    def state(self) -> HardState:
        """Hard state, with what a session under way has committed up to the epoch, and since."""
        return looked_at(self._state)

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
                    f"interval {interval.id} of {computation!r} as it was after epoch {self.epoch} "
                    "is not kept any more: the run has gone on since, and keeps what changed after "
                    "the snapshots before the last. Ask for a later epoch, or for the last: "
                    "checkpoint.latest(), and on the command line no --epoch."
                ) from problem
            self._loaded = name, cache
        return self._loaded[1]

    def _is_last(self) -> bool:
        """Return whether no epoch has completed since."""
        completion = ended(self._state.epochs).completion
        return completion is not None and completion.epoch == self.epoch


def read_latest(state: HardState, read: Callable[[Checkpoint], T]) -> T:
    """Return what is read of a checkpoint as it is; anew if a run collects it meanwhile.

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
