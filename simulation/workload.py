"""The workload: a program, input for it, and the cluster that runs it, as a seed says."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from random import Random

from millrace.model.time import SECOND
from simulation.blocks import Blocks
from simulation.callers import heard
from simulation.calls import Calling
from simulation.computations import Computations
from simulation.groupings import Groupings
from simulation.inputs import Feeding
from simulation.operations import Operations
from simulation.program import Arrival, Ends, Program
from simulation.tables import Tables

#: Of so many schedules the next are of another kind: first of computations and groupings, then of
#: operations, then of what feeds pipelines beside records with a time, then of calls, then of calls
#: made as in production, then of blocks of keys, then of slow calls. What an older schedule draws
#: stays as it was: the bugs that tests plant are found at seeds that they name.
TURN = 5_000


class Of(enum.Enum):
    """What a schedule's program is of."""

    GROUPINGS = 0
    OPERATIONS = 1
    FEEDING = 2
    CALLS = 3
    ATTEMPTS = 4
    BLOCKS = 5
    SLOW_CALLS = 6

    @property
    def makes_calls(self) -> bool:
        """Whether programs of this kind make calls."""
        return self in (Of.CALLS, Of.ATTEMPTS, Of.SLOW_CALLS)


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


def of(seed: int) -> Of:
    """Return what a schedule's program is of."""
    return Of(seed // TURN % len(Of))


def generate(random: Random, kind: Of) -> Workload:
    """Return a workload.

    Args:
        random: Chooses.
        kind: What its program is of.
    """
    return filled(random, program_of(random, kind))


def program_of(random: Random, kind: Of) -> Program:
    """Return a program for the epoch plane; see :func:`generate`."""
    ends = Ends()
    if kind is Of.FEEDING:
        return Feeding(random, ends)
    if kind is Of.BLOCKS:
        return Blocks(random, ends)
    if kind.makes_calls:
        return calling(random, ends, kind)
    return operations_of(random, ends) if kind is Of.OPERATIONS else _program(random, ends)


def filled(
    random: Random,
    program: Program,
    records: tuple[int, int] = (10, 30),
    per_batch: tuple[int, int] = (5, 12),
) -> Workload:
    """Return a workload of a program.

    Args:
        random: Chooses the rest.
        program: What runs.
        records: How many there are, from and to.
        per_batch: How many of them a batch takes at most, from and to.
    """
    arrivals: list[Arrival] = []
    now, late_share = 1_000, random.choice((0.05, 0.1, 0.3))
    for number in range(random.randint(*records)):
        now += random.randint(0, 6)
        if arrivals and random.random() < 0.15:
            arrivals.append(random.choice(arrivals[-12:]))  # delivered again
            continue
        late = random.randint(20, 60) if random.random() < late_share else random.randint(0, 12)
        value = {"id": number} | program.value(random)
        arrivals.append(Arrival(value, (now - late) * SECOND))
    return Workload(
        program,
        arrivals,
        per_batch=random.randint(*per_batch),
        intervals=random.choice((1, 2, 4)),
        tasks=random.choice((1, 2, 2, 3)),
        hosts=random.choice((1, 2, 3)),
        bucket=random.random() < 0.3 and not heard(program.topology),
        tidy=random.random() < 0.6,
    )


def calling(random: Random, ends: Ends, kind: Of) -> Program:
    """Return a program of calls."""
    if kind is Of.SLOW_CALLS:
        return Calling(random, ends, attempts=random.random() < 0.4, slow=True)
    return Calling(random, ends, attempts=kind is Of.ATTEMPTS)


def operations_of(random: Random, ends: Ends) -> Program:
    """Return a program of operations."""
    return Tables(random, ends) if random.random() < 0.25 else Operations(random, ends)


def _program(random: Random, ends: Ends) -> Program:
    drawn = random.random()
    of = Computations if drawn < 0.35 else Groupings if drawn < 0.94 else Tables
    program: Program = of(random, ends)
    return program
