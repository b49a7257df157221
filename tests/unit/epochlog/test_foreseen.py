"""What a run will have when it claims a checkpoint is known before: tasks are started with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import millrace as mr
from millrace.compile.topology import Topology
from millrace.epochlog.claims import foreseen
from millrace.epochlog.reader import end_of
from millrace.epochlog.run_log import RunLog
from millrace.store import MemoryHardState


class Words(mr.Computation):
    inputs = {"in": mr.by(str)}
    outputs = {"out": str}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None: ...


class MoreWords(Words):
    last = mr.ValueState(str)


def pipeline(*added: tuple[Any, str, str | None], sinks: int = 1) -> mr.Pipeline:
    p = mr.Pipeline("p")
    p.inject("in", format=str)
    for computation, name, was in added:
        p.add(computation, name=name, **({} if was is None else {"was": was}))
    for _ in range(sinks):
        p.sink("in", mr.sinks.Memory())
    return p


def dropping() -> mr.Pipeline:
    p = pipeline((Words, "b", None))
    p.remove("a")
    return p


def numbers(topology: Topology) -> list[Any]:
    """Return all that tasks know by number, or otherwise as the checkpoint knows it."""
    return [
        [(spec.name, spec.number, spec.level, spec.title) for spec in topology.computations],
        [(edge.number, edge.stream, edge.computation, edge.sink) for edge in topology.edges],
        sorted(topology.dropped),
        [re.sub(r"0x[0-9a-f]+", "", repr(spec)) for spec in topology.computations],
    ]


@pytest.mark.parametrize(
    "changed",
    [
        lambda: pipeline((Words, "a", None), (Words, "b", None)),
        lambda: pipeline((Words, "c", None), (Words, "a", None), (Words, "b", None)),
        lambda: pipeline((MoreWords, "a", None), (Words, "b", None), sinks=3),
        lambda: pipeline((Words, "z", "a"), (Words, "b", None), sinks=0),
        dropping,
    ],
)
def test_it_is_what_the_claim_gives(changed: Callable[[], mr.Pipeline]) -> None:
    state = MemoryHardState()
    before = RunLog(pipeline((Words, "a", None), (Words, "b", None)).build(), state, intervals=1)
    manifest = before.begin(0, wall_time_us=0, injectors={})
    assert manifest is not None
    # An epoch is under way when it is asked for, and over when the checkpoint is claimed.
    known, registry = foreseen(end_of(state.epochs), changed().build())
    before.complete(manifest, [])
    claimed = RunLog(changed().build(), state, intervals=1)
    assert numbers(known) == numbers(claimed.topology)
    assert registry == claimed.registry
