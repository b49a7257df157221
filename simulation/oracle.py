"""The oracle: after a schedule, everything must be as if nothing had gone wrong.

It runs the same batches once more, without faults (:mod:`.reference`), and compares

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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from millrace.compile.topology import StreamSpec, Topology
from millrace.epochlog.entries import (
    Claim,
    Completion,
    Entry,
    Manifest,
    decode_entry,
    interval_map,
)
from millrace.epochlog.reader import together
from millrace.model.coder import struct_fields
from millrace.model.errors import (
    CheckpointUnwritable,
    InvariantViolation,
    StoreError,
    ZombieWriter,
)
from millrace.store import (
    HardState,
    MemoryCache,
    bring,
)
from simulation.definitions import Wrong
from simulation.driver import (
    ConcurrentQuery,
    SinkFailed,
    brought_by,
    injectors,
)
from simulation.program import Evidence
from simulation.reference import Difference, Reference, check, same
from simulation.remap_oracle import remaps_in
from simulation.scheduler import Killed
from simulation.sink_rows import Row
from simulation.spark import FetchFailed, JobFailed
from simulation.storage import Storage

if TYPE_CHECKING:
    from simulation.simulation import Simulation

#: What a process may end with. Anything else is a bug, whatever the outputs are.
_EXPECTED = (
    Killed,
    FetchFailed,
    JobFailed,
    ConcurrentQuery,
    SinkFailed,
    CheckpointUnwritable,
)


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


def judge(run: Simulation) -> str | None:
    """Return what differs from a run without faults; None if nothing does."""
    try:
        state = run.storage.open()
        claims, manifests, completions = epoch_log(run.storage, state, run.unwritten)
        reference = Reference(run, claims, manifests, remaps_in(completions))
        _same_rows(run, reference)
        for completion, expected in zip(
            whole(completions), whole(reference.completions), strict=True
        ):
            same_completion(completion, expected)
        *_, last = whole(completions)
        _same_state(run, state, reference, last)
        run.work.program.check(_evidence(run, reference.topologies, last))
        run.callers.check(state, run.query_log.brought[last.epoch], last.sources)
    except (Difference, Wrong, InvariantViolation, StoreError) as found:
        return f"{type(found).__name__}: {found}"
    return None


def _evidence(run: Simulation, topologies: Sequence[Topology], last: Completion) -> Evidence:
    """Return what the definitions are asked about."""
    offsets = run.query_log.offsets
    batches = [run.work.records[slice(*offsets[epoch])] for epoch in range(last.epoch + 1)]
    brought = {
        stream: [
            [row[0] for row in brought_by(injector, stream, run.query_log, epoch)]
            for epoch in range(last.epoch + 1)
        ]
        for stream, injector in injectors(run.topology).items()
    }
    return Evidence(topologies, batches, run.sunk, last, brought)


def epoch_log(
    storage: Storage,
    state: HardState,
    unwritten: Mapping[tuple[int, int], Manifest] = MappingProxyType({}),
) -> tuple[list[Claim], list[Manifest], list[Completion]]:
    """Return claims, manifests and completions; these alternate, under ever newer claims.

    A remap completes the last epoch once more, with other interval maps.

    Args:
        storage: Of the run.
        state: Its checkpoint.
        unwritten: (generation, epoch) -> the manifest of an epoch that may have none in the log,
            as nothing was read and nothing was due in it.
    """
    claims: list[Claim] = []
    manifests: list[Manifest] = []
    completions: list[Completion] = []
    generation = complete = 0
    for number in range(1, state.epochs.last() + 1):
        entry = _entry(storage, state, number)
        if isinstance(entry, Claim):
            check(
                entry.generation in (generation, generation + 1),
                f"entry {number}: generation {entry.generation} claims after {generation}",
            )
            generation = entry.generation
            claims.append(entry)
            continue
        kind = type(entry).__name__.lower()
        check(entry.generation == generation, f"entry {number} is a zombie's {kind}")
        if isinstance(entry, Manifest):
            check(entry.epoch == len(manifests) == complete, f"entry {number}: {kind}")
            manifests.append(entry)
        elif len(manifests) == complete and entry.epoch == complete:
            without_job = unwritten.get((entry.generation, entry.epoch))
            check(without_job is not None, f"entry {number}: {kind}")
            assert without_job is not None
            manifests.append(without_job)
            completions.append(entry)
            complete += 1
        elif len(manifests) == complete:
            again = entry.epoch == complete - 1 and entry.intervals != completions[-1].intervals
            check(again, f"entry {number}: {kind}")
            completions.append(entry)
        else:
            check(entry.epoch == complete < len(manifests), f"entry {number}: {kind}")
            completions.append(entry)
            complete += 1
            if (begun := entry.begins) is not None:
                check(begun.epoch == complete, f"entry {number} begins epoch {begun.epoch}")
                manifests.append(begun)
    check(bool(completions) and completions[-1].drained, "the last epoch is not complete")
    return claims, manifests, completions


def _entry(storage: Storage, state: HardState, number: int) -> Entry:
    """Return an entry of the epoch log, also one that was collected."""
    # What was put where an entry had been collected is in nobody's way, and may stay for a while.
    if (kept := storage.collected(number)) is not None:
        return decode_entry(kept[: kept.rfind(b"\n", 0, -1)])  # its last line is a checksum
    data = state.epochs.read(number)
    check(data is not None, f"entry {number} is missing, and was not collected")
    assert data is not None
    return decode_entry(data)


def _same_rows(run: Simulation, reference: Reference) -> None:
    expected = reference.sunk
    if run.sunk.keys() == expected.keys():
        return
    streams = {
        edge.number: one.streams[edge.stream] for one in reference.topologies for edge in one.edges
    }
    extra = [_row_of(streams, row) for row in run.sunk if row not in expected]
    missing = [_row_of(streams, row) for row in expected if row not in run.sunk]
    raise Difference(
        f"sinks: {len(extra)} rows too many, {len(missing)} missing\n  too many: {extra[:4]}\n"
        f"  missing: {missing[:4]}"
    )


def _row_of(streams: Mapping[int, StreamSpec], row: Row) -> tuple[Any, ...]:
    stream = streams[row.edge]
    return stream.name, stream.coder.decode(row.value), row.timestamp, row.sequence


def whole(completions: Sequence[Completion]) -> Iterator[Completion]:
    """Yield completions as if each said where every interval stands: when one does is no matter."""
    last: Completion | None = None
    for one in completions:
        last = one if last is None or one.since is None else together([last, one])
        yield replace(last, since=None)


def same_completion(found: Completion, expected: Completion) -> None:
    """Check that two completions say the same, whoever does."""
    for what in struct_fields(Completion):
        if what.name != "generation":
            same(
                f"completion {found.epoch}, {what.name}",
                getattr(found, what.name),
                getattr(expected, what.name),
            )


def _leads_there(state: HardState, name: str, interval: int, number: int, where: str) -> None:
    """Check that the older of the last two snapshots leads to a commit, as well as the last."""
    snapshots = state.snapshots.numbers(name).get(interval, ())
    kept = [at for at in snapshots if at <= number][-2:]
    for at in range(kept[0] + 1 if kept else 1, number + 1):
        check(
            state.commits.exists(name, interval, at), f"{where}: commit {at} after {kept} is gone"
        )


def _same_state(run: Simulation, state: HardState, reference: Reference, last: Completion) -> None:
    for spec in reference.topologies[-1].computations:
        for entry in interval_map(last.intervals[spec.name]).intervals:
            number = last.numbers[spec.name].get(entry.id, 0)
            where = f"state of {spec.name}, interval {entry.id}, at commit {number}"
            check(
                not state.commits.exists(spec.name, entry.id, number + 1),
                f"{where}: commit {number + 1} is there, and no epoch knows it",
            )
            _leads_there(state, spec.name, entry.id, number, where)
            same(
                where,
                _rows(state, spec.name, entry.id, number, last.chains[spec.name].get(entry.id, 0)),
                _rows(reference.state, spec.name, entry.id, number),
            )
            for host in run.hosts:
                cache = host.caches.get((spec.name, entry.id))
                if cache is not None:
                    same(
                        f"cache on host {host.number}: {where}",
                        rows_in(cache),
                        _rows(reference.state, spec.name, entry.id, cache.position),
                    )


def _rows(
    state: HardState, computation: str, interval: int, number: int, chain: int | None = None
) -> dict[bytes, bytes]:
    cache = MemoryCache(computation, interval)
    bring(cache, state, computation, interval, number, chain)
    return rows_in(cache)


def rows_in(cache: MemoryCache) -> dict[bytes, bytes]:
    """Return all rows of a cache."""
    with cache.view() as view:
        return dict(view.scan(b"\x01", b"\xff"))
