"""The oracle of the real-time plane: whatever the interleaving, the pieces fit together.

Tasks that do not end have no one outcome to compare with. But every commit that counts was made by
one run, over known records at known clocks, so all that is promised can be checked piece by piece:

- commits of an interval are numbered without a gap, each made from the one before; completions
  never name one that is not there, and in the end name the last;
- what a computation sent is consumed by its receiver once, all of it, in its order;
- each run gives the same commit again, over the state that the commits before it make: no cache
  that was lost, stale or another history's was used;
- no low watermark moves back; nothing is late unless it was late at the source; counters count each
  record once;
- sinks have the rows of the commits, each once, and those of a mark with that mark;
- the state in the store is what the commits make;
- and, as on the epoch plane, outputs are what windows, modes and aggregations are by definition.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from millrace.compile.topology import Topology
from millrace.model.errors import (
    CheckpointUnwritable,
    DamagedStore,
    InvariantViolation,
    SinkError,
    StoreError,
    ZombieWriter,
)
from millrace.model.keys import decode_key
from millrace.model.pane import Paned
from millrace.plane.outlet import key_texts
from millrace.store import HardState, MemoryCache, MemoryCaches, MemoryHardState, bring
from millrace.testing.invariants import check_low_watermarks
from millrace.testing.simulation import computations
from millrace.testing.simulation.definitions import Wrong
from millrace.testing.simulation.hosts import Host
from millrace.testing.simulation.oracle import Difference, epoch_log, whole
from millrace.testing.simulation.program import NEVER_US, Evidence
from millrace.testing.simulation.realtime.driver import GaveUp
from millrace.testing.simulation.realtime.history import History, Owner, Written
from millrace.testing.simulation.realtime.query import LineBroken, TaskLost
from millrace.testing.simulation.realtime.sinks import Stand
from millrace.testing.simulation.realtime.workload import LiveWorkload
from millrace.testing.simulation.scheduler import Killed
from millrace.testing.simulation.storage import Storage
from millrace.testing.simulation.sunk import Row
from millrace.windmill import rows
from millrace.windmill.counters import Counters
from millrace.windmill.execution import Execution
from millrace.windmill.live_worker import LiveWorker
from millrace.windmill.manifest import Completion
from millrace.windmill.record_ids import FIRST_INJECTED, ROW_BITS, production_ids, record_id
from millrace.windmill.replay import footing_of
from millrace.windmill.routing import Productions

#: What a process may end with. Anything else is a bug, whatever the outputs are.
_EXPECTED = (Killed, LineBroken, TaskLost, GaveUp, CheckpointUnwritable, SinkError)


class Judged(Protocol):
    """What the oracle looks at."""

    topology: Topology
    work: LiveWorkload
    storage: Storage
    hosts: list[Host]
    stands: dict[int, Stand]
    history: History


def forbidden(error: BaseException | None, *, alone: bool, stale: bool) -> str | None:
    """Return how a process must not end, if it ended so.

    Args:
        error: What it ended with.
        alone: Whether nobody can have superseded it.
        stale: Whether packets of older sessions were delivered.
    """
    if error is None or isinstance(error, _EXPECTED) or type(error) is StoreError:
        return None
    if isinstance(error, ZombieWriter) and not alone:
        return None
    if isinstance(error, DamagedStore) and isinstance(error.__cause__, OSError):
        return None  # a call of the disk was refused, and may be made again
    if stale and isinstance(error, InvariantViolation) and "arrived" in str(error):
        return None
    return f"{type(error).__name__}: {error}"


def judge(run: Judged) -> str | None:
    """Return what is wrong; None if nothing is."""
    try:
        state = run.storage.open()
        completions = epoch_log(run.storage, state)[1]
        for before, after in itertools.pairwise(completions):
            check_low_watermarks(before.after, after.after)
        *_, last = whole(completions)
        state.journals.names()
        history = _Checked(run, last)
        history.check(completions)
        _check_state(run, state, history)
        sunk = _check_sinks(run, history)
        evidence = LiveEvidence(
            run.topology, [run.work.records], sunk, last, history.worked_at, run.work.feeds.late()
        )
        run.work.program.check(evidence)
    except (Difference, Wrong, InvariantViolation, StoreError) as found:
        return f"{type(found).__name__}: {found}"
    return None


@dataclass(frozen=True)
class LiveEvidence(Evidence):
    """What a schedule of the real-time plane came to: one batch, and marks for epochs."""

    worked_at: Sequence[int]
    late_records: int

    def low_watermarks(self) -> list[int]:
        """Return the highest low watermark that anybody had worked at by each mark."""
        return [*self.worked_at]

    def stood(self, epoch: int, *, levels: int = 1) -> tuple[int, int]:
        """Return that nothing is known of what was late: no window is ever over."""
        return NEVER_US, NEVER_US

    def late(self) -> int:
        """Return how many records may be late."""
        return self.late_records


class _Checked:
    """The commits that count, checked."""

    def __init__(self, run: Judged, last: Completion) -> None:
        self._run = run
        self._last = last
        self._topology = run.topology
        self.chains: dict[Owner, list[Written]] = {}
        self.states: dict[Owner, MemoryCache] = {}
        #: Row for a sink -> the mark before which its commit came.
        self.marks: dict[Row, int] = {}
        #: The highest low watermark that anybody has worked at, mark by mark.
        self.worked_at: list[int] = []

    def check(self, completions: Sequence[Completion]) -> None:
        """Check all that is known.

        Args:
            completions: Of all marks.
        """
        self._check_numbers()
        self._assign(completions)
        self._check_channels()
        self._check_clocks()
        self._check_counters()
        self._check_runs()

    def _check_numbers(self) -> None:
        topology = self._topology
        for spec in topology.computations:
            found = {
                i: of for (name, i), of in self._run.history.commits.items() if name == spec.name
            }
            for interval in {*found}:
                where = f"{spec.name}, interval {interval}"
                commits = found[interval]
                numbers = sorted(commits)
                _check(
                    numbers == list(range(1, len(numbers) + 1)),
                    f"{where}: its commits are {numbers}",
                )
                chain = [commits[n] for n in numbers]
                for before, after in itertools.pairwise(chain):
                    _check(
                        after.commit.previous == before.commit.chain,
                        f"{where}: commit {after.commit.number} is not made from the one before",
                    )
                self.chains[spec.name, interval] = chain

    def _assign(self, completions: Sequence[Completion]) -> None:
        """Find the mark before which each commit came, by the completions."""
        done: dict[Owner, int] = defaultdict(int)
        highest_us = NEVER_US
        for completion in completions:
            for name, numbers in completion.numbers.items():
                for interval, number in numbers.items():
                    owner = name, interval
                    chain = self.chains.get(owner, [])
                    _check(
                        done[owner] <= number <= len(chain),
                        f"completion {completion.epoch} names commit {number} of {owner}, after "
                        f"{done[owner]} and of {len(chain)}",
                    )
                    for written in chain[done[owner] : number]:
                        highest_us = max(highest_us, written.run.attempt.clocks[100])
                        for _, row in rows_of(self._topology, written):
                            self.marks[row] = completion.epoch
                    done[owner] = number
            highest_us = max(highest_us, *completion.after.inputs.values())
            self.worked_at.append(highest_us)
        for owner, chain in self.chains.items():
            _check(
                done[owner] == len(chain),
                f"{owner}: the last completion names {done[owner]}, and there are {len(chain)}",
            )

    def _check_channels(self) -> None:
        """Check that what was sent was consumed, once and in order.

        Partials have no ids, and records with ids of their source's lost their own: of those only
        the number is known, or what comes of them.
        """
        topology = self._topology
        readers = {
            (edge.stream, edge.computation): edge
            for edge in topology.edges
            if edge.computation is not None
        }
        produced: Counter[tuple[int, int, int]] = Counter()
        consumed: Counter[tuple[int, int, int]] = Counter()
        counts: Counter[int] = Counter()
        for chain in self.chains.values():
            for written in chain:
                for made, _ in rows_of(topology, written):
                    edge = topology.edge(made[0])
                    if edge.computation is not None:
                        counts[edge.number] += 1
                        if edge.lift is None:
                            produced[made] += 1
        for (name, interval), chain in self.chains.items():
            last: dict[tuple[int, int, int], tuple[int, int]] = {}
            for written in chain:
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
                    _check(
                        min(numbers) > last.get(sender, (-1, -1)),
                        f"{name}, interval {interval}, commit {written.commit.number}: of sender "
                        f"{sender} {min(numbers)} comes after {last.get(sender)}",
                    )
                    last[sender] = max(numbers)
        injected = {one for one in consumed if one[1] >> 48 >= FIRST_INJECTED}
        twice = [one for one in injected if consumed[one] > 1]
        _check(not twice, f"records of the source were consumed twice: {twice[:4]}")
        for one in injected:
            del consumed[one]
        _check(
            consumed == produced,
            f"consumed and never sent, or twice: {list((consumed - produced).items())[:4]}; sent "
            f"and not consumed: {list((produced - consumed).items())[:4]}",
        )
        made_here = {stream for spec in topology.computations for stream in spec.outputs}
        for edge in topology.edges:
            _check(
                edge.stream not in made_here or not counts[edge.number],
                f"edge {edge.number}: {counts[edge.number]} records more were sent than consumed",
            )

    def _check_clocks(self) -> None:
        """Check that no low watermark moves back, and that nothing overtakes it."""
        for (name, interval), chain in self.chains.items():
            before: Written | None = None
            for written in chain:
                where = f"{name}, interval {interval}, commit {written.commit.number}"
                attempt = written.run.attempt
                _check(
                    attempt.delivered_us <= attempt.clocks[100],
                    f"{where}: delivered at {attempt.delivered_us}, fires at {attempt.clocks[100]}",
                )
                if before is not None:
                    earlier = before.run.attempt
                    for percentile in attempt.clocks.keys() & earlier.clocks.keys():
                        _check(
                            attempt.clocks[percentile] >= earlier.clocks[percentile],
                            f"{where}: low watermark {percentile} moved back from "
                            f"{earlier.clocks[percentile]} to {attempt.clocks[percentile]}",
                        )
                    _check(
                        attempt.wall_time_us >= earlier.wall_time_us,
                        f"{where}: the wall clock moved back from {earlier.wall_time_us} to "
                        f"{attempt.wall_time_us}",
                    )
                    _check(
                        attempt.delivered_us >= earlier.clocks[100],
                        f"{where}: delivered at {attempt.delivered_us}, after "
                        f"{earlier.clocks[100]} had fired",
                    )
                before = written
                if self._run.work.late:
                    continue
                records = written.run.bundle.records
                for n in range(records.cuts[0], records.cuts[-1]):
                    _check(
                        records.timestamps[n] >= attempt.delivered_us
                        or _takes_back(records.values[n]),
                        f"{where}: a record of {records.stream_of(n)!r} at "
                        f"{records.timestamps[n]} comes late, behind {attempt.delivered_us}, and "
                        f"nothing was late at the source",
                    )

    def _check_counters(self) -> None:
        last = self._last
        for spec in self._topology.computations:
            together = Counters()
            for (name, _), chain in self.chains.items():
                if name == spec.name:
                    for written in chain:
                        together.add(footing_of(written.commit)[1])
            found = last.counters[spec.name]
            for what in ("records", "late", "timers", "productions", "dead_letters"):
                _check(
                    getattr(found, what) == getattr(together, what),
                    f"counter {what} of {spec.name} is {getattr(found, what)}, and the commits "
                    f"have {getattr(together, what)}",
                )
            _check(
                found.counted == together.counted,
                f"counters of {spec.name} are {found.counted}, of its commits {together.counted}",
            )
        delivered = len(self._run.work.records)
        count = sum(last.injected.values())
        _check(count == delivered, f"{count} records were counted as injected, of {delivered}")

    def _check_runs(self) -> None:
        """Check that each run gives the same commit over the state that the ones before made."""
        draws: list[int] = []
        earlier, computations.draw = computations.draw, lambda *_: draws.pop(0)
        try:
            execution = Execution(self._topology, MemoryHardState(), MemoryCaches())
            worker = LiveWorker(execution, _NoFence())  # type: ignore[arg-type]  # it never asks
            for (name, interval), chain in self.chains.items():
                spec = self._topology.computation(name)
                cache = execution.caches.open(name, interval)
                for written in chain:
                    commit, run = written.commit, written.run
                    where = f"{name}, interval {interval}, commit {commit.number}"
                    at = run.bundle.position.number, run.bundle.position.chain
                    _check(
                        at == (commit.number - 1, commit.previous), f"{where}: it was made at {at}"
                    )
                    channels = {
                        row: value
                        for row, value in commit.mutations
                        if row.startswith(rows.CHANNELS) and value is not None
                    }
                    draws[:] = run.draws
                    ((_, again),) = worker.run(
                        spec, [run.bundle], run.attempt, {interval: channels}
                    )
                    _check(again.mutations == commit.mutations, f"{where}: other state comes of it")
                    _check(
                        again.productions == commit.productions,
                        f"{where}: other productions come of it",
                    )
                    _check(again.report == commit.report, f"{where}: another report comes of it")
                    cache.apply(commit)
                self.states[name, interval] = cache  # type: ignore[assignment]  # in memory
        finally:
            computations.draw = earlier


def _takes_back(value: Any) -> bool:
    """Return whether a value takes a pane back: it has that pane's time, however late it is."""
    return isinstance(value, Paned) and value.pane.retraction


