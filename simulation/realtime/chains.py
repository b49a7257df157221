"""Chains: the commits of each interval that count, and the mark before which each came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Completion, interval_map
from millrace.kernel.record_ids import production_ids
from millrace.kernel.router import RowsBuilder
from millrace.store import Commit
from simulation.oracle import whole
from simulation.program import NEVER_US
from simulation.realtime.history import History, Owner, Written
from simulation.reference import Difference
from simulation.sink_rows import Row


@dataclass
class Chain:
    """The commits of an interval that count.

    Attributes:
        number: Of the commit that it begins after; an interval that a remap made goes on with the
            numbers of those that it was made of.
        last: That commit's chain.
        commits: In their order.
        parents: Those that it was made of.
    """

    number: int = 0
    last: int = 0
    commits: list[Written] = field(default_factory=list)
    parents: list[Chain] = field(default_factory=list)

    def last_before(self) -> list[Written]:
        """Return the last commit, or the last ones of those that it was made of."""
        if self.commits:
            return self.commits[-1:]
        return [written for parent in self.parents for written in parent.last_before()]


class Chains:
    """The commits that count, by interval, in their order.

    Args:
        topology: The pipeline.
        history: What happened.
        completions: Of all marks.

    Raises:
        Difference: Commits do not follow each other, or completions do not name them.

    Attributes:
        of: Computation and interval -> its commits; of those that are there from the beginning, and
            then of those that each remap made.
        remaps: What completes a mark once more, with other interval maps, and what stood before.
        marks: Row for a sink -> the mark before which its commit came.
        worked_at: The highest low watermark that anybody has worked at, mark by mark.
    """

    def __init__(
        self, topology: Topology, history: History, completions: Sequence[Completion]
    ) -> None:
        self._topology = topology
        self.of: dict[Owner, Chain] = {}
        self.remaps: list[tuple[Completion, Completion]] = []
        self.marks: dict[Row, int] = {}
        self.worked_at: list[int] = []
        self._intervals: list[dict[str, int]] = []
        self._follow(history.commits, completions)

    def readers(self, row: Row) -> int:
        """Return how many intervals each get a row that is for all keys."""
        computation = self._topology.edge(row.edge).computation
        assert computation is not None, "it is not for a sink"
        return self._intervals[self.marks[row]][computation]

    def _follow(
        self,
        history: Mapping[Owner, Mapping[int, Written]],
        completions: Sequence[Completion],
    ) -> None:
        """Find the mark before which each commit came, by the completions."""
        waiting = {owner: dict(commits) for owner, commits in history.items()}
        highest_us = NEVER_US
        previous: Completion | None = None
        for said in whole(completions):
            if previous is not None and said.epoch == previous.epoch:
                self._remade(previous, said)
            else:
                highest_us = max(highest_us, self._worked(said, waiting))
                highest_us = max(highest_us, *said.after.inputs.values())
                self.worked_at.append(highest_us)
                maps = said.intervals.items()
                self._intervals.append({name: len(interval_map(of).intervals) for name, of in maps})
            previous = said
        left = {owner: [*commits] for owner, commits in waiting.items() if commits}
        check(not left, f"commits that no completion names: {left}")

    def _worked(self, said: Completion, waiting: dict[Owner, dict[int, Written]]) -> int:
        """Take the commits that a mark completes; return the highest low watermark of them."""
        highest_us = NEVER_US
        for name, numbers in said.numbers.items():
            for interval, number in numbers.items():
                chain = self.of.setdefault((name, interval), Chain())
                where = f"{name}, interval {interval}, mark {said.epoch}"
                check(chain.number + len(chain.commits) <= number, f"{where}: it moved back")
                for n in range(chain.number + len(chain.commits) + 1, number + 1):
                    written = waiting.get((name, interval), {}).pop(n, None)
                    check(written is not None, f"{where}: commit {n} of {number} is not there")
                    assert written is not None
                    before = chain.commits[-1].commit.chain if chain.commits else chain.last
                    check(
                        written.commit.previous == before,
                        f"{where}: commit {n} is not made from the one before",
                    )
                    chain.commits.append(written)
                    highest_us = max(highest_us, written.run.bundle.attempt.input_watermarks[100])
                    for _, row in rows_of(self._topology, written):
                        self.marks[row] = said.epoch
        return highest_us

    def _remade(self, previous: Completion, said: Completion) -> None:
        """Take the intervals that a remap makes."""
        self.remaps.append((previous, said))
        for name, numbers in said.numbers.items():
            before = interval_map(previous.intervals[name]).intervals
            for one in interval_map(said.intervals[name]).intervals:
                if one.id not in numbers or one in before:
                    continue
                check((name, one.id) not in self.of, f"{name}: interval {one.id} is made again")
                parents = (
                    self.of.get((name, other.id))
                    for other in before
                    if other.start < one.end and one.start < other.end
                )
                self.of[name, one.id] = Chain(
                    numbers[one.id],
                    said.chains[name][one.id],
                    parents=[parent for parent in parents if parent is not None],
                )


def made_of(commit: Commit) -> list[Any]:
    """Return productions without the ids that weak ones have, which say by which task."""
    made = RowsBuilder.unpack(commit.productions)
    return [made.edges, made.hashes, made.keys, made.values, made.timestamps]


def rows_of(topology: Topology, written: Written) -> Iterator[tuple[tuple[int, int, int], Row]]:
    """Yield the productions of a commit: edge and id, and the row."""
    commit = written.commit
    made = RowsBuilder.unpack(commit.productions)
    number = topology.computation(commit.computation).number
    if made.ids is not None:
        origins, sequences = made.ids
    else:
        origin, found = production_ids(number, commit.number, commit.interval, len(made))
        origins, sequences = [origin] * len(found), list(found)
    columns = zip(
        made.edges, made.keys, made.values, made.timestamps, origins, sequences, strict=True
    )
    for edge, key, value, timestamp, origin, sequence in columns:
        yield (edge, origin, sequence), Row(edge, key, value, timestamp, origin, sequence)


def check(condition: bool, otherwise: str) -> None:
    """Raise Difference unless a condition holds."""
    if not condition:
        raise Difference(otherwise)
