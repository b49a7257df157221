"""Hooks: what is done around a computation's own, each time it is called with a record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, TypeVar

from millrace.compile.topology import ComputationSpec, Topology
from millrace.dataflow.side_stream import WAITING
from millrace.model.computation import Computation
from millrace.model.coroutines import unrun
from millrace.model.errors import PipelineError
from millrace.model.pane import Paned
from millrace.model.record import Record, Timer
from millrace.windmill.calls import Calls
from millrace.windmill.timers import KeyTimers
from millrace.windmill.waiting import Waiting

#: A hook returns nothing; what a user's returns all the same, as a coroutine, is refused.
Hook = Callable[[Record], Any]
Given = TypeVar("Given", Record, Timer)
#: What calls a hook in its place, with the key at hand and what the hook is given.
Around = Callable[[Callable[[Any], Any], Any, Any], Any]


def hooked(
    topology: Topology,
    spec: ComputationSpec,
    user: Computation,
    calls: Calls,
    timers: KeyTimers,
    cells: Mapping[str, Any],
    *,
    causes: bool,
    around: Around | None = None,
) -> tuple[Hook, Waiting | None]:
    """Return what is called with each record of a computation, and where records wait.

    Args:
        topology: The pipeline.
        spec: The computation.
        user: Its instance.
        calls: Of the key at hand.
        timers: Likewise.
        cells: Its cells by name; one of them may be of records that wait.
        causes: Whether of each production is said which record it was made of.
        around: Calls the computation's hook with each record, if something is to.
    """
    hook = within(around, user, user.process_record)
    if spec.paned:
        hook = taking_panes(calls, hook)
    waiting = None
    if (kept := cells.get(WAITING)) is not None:
        waiting = Waiting(topology.streams, user, kept, timers, calls, hook)
        hook = waiting.process_or_keep
    if spec.starts is not None:
        hook = starting(calls, user, spec.starts, hook)
    return saying_causes(calls, hook) if causes else hook, waiting


def within(
    around: Around | None, user: Computation, hook: Callable[[Given], Any]
) -> Callable[[Given], Any]:
    """Return a hook that something else calls, if something is to."""
    if around is None:
        return hook
    return lambda given: around(hook, user.key, given)


def taking_panes(calls: Calls, process_record: Hook) -> Hook:
    """Return the hook of a computation some of whose input carries panes beside its values."""

    def process_plain(record: Record) -> Any:
        if type(record.value) is Paned:
            record.pane, record.value = record.value.pane, record.value.value
        calls.pane_at_hand = record.pane
        return process_record(record)

    return process_plain


def starting(calls: Calls, user: Computation, stream: str, process_record: Hook) -> Hook:
    """Return the hook of a computation that was given keys: a record of theirs begins one."""

    def process_or_start(record: Record) -> Any:
        if record.stream != stream:
            return process_record(record)
        calls.at_hand_us = user.wall_time
        return user.process_start()

    return process_or_start


def saying_causes(calls: Calls, process_record: Hook) -> Hook:
    """Return a hook that says of its productions which record they were made of."""

    def process_and_say(record: Record) -> Any:
        returned = process_record(record)
        calls.productions.caused_by(record.origin, record.sequence)
        return returned

    return process_and_say


def refuse_unrun(returned: Any, hook: str) -> None:
    """Refuse what a hook returned if that is code which has not run.

    Raises:
        PipelineError: It is a coroutine or a generator.
    """
    if returned is not None and (kind := unrun(returned)) is not None:
        raise PipelineError(
            f"{hook} returned {kind}, of which no code has run. Expected None: run it to its end "
            "in the hook, and call self.produce(stream, value) for each value."
        )


def codes_of(*hooks: Callable[..., None]) -> frozenset[CodeType]:
    """Return the code of hooks; one that is not a Python function, as if compiled, has none."""
    return frozenset(hook.__code__ for hook in hooks if hasattr(hook, "__code__"))