class _NoFence:
    def check(self) -> None:
        raise AssertionError("the oracle's caches stand where they should")


def rows_of(topology: Topology, written: Written) -> Iterator[tuple[tuple[int, int, int], Row]]:
    """Yield the productions of a commit: edge and id, and the row."""
    commit = written.commit
    made = Productions.unpack(commit.productions)
    number = topology.computation(commit.computation).number
    origin, sequences = production_ids(number, commit.number, commit.interval, len(made))
    columns = zip(made.edges, made.keys, made.values, made.timestamps, sequences, strict=True)
    for edge, key, value, timestamp, sequence in columns:
        yield (edge, origin, sequence), Row(edge, key, value, timestamp, origin, sequence)


def _check_state(run: Judged, state: HardState, history: _Checked) -> None:
    for (name, interval), expected in history.states.items():
        chain = history.chains[name, interval]
        number, where = len(chain), f"state of {name}, interval {interval}"
        found = MemoryCache(name, interval)
        bring(found, state, name, interval, number, chain[-1].commit.chain)
        _check(_scan(found) == _scan(expected), f"{where}: the store has another one")
        for host in run.hosts:
            cache = host.caches.get((name, interval))
            if cache is None or cache.position != number:
                continue
            if cache.standing.chain == chain[-1].commit.chain:
                _check(
                    _scan(cache) == _scan(expected),
                    f"{where}: the cache on host {host.number} has another one",
                )


