"""Pieces: what must be true of the commits that count, one thing after the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Completion, SourceStats
from millrace.kernel import families
from millrace.kernel.execution import Execution
from millrace.kernel.record_ids import FIRST_INJECTED, ROW_BITS
from millrace.kernel.results import Counters, footing_of
from millrace.model.pane import Paned
from millrace.runtime.commit_writer import GrownWriter
from millrace.store import MemoryCache, MemoryCaches, MemoryHardState, bring
from simulation import computations
from simulation.oracle import same_completion
from simulation.program import STREAM
from simulation.realtime.chains import Chains, check, made_of, rows_of
from simulation.realtime.history import Owner, Written
from simulation.remap_oracle import remap_again


def check_channels(topology: Topology, chains: Chains) -> None:
    """Check that what was sent was consumed, once and in order; by each interval, if sent to all.

    Partials have no ids, and records with ids of their source's lost their own: of those only
    the number is known, or what comes of them.
    """
    readers = {
        (edge.stream, edge.computation): edge
        for edge in topology.edges
        if edge.computation is not None
    }
    produced: Counter[tuple[int, int, int]] = Counter()
    consumed: Counter[tuple[int, int, int]] = Counter()
    counts: Counter[int] = Counter()
    for chain in chains.of.values():
        for written in chain.commits:
            for made, row in rows_of(topology, written):
                edge = topology.edge(made[0])
                if edge.computation is not None:
                    times = chains.readers(row) if edge.everywhere else 1
                    counts[edge.number] += times
                    if edge.lift is None:
                        produced[made] += times
    for (name, interval), chain in chains.of.items():
        last: dict[tuple[int, int, int], tuple[int, int]] = {}
        for written in chain.commits:
            records = written.run.bundle.records
            places: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
            for n in range(records.cuts[0], records.cuts[-1]):
                edge = readers[records.stream_of(n), name]
                counts[edge.number] -= 1 if records.weights is None else int(records.weights[n])
                if edge.lift is not None or edge.identified:
                    continue
                origin, sequence = records.origins[n], records.sequences[n]
                consumed[edge.number, origin, sequence] += 1
                sender = edge.number, origin >> 48, sequence >> ROW_BITS
                places[sender].append((origin & ((1 << 48) - 1), sequence))
            for sender, numbers in places.items():
                check(
                    min(numbers) > last.get(sender, (-1, -1)),
                    f"{name}, interval {interval}, commit {written.commit.number}: of sender "
                    f"{sender} {min(numbers)} comes after {last.get(sender)}",
                )
                last[sender] = max(numbers)
    injected = {one for one in consumed if one[1] >> 48 >= FIRST_INJECTED}
    twice = [one for one in injected if consumed[one] > 1 and not topology.edge(one[0]).everywhere]
    check(not twice, f"records of the source were consumed twice: {twice[:4]}")
    for one in injected:
        del consumed[one]
    check(
        consumed == produced,
        f"consumed and never sent, or twice: {list((consumed - produced).items())[:4]}; sent "
        f"and not consumed: {list((produced - consumed).items())[:4]}",
    )
    made_here = {stream for spec in topology.computations for stream in spec.outputs}
    for edge in topology.edges:
        check(
            edge.stream not in made_here or not counts[edge.number],
            f"edge {edge.number}: {counts[edge.number]} records more were sent than consumed",
        )


def check_clocks(topology: Topology, chains: Chains, *, late: bool) -> None:
    """Check that no low watermark moves back, and that nothing overtakes it; nor by a remap.

    Args:
        topology: The pipeline.
        chains: The commits that count.
        late: Whether something was late at the source.
    """
    for (name, interval), chain in chains.of.items():
        before = [one for parent in chain.parents for one in parent.last_before()]
        timeless = topology.computation(name).timeless
        for written in chain.commits:
            where = f"{name}, interval {interval}, commit {written.commit.number}"
            attempt = written.run.bundle.attempt
            arrival_us, inputs = attempt.arrival_watermark_us, attempt.input_watermarks
            check(
                arrival_us <= inputs[100],
                f"{where}: delivered at {arrival_us}, fires at {inputs[100]}",
            )
            for earlier in (one.run.bundle.attempt for one in before):
                for percentile in inputs.keys() & earlier.input_watermarks.keys():
                    before_us = earlier.input_watermarks[percentile]
                    check(
                        inputs[percentile] >= before_us,
                        f"{where}: low watermark {percentile} moved back from {before_us} to "
                        f"{inputs[percentile]}",
                    )
                check(
                    attempt.wall_time_us >= earlier.wall_time_us,
                    f"{where}: the wall clock moved back from {earlier.wall_time_us} to "
                    f"{attempt.wall_time_us}",
                )
                check(
                    arrival_us >= earlier.input_watermarks[100],
                    f"{where}: delivered at {arrival_us}, after "
                    f"{earlier.input_watermarks[100]} had fired",
                )
            before = [written]
            if late:
                continue
            records = written.run.bundle.records
            for n in range(records.cuts[0], records.cuts[-1]):
                check(
                    records.timestamps[n] >= arrival_us
                    or records.stream_of(n) in timeless
                    or _takes_back(records.values[n]),
                    f"{where}: a record of {records.stream_of(n)!r} at "
                    f"{records.timestamps[n]} comes late, behind {arrival_us}, and "
                    f"nothing was late at the source",
                )


def _takes_back(value: Any) -> bool:
    """Return whether a value takes a pane back: it has that pane's time, however late it is."""
    return isinstance(value, Paned) and value.pane.retraction


