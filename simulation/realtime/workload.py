"""The workload of a schedule of the real-time plane."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from millrace.compile.explanation import python_reason
from millrace.compile.topology import Topology
from millrace.injectors.columns import column_names
from millrace.injectors.injector import Injector
from millrace.model.errors import PipelineError
from millrace.model.time import MILLISECOND, SECOND
from millrace.runtime import calls, rows
from millrace.runtime.values import ROWS, value_columns
from millrace.runtime.worker_process import SourceColumns
from simulation.blocks import Blocks
from simulation.callers import heard
from simulation.computations import Computations
from simulation.groupings import Groupings
from simulation.inputs import Feeding
from simulation.program import Program
from simulation.realtime.feeds import Feeds, LiveEnds
from simulation.workload import Of, Workload, calling, operations_of


@dataclass(frozen=True)
class LiveWorkload(Workload):
    """What one schedule processes.

    Attributes:
        feeds: What is delivered, and when.
        late: Whether some of it comes behind the low watermark.
        sources: What tasks know of it.
        step_us: How long a step takes.
        mark_every_us: How often a mark is made.
        live_sinks: Whether sinks are written in every turn, by their number modulo 4.
        few: Up to how many rows go another way, as plain columns.
        pending_most: Sources wait while so many calls are pending in a task for each that may be in
            flight.
    """

    feeds: Feeds
    late: bool
    sources: list[SourceColumns]
    step_us: int
    mark_every_us: int
    live_sinks: int
    few: int
    pending_most: int


def generate(random: Random, kind: Of) -> LiveWorkload:
    """Return a workload.

    Args:
        random: Chooses.
        kind: What its program is of.
    """
    feeds, late = Feeds(), random.random() < 0.3
    ends = LiveEnds(feeds, late=late)
    program = _program(random, ends) if kind is Of.GROUPINGS else _possible(random, ends, kind)
    late = late and not program.topology.by_ingress()
    slow = kind is Of.SLOW_CALLS
    feeds.fill(random, program, late=late, lots=(8, 25) if slow else (3, 10))
    step_us = random.choice((2 * MILLISECOND, SECOND))
    return LiveWorkload(
        program,
        feeds.records,
        per_batch=0,
        intervals=random.choice((1, 2, 4)),
        tasks=random.choice((1, 2, 2, 3)),
        hosts=random.choice((1, 2, 3)),
        bucket=random.random() < 0.25 and not heard(program.topology),
        tidy=random.random() < 0.6,
        feeds=feeds,
        late=late,
        sources=_sources(program.topology),
        step_us=step_us,
        mark_every_us=random.choice((40, 100, 250)) * step_us,
        live_sinks=random.randrange(16),
        few=random.choice((0, 0, 2, rows.FEW)),
        pending_most=random.choice((1, 2, 3)) if slow else calls.PENDING_MOST,
    )


def _possible(random: Random, ends: LiveEnds, kind: Of) -> Program:
    """Return a program of operations, or of what feeds them."""
    while True:
        try:
            if kind is Of.BLOCKS:
                return Blocks(random, ends)
            if kind.makes_calls:
                return calling(random, ends, kind)
            return Feeding(random, ends) if kind is Of.FEEDING else operations_of(random, ends)
        except PipelineError:
            continue  # as below


def _program(random: Random, ends: LiveEnds) -> Program:
    combined = random.random() < 0.3
    while True:
        try:
            of = Computations if not combined and random.random() < 0.35 else Groupings
            program: Program = of(random, ends)
        except PipelineError:
            # A window without an end, behind an injector, waits for the end: try another one.
            continue
        if not combined or any(edge.lift is not None for edge in program.topology.edges):
            return program


def _sources(topology: Topology) -> list[SourceColumns]:
    found = []
    for number, spec in enumerate(topology.injected()):
        injection = spec.injection
        assert injection is not None, "it is injected"
        injector = injection.source
        assert isinstance(injector, Injector), "nothing else is read on this plane"
        columns = value_columns(
            spec.name,
            spec.format,
            column_names(injector.schema),
            str(injection.timestamp),
            # Without a format, a value is all there is to know of a record; its id is data.
            (None if spec.format in ROWS else injection.id,),
        )
        native = python_reason(topology, spec) is None
        found.append(SourceColumns(number, spec.name, columns, native, False, injection.id))
    return found