def _scan(cache: MemoryCache) -> dict[bytes, bytes]:
    with cache.view() as view:
        return dict(view.scan(b"\x01", b"\xff"))


def _check_sinks(run: Judged, history: _Checked) -> Mapping[Row, int]:
    """Check that sinks have the rows of the commits, once each; return row -> mark."""
    expected: dict[int, dict[bytes, Row]] = defaultdict(dict)
    for chain in history.chains.values():
        for written in chain:
            for made, row in rows_of(run.topology, written):
                expected[made[0]][record_id(row.origin, row.sequence)] = row
    sunk: dict[Row, int] = {}
    for edge, stand in run.stands.items():
        stream = run.topology.edge(edge).stream
        found: dict[bytes, tuple[int, dict[str, Any]]] = {}
        for mark, there in stand.published.items():
            for one in there:
                _check(
                    one["_id"] not in found,
                    f"sink of {stream!r}: a row of mark {mark} is in mark "
                    f"{found.get(one['_id'], (None,))[0]}, too: {one}",
                )
                found[one["_id"]] = mark, one
        for number, one in stand.live.items():
            found[number] = -1, one
        extra, missing = found.keys() - expected[edge].keys(), expected[edge].keys() - found.keys()
        _check(
            not extra and not missing,
            f"sink of {stream!r}: {len(extra)} rows too many, {len(missing)} missing; too many: "
            f"{[found[n] for n in list(extra)[:3]]}; missing: "
            f"{[expected[edge][n] for n in list(missing)[:3]]}",
        )
        for number, (mark, one) in found.items():
            row = expected[edge][number]
            _check(
                key_texts([row.key]) == [one["_key"]],
                f"sink of {stream!r}: {one} has another key than {decode_key(row.key)!r}",
            )
            _check(
                mark in (-1, history.marks[row]),
                f"sink of {stream!r}: {one} is in mark {mark}, its commit in {history.marks[row]}",
            )
            sunk[row] = history.marks[row]
    return sunk


def _check(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Difference(otherwise)
