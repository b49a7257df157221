"""The workload: a program, input for it, and the cluster that runs it, as a seed says."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from millrace.model.time import SECOND
from millrace.testing.simulation.computations import Computations
from millrace.testing.simulation.groupings import Groupings
from millrace.testing.simulation.program import Arrival, Ends, Program
from millrace.testing.simulation.tables import Tables


@dataclass(frozen=True)
class Workload:
    """What one schedule processes.

    Attributes:
        program: The pipeline, and what must come of it.
        records: What the source delivers, in its order.
        per_batch: How many of them a batch takes at most, and half of that at least.
        intervals: Key intervals a computation.
        tasks: Tasks a level.
        hosts: Machines.
        bucket: Whether the checkpoint is in an object store, and not on a disk.
        tidy: Whether snapshots are written and what they cover is collected.
    """

    program: Program
    records: list[Arrival]
    per_batch: int
    intervals: int
    tasks: int
    hosts: int
    bucket: bool
    tidy: bool


def generate(random: Random) -> Workload:
    """Return a workload."""
    ends = Ends()
    drawn = random.random()
    of = Computations if drawn < 0.35 else Groupings if drawn < 0.94 else Tables
    program: Program = of(random, ends)
    records: list[Arrival] = []
    now, late_share = 1_000, random.choice((0.05, 0.1, 0.3))
    for number in range(random.randint(10, 30)):
        now += random.randint(0, 6)
        if records and random.random() < 0.15:
            records.append(random.choice(records[-12:]))  # delivered again
            continue
        late = random.randint(20, 60) if random.random() < late_share else random.randint(0, 12)
        value = {"id": number} | program.value(random)
        records.append(Arrival(value, (now - late) * SECOND))
    return Workload(
        program,
        records,
        per_batch=random.randint(5, 12),
        intervals=random.choice((1, 2, 4)),
        tasks=random.choice((1, 2, 2, 3)),
        hosts=random.choice((1, 2, 3)),
        bucket=random.random() < 0.3,
        tidy=random.random() < 0.6,
    )
