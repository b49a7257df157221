"""Chains: the commits of each interval that count, and the mark before which each came."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from millrace.compile.topology import Topology
from millrace.store import Commit
from millrace.testing.simulation.program import NEVER_US
from millrace.testing.simulation.realtime.history import History, Owner, Written
from millrace.testing.simulation.reference import Difference
from millrace.testing.simulation.sunk import Row
from millrace.windmill.manifest import Completion
from millrace.windmill.record_ids import production_ids
from millrace.windmill.routing import Productions


class Chains:
    """The commits that count, by interval, in their order.

    Args:
        topology: The pipeline.
        history: What happened.
        completions: Of all marks.

    Raises:
        Difference: Commits do not follow each other, or completions do not name them.

    Attributes:
        of: Computation and interval -> its commits.
        marks: Row for a sink -> the mark before which its commit came.
        worked_at: The highest low watermark that anybody has worked at, mark by mark.
    """

    def __init__(
        self, topology: Topology, history: History, completions: Sequence[Completion]
    ) -> None:
        self._topology = topology
        self._history = history
        self.of: dict[Owner, list[Written]] = {}
        self.marks: dict[Row, int] = {}
        self.worked_at: list[int] = []
        self._check_numbers()
        self._assign(completions)

    def _check_numbers(self) -> None:
        for (name, interval), commits in self._history.commits.items():
            where = f"{name}, interval {interval}"
            numbers = sorted(commits)
            check(
                numbers == list(range(1, len(numbers) + 1)), f"{where}: its commits are {numbers}"
            )
            self.of[name, interval] = chain = [commits[n] for n in numbers]
            for before, after in itertools.pairwise(chain):
                check(
                    after.commit.previous == before.commit.chain,
                    f"{where}: commit {after.commit.number} is not made from the one before",
                )

    def _assign(self, completions: Sequence[Completion]) -> None:
        """Find the mark before which each commit came, by the completions."""
        done: dict[Owner, int] = defaultdict(int)
        highest_us = NEVER_US
        for completion in completions:
            for name, numbers in completion.numbers.items():
                for interval, number in numbers.items():
                    owner = name, interval
                    chain = self.of.get(owner, [])
                    check(
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
        for owner, chain in self.of.items():
            check(
                done[owner] == len(chain),
                f"{owner}: the last completion names {done[owner]}, and there are {len(chain)}",
            )


def made_of(commit: Commit) -> list[Any]:
    """Return productions without the ids that weak ones have, which say by which task."""
    made = Productions.unpack(commit.productions)
    return [made.edges, made.hashes, made.keys, made.values, made.timestamps]


def rows_of(topology: Topology, written: Written) -> Iterator[tuple[tuple[int, int, int], Row]]:
    """Yield the productions of a commit: edge and id, and the row."""
    commit = written.commit
    made = Productions.unpack(commit.productions)
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
