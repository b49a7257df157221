"""Execution: GetData and user code for one bundle, and the caches that it reads.

It runs computations of one topology against one checkpoint. When what comes of a bundle is durable
is the business of a commit writer (``runtime/commit_writer.py``).

Source: Streaming Engine, GetData; MillWheel 6.2 (who alone writes a key may read back what it
wrote).
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from millrace.compile.topology import ComputationSpec, Topology
from millrace.kernel.bundle import Bundle, Position, RecentIntervals
from millrace.kernel.columnar import machine_for
from millrace.kernel.machine import Effects, Machine
from millrace.kernel.results import (
    NO_TIMES,
    CommitSizes,
    IntervalResult,
    KeySampler,
    Load,
    StateSizes,
    footing,
)
from millrace.kernel.router import Router, RowsBuilder
from millrace.kernel.source_dedup import Deduplicator, Filtered
from millrace.model.errors import DamagedCache, DamagedStore, StoreError
from millrace.model.record import Record, Timer
from millrace.store import (
    COMMIT_BYTES,
    NOTHING,
    Cache,
    CachePosition,
    Caches,
    Commit,
    HardState,
    Repair,
    View,
    bring,
    chain_of,
)

_log = logging.getLogger(__name__)


class Fence(Protocol):
    """Says whether whoever has just made commits may go on."""

    def check(self) -> None:
        """Return if so.

        Raises:
            ZombieWriter: Others have gone on without this attempt.
        """
        ...


_NOTHING_CONSUMED: Final[Mapping[bytes, bytes | None]] = MappingProxyType({})


class Attempted(NamedTuple):
    """What came of one bundle, as far as this attempt knows.

    Attributes:
        result: Of the interval.
        productions: What it sends.
        commit: What is to be made durable; None if an earlier attempt has committed.
    """

    result: IntervalResult
    productions: RowsBuilder
    commit: Commit | None


class RunningCall:
    """Which user code runs. Any thread may look.

    Attributes:
        machine: That runs it; None if none does.
        cache: Which cache is made ready for it meanwhile, in words; "" if none is.
        thread: Identifies the thread that it ran in last.
        waiting: Returns which call it waits for, in words; "" if for none.
    """

    def __init__(self) -> None:
        self.machine: Machine | None = None
        self.cache = ""
        self.thread = 0
        self.waiting: Callable[[], str] = str


class Probing(Protocol):
    """Finds out which calls of user code end their process; see ``runtime/stuck.py``."""

    @property
    def over(self) -> bool:
        """Whether it does so no more."""
        ...

    def call(self, hook: Callable[[Any], None], key: Any, subject: Record | Timer) -> None:
        """Call a hook with what it is given; raise if it must not be called."""
        ...

    def look(self, run: Callable[[], object]) -> None:
        """Find those in a bundle that must not be made."""
        ...


class Execution:
    """Runs bundles of one topology against the caches of one process.

    Args:
        topology: The pipeline.
        state: Hard state: what caches are made from.
        caches: Where rows are read from; disposable.
        seconds: Returns what a stopwatch shows, by which user code is timed; None: it is not.

    Attributes:
        state: Hard state.
        caches: Of this process.
        deduplicators: Computation with source ids -> what drops records delivered before.
        deferred: Computation -> commits that caches have yet to take, see :meth:`defer`. To read
            one back costs a request, where the log is an object store.
        running: What runs; shared by those that go on from one another, see :meth:`ahead`.
    """

    def __init__(
        self,
        topology: Topology,
        state: HardState,
        caches: Caches,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        self.state = state
        self.caches = caches
        self._topology = topology
        router = self._router = Router(topology)
        self._machines = {
            spec.name: machine_for(topology, spec, router) for spec in topology.computations
        }
        self.deduplicators = {
            spec.name: Deduplicator(spec) for spec in topology.computations if spec.slacks
        }
        self.deferred = _none_deferred(topology)
        self.running = RunningCall()
        self._seconds = seconds or _stopped
        self._samplers = {spec.name: KeySampler() for spec in topology.computations}
        self._sizes = {spec.name: StateSizes() for spec in topology.computations}
        self._committed = {spec.name: CommitSizes() for spec in topology.computations}
        self._causes: Container[str] = ()
        self.carefully(None)

    def carefully(self, probe: Probing | None) -> None:
        """Have a probe look at each bundle before it is run, or none."""
        self._probe = probe
        self._probed: dict[str, Machine] = {}

    def ahead(self, caches: Caches, names: Iterable[str], causes: Container[str]) -> Execution:
        """Return an execution that starts from commits that are not durable, for some computations.

        It builds its other knowledge of them anew: that of this execution may come from commits
        that a failure has undone.

        Args:
            caches: Over this one's.
            names: The computations.
            causes: Those of them whose productions are to say what record they were made of.
        """
        execution, topology = copy.copy(self), self._topology
        execution.caches, execution._causes = caches, causes
        execution.deferred = _none_deferred(topology)
        execution.carefully(self._probe)
        execution._machines, execution.deduplicators = (
            dict(self._machines),
            dict(self.deduplicators),
        )
        for spec in map(topology.computation, names):
            execution._machines[spec.name] = machine_for(
                topology, spec, self._router, causes=spec.name in causes
            )
            if spec.slacks:
                execution.deduplicators[spec.name] = Deduplicator(spec)
        return execution

    def cache_position(self, spec: ComputationSpec, interval: int) -> CachePosition:
        """Return where the cache of an interval stands."""
        return self.caches.open(spec.name, interval).cache_position

    def ready(
        self, spec: ComputationSpec, interval: int, position: Position, fence: Fence
    ) -> tuple[Cache, Repair]:
        """Return the cache of an interval, brought to where that stands."""
        cache = self.caches.open(spec.name, interval)
        if cache.cache_position[:2] == (position.number, position.chain):
            return cache, NOTHING
        return cache, self._get_data(cache, spec, interval, position, fence)

    def run(
        self,
        spec: ComputationSpec,
        bundle: Bundle,
        fence: Fence,
        cache_position: CachePosition | None = None,
    ) -> tuple[Effects, Repair]:
        """GetData and user code for one bundle; once more if its cache turns out damaged.

        Args:
            spec: The computation.
            bundle: What there is to do.
            fence: Asked before a cache is taken from those that have gone on with it.
            cache_position: Where the cache stood before the log was read; None: as it stands now.
        """
        interval, position = bundle.interval.id, bundle.position
        number = position.number
        cache = self.caches.open(spec.name, interval)
        at = number, position.chain
        try:
            if cache_position is None:
                with cache.view() as view:
                    if view.cache_position[:2] == at:
                        return self._run_user_code(spec, bundle, view), NOTHING
                    cache_position = view.cache_position
            repair = NOTHING
            if cache_position[:2] != at:
                repair = self._get_data(cache, spec, interval, position, fence)
            with cache.view(at=number) as view:
                return self._run_user_code(spec, bundle, view), repair
        except DamagedCache as damage:
            _log.warning("%s", damage)
            if spec.name in self.deduplicators:
                self.deduplicators[spec.name].forget(interval)
        repair = self._get_data(cache, spec, interval, position, fence)
        with cache.view(at=number) as view:
            effects = self._run_user_code(spec, bundle, view)
            return effects, replace(repair, damaged=repair.damaged + 1)

    def go_on(
        self, spec: ComputationSpec, bundle: Bundle, effects: Effects, fence: Fence
    ) -> Effects:
        """Run a bundle over the effects of those that it commits with, and add its own to them.

        Args:
            spec: The computation.
            bundle: For an interval that has effects, at the same position.
            effects: So far.
            fence: Asked before a cache is moved, which a newer attempt may have moved already.

        Returns:
            Its own.
        """
        position = bundle.position
        cache, _ = self.ready(spec, bundle.interval.id, position, fence)
        with cache.view(at=position.number) as view:
            over = effects.over(view)
            machine = self._machine(spec, bundle, over)
            began = self._seconds()
            self.running.thread = threading.get_ident()
            self.running.machine = machine
            more = machine.run(bundle, over)
            self.running.machine = None
        before = effects.load
        more.load = Load(0, 0, self._seconds() - began, before.rows, before.state_bytes)
        effects.then(more)
        return more

    def at_hand(self) -> str:
        """Return what runs now, in words; "" if nothing does. Any thread may ask.

        That is user code, or what makes a cache ready for it.
        """
        machine = self.running.machine
        if machine is not None:
            return machine.at_hand()
        return self.running.cache or self.running.waiting()

    @property
    def in_user_code(self) -> bool:
        """Whether user code runs now. Any thread may ask."""
        return self.running.machine is not None

    def apply(self, commit: Commit, *, overhead: int = COMMIT_BYTES) -> None:
        """Bring the cache up to a commit just made; to read it again costs so many bytes beside.

        The commit is durable, so whatever is wrong with the cache can wait: the next bundle repairs
        it, or says that it cannot. It may have been found damaged by the thread that writes
        snapshots, and be empty now.
        """
        try:
            self.caches.open(commit.computation, commit.interval).apply(commit, overhead=overhead)
        except StoreError as problem:
            _log.warning("the cache is brought forward later: %s", problem)

    def defer(self, commit: Commit, intervals: int) -> None:
        """Leave the cache a commit behind until the interval's next bundle needs it.

        Args:
            commit: That the cache is left behind.
            intervals: How many its computation has.
        """
        self.deferred[commit.computation].put(commit.interval, commit, intervals)

    def _run_user_code(self, spec: ComputationSpec, bundle: Bundle, view: View) -> Effects:
        """Run the machine, over the records that were not delivered before."""
        deduplicator = self.deduplicators.get(spec.name)
        filtered = (
            Filtered(bundle.records) if deduplicator is None else deduplicator.run(bundle, view)
        )
        if filtered.records is not bundle.records:
            bundle = replace(bundle, records=filtered.records)
        machine, clock = self._machine(spec, bundle, view), self._seconds
        by_call = clock is not _stopped and spec.columnar is None
        if by_call:
            machine.timer.begin(clock)
        began = clock()
        self.running.thread = threading.get_ident()
        self.running.machine = machine
        effects = machine.run(bundle, view)
        self.running.machine = None
        seconds, times = clock() - began, NO_TIMES
        if by_call:
            cuts = filtered.records.cuts
            times = machine.timer.end(cuts[-1] - cuts[0] + effects.counters.timers, seconds)
        records = effects.counters.records
        effects.load = Load(
            records,
            0,
            seconds,
            *self._sizes[spec.name].of(bundle.interval.id, records, view, bundle.attempt.intervals),
            self._samplers[spec.name].hottest(filtered.records, records),
            times,
        )
        filtered.complete(effects)
        return effects

    def attempted(
        self,
        bundle: Bundle,
        computation: str,
        effects: Effects,
        repair: Repair,
        *,
        consumed: Mapping[bytes, bytes | None] = _NOTHING_CONSUMED,
        weak: bool = False,
    ) -> Attempted:
        """Return what came of a bundle, as a commit that is not durable yet.

        There is one even when nothing changed: an attempt that was left behind, and whose user code
        saw another clock, would commit it now, under a number that the next epoch takes.

        Args:
            bundle: That was run.
            computation: Its name.
            effects: What user code did.
            repair: What it took to bring the cache to where the interval stands.
            consumed: Rows of the interval's channels that change.
            weak: Whether the commit is without the productions.
        """
        interval, position, attempt = bundle.interval.id, bundle.position, bundle.attempt
        effects.counters.productions = len(effects.productions)
        mutations = [*effects.mutations.items(), *consumed.items()]
        number, chain = position.number + 1, chain_of(position.chain, mutations)
        commit = Commit(
            computation,
            interval,
            number,
            attempt.epoch,
            attempt.generation,
            mutations,
            b"" if weak else effects.productions.pack(),
            footing(effects.report, effects.counters, weak=weak),
            position.chain,
            chain,
        )
        load = effects.load.committing(self._committed[computation].of(commit))
        result = IntervalResult(
            computation, interval, number, effects.report, effects.counters, False, chain, repair,
            load,
        )  # fmt: skip
        return Attempted(result, effects.productions, commit)

    def _machine(self, spec: ComputationSpec, bundle: Bundle, view: View) -> Machine:
        """Return what is to run a bundle."""
        probe = self._probe
        if probe is None or probe.over or spec.columnar is not None:
            return self._machines[spec.name]
        machine = self._probed.get(spec.name)
        if machine is None:
            machine = self._probed[spec.name] = machine_for(
                self._topology,
                spec,
                self._router,
                causes=spec.name in self._causes,
                around=probe.call,
            )
        probe.look(lambda: machine.run(bundle, view))
        return machine

    def _get_data(
        self, cache: Cache, spec: ComputationSpec, interval: int, position: Position, fence: Fence
    ) -> Repair:
        """Bring an interval's cache to where the interval stands."""
        number, chain = position.number, position.chain
        deferred = self.deferred[spec.name].get(interval)
        if deferred is not None and deferred.number <= number:
            del self.deferred[spec.name][interval]
            if cache.position + 1 == deferred.number:
                self.apply(deferred)
        if cache.position > number:
            # To turn the cache back would take it from those that have gone on with it.
            fence.check()
        self.running.cache = f"the cache of interval {interval} of computation {spec.title!r}"
        try:
            return bring(cache, self.state, spec.name, interval, number, chain)
        except DamagedStore:
            fence.check()
            raise
        finally:
            self.running.cache = ""


def _none_deferred(topology: Topology) -> dict[str, RecentIntervals[Commit]]:
    return {spec.name: RecentIntervals() for spec in topology.computations}


def _stopped() -> float:
    """Show what a stopwatch does that nobody started."""
    return 0.0
