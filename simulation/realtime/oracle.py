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
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millrace.epochlog.entries import Completion
from millrace.injectors.advance import Advances
from millrace.kernel.record_ids import record_id
from millrace.model.errors import (
    CheckpointUnwritable,
    DamagedStore,
    InvariantViolation,
    SinkError,
    StoreError,
    ZombieWriter,
)
from millrace.model.keys import decode_key
from millrace.runtime.sink_writer import key_texts
from millrace.store import HardState, MemoryCache, bring
from millrace.testing.invariants import check_low_watermarks
from simulation.definitions import Wrong
from simulation.oracle import epoch_log, rows_in, whole
from simulation.program import NEVER_US, Evidence
from simulation.realtime.chains import Chains, check, rows_of
from simulation.realtime.driver import GaveUp
from simulation.realtime.history import Owner
from simulation.realtime.pieces import (
    check_channels,
    check_clocks,
    check_counters,
    repeated,
)
from simulation.realtime.query import LineBroken, TaskLost
from simulation.reference import Difference
from simulation.scheduler import Killed
from simulation.sink_rows import Row

if TYPE_CHECKING:
    from simulation.realtime.simulation import RealtimeSimulation

#: What a process may end with. Anything else is a bug, whatever the outputs are.
_EXPECTED = (Killed, LineBroken, TaskLost, GaveUp, CheckpointUnwritable, SinkError)


def forbidden(error: BaseException | None, *, alone: bool, stale: bool) -> str | None:
    """Return how a process must not end, if it ended so.

    Args:
        error: What it ended with.
        alone: Whether nobody can have superseded it.
        stale: Whether packets of older incarnations were delivered.
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


def judge(run: RealtimeSimulation) -> str | None:
    """Return what is wrong; None if nothing is."""
    try:
        state = run.storage.open()
        completions = epoch_log(run.storage, state)[-1]
        for before, after in itertools.pairwise(completions):
            check_low_watermarks(before.after, after.after)
        *_, last = whole(completions)
        state.incarnations.names()
        chains = Chains(run.topology, run.history, completions)
        check_channels(run.topology, chains)
        check_clocks(run.topology, chains, late=run.work.late)
        check_counters(run.topology, chains, last, len(run.work.records))
        _check_state(run, state, repeated(run.topology, chains, last), last)
        sunk = _check_sinks(run, chains)
        evidence = LiveEvidence(
            [run.topology],
            [run.work.records],
            sunk,
            last,
            {},
            chains.worked_at,
            run.work.feeds.late() if run.work.late else 0,
        )
        run.work.program.check(evidence)
        taken = {
            stream: Advances.of(place.offset).start
            for stream, of in last.source_offsets.items()
            for place in of.values()
        }
        run.callers.check(state, taken, last.sources)
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


def _check_state(
    run: RealtimeSimulation,
    state: HardState,
    states: Mapping[Owner, MemoryCache],
    last: Completion,
) -> None:
    for (name, interval), expected in states.items():
        number, chain = expected.position, expected.cache_position.chain
        where = f"state of {name}, interval {interval}"
        if interval in last.numbers[name]:
            found = MemoryCache(name, interval)
            bring(found, state, name, interval, number, chain)
            check(rows_in(found) == rows_in(expected), f"{where}: the store has another one")
        for host in run.hosts:
            cache = host.caches.get((name, interval))
            if (
                cache is not None
                and cache.position == number
                and cache.cache_position.chain == chain
            ):
                check(
                    rows_in(cache) == rows_in(expected),
                    f"{where}: the cache on host {host.number} has another one",
                )


def _check_sinks(run: RealtimeSimulation, chains: Chains) -> Mapping[Row, int]:
    """Check that sinks have the rows of the commits, once each; return row -> mark."""
    expected: dict[int, dict[bytes, Row]] = defaultdict(dict)
    for chain in chains.of.values():
        for written in chain.commits:
            for made, row in rows_of(run.topology, written):
                expected[made[0]][record_id(row.origin, row.sequence)] = row
    sunk: dict[Row, int] = {}
    for edge, stand in run.stands.items():
        stream = run.topology.edge(edge).stream
        found: dict[bytes, tuple[int, dict[str, Any]]] = {}
        for mark, there in stand.published.items():
            for one in there:
                check(
                    one["_id"] not in found,
                    f"sink of {stream!r}: a row of mark {mark} is in mark "
                    f"{found.get(one['_id'], (None,))[0]}, too: {one}",
                )
                found[one["_id"]] = mark, one
        for number, one in stand.live.items():
            found[number] = -1, one
        extra, missing = found.keys() - expected[edge].keys(), expected[edge].keys() - found.keys()
        check(
            not extra and not missing,
            f"sink of {stream!r}: {len(extra)} rows too many, {len(missing)} missing; too many: "
            f"{[found[n] for n in list(extra)[:3]]}; missing: "
            f"{[expected[edge][n] for n in list(missing)[:3]]}",
        )
        for number, (mark, one) in found.items():
            row = expected[edge][number]
            check(
                key_texts([row.key]) == [one["_key"]],
                f"sink of {stream!r}: {one} has another key than {decode_key(row.key)!r}",
            )
            check(
                mark in (-1, chains.marks[row]),
                f"sink of {stream!r}: {one} is in mark {mark}, its commit in {chains.marks[row]}",
            )
            sunk[row] = chains.marks[row]
    return sunk
