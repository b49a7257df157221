"""The oracle: after a schedule, everything must be as if nothing had gone wrong.

It runs the same batches once more, without faults, on one task with a store in memory, at the wall
times that the manifests say and with the random numbers that came out at the sinks, and compares

- the rows of every sink, ids and event times included,
- the epoch log: one manifest and one completion an epoch, and every completion's low watermarks,
  reports, commit numbers and counters; published low watermarks and clocks of the manifests,
- the rows of every key interval as its commits make them: state, timers, holds,
- every cache that is left, with what its commits up to its position say.

Random numbers are the one thing that a fault-free run cannot repeat. What a sink got is taken for
the truth; that state, later levels and other sinks have the same ones is then part of the claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from millrace.compile.topology import StreamSpec, Topology
from millrace.injectors.publisher import Publisher
from millrace.model.errors import (
    CheckpointUnwritable,
    InvariantViolation,
    StoreError,
    ZombieWriter,
)
from millrace.plane.epoch import EpochDriver
from millrace.plane.exchange import LocalExchange, through_levels
from millrace.plane.outcome import Outcome, reports_in
from millrace.plane.runtime import Runtime
from millrace.plane.task import Task
from millrace.store import (
    HardState,
    MemoryCache,
    MemoryCaches,
    MemoryHardState,
    bring,
)
from millrace.testing.invariants import check_low_watermarks
from millrace.testing.simulation import computations
from millrace.testing.simulation.carried import remap_again, remaps_in
from millrace.testing.simulation.definitions import Wrong
from millrace.testing.simulation.driver import (
    ConcurrentQuery,
    QueryLog,
    SinkFailed,
    drains,
    feed,
)
from millrace.testing.simulation.hosts import Host
from millrace.testing.simulation.program import Evidence
from millrace.testing.simulation.scheduler import Killed
from millrace.testing.simulation.spark import FetchFailed, JobFailed
from millrace.testing.simulation.storage import Storage
from millrace.testing.simulation.sunk import Row, sink_rows
from millrace.testing.simulation.workload import Workload
from millrace.windmill.epoch_log import together
from millrace.windmill.epochs import Epochs
from millrace.windmill.manifest import (
    Claim,
    Completion,
    Entry,
    Manifest,
    decode_entry,
    interval_map,
)
from millrace.windmill.worker import Worker

#: What a process may end with. Anything else is a bug, whatever the outputs are.
_EXPECTED = (
    Killed,
    FetchFailed,
    JobFailed,
    ConcurrentQuery,
    SinkFailed,
    CheckpointUnwritable,
)


class Judged(Protocol):
    """What the oracle looks at."""

    topology: Topology
    work: Workload
    query_log: QueryLog
    storage: Storage
    hosts: list[Host]
    sunk: dict[Row, int]

    def version(self, claim: Claim) -> Topology:
        """Return the topology of which a claim is."""
        ...


class Difference(Exception):
    """Something is not as in the run without faults."""


def forbidden(error: BaseException | None, *, alone: bool) -> str | None:
    """Return how a process must not end, if it ended so.

    Args:
        error: What it ended with.
        alone: Whether it is a driver, and the first: nobody can have superseded it.
    """
    if error is None or isinstance(error, _EXPECTED) or type(error) is StoreError:
        return None
    if isinstance(error, ZombieWriter) and not alone:
        return None
    return f"{type(error).__name__}: {error}"


def judge(run: Judged) -> str | None:
    """Return what differs from a run without faults; None if nothing does."""
    try:
        state = run.storage.open()
        claims, manifests, completions = epoch_log(run.storage, state)
        reference = _Reference(run, claims, manifests, remaps_in(completions))
        _same_rows(run, reference)
        for completion, expected in zip(
            whole(completions), whole(reference.completions), strict=True
        ):
            _same_completion(completion, expected)
        *_, last = whole(completions)
        _same_state(run, state, reference, last)
        run.work.program.check(_evidence(run, reference.topologies, last))
    except (Difference, Wrong, InvariantViolation, StoreError) as found:
        return f"{type(found).__name__}: {found}"
    return None


def _evidence(run: Judged, topologies: Sequence[Topology], last: Completion) -> Evidence:
    """Return what the definitions are asked about."""
    offsets = run.query_log.offsets
    batches = [run.work.records[slice(*offsets[epoch])] for epoch in range(last.epoch + 1)]
    return Evidence(topologies, batches, run.sunk, last)


def epoch_log(
    storage: Storage, state: HardState
) -> tuple[list[Claim], list[Manifest], list[Completion]]:
    """Return claims, manifests and completions; these alternate, under ever newer claims.

    A remap completes the last epoch once more, with other interval maps.
    """
    claims: list[Claim] = []
    manifests: list[Manifest] = []
    completions: list[Completion] = []
    generation = complete = 0
    for number in range(1, state.epochs.last() + 1):
        entry = _entry(storage, state, number)
        if isinstance(entry, Claim):
            _check(
                entry.generation in (generation, generation + 1),
                f"entry {number}: generation {entry.generation} claims after {generation}",
            )
            generation = entry.generation
            claims.append(entry)
            continue
        kind = type(entry).__name__.lower()
        _check(entry.generation == generation, f"entry {number} is a zombie's {kind}")
        if isinstance(entry, Manifest):
            _check(entry.epoch == len(manifests) == complete, f"entry {number}: {kind}")
            manifests.append(entry)
        elif len(manifests) == complete:
            again = entry.epoch == complete - 1 and entry.intervals != completions[-1].intervals
            _check(again, f"entry {number}: {kind}")
            completions.append(entry)
        else:
            _check(entry.epoch == complete < len(manifests), f"entry {number}: {kind}")
            completions.append(entry)
            complete += 1
    _check(bool(completions) and completions[-1].drained, "the last epoch is not complete")
    return claims, manifests, completions


def _entry(storage: Storage, state: HardState, number: int) -> Entry:
    """Return an entry of the epoch log, also one that was collected."""
    # What was put where an entry had been collected is in nobody's way, and may stay for a while.
    if (kept := storage.collected(number)) is not None:
        return decode_entry(kept[: kept.rfind(b"\n", 0, -1)])  # its last line is a checksum
    data = state.epochs.read(number)
    _check(data is not None, f"entry {number} is missing, and was not collected")
    assert data is not None
    return decode_entry(data)


class _Reference:
    """The run without faults.

    Attributes:
        topologies: What each epoch ran.
        sunk: What its sinks got.
        completions: One an epoch.
        state: Its hard state.
    """

    def __init__(
        self,
        run: Judged,
        claims: Sequence[Claim],
        manifests: Sequence[Manifest],
        remaps: Mapping[int, Sequence[Completion]],
    ) -> None:
        self.topologies: list[Topology] = []
        self.sunk: dict[Row, int] = {}
        self.completions: list[Completion] = []
        self.state = MemoryHardState(encoded=False)
        self._version: Topology | None = None
        self._driver: EpochDriver
        self._runtime: Runtime
        drawn = _drawn(run)
        earlier, computations.draw = computations.draw, lambda key, nth: drawn.get((key, nth), -1)
        try:
            self._run(run, list(claims), manifests, remaps)
        finally:
            computations.draw = earlier

    def _run(
        self,
        run: Judged,
        claims: list[Claim],
        manifests: Sequence[Manifest],
        remaps: Mapping[int, Sequence[Completion]],
    ) -> None:
        wall_time_us = 0
        for epoch, was in enumerate(manifests):
            self._claimed(run, claims, was.generation)
            driver, runtime = self._driver, self._runtime
            _check(was.wall_time_us >= wall_time_us, f"epoch {epoch}: the clock ran backwards")
            wall_time_us = was.wall_time_us
            # As many tasks where each of them combines what it sends.
            combined = any(edge.lift is not None for edge in runtime.topology.edges)
            driver.tasks = was.tasks if combined else 1
            turn = driver.run(
                epoch,
                partial(self._stages, run, runtime, was),
                wall_time_us=wall_time_us,
                draining=drains(run.query_log, epoch, len(run.work.records)),
            )
            assert turn is not None, "the epoch after the last one is not complete"
            check_low_watermarks(was.before, turn.completion.after)
            self.completions.append(decode_completion(msgspec.json.encode(turn.completion)))
            for said in remaps.get(epoch, ()):
                self._claimed(run, claims, said.generation)
                standing, topology = self._driver.epochs.standing(), self._driver.topology
                self.completions.append(remap_again(said, standing, topology, self.state))
                self._begin(run)

    def _claimed(self, run: Judged, claims: list[Claim], generation: int) -> None:
        """Begin the versions that had claimed by then; what one without an epoch adds counts."""
        while claims and claims[0].generation <= generation:
            wanted = run.version(claims.pop(0))
            if wanted is not self._version:
                self._version = wanted
                self._begin(run)

    def _begin(self, run: Judged) -> None:
        """Begin a run of a version where the one before has ended."""
        assert self._version is not None, "a run has claimed the checkpoint"
        epochs = Epochs(self._version, self.state, intervals=run.work.intervals)
        topology = epochs.topology
        worker = Worker(topology, self.state, MemoryCaches())
        self._runtime = Runtime(topology, tasks=1, worker=worker)
        self._driver = EpochDriver(topology, epochs, Publisher.of(topology), tasks=1)

    def _stages(self, run: Judged, runtime: Runtime, was: Manifest, manifest: Manifest) -> Outcome:
        """Run the stages of an epoch, which must begin as it did."""
        for what in ("injectors", "before", "intervals", "draining"):
            expected = getattr(manifest, what)
            _same(f"manifest {manifest.epoch}, {what}", getattr(was, what), expected)
        if was.changed is not None and manifest.changed is not None:
            for what in ("numbers", "chains", "reports"):
                expected = getattr(manifest.changed, what)
                _same(f"manifest {manifest.epoch}, {what}", getattr(was.changed, what), expected)
        sent = list(feed(run.work, run.query_log, manifest.epoch).rows(Task(runtime, manifest, 0)))
        topology = runtime.topology
        self.topologies.append(topology)
        left = through_levels(LocalExchange(runtime, manifest), sent, topology.depth)
        self.sunk.update(dict.fromkeys(sink_rows(topology, left), manifest.epoch))
        return Outcome.of(reports_in(left))


def decode_completion(data: bytes) -> Completion:
    """Return a copy of a completion: the kernel goes on using the parts of the one it returned."""
    entry = decode_entry(data)
    assert isinstance(entry, Completion), "a completion was encoded"
    return entry


def _drawn(run: Judged) -> dict[tuple[str, int], int]:
    """Return the random numbers that the sink of the stream that carries them got."""
    drawn: dict[tuple[str, int], int] = {}
    if "enriched" not in run.topology.streams:
        return drawn
    coder = run.topology.streams["enriched"].coder
    edges = {edge.number for edge in run.topology.edges if edge.stream == "enriched"}
    for row in run.sunk:
        if row.edge in edges:
            key, nth, number, *_ = coder.decode(row.value)
            _check(
                drawn.setdefault((key, nth), number) == number,
                f"the sink of 'enriched' got draw {nth} of key {key!r} twice, with two outcomes",
            )
    return drawn


def _same_rows(run: Judged, reference: _Reference) -> None:
    expected = reference.sunk
    if run.sunk.keys() == expected.keys():
        return
    streams = {
        edge.number: one.streams[edge.stream] for one in reference.topologies for edge in one.edges
    }
    extra = [_told(streams, row) for row in run.sunk if row not in expected]
    missing = [_told(streams, row) for row in expected if row not in run.sunk]
    raise Difference(
        f"sinks: {len(extra)} rows too many, {len(missing)} missing\n  too many: {extra[:4]}\n"
        f"  missing: {missing[:4]}"
    )


def _told(streams: Mapping[int, StreamSpec], row: Row) -> tuple[Any, ...]:
    stream = streams[row.edge]
    return stream.name, stream.coder.decode(row.value), row.timestamp, row.sequence


def whole(completions: Sequence[Completion]) -> Iterator[Completion]:
    """Yield completions as if each said where every interval stands: when one does is no matter."""
    last: Completion | None = None
    for one in completions:
        last = one if last is None or one.since is None else together([last, one])
        yield replace(last, since=None)


def _same_completion(found: Completion, expected: Completion) -> None:
    for what in msgspec.structs.fields(Completion):
        if what.name != "generation":
            _same(
                f"completion {found.epoch}, {what.name}",
                getattr(found, what.name),
                getattr(expected, what.name),
            )


def _same_state(run: Judged, state: HardState, reference: _Reference, last: Completion) -> None:
    for spec in reference.topologies[-1].computations:
        for entry in interval_map(last.intervals[spec.name]).intervals:
            number = last.numbers[spec.name].get(entry.id, 0)
            where = f"state of {spec.name}, interval {entry.id}, at commit {number}"
            _check(
                not state.commits.exists(spec.name, entry.id, number + 1),
                f"{where}: commit {number + 1} is there, and no epoch knows it",
            )
            _same(
                where,
                _rows(state, spec.name, entry.id, number, last.chains[spec.name].get(entry.id, 0)),
                _rows(reference.state, spec.name, entry.id, number),
            )
            for host in run.hosts:
                cache = host.caches.get((spec.name, entry.id))
                if cache is not None:
                    _same(
                        f"cache on host {host.number}: {where}",
                        _scan(cache),
                        _rows(reference.state, spec.name, entry.id, cache.position),
                    )


def _rows(
    state: HardState, computation: str, interval: int, number: int, chain: int | None = None
) -> dict[bytes, bytes]:
    cache = MemoryCache(computation, interval)
    bring(cache, state, computation, interval, number, chain)
    return _scan(cache)


def _scan(cache: MemoryCache) -> dict[bytes, bytes]:
    with cache.view() as view:
        return dict(view.scan(b"\x01", b"\xff"))


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Difference(f"{what}:\n  found    {found}\n  expected {expected}")


def _check(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Difference(f"epoch log: {otherwise}")