def check_counters(topology: Topology, chains: Chains, last: Completion, delivered: int) -> None:
    """Check that the last completion counts each record of the source, and of each commit, once."""
    for spec in topology.computations:
        together = Counters()
        for (name, _), chain in chains.of.items():
            if name == spec.name:
                for written in chain.commits:
                    together.add(footing_of(written.commit).counters)
        found = last.counters[spec.name]
        for what in ("records", "late", "timers", "productions", "dead_letters"):
            check(
                getattr(found, what) == getattr(together, what),
                f"counter {what} of {spec.name} is {getattr(found, what)}, and the commits "
                f"have {getattr(together, what)}",
            )
        check(
            found.counted == together.counted,
            f"counters of {spec.name} are {found.counted}, of its commits {together.counted}",
        )
    count = last.sources.get(STREAM, SourceStats()).records
    check(count == delivered, f"{count} records were counted as injected, of {delivered}")


def repeated(topology: Topology, chains: Chains, last: Completion) -> dict[Owner, MemoryCache]:
    """Check that each run gives the same commit over the state that the ones before made.

    An interval that a remap made begins with rows that are carried here once more.

    Args:
        topology: The pipeline.
        chains: The commits that count.
        last: The last completion.

    Returns:
        Computation and interval -> the state that the commits make.
    """
    states: dict[Owner, MemoryCache] = {}
    draws: list[int] = []
    earlier, computations.draw = computations.draw, lambda *_: draws.pop(0)
    try:
        state = MemoryHardState()
        execution = Execution(topology, state, MemoryCaches())
        for previous, said in [*chains.remaps, (last, None)]:
            for owner, chain in chains.of.items():
                name, interval = owner
                number = previous.numbers.get(name, {}).get(interval)
                if number is None:
                    continue  # not there any more, or not yet
                cache = execution.caches.open(name, interval)
                if owner not in states:
                    bring(cache, state, name, interval, chain.number, chain.last)
                states[owner] = cache  # type: ignore[assignment]  # in memory
                due = chain.commits[cache.position - chain.number : number - chain.number]
                _repeat(topology, execution, owner, due, draws)
                if due:
                    segment = state.commits.of_task(name, due[0].commit.number, interval)
                    segment.put([written.commit for written in due])
            if said is not None:
                same_completion(said, remap_again(said, previous, topology, state))
    finally:
        computations.draw = earlier
    return states


def _repeat(
    topology: Topology,
    execution: Execution,
    owner: Owner,
    commits: Iterable[Written],
    draws: list[int],
) -> None:
    """Run the bundles of an interval again, one after the other."""
    (name, interval), spec = owner, topology.computation(owner[0])
    writer = GrownWriter(execution, _NoFence(), 0, 0, 0, note=bytes)  # type: ignore[arg-type]
    for written in commits:
        commit, run = written.commit, written.run
        where = f"{name}, interval {interval}, commit {commit.number}"
        at = run.bundle.position.number, run.bundle.position.chain
        check(at == (commit.number - 1, commit.previous), f"{where}: it was made at {at}")
        channels = {
            row: value for row, value in commit.mutations if row.startswith(families.CHANNELS)
        }
        draws[:] = run.draws
        ((_, _, again),) = writer.run(spec, [run.bundle], {interval: channels})
        assert again is not None
        check(again.mutations == commit.mutations, f"{where}: other state comes of it")
        check(made_of(again) == made_of(commit), f"{where}: other productions come of it")
        check(again.report == commit.report, f"{where}: another report comes of it")
        writer.ahead.durable([commit])
    writer.ahead.forward()


class _NoFence:
    """The fence of an incarnation that nobody asks about, and that writes nothing."""

    incarnation = 0
    incarnations = SimpleNamespace(far=False)

    def check(self) -> None:
        raise AssertionError("the oracle's caches stand where they should")
