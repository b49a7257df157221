"""What a remap must come to: the oracle carries rows as the epoch log says, and looks at them.

No key's rows change, each is in one interval, and each interval reports what its rows say. That is
checked here without regard to how a remap is done; that nothing else changes, by the comparison
with what was run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from millrace.balance.transfer import Read, carried, rows_at
from millrace.compile.topology import Topology
from millrace.epochlog.entries import Completion, encode_entry, interval_map
from millrace.kernel import families
from millrace.kernel.row_codec import ALL_KEYS_ROW
from millrace.model.errors import InvariantViolation
from millrace.store import HardState, MemoryCaches
from millrace.testing.invariants import check_interval
from millrace.watermark.intervals import IntervalMap

#: Families with rows of many keys, or of none.
_OF_MANY = frozenset(
    [families.IDS_BY_COMMIT, families.IDS_BY_EXPIRY, families.CHUNKS, families.CHANNELS]
)


def remaps_in(completions: Sequence[Completion]) -> Mapping[int, list[Completion]]:
    """Return epoch -> the remaps after it; the first completion of an epoch is its own."""
    found: dict[int, list[Completion]] = defaultdict(list)
    last = -1
    for one in completions:
        if one.epoch == last:
            found[last].append(one)
        last = one.epoch
    return found


def remap_again(
    said: Completion, expected_completion: Completion, topology: Topology, state: HardState
) -> Completion:
    """Bring a checkpoint to the interval maps of a remap; return its completion.

    Args:
        said: The completion of the remap.
        expected_completion: What a completion of the run before would say, with what it has added
            that had no epoch yet.
        topology: Of that run, which does not go on.
        state: The checkpoint.

    Raises:
        InvariantViolation: Something went wrong with what a key keeps, or with a report.
    """
    completion = expected_completion
    for spec in topology.computations:
        target = interval_map(said.intervals[spec.name])
        before = completion
        if interval_map(before.intervals[spec.name]) == target:
            continue
        read = rows_at(state, spec.name)
        completion = carried(before, spec.name, target, read, state.snapshots)
        had, has = (_of_keys(spec.name, one, read) for one in (before, completion))
        if had != has:
            raise InvariantViolation(
                f"remap of {spec.name} after epoch {said.epoch}: rows lost {[*(had - has)][:3]}, "
                f"rows too many {[*(has - had)][:3]}"
            )
        for interval, report in completion.reports[spec.name].items():
            input_us = completion.after.inputs[spec.name]
            check_interval(state, MemoryCaches(), spec, interval, report, input_us)
    state.epochs.append(state.epochs.last() + 1, encode_entry(completion))
    return completion


def _of_keys(name: str, completion: Completion, read: Read) -> Counter[tuple[bytes, bytes]]:
    """Return the rows that are of one key each; how often they are there."""
    intervals: IntervalMap = interval_map(completion.intervals[name])
    found = Counter[tuple[bytes, bytes]]()
    for one in intervals.intervals:
        number = completion.numbers[name].get(one.id, 0)
        there = read(one, number, completion.chains[name].get(one.id, 0)) if number else ()
        found.update(
            pair for pair in there if pair[0][:1] not in _OF_MANY and ALL_KEYS_ROW not in pair[0]
        )
    return found
